"""What an engine is to have: our runtime under a name, and whether it is the default.

Import budget: cold.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.program_names import NVIDIA_RUNTIME, RUNTIME_PROGRAM, get_program_name

DEFAULT_NAME = "gpu-oci"
# The handler of a RuntimeClass is a DNS label; docker and containerd take every such name.
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_RESERVED_NAMES = ("runc", "crun")


@dataclass(frozen=True)
class WantedRuntime:
    """Our runtime in an engine's configuration.

    Arguments:
        name: of the runtime in the engine.
        program: absolute path of the launcher.
        default: whether containers use it that name no runtime.
    """

    name: str
    program: str
    default: bool = False


def check_runtime_name(name: str) -> None:
    """Accept the name of a runtime, or explain why not.

    Raises:
        Fault: the name is reserved, or cannot be the handler of a RuntimeClass.
    """
    if name in _RESERVED_NAMES:
        raise Fault("the engine has a runtime of this name already", where=f"--name {name}", hint="Choose another name")
    if not _NAME.fullmatch(name):
        hint = "Use lower-case letters, digits and hyphens, such as gpu-oci"
        raise Fault("not a name that every engine takes", where=f"--name {name}", hint=hint)


def is_gpu_runtime_program(path: object) -> bool:
    """Tell whether a path in an engine's configuration is our runtime or NVIDIA's, which ours replaces."""
    program = get_program_name(path)
    return program in (RUNTIME_PROGRAM, NVIDIA_RUNTIME) or program.startswith(f"{NVIDIA_RUNTIME}.")


def is_own_program(path: object) -> bool:
    """Tell whether a path in an engine's configuration is our runtime under its own name."""
    return get_program_name(path) == RUNTIME_PROGRAM
