"""The options that name a container that runs, for commands that change it.

Import budget: cold.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from gpu_oci_hook.cli.usage_errors import UsageFault
from gpu_oci_hook.live.find_container import (
    REFERENCE_FORMS,
    find_container,
    find_container_by_bare_name,
    find_container_of_process,
    is_container_reference,
)
from gpu_oci_hook.live.found_container import FoundContainer


def running_target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument CONTAINER and --pid; the command gets the parameters `container` and `pid`."""

    @click.argument("container", metavar="[CONTAINER]", default="")
    @click.option("--pid", metavar="PID", type=click.IntRange(min=1), default=None, help="A process of the container.")
    @functools.wraps(command)
    def wrapped(*args: Any, container: str, pid: int | None, **rest: Any) -> Any:
        return command(*args, container=container, pid=pid or 0, **rest)

    return wrapped


def find_running_container(container: str, pid: int) -> FoundContainer:
    """Return the container that the command line names.

    Raises:
        UsageFault: it names none, or two.
        Fault: there is no such container.
    """
    if container and pid:
        raise UsageFault("CONTAINER and --pid name different containers", hint="Give one of them")
    if pid:
        return find_container_of_process(pid)
    if not container:
        raise UsageFault("no container is named", hint=f"Write {REFERENCE_FORMS}, a name, or --pid PID")
    return find_container(container) if is_container_reference(container) else find_container_by_bare_name(container)
