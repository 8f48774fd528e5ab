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

from gpu_oci_hook.cdi import origin, output, recipe
from gpu_oci_hook.cdi.generate import Gone
from gpu_oci_hook.config import Config
from gpu_oci_hook.errors import Fault

if TYPE_CHECKING:
    from gpu_oci_hook.host.inventory import Memory

INTERVAL = 10.0
"""Seconds between two looks of the watch."""
_SHARE = 10  # a look may take this part of the time at most: NVML can take seconds to say nothing


@dataclass(frozen=True)
class Result:
    """What a refresh did.

    Attributes:
        done: "wrote", "unchanged", "made readable", "removed" or "nothing".
        text: what was done, in a sentence. warnings: sentences about the content.
        refused: one about the engines that cannot read the file at all; "" for none.
    """

    done: str
    text: str
    warnings: tuple[str, ...] = ()
    refused: str = ""


def refresh(path: str, wanted: recipe.Recipe, config: Config, memory: Memory, *, force: bool = False) -> Result:
    """Makes the file be what the machine is now.

    A machine without a driver or a GPU has no file: one of ours is removed, since what it names is gone, and engines
    then say that the device is not known, which is true. Another fault leaves the file as it is.

    Arguments:
        force: somebody else's file is replaced. Without it a file that we have not written stays.

    Raises:
        Fault: the file cannot be made or written, or is somebody else's.
    """
    owner = output.whose(path)
    try:
        made = recipe.make(wanted, config, memory)
    except Gone as gone:
        if owner == "ours" and output.remove(path):
            return Result("removed", f"removed {path}: {gone.what}")
        return Result("nothing", f"there is nothing to write: {gone.what}")
    if owner in ("cdi", "other") and not force:
        raise Fault(
            "this file was not written by gpu-oci-hook and stays as it is",
            where=path,
            cure="Choose another --output, or replace it with --force",
        )
    done = output.write(path, made.data)
    return Result(done, f"{done} {path}: {made.summary()}", made.warnings, made.refused)


def watch(
    look: Callable[[], Result],
    say: Callable[[str], None],
    *,
    interval: float = INTERVAL,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Refreshes for ever. A line for each change, and one for each trouble when it begins; SIGTERM ends it with 0.

    Lines begin as those of other commands do: warnings and errors say that they are.

    Arguments:
        look: one refresh. say: takes a line.
        interval: seconds between two looks; more where a look takes long.
    """
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, _end)
    warnings: tuple[str, ...] = ()
    trouble = ""
    while True:
        began = time.monotonic()
        before, trouble = trouble, ""
        try:
            result = look()
            if result.done == "nothing":
                trouble = result.text
            elif result.done != "unchanged":
                say(result.text)
            found = (*result.warnings, *([result.refused] if result.refused else []))
            for line in found:
                if line not in warnings:
                    say(f"warning: {line}")
            warnings = found
        except Exception as error:  # whatever it is, the next look may go well
            trouble = f"{origin.PROGRAM}: {_words(error)}"
        if trouble and trouble != before:
            say(trouble)
        wait(max(interval, _SHARE * (time.monotonic() - began)))


def _words(error: Exception) -> str:
    if isinstance(error, Fault):
        return str(error)
    if isinstance(error, OSError):
        from gpu_oci_hook.errors import words

        return f"{error.filename}: {words(error)}" if error.filename else words(error)
    return f"a mistake in gpu-oci-hook itself: {type(error).__name__}: {error}"


def _end(number: int, frame: object) -> None:
    raise SystemExit(0)
