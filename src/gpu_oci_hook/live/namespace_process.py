"""Run a function in a container's mount namespace: in a child process, with a deadline.

A process cannot come back from a namespace in every case, and may hang on a file system of the container. So a child
process with one thread enters it. The parent gets its result or its failure, or kills it at the deadline.

Import budget: cold.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` loads enum
import os
import select
import time

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.formats.fastjson import dump_json, parse_json
from gpu_oci_hook.live.mount_api import CLONE_NEWNS, end_with_parent, set_namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE = 30.0  # seconds
_RESULT_LIMIT = 16 << 20


def run_in_mount_namespace(pid: int, function: Callable[[], object], *, deadline: float = DEADLINE) -> object:
    """Call a function in the mount namespace of a process, and return its JSON-able result.

    The process must still have the host's root, as a container's has before its low-level runtime changes it: modules
    are imported from there.

    Arguments:
        pid: of the process, as this process sees it.
        deadline: seconds after which the child process is killed.

    Raises:
        Fault: the namespace cannot be entered or is this process's own, the function raised a Fault, or it took
            longer than the deadline.
    """
    namespace_fd = open_mount_namespace(pid)

    def enter_and_call() -> object:
        root = os.stat("/")
        set_namespace(namespace_fd, CLONE_NEWNS)
        if not os.path.samestat(root, os.stat("/")):
            raise Fault("the container has changed its root already", hint="Call this hook at the stage prestart")
        return function()

    try:
        return run_with_deadline(enter_and_call, deadline=deadline)
    finally:
        os.close(namespace_fd)


def open_mount_namespace(pid: int) -> int:
    """Return a descriptor of a process's mount namespace.

    Raises:
        Fault: there is no such process, or the namespace is this process's own.
    """
    where = f"/proc/{pid}/ns/mnt"
    try:
        namespace_fd = os.open(where, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise Fault(f"cannot find the container's mounts: {describe_os_error(error)}", where=where) from None
    if os.path.samestat(os.fstat(namespace_fd), os.stat("/proc/self/ns/mnt")):
        os.close(namespace_fd)
        raise Fault("the container has no mount namespace of its own, so the host would be changed", where=where)
    return namespace_fd


def run_with_deadline(function: Callable[[], object], *, deadline: float = DEADLINE) -> object:
    """Call a function in a child process, which has one thread, and return its JSON-able result.

    Raises:
        Fault: the function raised a Fault, or it took longer than the deadline.
    """
    read_end, write_end = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        end_with_parent(parent)
        _run_child(write_end, function)
    os.close(write_end)
    try:
        data, is_complete = _read_result(read_end, time.monotonic() + deadline)
    finally:
        os.close(read_end)
        _end_child(child)
    if not is_complete:
        raise Fault(f"the container's file system did not answer for {deadline:g} seconds; nothing more was done")
    return _parse_result(data)


def _read_result(read_end: int, end: float) -> tuple[bytes, bool]:
    """Read what the child writes until it ends or the time is over; return it, and whether the child has ended."""
    data = b""
    poll = select.poll()  # unlike select(2) for descriptors above 1023, too
    poll.register(read_end, select.POLLIN)
    while (remaining := end - time.monotonic()) > 0:
        if not poll.poll(remaining * 1000):
            break
        chunk = os.read(read_end, 65536)
        if not chunk:
            return data, True
        data += chunk
        if len(data) > _RESULT_LIMIT:
            break
    return data, False


def _end_child(child: int) -> None:
    """Kill the child if it still runs. One that a dead file system holds in the kernel is left to init."""
    pause = 0.0002  # a child that has written its result needs about that long to end
    while pause < 1:
        if os.waitpid(child, os.WNOHANG)[0] == child:
            return
        os.kill(child, _signal.SIGKILL)
        time.sleep(pause)
        pause *= 1.5


def _parse_result(data: bytes) -> object:
    """Return the function's result.

    Raises:
        Fault: the function raised it, or the child was killed.
    """
    try:
        result = parse_json(data)
    except Fault:
        raise Fault("the process that changes the container was killed") from None
    if not isinstance(result, dict):
        raise Fault("the process that changes the container wrote something else than its result")
    if "fault" in result:
        what, where, hint = result["fault"]
        raise Fault(what, where=where, hint=hint)
    return result["result"]


def _run_child(write_end: int, function: Callable[[], object]) -> None:
    """Call the function, write its result and end; never return."""
    status = 1
    try:
        result: dict[str, object] = {"result": function()}
        status = 0
    except Fault as fault:
        result = {"fault": [fault.what, fault.where, fault.hint]}
    except Exception as error:
        result = {"fault": [f"{type(error).__name__}: {error}", "", ""]}
    try:
        with os.fdopen(write_end, "wb") as file:
            file.write(dump_json(result))
    finally:
        os._exit(status)
