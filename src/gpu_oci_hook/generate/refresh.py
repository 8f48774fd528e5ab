"""Keep a CDI file up to date: write it when the host has changed, remove it when the driver is gone.

A change is found by building the file again and comparing the bytes. That covers everything that the file depends on:
a driver upgrade, added or removed GPUs, MIG devices, modules loaded late, changed owners of nodes, a changed
configuration. With cached driver files it takes a few milliseconds. /proc does not support inotify, so the watch polls.

Import budget: cold.
"""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.program_names import HOOK_PROGRAM
from gpu_oci_hook.generate.host_facts import NoDriverError
from gpu_oci_hook.generate.recipe import SpecRecipe, build_spec
from gpu_oci_hook.generate.spec_writer import WriteAction, classify_existing_file, remove_spec_file, write_spec_file
from gpu_oci_hook.inject.device_links import find_missing_links, make_device_links
from gpu_oci_hook.model.edits import Plan

if TYPE_CHECKING:
    from gpu_oci_hook.generate.content import ContainerEdits
    from gpu_oci_hook.inject.device_links import DeviceNumbers
    from gpu_oci_hook.model.machine import Cache

DEFAULT_INTERVAL = 10.0
"""Seconds between two checks of the watch."""
_IDLE_FACTOR = 10  # the watch sleeps this many times as long as a check took: NVML can take seconds to fail


@dataclass(frozen=True)
class RefreshResult:
    """The result of a refresh.

    Attributes:
        action: what was done.
        message: the same in a sentence.
        warnings: sentences about the content.
        unreadable_warning: sentence about the engines that cannot read the file; "" for none.
    """

    action: WriteAction | Literal["removed", "nothing"]
    message: str
    warnings: tuple[str, ...] = ()
    unreadable_warning: str = ""


def refresh_spec_file(
    path: str, spec_recipe: SpecRecipe, config: Config, cache: Cache, *, force: bool = False
) -> RefreshResult:
    """Update a file to the current state of the host.

    Without a driver or a GPU, a file that we wrote is removed: engines then report an unknown device, which is true.
    After any other fault the file stays as it is.

    Arguments:
        force: replace a file that we did not write.

    Raises:
        Fault: the file cannot be built or written, or we did not write it.
    """
    owner = classify_existing_file(path)
    try:
        built = build_spec(spec_recipe, config, cache)
    except NoDriverError as error:
        if owner == "ours" and remove_spec_file(path):
            return RefreshResult("removed", f"removed {path}: {error.what}")
        return RefreshResult("nothing", f"nothing to write: {error.what}")
    if owner in ("cdi", "other") and not force:
        raise Fault(
            "was not written by gpu-oci-hook and is left unchanged",
            where=path,
            hint="Choose another --output, or replace it with --force",
        )
    action = write_spec_file(path, built.data)
    warnings = (*built.warnings, *_link_devices(built.spec, config))
    return RefreshResult(action, f"{action} {path}: {built.summarise_spec()}", warnings, built.unreadable_warning)


def _link_devices(spec: ContainerEdits, config: Config) -> list[str]:
    """Make the links in /dev/char that systemd needs of the file's nodes; return a sentence for each failure.

    A start through a CDI file has no process of ours before runc tells systemd about the devices.
    """
    if config.root != "/" or os.geteuid() != 0:
        return []
    plan = Plan()
    plan.edits, plan.warnings = find_missing_links(_iterate_devices(spec))
    make_device_links(plan)
    return plan.warnings


def _iterate_devices(spec: ContainerEdits) -> Iterator[DeviceNumbers]:
    for edits in (spec.get("containerEdits", {}), *(device["containerEdits"] for device in spec["devices"])):
        for node in edits.get("deviceNodes", ()):
            path = node.get("hostPath") or node["path"]
            try:
                status = os.stat(path)
            except OSError:
                continue  # it has just gone
            if stat.S_ISCHR(status.st_mode):
                yield "c", os.major(status.st_rdev), os.minor(status.st_rdev), path


def watch_spec_file(
    refresh_once: Callable[[], RefreshResult],
    print_line: Callable[[str], None],
    *,
    interval: float = DEFAULT_INTERVAL,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Refresh repeatedly until terminated; SIGTERM exits with status 0.

    Prints a line for each change, and one for each problem when it begins. Warnings and errors start as in other
    commands.

    Arguments:
        refresh_once: does one refresh.
        print_line: prints a line.
        interval: seconds between two checks; more if a check takes long.
    """
    signal.signal(signal.SIGTERM, _exit_on_signal)
    signal.signal(signal.SIGINT, _exit_on_signal)
    warnings: tuple[str, ...] = ()
    problem = ""
    while True:
        started = time.monotonic()
        previous_problem, problem = problem, ""
        try:
            result = refresh_once()
            if result.action == "nothing":
                problem = result.message
            elif result.action != "unchanged":
                print_line(result.message)
            new_warnings = (*result.warnings, *([result.unreadable_warning] if result.unreadable_warning else []))
            for line in new_warnings:
                if line not in warnings:
                    print_line(f"warning: {line}")
            warnings = new_warnings
        except Exception as error:  # the next check may succeed
            problem = f"{HOOK_PROGRAM}: {_describe_error(error)}"
        if problem and problem != previous_problem:
            print_line(problem)
        sleep(max(interval, _IDLE_FACTOR * (time.monotonic() - started)))


def _describe_error(error: Exception) -> str:
    if isinstance(error, Fault):
        return str(error)
    if isinstance(error, OSError):
        from gpu_oci_hook.errors import describe_os_error

        return f"{error.filename}: {describe_os_error(error)}" if error.filename else describe_os_error(error)
    return f"internal error: {type(error).__name__}: {error}"


def _exit_on_signal(number: int, frame: object) -> None:
    raise SystemExit(0)
