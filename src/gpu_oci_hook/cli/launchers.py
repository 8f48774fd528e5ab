"""Render the launchers that engines call: the Python interpreter, the import paths and the templates.

A launcher names its interpreter by absolute path and starts it with -I (ignore environment, current directory and user
site), -S (no site directories, which is also half of the start-up time) and -X utf8 (engines set no locale, and
looking for one costs a millisecond). Without site directories, the launcher must itself name the directories of our
package and of the libraries of the command line.

Import budget: cold.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.program_names import (
    HOOK_PROGRAM,
    NVIDIA_CDI_HOOK,
    NVIDIA_CONTAINER_CLI,
    NVIDIA_PRESTART_HOOK,
    NVIDIA_RUNTIME,
    RUNTIME_PROGRAM,
)

LAUNCHER_NAMES = (RUNTIME_PROGRAM, HOOK_PROGRAM)
PYTHON_LAUNCHER_DIRECTORY = "libexec/gpu-oci-hook"
"""Where below the prefix the Python launcher is that the compiled one starts."""
ALIASES = {
    NVIDIA_RUNTIME: RUNTIME_PROGRAM,
    NVIDIA_PRESTART_HOOK: HOOK_PROGRAM,
    NVIDIA_CDI_HOOK: HOOK_PROGRAM,
    NVIDIA_CONTAINER_CLI: HOOK_PROGRAM,
}

# Kernels before 5.1 cut a script's first line after 127 characters (BINPRM_BUF_SIZE in binfmts.h).
_SHEBANG_LIMIT = 127
_DEPENDENCIES = ("click", "jeepney", "structlog", "nvidia-ml-py", "PyYAML", "jsonschema", "tomlkit")


def find_interpreter() -> str:
    """Return the real Python interpreter of this process, not the link in a virtual environment.

    Raises:
        Fault: the interpreter is unknown, or its path does not fit into a script's first line.
    """
    base = getattr(sys, "_base_executable", None) or sys.executable
    if not base or not os.path.isabs(base):
        raise Fault(
            "this process does not know the absolute path of its Python interpreter",
            hint="Call the interpreter by its absolute path",
        )
    path = os.path.realpath(base)
    if not os.access(path, os.X_OK):
        raise Fault("the Python interpreter is missing or not executable", where=path)
    if any(character.isspace() for character in path):
        raise Fault("the path of the Python interpreter contains a blank, which no script can start with", where=path)
    if len(os.fsencode(f"#!{path} -ISXutf8")) > _SHEBANG_LIMIT:
        raise Fault(
            f"the path of the Python interpreter is too long for a script's first line ({_SHEBANG_LIMIT} characters)",
            where=path,
            hint="Install with a Python interpreter that has a shorter path",
        )
    return path


def find_import_paths(package: Path) -> list[str]:
    """List the directories that a launcher adds to sys.path: our package's parent, then those of its dependencies."""
    paths = [str(package.parent)]
    pending = list(_DEPENDENCIES)
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        directory = str(Path(str(distribution.locate_file(""))).resolve())
        if directory not in paths:
            paths.append(directory)
        # Requirements of extras and of other platforms are listed too; they are usually not installed.
        pending += [_parse_requirement_name(requirement) for requirement in distribution.requires or []]
    return paths


def _parse_requirement_name(requirement: str) -> str:
    """Return the name in a requirement such as "rpds-py>=0.7.1; extra == 'x'"."""
    end = next((index for index, char in enumerate(requirement) if not (char.isalnum() or char in "-_.")), None)
    return requirement[:end]


def render_launcher(name: str, python: str, paths: list[str]) -> bytes:
    """Render a launcher from the template of its name."""
    template = resources.files("gpu_oci_hook").joinpath("launchers", f"{name}.in").read_text(encoding="utf-8")
    # ascii() is valid in a source file whatever the locale and the bytes of the path.
    text = template.replace("@PACKAGE@", ascii(paths[0])).replace("@LIBRARIES@", ascii(paths[1:]))
    return text.replace("@PYTHON@", python).encode("utf-8", "surrogateescape")


def check_interpreter(python: str, paths: list[str]) -> None:
    """Start the interpreter as a launcher does, before an engine does it.

    Raises:
        Fault: it cannot load the shim.
    """
    code = f"import sys; sys.path += {paths!a}; import gpu_oci_hook.shim.main"
    run = subprocess.run([python, "-ISc", code], capture_output=True, text=True, errors="replace", check=False)
    if run.returncode:
        reason = (run.stderr.strip() or f"exit status {run.returncode}").rsplit("\n", 1)[-1]
        raise Fault(f"this Python cannot run gpu-oci-runtime outside its environment: {reason}", where=python)
