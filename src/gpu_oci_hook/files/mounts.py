"""Mounts by descriptor: what a directory is a part of, and a file laid over another.

Cost rule: on the way of the hook, so CPython's `_ctypes` is called directly (0.5 ms); `ctypes` costs 3 ms and is
imported only to learn the reason of a failure. mount(2) on /proc/self/fd: the path that the descriptor stands for is
not walked again, and kernels before 5.2 know nothing newer.
"""

from __future__ import annotations

import os
import sys

from gpu_oci_hook.files.directory import PATH_FLAGS, make_os_error, read_mount_id
from gpu_oci_hook.files.read_regular import PROC_SELF_FD, UnusableFileError, read_regular_file

# linux/mount.h
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT = 1, 2, 4, 8, 32
_NOATIME, _NODIRATIME, _BIND, _RELATIME = 1024, 2048, 4096, 1 << 21
# The same numbers on every architecture since Linux 5.0; OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH.
_OPEN_TREE, _MOUNT_SETATTR = 428, 442
_AT_EMPTY_PATH, _MOUNT_ATTR_RDONLY = 0x1000, 1
_OPEN_TREE_FLAGS = 1 | os.O_CLOEXEC | _AT_EMPTY_PATH
# statvfs(3)'s bits for the same flags
_STATVFS_FLAGS = _RDONLY | _NOSUID | _NODEV | _NOEXEC | _NOATIME | _NODIRATIME
_ST_RELATIME = 4096
_MOUNTINFO_LIMIT = 32 << 20  # a node with ten thousand mounts has 2 MiB of them


class MountInfo:
    """A mount: the file system's type, whether it has peers that see changes, whether it is read-only, and below it.

    `parent_id` is the number of the mount that it is mounted on.
    """

    __slots__ = ("filesystem_type", "parent_id", "read_only", "shared")

    def __init__(self, filesystem_type: str, parent_id: bytes, *, shared: bool, read_only: bool) -> None:
        self.filesystem_type = filesystem_type
        self.parent_id = parent_id
        self.shared = shared
        self.read_only = read_only


def read_mount_of_fd(fd: int) -> MountInfo | None:
    """The mount that a descriptor lies in; None where /proc does not tell."""
    return read_mount_info(read_mount_id(fd))


def read_mount_info(mount_id: bytes) -> MountInfo | None:
    """The mount with the kernel's number; None where /proc does not tell.

    From /proc/self/mountinfo (proc(5)): the kernel's word, whatever the image has in that place.
    """
    try:
        table = read_regular_file("/proc/self/mountinfo", _MOUNTINFO_LIMIT)
    except (OSError, UnusableFileError):
        return None
    for line in table.split(b"\n"):
        if mount_id and line.startswith(mount_id + b" "):
            left, _, right = line.partition(b" - ")
            words = left.split(b" ")
            kind = right.split(b" ", 1)[0].decode("latin-1")
            return MountInfo(kind, words[1], shared=b" shared:" in left, read_only=b"ro" in words[5].split(b","))
    return None


def bind_file_over(source: str, directory_fd: int, name: str) -> None:
    """Binds a file over the one with a name in a directory, read-only where the kernel lets us.

    Arguments:
        source: the file's path on the host.
        directory_fd: a descriptor of the directory, one in which nobody else can swap names (a procfs).

    Raises:
        OSError: the kernel refuses.
    """
    fd = os.open(name, PATH_FLAGS, dir_fd=directory_fd)
    try:
        _call_mount(source, f"{PROC_SELF_FD}/{fd}", _BIND)
    finally:
        os.close(fd)
    fd = os.open(name, PATH_FLAGS, dir_fd=directory_fd)  # what lies on top now
    try:
        flags = os.fstatvfs(fd).f_flag
        # In a user namespace flags that were there must be said again, or the remount is refused.
        keep = flags & _STATVFS_FLAGS | (_RELATIME if flags & _ST_RELATIME else 0)
        _call_mount("", f"{PROC_SELF_FD}/{fd}", _BIND | _REMOUNT | _RDONLY | _NOSUID | _NODEV | _NOEXEC | keep)
    except OSError:
        pass  # it belongs to nobody whom the container could be
    finally:
        os.close(fd)


def clone_writable_mount(fd: int) -> int:
    """A descriptor of the same directory in a mount of its own that is not read-only; -1 where there can be none.

    crun makes the root of a `--read-only` container so before it calls hooks, runc afterwards. Only what the
    runtime has laid over a place that could be written counts: somebody who hands out a directory read-only means it.
    A mount without a name: nobody else sees it, and it is gone with the descriptor. Linux 5.12 and later.
    """
    own = read_mount_of_fd(fd)
    below = read_mount_info(own.parent_id) if own is not None else None
    if own is None or below is None or not own.read_only or below.read_only:
        return -1
    try:
        import _ctypes

        call = _ctypes.dlsym(_ctypes.dlopen(None, 0), "syscall")  # type: ignore[arg-type]
        clone = _ctypes.call_function(call, (_OPEN_TREE, fd, b"", _OPEN_TREE_FLAGS))
        if not isinstance(clone, int) or clone < 0:
            return -1
        wanted = (
            bytes(8) + _MOUNT_ATTR_RDONLY.to_bytes(8, sys.byteorder) + bytes(16)
        )  # struct mount_attr: set, clear, ...
        if _ctypes.call_function(call, (_MOUNT_SETATTR, clone, b"", _AT_EMPTY_PATH, wanted, len(wanted))) == 0:
            return clone
        os.close(clone)
    except (ImportError, AttributeError, TypeError, OSError):
        pass
    return -1


def _call_mount(source: str, target: str, flags: int) -> None:
    words = (os.fsencode(source), os.fsencode(target), None, flags, None)
    try:
        import _ctypes

        call = _ctypes.dlsym(_ctypes.dlopen(None, 0), "mount")  # type: ignore[arg-type]  # None: this very process
        if _ctypes.call_function(call, words) == 0:
            return
    except (ImportError, AttributeError, TypeError, OSError):
        pass  # another interpreter, or one whose inner functions have changed
    import ctypes

    mount = ctypes.CDLL(None, use_errno=True).mount
    mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
    if mount(*words) != 0:
        raise make_os_error(ctypes.get_errno())
