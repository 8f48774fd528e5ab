"""Replace files atomically: a temporary file in the same directory, renamed over the old name.

Whatever happens, the name leads to the old file or to the complete new one. All of it is done through a held directory
descriptor, so a user who exchanges directories on the path cannot redirect it, and nothing is written in place: a hard
link to the old file keeps its content.

Import budget: GPU container.
"""

from __future__ import annotations

import errno
import os
import time

from gpu_oci_hook.errors import Fault, describe_os_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

STALE_AFTER = 60.0
"""Seconds after which a temporary file in a shared directory was left by a process that was killed."""

_TEMPORARY_PREFIX = ".gpu-oci-hook-"
_RANDOM_BYTES = 8
_MAX_RETRIES = 16  # when another process exchanges names at the same time
CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
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
        directory_fd = os.open(directory, _DIRECTORY_FLAGS | os.O_PATH)
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
        os.symlink(target, temporary, dir_fd=directory_fd)
        if owner is not None:
            give_owner_at(directory_fd, temporary, owner)

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
    temporary = make_temporary_name()
    try:
        create(temporary)
        for _ in range(_MAX_RETRIES):
            try:
                os.rename(temporary, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
                return
            except IsADirectoryError:
                if move_directory is None:
                    raise
                move_directory(name)
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


def give_owner_at(directory_fd: int, name: str, owner: tuple[int, int]) -> None:
    """Give an entry of a held directory to a user and a group where that is possible."""
    if owner == (os.geteuid(), os.getegid()):
        return
    try:
        os.chown(name, *owner, dir_fd=directory_fd, follow_symlinks=False)
    except OSError:
        pass  # no privilege, or an id that this user namespace does not know


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
