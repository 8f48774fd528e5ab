"""Other programs, run for us: within a time, with bounded output, and in a process group that ends with them.

What waits in a driver cannot even be killed, and must not hold us: `subprocess.run` would wait for it. Cost rule: cold.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

MAX_OUTPUT = 1 << 20  # bytes of one output


def run_bounded_program(
    argv: Sequence[str], environment: Mapping[str, str], timeout: float
) -> tuple[int | None, bytes, bytes]:
    """Runs a program to its end or to the limit's.

    Arguments:
        environment: all of it. timeout: seconds.

    Returns:
        (status, stdout, stderr): a negative status is a signal's; None when the program and what it started were
        killed, since they did not end in time or one output grew beyond MOST.

    Raises:
        OSError: it cannot be started.
    """
    process = subprocess.Popen(
        argv, env=environment, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    end = time.monotonic() + timeout
    out, err, whole = _collect_output(process, end)
    try:
        status = process.wait(max(0.0, end - time.monotonic())) if whole else None
    except subprocess.TimeoutExpired:
        status = None
    if status is None:
        _kill_process_group(process)
    return status, out, err


def _collect_output(process: subprocess.Popen[bytes], end: float) -> tuple[bytes, bytes, bool]:
    """The child's two outputs, and whether both came to their end in time and in measure."""
    assert process.stdout is not None
    assert process.stderr is not None
    found = {process.stdout.fileno(): b"", process.stderr.fileno(): b""}
    first, second = found
    left = set(found)
    while left:
        ready = select.select(list(left), [], [], max(0.0, end - time.monotonic()))[0]
        if not ready:
            break
        for fd in ready:
            data = os.read(fd, 65536)
            found[fd] += data
            if not data:
                left.discard(fd)
        if any(len(text) > MAX_OUTPUT for text in found.values()):
            break
    process.stdout.close()
    process.stderr.close()
    return found[first], found[second], not left


def _kill_process_group(process: subprocess.Popen[bytes]) -> None:
    """Kills the child and what it started, and waits for it as long as makes sense."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        process.wait(0.5)
    except subprocess.TimeoutExpired:
        process.returncode = -signal.SIGKILL  # it waits in the driver; nobody shall wait for it
