"""Bind-mount by descriptor: clone a mount, set its attributes, and attach it to a mount point that is held open.

The new mount calls (open_tree, mount_setattr, move_mount) set the attributes before the mount is visible. Where the
kernel lacks them (before 5.12), mount(2) gets paths below /proc/self/fd and the flags are set afterwards. The kernel
never walks a path below a container's root.

A container that has not started yet gets its mounts by `bind_mount`, in its own mount namespace. For one that runs,
`clone_mount` clones the source outside, and `attach_mount` attaches the clone inside.

Import budget: cold.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import struct

from gpu_oci_hook.files.directory import PATH_FLAGS, make_os_error, read_mount_id
from gpu_oci_hook.files.read_regular import PROC_SELF_FD

_LIBC = ctypes.CDLL(None, use_errno=True)

# System call numbers, the same on every architecture since Linux 5.0.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE = 1
_MOVE_FROM_EMPTY_PATH, _MOVE_TO_EMPTY_PATH = 0x04, 0x40
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000  # sched.h
_MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 32, 4096, 16384, 1 << 18
_MOUNT_ATTR_RDONLY = 1
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_PR_SET_PDEATHSIG = 1  # prctl.h

# Mount option to (bit of mount_setattr(2), bit of mount(2)).
_ATTRIBUTES = {"ro": (0x1, 1), "nosuid": (0x2, 2), "nodev": (0x4, 4), "noexec": (0x8, 8)}
# The bits of mount_setattr that statvfs(3) shows, for a remount that must not drop them: bit of statvfs to mount(2).
_KEPT_FLAGS = {1: 1, 2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}


def _call(name: str, *arguments: object) -> int:
    """Call a function of libc.

    Raises:
        OSError: it failed.
    """
    function = getattr(_LIBC, name)
    function.restype = ctypes.c_long
    result: int = function(*arguments)
    if result < 0:
        raise make_os_error(ctypes.get_errno())
    return result


def set_namespace(namespace_fd: int, kind: int) -> None:
    """Enter a namespace; the process must have one thread. `os.setns` comes with Python 3.12.

    Arguments:
        kind: CLONE_NEWUSER, or CLONE_NEWNS: root and current directory become those of the mount namespace.

    Raises:
        OSError: the kernel refuses.
    """
    _call("setns", namespace_fd, kind)


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends: only the parent knows the deadline.

    Arguments:
        parent: the parent's number before the fork; it may have ended since.
    """
    _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def bind_mount(source: str, directory_fd: int, name: str, options: tuple[str, ...]) -> None:
    """Bind-mount a file or directory of this mount namespace over an entry of a held directory.

    Arguments:
        directory_fd: of the directory below a container's root, in this mount namespace.
        name: of the entry, which must be a file for a file and a directory for a directory. A link is not followed.
        options: of the mount; "rbind" includes the mounts below a directory.

    Raises:
        OSError: the kernel refuses; nothing is mounted.
    """
    target_fd = os.open(name, PATH_FLAGS, dir_fd=directory_fd)
    try:
        if stat.S_ISLNK(os.fstat(target_fd).st_mode):
            raise make_os_error(errno.ELOOP)
        try:
            _attach_clone(source, target_fd, options)
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
            _bind_by_descriptor(source, target_fd, directory_fd, name, options)
    finally:
        os.close(target_fd)


def _attach_clone(source: str, target_fd: int, options: tuple[str, ...]) -> None:
    recursive = "rbind" in options
    clone = _open_tree(_AT_FDCWD, source, recursive=recursive)
    try:
        _set_attributes(clone, options, recursive=recursive)
        attach_mount(clone, target_fd)
    finally:
        os.close(clone)  # a clone that is not attached ends here


def clone_mount(source: str, options: tuple[str, ...], scratch: str) -> int:
    """Clone a file or directory of this mount namespace as a mount without a path, and return a descriptor of it.

    A clone that is never attached ends with the descriptor.

    Arguments:
        options: of the mount; "rbind" includes the mounts below a directory.
        scratch: a directory of ours. Where the kernel lacks mount_setattr (before 5.12), this process moves into a
            mount namespace of its own and sets the flags of a mount there, on an entry of this directory: a mount that
            is attached first and made read-only afterwards could be written in between.

    Raises:
        OSError: the kernel refuses; ENOSYS where it lacks open_tree (before 5.2).
    """
    recursive = "rbind" in options
    clone = _open_tree(_AT_FDCWD, source, recursive=recursive)
    try:
        _set_attributes(clone, options, recursive=recursive)
    except OSError as error:
        os.close(clone)
        if error.errno != errno.ENOSYS:
            raise
        return _clone_prepared_mount(source, options, scratch)
    except BaseException:
        os.close(clone)
        raise
    return clone


def clone_root(root_fd: int, *, writable: bool) -> int:
    """Clone the mount of a directory without the mounts below it, and return a descriptor.

    The directory must be in this process's mount namespace. If the mounts below are locked, as those that a user
    namespace has inherited are, the clone includes them: mount_namespaces(7).

    Arguments:
        writable: make the clone writable, where the kernel has mount_setattr and the flag is not locked.

    Raises:
        OSError: the kernel refuses; ENOSYS where it lacks open_tree (before 5.2).
    """
    try:
        clone = _open_tree(root_fd, "", recursive=False)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        clone = _open_tree(root_fd, "", recursive=True)
    if writable:
        data = struct.pack("=QQQQ", 0, _MOUNT_ATTR_RDONLY, 0, 0)
        try:
            _call("syscall", _MOUNT_SETATTR, clone, b"", _AT_EMPTY_PATH, data, len(data))
        except OSError:
            pass  # it stays read-only, and the plan is one for such a root
    return clone


def attach_mount(clone_fd: int, target_fd: int) -> None:
    """Attach a clone to a held mount point, which must be a file for a file and a directory for a directory.

    Raises:
        OSError: the kernel refuses.
    """
    _call("syscall", _MOVE_MOUNT, clone_fd, b"", target_fd, b"", _MOVE_FROM_EMPTY_PATH | _MOVE_TO_EMPTY_PATH)


def _open_tree(directory_fd: int, path: str, *, recursive: bool) -> int:
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | (_AT_RECURSIVE if recursive else 0) | (0 if path else _AT_EMPTY_PATH)
    return _call("syscall", _OPEN_TREE, directory_fd, os.fsencode(path), flags)


def _set_attributes(clone: int, options: tuple[str, ...], *, recursive: bool) -> None:
    attributes = 0
    for option, (bit, _) in _ATTRIBUTES.items():
        attributes |= bit if option in options else 0
    # struct mount_attr: attr_set, attr_clr, propagation, userns_fd
    data = struct.pack("=QQQQ", attributes, 0, _MS_PRIVATE, 0)
    flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    _call("syscall", _MOUNT_SETATTR, clone, b"", flags, data, len(data))


def _clone_prepared_mount(source: str, options: tuple[str, ...], scratch: str) -> int:
    """Mount the source with its flags on an entry of a scratch directory, in a namespace of this process alone."""
    _call("unshare", CLONE_NEWNS)
    _call("mount", None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None)
    name = "mount-point"
    path = f"{scratch}/{name}"
    is_directory = stat.S_ISDIR(os.stat(source).st_mode)
    os.makedirs(scratch, 0o700, exist_ok=True)
    if is_directory:
        os.mkdir(path, 0o700)
    else:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        directory_fd = os.open(scratch, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            target_fd = os.open(name, PATH_FLAGS, dir_fd=directory_fd)
            try:
                _bind_by_descriptor(source, target_fd, directory_fd, name, options)
            finally:
                os.close(target_fd)
            try:
                return _open_tree(_AT_FDCWD, path, recursive="rbind" in options)
            finally:
                detach_mount(directory_fd, name)
        finally:
            os.close(directory_fd)
    finally:
        if is_directory:
            os.rmdir(path)
        else:
            os.unlink(path)


def _bind_by_descriptor(source: str, target_fd: int, directory_fd: int, name: str, options: tuple[str, ...]) -> None:
    """Do the same with mount(2), for kernels without the calls above: bind first, then set the flags.

    Another process can exchange the name in between. The flags are set on our mount or not at all, since the entry's
    mount must be another one than its directory's and the source's device and inode must be those of the source.
    """
    recursive = _MS_REC if "rbind" in options else 0
    path = f"{PROC_SELF_FD}/{target_fd}".encode()
    _call("mount", os.fsencode(source), path, None, ctypes.c_ulong(_MS_BIND | recursive), None)
    mounted_fd = os.open(name, PATH_FLAGS, dir_fd=directory_fd)
    try:
        path = f"{PROC_SELF_FD}/{mounted_fd}".encode()
        is_ours = os.path.samestat(os.fstat(mounted_fd), os.stat(source))
        if not is_ours or read_mount_id(mounted_fd) == read_mount_id(directory_fd):
            raise make_os_error(errno.EBUSY)
        flags, shown = 0, os.fstatvfs(mounted_fd).f_flag
        for bit, flag in _KEPT_FLAGS.items():
            flags |= flag if shown & bit else 0
        for option, (_, flag) in _ATTRIBUTES.items():
            flags |= flag if option in options else 0
        try:
            _call("mount", None, path, None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None)
            _call("mount", None, path, None, ctypes.c_ulong(_MS_REMOUNT | _MS_BIND | flags), None)
        except OSError:
            _call("umount2", path, _MNT_DETACH)
            raise
    finally:
        os.close(mounted_fd)


def detach_mount(directory_fd: int, name: str) -> None:
    """Detach the topmost mount on a name of a held directory.

    Raises:
        OSError: nothing is mounted there.
    """
    path = f"{PROC_SELF_FD}/{directory_fd}/{name}".encode()
    _call("umount2", path, _MNT_DETACH | _UMOUNT_NOFOLLOW)


def mount_tmpfs(path: str, name: str, size: str) -> None:
    """Mount a tmpfs on a directory of this process's own: for data only, without programs and devices.

    Arguments:
        name: the source that the mount table shows.
        size: its limit, as tmpfs(5) has it.

    Raises:
        OSError: the kernel refuses.
    """
    flags = ctypes.c_ulong(sum(bit for _, bit in (_ATTRIBUTES["nosuid"], _ATTRIBUTES["nodev"], _ATTRIBUTES["noexec"])))
    _call("mount", name.encode(), os.fsencode(path), b"tmpfs", flags, f"mode=0755,size={size}".encode())
