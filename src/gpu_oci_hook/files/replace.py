"""Replace files atomically: a temporary file in the same directory, renamed over the old name.

Whatever happens, the name leads to the old file or to the complete new one. All of it is done through a held directory
descriptor, so a user who exchanges directories on the path cannot redirect it, and nothing is written in place: a hard
link to the old file keeps its content.

Import budget: GPU container.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.read_regular import PROC_SELF_FD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

STALE_AFTER = 60.0
"""Seconds after which a temporary file in a shared directory was left by a process that was killed."""

_TEMPORARY_PREFIX = ".gpu-oci-hook-"
_RANDOM_BYTES = 8
_MAX_RETRIES = 16  # when another process exchanges names at the same time
CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# linux/fs.h
_FS_IOC_GETFLAGS = 0x80000000 | (8 << 16) | (ord("f") << 8) | 1  # _IOR('f', 1, long), on x86-64 and arm64
_FS_IMMUTABLE_FL, _FS_APPEND_FL = 0x10, 0x20
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make_temporary_name() -> str:
    """Return a name for a temporary file.

    It is random, so that an image cannot occupy it beforehand, and short, so that it fits where the final name does.
    """
    return f"{_TEMPORARY_PREFIX}{os.urandom(_RANDOM_BYTES).hex()}"


def replace_file(
    path: str, data: bytes, *, mode: int | None = None, durable: bool = False, stale_after: float = STALE_AFTER
) -> None:
    """Replace a file by path, symbolic links followed.

    Arguments:
        mode: of the new file, which belongs to this user; None keeps owner and mode of the old file, which must exist.
        durable: see `replace_file_at`.
        stale_after: temporary files older than these seconds are removed: see `remove_stale_temporaries`.

    Raises:
        Fault: the file cannot be written; the old one is unchanged.
    """
    try:
        directory, name = os.path.split(os.path.realpath(path))
        # A directory that this user may not read can be held, but not waited for.
        directory_fd = os.open(directory, _DIRECTORY_FLAGS | (0 if durable else os.O_PATH))
        try:
            owner = None
            if mode is None:
                status = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
                mode, owner = status.st_mode & 0o7777, (status.st_uid, status.st_gid)
            remove_stale_temporaries(directory_fd, stale_after)
            replace_file_at(directory_fd, name, data, mode=mode, owner=owner, durable=durable)
        finally:
            os.close(directory_fd)
    except (OSError, ValueError) as error:
        reason = describe_os_error(error, writing=True)
        raise Fault(f"it cannot be written: {reason}", where=path) from None


def replace_file_at(
    directory_fd: int,
    name: str,
    data: bytes,
    *,
    mode: int,
    owner: tuple[int, int] | None = None,
    owner_required: bool = True,
    durable: bool = False,
    move_directory: Callable[[str], None] | None = None,
) -> None:
    """Replace a name in a held directory by a new file.

    Arguments:
        directory_fd: for a durable file opened for reading; otherwise an O_PATH descriptor will do.
        mode: permissions of the new file, whatever the umask.
        owner: (uid, gid) of the new file; None leaves it with this user.
        owner_required: whether it is an error when the owner cannot be given, for lack of privilege or because the user
            namespace does not know the id.
        durable: wait until the file and its name survive a power loss.
        move_directory: see `replace_entry_at`.

    Raises:
        OSError: the file cannot be written; the old one is unchanged.
    """

    def create_temporary(temporary: str) -> None:
        fd = os.open(temporary, CREATE_FLAGS, 0o600, dir_fd=directory_fd)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            if owner is not None:
                give_owner(fd, owner, required=owner_required)
            os.fchmod(fd, mode)
            if durable:
                _sync_fd(fd)
        finally:
            os.close(fd)

    replace_entry_at(directory_fd, name, create_temporary, move_directory=move_directory)
    if durable:
        _sync_fd(directory_fd)


def replace_symlink_at(
    directory_fd: int,
    name: str,
    target: str,
    *,
    owner: tuple[int, int] | None = None,
    move_directory: Callable[[str], None] | None = None,
) -> None:
    """Replace a name in a held directory by a symbolic link.

    Arguments:
        owner: (uid, gid) of the link where that can be given; None leaves it with this user.
        move_directory: see `replace_entry_at`.

    Raises:
        OSError: the link cannot be created; the old entry is unchanged.
    """

    def create_temporary(temporary: str) -> None:
        create_owned(owner, lambda: os.symlink(target, temporary, dir_fd=directory_fd))

    replace_entry_at(directory_fd, name, create_temporary, move_directory=move_directory)


def replace_entry_at(
    directory_fd: int,
    name: str,
    create: Callable[[str], None],
    *,
    move_directory: Callable[[str], None] | None = None,
) -> None:
    """Create an entry under a temporary name and rename it over a name in a held directory.

    Arguments:
        create: creates the entry under the name that it is called with.
        move_directory: moves a directory of that name out of the way, which a rename cannot replace. Without it a
            directory is an error.

    Raises:
        OSError: the entry cannot be created or renamed; the temporary one is removed.
    """
    if is_protected_fd(directory_fd):  # nothing could be renamed in it, and the temporary entry not be removed
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))
    temporary = make_temporary_name()
    try:
        create(temporary)
        for attempt in range(_MAX_RETRIES):
            try:
                os.rename(temporary, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
                return
            except IsADirectoryError:
                if move_directory is None:
                    raise
                move_directory(name)
            except FileNotFoundError:
                # A second start of the same bundle has taken it for a killed process's. The last start wins.
                if attempt == _MAX_RETRIES - 1:
                    raise
                create(temporary)
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
    except BaseException:
        try:
            os.unlink(temporary, dir_fd=directory_fd)
        except OSError:
            pass
        raise


def give_owner(fd: int, owner: tuple[int, int], *, required: bool) -> None:
    """Give a file to a user and a group, unless it is theirs already."""
    status = os.fstat(fd)
    if (status.st_uid, status.st_gid) == owner:
        return
    try:
        os.fchown(fd, *owner)
    except OSError:
        if required:
            raise


def create_owned(owner: tuple[int, int] | None, create: Callable[[], None]) -> None:
    """Create an entry that belongs to a user and a group from the beginning, where that is possible.

    An owner given afterwards by name could be given to another file: who owns the directory can exchange its names.

    Arguments:
        owner: (uid, gid); None leaves the entry with this user.
        create: creates the entry. It is called a second time if the owner may not create it.

    Raises:
        OSError: it cannot be created.
    """
    user, group = os.geteuid(), os.getegid()
    if owner is None or owner == (user, group):
        create()
        return
    try:
        # The real and the saved user stay, so the owner can neither signal nor trace this process.
        os.setegid(owner[1])
        os.seteuid(owner[0])
        create()
        return
    except (PermissionError, ValueError):
        pass  # no privilege, or the owner may not write the directory
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EDQUOT):  # an id that this user namespace does not know; no quota
            raise
    finally:
        os.seteuid(user)
        os.setegid(group)
    create()


def remove_stale_temporaries(directory_fd: int, stale_after: float = STALE_AFTER) -> None:
    """Remove the temporary files that killed processes have left in a directory.

    Arguments:
        stale_after: their least age in seconds, or 0 where no other process replaces files in the directory.
    """
    try:
        fd = os.open(".", _DIRECTORY_FLAGS, dir_fd=directory_fd)  # the given one may be an O_PATH descriptor
    except OSError:
        return
    try:
        for name in filter(_is_temporary_name, os.listdir(fd)):
            try:
                if not stale_after or time.time() - os.lstat(name, dir_fd=fd).st_mtime >= stale_after:
                    os.unlink(name, dir_fd=fd)
            except OSError:
                pass
    except OSError:
        pass
    finally:
        os.close(fd)


def is_protected_fd(fd: int) -> bool:
    """Tell whether a file or directory is immutable or append-only (chattr(1)); the descriptor may be an O_PATH one.

    Removing an attribute that it does not have changes nothing, and fails with EPERM where it is protected (xattr(7)).
    Security modules may refuse that too, so the flags are then read. Their interface, `fcntl`, costs a file to load.
    Only directories and regular files are looked at. On everything else such an attribute is refused always, and to
    open a device of an image would be to use it: a watchdog that was opened once may reset the machine.
    """
    if stat.S_IFMT(os.fstat(fd).st_mode) not in (stat.S_IFDIR, stat.S_IFREG):
        return False
    path = f"{PROC_SELF_FD}/{fd}"
    try:
        os.removexattr(path, "user.gpu-oci-hook")
        return False
    except OSError as error:
        if error.errno != errno.EPERM:
            return False
    try:
        from fcntl import ioctl

        file_fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            flags = bytearray(8)
            ioctl(file_fd, _FS_IOC_GETFLAGS, flags)
        finally:
            os.close(file_fd)
    except (ImportError, OSError):
        return False
    return bool(int.from_bytes(flags[:4], sys.byteorder) & (_FS_APPEND_FL | _FS_IMMUTABLE_FL))


def _is_temporary_name(name: str) -> bool:
    suffix = name.removeprefix(_TEMPORARY_PREFIX)
    return (
        suffix != name
        and len(suffix) == 2 * _RANDOM_BYTES
        and all(character in "0123456789abcdef" for character in suffix)
    )


def _sync_fd(fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that has nothing to wait for
            raise
