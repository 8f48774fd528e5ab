"""Ask what another user's processes and files say about containers: with a deadline, and without believing it all.

A user can have as many processes as he likes that look like monitors, and files as large as he likes, also in a FUSE
file system that never answers. So a child process looks at them, and of a user for whom its time or memory is not
enough, nothing counts.

Import budget: cold.
"""

from __future__ import annotations

import fcntl
import os
import resource
import struct
from collections.abc import Callable, Iterable
from typing import cast

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.live.namespace_process import run_with_deadline

DEADLINE = 5.0  # seconds for each user
_MEMORY_LIMIT = 256 << 20  # bytes of data, with those that this process has already
_NS_GET_OWNER_UID = 0xB704  # ioctl_ns(2)


def collect_user_claims(uid: int, function: Callable[[], Iterable[object]]) -> list[list[object]]:
    """Return the rows that a function finds among the processes and files of a user; none if that takes too long.

    Arguments:
        uid: the user. What is root's or this process's own user's is looked at in this process.
        function: returns tuples of JSON-able data.
    """
    if uid in (0, os.geteuid()):
        return cast("list[list[object]]", list(function()))

    def collect() -> list[object]:
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_LIMIT, _MEMORY_LIMIT))
        return list(function())

    try:
        rows = run_with_deadline(collect, deadline=DEADLINE)
    except Fault:
        return []
    return cast("list[list[object]]", rows)


def is_container_process_of(pid: int, uid: int, proc: str) -> bool:
    """Tell whether a process is in a user namespace that a user has made, as each process of his containers is.

    Arguments:
        proc: where /proc is.
    """
    try:
        namespace_fd = os.open(f"{proc}/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if os.path.samestat(os.fstat(namespace_fd), os.stat("/proc/self/ns/user")):
            return False
        answer = fcntl.ioctl(namespace_fd, _NS_GET_OWNER_UID, struct.pack("=I", 0))
        return bool(struct.unpack("=I", answer)[0] == uid)
    except OSError:
        return False
    finally:
        os.close(namespace_fd)
