"""Run another program with a time limit and bounded output, in a process group that ends with it.

A process that waits inside the driver cannot even be killed. `subprocess.run` would wait for it forever.

Import budget: cold.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

MAX_OUTPUT = 1 << 20  # bytes of stdout, and of stderr


def run_bounded_program(
    argv: Sequence[str], environment: Mapping[str, str], timeout: float
) -> tuple[int | None, bytes, bytes]:
    """Run a program until it ends or reaches a limit.

    Arguments:
        environment: the whole environment.
        timeout: seconds.

    Returns:
        (status, stdout, stderr). A negative status is the number of a signal. The status is None when the program and
        its children were killed, because they did not end in time or wrote more than MAX_OUTPUT.

    Raises:
        OSError: the program cannot be started.
    """
    process = subprocess.Popen(
        argv, env=environment, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + timeout
    stdout, stderr, complete = _collect_output(process, deadline)
    try:
        status = process.wait(max(0.0, deadline - time.monotonic())) if complete else None
    except subprocess.TimeoutExpired:
        status = None
    if status is None:
        _kill_process_group(process)
    return status, stdout, stderr


def _collect_output(process: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bytes, bool]:
    """Return stdout, stderr, and whether both ended before the deadline and within MAX_OUTPUT."""
    assert process.stdout is not None
    assert process.stderr is not None
    stdout_fd, stderr_fd = process.stdout.fileno(), process.stderr.fileno()
    output = {stdout_fd: b"", stderr_fd: b""}
    open_fds = set(output)
    while open_fds:
        ready_fds = select.select(list(open_fds), [], [], max(0.0, deadline - time.monotonic()))[0]
        if not ready_fds:
            break
        for fd in ready_fds:
            data = os.read(fd, 65536)
            output[fd] += data
            if not data:
                open_fds.discard(fd)
        if any(len(data) > MAX_OUTPUT for data in output.values()):
            break
    process.stdout.close()
    process.stderr.close()
    return output[stdout_fd], output[stderr_fd], not open_fds


def _kill_process_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the child and its children, and wait for the child for half a second."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        process.wait(0.5)
    except subprocess.TimeoutExpired:
        process.returncode = -signal.SIGKILL  # it waits inside the driver, and Popen must not wait for it
