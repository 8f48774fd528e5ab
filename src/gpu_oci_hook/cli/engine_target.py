"""The --target option: an engine and its version, or an engine whose installed version is read.

Import budget: cold.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import click

from gpu_oci_hook.cdi.spec.versions import HOOKLESS_CLIENTS, find_engine_max_version, load_engine_versions
from gpu_oci_hook.cli.printing import print_note
from gpu_oci_hook.cli.usage_errors import UsageFault
from gpu_oci_hook.errors import Fault, clip_text, describe_os_error
from gpu_oci_hook.files.trust import describe_foreign_access
from gpu_oci_hook.shim.low_level_runtime import STANDARD_DIRECTORIES

# The program of each engine that reads CDI files. docker's client has a version of its own, so the daemon is asked.
_PROGRAMS = {"docker": "dockerd", "containerd": "containerd", "crio": "crio", "podman": "podman"}
_TIME_LIMIT = 5.0


class EngineTarget(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """An engine with a version (podman-4.3), or alone: then the version of the installed one is added."""

    name = "engine"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """See `click.ParamType`."""
        if not value:
            raise UsageFault("must not be empty", where="--target")
        engine = str(value).lower().replace("cri-o", "crio", 1)
        if engine in HOOKLESS_CLIENTS:
            return engine
        if engine not in load_engine_versions():
            return str(value)
        path, version = read_installed_version(engine)
        print_note(f"--target {value}: {engine} {version} is installed here (from {path} --version)")
        target = f"{engine}-{version}"
        try:
            find_engine_max_version(target)
        except Fault as fault:  # not a usage fault: on another host this command line is right
            raise Fault(fault.what, where=f"--target {value}", hint=fault.hint) from fault
        return target


def read_installed_version(engine: str) -> tuple[str, str]:
    """Return the program of an installed engine, and the version that it prints.

    Raises:
        Fault: it is not installed, could have been written by another user, or prints no version in time.
    """
    hint = f"Name the version as well, such as --target {engine}-{next(iter(load_engine_versions()[engine]))}"
    program = _PROGRAMS[engine]
    path = next(
        (path for path in (f"{directory}/{program}" for directory in STANDARD_DIRECTORIES) if _is_program(path)), ""
    )
    if not path:
        where = ", ".join(STANDARD_DIRECTORIES)
        raise Fault(f"{program} was not found in {where}", where=f"--target {engine}", hint=hint)
    real = Path(path).resolve()
    for part in (real, *real.parents):
        access = describe_foreign_access(
            part.stat(), every_user=True, root_group=part != real, sticky_parent=part != real
        )
        if access:
            raise Fault(f"{part} {access}, so {path} is not run", where=f"--target {engine}", hint=hint)
    try:
        run = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIME_LIMIT,
            env={"PATH": ":".join(STANDARD_DIRECTORIES), "LC_ALL": "C", "HOME": "/"},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        problem = f"{path} --version did not end within {_TIME_LIMIT:g} seconds"
        raise Fault(problem, where=f"--target {engine}", hint=hint) from error
    except OSError as error:
        problem = f"{path} cannot be run: {describe_os_error(error)}"
        raise Fault(problem, where=f"--target {engine}", hint=hint) from error
    # docker: "Docker version 20.10.24+dfsg1, build ...", containerd: "containerd github.com/.../v2 v2.0.0 ..."
    version = re.search(r"(?<![\w.])v?(\d{1,4}(?:\.\d{1,4}){1,2})", run.stdout)
    if version is None:
        reason = clip_text(run.stderr.strip().rpartition("\n")[2])
        problem = f"{path} --version prints no version" + (f": {reason}" if reason else "")
        raise Fault(problem, where=f"--target {engine}", hint=hint)
    return path, version[1]


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)
