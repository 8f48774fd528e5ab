"""A CDI file kept like the machine: written when something has changed, removed when there is no driver any more.

What has changed is found out by making the file's bytes again and comparing them: nothing that the file depends on
can be forgotten that way, and with the driver's files remembered it takes a few milliseconds. So a driver's upgrade,
a GPU that came or went, MIG devices, modules loaded late, changed owners of nodes and a changed configuration are all
noticed alike. /proc has no inotify, so the watch looks again and again. Cost rule: cold.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.program_names import HOOK_PROGRAM
from gpu_oci_hook.generate.generate import NoDriverError, SpecRecipe, build_spec
from gpu_oci_hook.generate.spec_writer import classify_existing_file, remove_spec_file, write_spec_file

if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import Cache

DEFAULT_INTERVAL = 10.0
"""Seconds between two looks of the watch."""
_IDLE_FACTOR = 10  # a look may take this part of the time at most: NVML can take seconds to say nothing


@dataclass(frozen=True)
class RefreshResult:
    """What a refresh did.

    Attributes:
        action: "wrote", "unchanged", "made readable", "removed" or "nothing".
        message: what was done, in a sentence. warnings: sentences about the content.
        unreadable_warning: one about the engines that cannot read the file at all; "" for none.
    """

    action: str
    message: str
    warnings: tuple[str, ...] = ()
    unreadable_warning: str = ""


def refresh_spec_file(
    path: str, spec_recipe: SpecRecipe, config: Config, cache: Cache, *, force: bool = False
) -> RefreshResult:
    """Makes the file be what the machine is now.

    A machine without a driver or a GPU has no file: one of ours is removed, since what it names is gone, and engines
    then say that the device is not known, which is true. Another fault leaves the file as it is.

    Arguments:
        force: somebody else's file is replaced. Without it a file that we have not written stays.

    Raises:
        Fault: the file cannot be made or written, or is somebody else's.
    """
    owner = classify_existing_file(path)
    try:
        made = build_spec(spec_recipe, config, cache)
    except NoDriverError as gone:
        if owner == "ours" and remove_spec_file(path):
            return RefreshResult("removed", f"removed {path}: {gone.what}")
        return RefreshResult("nothing", f"there is nothing to write: {gone.what}")
    if owner in ("cdi", "other") and not force:
        raise Fault(
            "this file was not written by gpu-oci-hook and stays as it is",
            where=path,
            hint="Choose another --output, or replace it with --force",
        )
    done = write_spec_file(path, made.data)
    return RefreshResult(done, f"{done} {path}: {made.summarise()}", made.warnings, made.unreadable_warning)


def watch_spec_file(
    refresh_once: Callable[[], RefreshResult],
    print_line: Callable[[str], None],
    *,
    interval: float = DEFAULT_INTERVAL,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Refreshes for ever. A line for each change, and one for each trouble when it begins; SIGTERM ends it with 0.

    Lines begin as those of other commands do: warnings and errors say that they are.

    Arguments:
        refresh_once: one refresh. print_line: takes a line.
        interval: seconds between two looks; more where a look takes long.
    """
    signal.signal(signal.SIGTERM, _exit_on_signal)
    signal.signal(signal.SIGINT, _exit_on_signal)
    warnings: tuple[str, ...] = ()
    trouble = ""
    while True:
        began = time.monotonic()
        before, trouble = trouble, ""
        try:
            result = refresh_once()
            if result.action == "nothing":
                trouble = result.message
            elif result.action != "unchanged":
                print_line(result.message)
            found = (*result.warnings, *([result.unreadable_warning] if result.unreadable_warning else []))
            for line in found:
                if line not in warnings:
                    print_line(f"warning: {line}")
            warnings = found
        except Exception as error:  # whatever it is, the next look may go well
            trouble = f"{HOOK_PROGRAM}: {_describe_error(error)}"
        if trouble and trouble != before:
            print_line(trouble)
        sleep(max(interval, _IDLE_FACTOR * (time.monotonic() - began)))


def _describe_error(error: Exception) -> str:
    if isinstance(error, Fault):
        return str(error)
    if isinstance(error, OSError):
        from gpu_oci_hook.errors import describe_os_error

        return f"{error.filename}: {describe_os_error(error)}" if error.filename else describe_os_error(error)
    return f"a mistake in gpu-oci-hook itself: {type(error).__name__}: {error}"


def _exit_on_signal(number: int, frame: object) -> None:
    raise SystemExit(0)
