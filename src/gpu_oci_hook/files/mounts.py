"""Read and change mounts by descriptor: find a directory's mount, bind-mount a file, clone a mount.

mount(2) gets paths below /proc/self/fd, so that the kernel does not walk the original path again. Kernels before 5.2
have no newer interface for that.

Import budget: hook.
"""

from __future__ import annotations

import os
import sys

from gpu_oci_hook.files.directory import PATH_FLAGS, make_os_error, read_mount_id
from gpu_oci_hook.files.read_regular import PROC_SELF_FD, UnusableFileError, read_regular_file

# linux/mount.h
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT = 1, 2, 4, 8, 32
_NOATIME, _NODIRATIME, _BIND, _RELATIME = 1024, 2048, 4096, 1 << 21
# System call numbers, the same on every architecture since Linux 5.0.
_OPEN_TREE, _MOUNT_SETATTR = 428, 442
_AT_EMPTY_PATH, _MOUNT_ATTR_RDONLY = 0x1000, 1
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_OPEN_TREE_FLAGS = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_EMPTY_PATH
# The bits of statvfs(3) for the same flags.
_STATVFS_FLAGS = _RDONLY | _NOSUID | _NODEV | _NOEXEC | _NOATIME | _NODIRATIME
_ST_RELATIME = 4096
MOUNTINFO_LIMIT = 32 << 20  # a node with ten thousand mounts has 2 MiB of them


class MountInfo:
    """A mount.

    Attributes:
        filesystem_type: such as "proc".
        parent_id: the kernel's number of the mount that it is mounted on.
        shared: whether it has peers, which see changes in it.
        peer_group: the kernel's number of its peers; b"" without any.
        read_only: whether the mount is read-only.
    """

    __slots__ = ("filesystem_type", "parent_id", "peer_group", "read_only", "shared")

    def __init__(self, filesystem_type: str, parent_id: bytes, *, peer_group: bytes, read_only: bool) -> None:
        self.filesystem_type = filesystem_type
        self.parent_id = parent_id
        self.peer_group = peer_group
        self.shared = bool(peer_group)
        self.read_only = read_only


def read_mount_of_fd(fd: int) -> MountInfo | None:
    """Return the mount of a descriptor, or None where /proc does not show it."""
    return read_mount_info(read_mount_id(fd))


def read_mount_info(mount_id: bytes) -> MountInfo | None:
    """Return the mount with the kernel's number, or None where /proc does not show it.

    It is read from /proc/self/mountinfo (proc(5)), which an image cannot influence.
    """
    try:
        table = read_regular_file("/proc/self/mountinfo", MOUNTINFO_LIMIT)
    except (OSError, UnusableFileError):
        return None
    return find_mount_info(table, mount_id)


def find_mount_info(table: bytes, mount_id: bytes) -> MountInfo | None:
    """Return the mount with the kernel's number from the content of a mountinfo file, or None if it is not there."""
    for line in table.split(b"\n"):
        if mount_id and line.startswith(mount_id + b" "):
            left, _, right = line.partition(b" - ")
            fields = left.split(b" ")
            kind = right.split(b" ", 1)[0].decode("latin-1")
            group = left.partition(b" shared:")[2].partition(b" ")[0]
            return MountInfo(kind, fields[1], peer_group=group, read_only=b"ro" in fields[5].split(b","))
    return None


def list_receiving_groups(table: bytes) -> set[bytes]:
    """Return the numbers of the peer groups whose mounts appear in the namespace of a mountinfo file, too.

    These are the groups of its own mounts, and those that its mounts are slaves of: mount_namespaces(7).
    """
    groups: set[bytes] = set()
    for line in table.split(b"\n"):
        left = line.partition(b" - ")[0]
        for tag in (b" shared:", b" master:", b" propagate_from:"):
            group = left.partition(tag)[2].partition(b" ")[0]
            if group:
                groups.add(group)
    return groups


def list_mount_points() -> list[str]:
    """Return the paths of all mounts in this process's mount namespace; none where /proc does not show them."""
    try:
        table = read_regular_file("/proc/self/mountinfo", MOUNTINFO_LIMIT)
    except (OSError, UnusableFileError):
        return []
    points = []
    for line in table.split(b"\n"):
        fields = line.split(b" ", 5)
        if len(fields) == 6:
            points.append(unescape_mount_path(fields[4]))
    return points


def unescape_mount_path(field: bytes) -> str:
    """Return a path of a mountinfo file, in which blanks and backslashes are octal numbers (proc(5))."""
    path = os.fsdecode(field)
    for code, character in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        path = path.replace(code, character)
    return path


def bind_file_over(source: str, directory_fd: int, name: str, *, read_only: bool = True) -> None:
    """Bind-mount a file or directory over an entry of a directory, without set-uid, devices and programs.

    Arguments:
        source: the path on the host.
        directory_fd: a descriptor of the directory. What another process exchanges meanwhile can get the mount or its
            flags, in the container's mount namespace only.
        name: of the entry.
        read_only: make the mount read-only, where the kernel permits it.

    Raises:
        OSError: the kernel refuses.
    """
    fd = os.open(name, PATH_FLAGS, dir_fd=directory_fd)
    try:
        _call_mount(source, f"{PROC_SELF_FD}/{fd}", _BIND)
    finally:
        os.close(fd)
    fd = os.open(name, PATH_FLAGS, dir_fd=directory_fd)  # the new mount
    try:
        flags = os.fstatvfs(fd).f_flag
        # In a user namespace the kernel refuses a remount that drops flags of the mount.
        kept_flags = flags & _STATVFS_FLAGS | (_RELATIME if flags & _ST_RELATIME else 0)
        flags = _NOSUID | _NODEV | _NOEXEC | (_RDONLY if read_only else 0)
        _call_mount("", f"{PROC_SELF_FD}/{fd}", _BIND | _REMOUNT | flags | kept_flags)
    except OSError:
        pass  # no user of the container owns the file
    finally:
        os.close(fd)


def clone_writable_mount(fd: int) -> int:
    """Clone a directory's read-only mount as a writable one and return a descriptor, or -1 where that is not possible.

    crun makes the root of a `--read-only` container read-only before it calls hooks, runc afterwards. A mount is cloned
    only if the mount below it is writable: an administrator who provides a read-only directory wants it read-only. The
    clone has no path, so other processes do not see it, and it ends with the descriptor. It needs Linux 5.12.
    """
    mount = read_mount_of_fd(fd)
    parent = read_mount_info(mount.parent_id) if mount is not None else None
    if mount is None or parent is None or not mount.read_only or parent.read_only:
        return -1
    try:
        import _ctypes

        call = _ctypes.dlsym(_ctypes.dlopen(None, 0), "syscall")  # type: ignore[arg-type]
        clone = _ctypes.call_function(call, (_OPEN_TREE, fd, b"", _OPEN_TREE_FLAGS))
        if not isinstance(clone, int) or clone < 0:
            return -1
        # struct mount_attr: attr_set, attr_clr, propagation, userns_fd
        attributes = bytes(8) + _MOUNT_ATTR_RDONLY.to_bytes(8, sys.byteorder) + bytes(16)
        arguments = (_MOUNT_SETATTR, clone, b"", _AT_EMPTY_PATH, attributes, len(attributes))
        if _ctypes.call_function(call, arguments) == 0:
            return clone
        os.close(clone)
    except (ImportError, AttributeError, TypeError, OSError):
        pass
    return -1


def _call_mount(source: str, target: str, flags: int) -> None:
    """Call mount(2).

    CPython's `_ctypes` is called directly (0.5 ms). `ctypes` costs 3 ms, and is imported only for the errno of a
    failure.

    Raises:
        OSError: the kernel refuses.
    """
    arguments = (os.fsencode(source), os.fsencode(target), None, flags, None)
    try:
        import _ctypes

        call = _ctypes.dlsym(_ctypes.dlopen(None, 0), "mount")  # type: ignore[arg-type]  # None: this process
        if _ctypes.call_function(call, arguments) == 0:
            return
    except (ImportError, AttributeError, TypeError, OSError):
        pass  # another interpreter, or one whose internal functions have changed
    import ctypes

    mount = ctypes.CDLL(None, use_errno=True).mount
    mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
    if mount(*arguments) != 0:
        raise make_os_error(ctypes.get_errno())
