"""Find the launcher of gpu-oci-runtime that `install` has written, for the configuration of an engine.

Import budget: cold.
"""

from __future__ import annotations

import os
import sys

from gpu_oci_hook.cli.usage_errors import UsageFault
from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.read_regular import read_regular_head
from gpu_oci_hook.formats.program_names import LAUNCHER_HEAD_SIZE, NVIDIA_RUNTIME, RUNTIME_PROGRAM, is_launcher
from gpu_oci_hook.shim.low_level_runtime import STANDARD_DIRECTORIES

_INSTALL = "Run gpu-oci-hook install first"


def find_runtime_launcher(given: str, name: str) -> str:
    """Return the absolute path of the launcher that an engine is to call.

    Arguments:
        given: the value of --runtime, "" to look beside this program and in the standard directories.
        name: of the runtime in the engine. For the name nvidia the alias nvidia-container-runtime is preferred, by
            which the devcontainer CLI recognises the runtime.

    Raises:
        Fault: there is none, or the given file is not one.
    """
    if given:
        if not given.startswith("/"):
            hint = "Engines look for other paths in their own PATH"
            raise UsageFault("not an absolute path", where=f"--runtime {given}", hint=hint)
        _check_launcher(given, f"--runtime {given}")
        return given
    own_directory = os.path.dirname(os.path.abspath(sys.argv[0]))
    for directory in (own_directory, *STANDARD_DIRECTORIES):
        path = f"{directory}/{RUNTIME_PROGRAM}"
        if not _is_launcher(path):
            continue
        alias = f"{directory}/{NVIDIA_RUNTIME}"
        return alias if name == "nvidia" and _is_launcher(alias) else path
    where = ", ".join(STANDARD_DIRECTORIES)
    raise Fault(f"gpu-oci-runtime is not installed: there is no launcher in {where}", hint=_INSTALL)


def is_usable_launcher(path: str) -> bool:
    """Tell whether an engine can call the launcher at a path."""
    return _is_launcher(path) and os.access(path, os.X_OK)


def _is_launcher(path: str) -> bool:
    try:
        _check_launcher(path, path)
    except Fault:
        return False
    return True


def _check_launcher(path: str, where: str) -> None:
    try:
        head = read_regular_head(path, LAUNCHER_HEAD_SIZE)
    except (OSError, ValueError) as error:
        raise Fault(f"cannot be used: {describe_os_error(error)}", where=where, hint=_INSTALL) from None
    if not is_launcher(head):
        raise Fault("not a launcher that gpu-oci-hook install has written", where=where, hint=_INSTALL)
