"""Read this process's user namespace from /proc/self/uid_map, the only place that parses it.

Import budget: GPU container.
"""

from __future__ import annotations

import os

UID_MAP_PATH = "/proc/self/uid_map"
_UID_MAP_LIMIT = 1 << 16  # 340 rows at most, user_namespaces(7)
_IDENTITY_MAP = [(0, 0, 4294967295)]  # the initial user namespace's only row


def parse_uid_map(data: bytes) -> list[tuple[int, int, int]]:
    """Return the rows of a uid_map or gid_map: (first id inside, first id outside, count).

    Rows of another shape are left out.
    """
    rows: list[tuple[int, int, int]] = []
    for line in data.split(b"\n"):
        fields = line.split()
        if len(fields) == 3 and all(field.isdigit() and len(field) <= 10 for field in fields):
            rows.append((int(fields[0]), int(fields[1]), int(fields[2])))
    return rows


def is_identity_map(data: bytes) -> bool:
    """Tell whether a uid_map is the initial user namespace's: all ids mapped to themselves."""
    return parse_uid_map(data) == _IDENTITY_MAP


def read_uid_map() -> bytes | None:
    """Read this process's uid_map, or None where /proc does not show it."""
    try:
        fd = os.open(UID_MAP_PATH, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, _UID_MAP_LIMIT)
    except OSError:
        return None
    finally:
        os.close(fd)


def is_process_in_user_namespace(*, unknown: bool = False) -> bool:
    """Tell whether this process runs in a user namespace other than the initial one.

    Arguments:
        unknown: the answer where /proc does not show the uid_map.
    """
    data = read_uid_map()
    return unknown if data is None else not is_identity_map(data)


def map_uid_to_parent(uid: int) -> int | None:
    """Return the number that a user of this process's user namespace has in the parent, or None when it has none."""
    for inside, outside, count in parse_uid_map(read_uid_map() or b""):
        if inside <= uid < inside + count:
            return outside + uid - inside
    return None


def is_overflow_uid(uid: int) -> bool:
    """Tell whether a uid stands for "not mapped in this user namespace".

    The kernel shows unmapped owners as the overflow uid, /proc/sys/kernel/overflowuid (user_namespaces(7)).
    """
    if not is_process_in_user_namespace():
        return False
    try:
        with open("/proc/sys/kernel/overflowuid", "rb") as file:
            return uid == int(file.read(32))
    except (OSError, ValueError):
        return False


def has_uid(data: bytes, uid: int) -> bool:
    """Tell whether a user namespace has a user.

    Arguments:
        data: its uid_map, read in this process's user namespace.
        uid: the user's number in this process's user namespace.
    """
    return any(outside <= uid < outside + count for _, outside, count in parse_uid_map(data))
