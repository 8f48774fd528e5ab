"""The --target option: an engine and its version, or an engine whose installed version is read.

Import budget: cold.
"""

from __future__ import annotations

from typing import Any

import click

from gpu_oci_hook.cdi.spec.versions import HOOKLESS_CLIENTS, find_engine_max_version, load_engine_versions
from gpu_oci_hook.cli.printing import print_note
from gpu_oci_hook.cli.usage_errors import UsageFault
from gpu_oci_hook.engines.engine_program import find_engine_program, read_program_version
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.shim.low_level_runtime import STANDARD_DIRECTORIES

# The program of each engine that reads CDI files. docker's client has a version of its own, so the daemon is asked.
_PROGRAMS = {"docker": "dockerd", "containerd": "containerd", "crio": "crio", "podman": "podman"}


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
    path = find_engine_program(_PROGRAMS[engine])
    if not path:
        directories = ", ".join(STANDARD_DIRECTORIES)
        raise Fault(f"{_PROGRAMS[engine]} was not found in {directories}", where=f"--target {engine}", hint=hint)
    try:
        return path, read_program_version(path)
    except Fault as fault:
        problem = f"{fault.where} {fault.what}".lstrip()
        raise Fault(problem, where=f"--target {engine}", hint=hint) from fault
