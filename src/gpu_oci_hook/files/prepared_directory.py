"""Create a directory of links and empty files in one step, for containers to mount.

Import budget: GPU container.
"""

from __future__ import annotations

import errno
import os
import time

from gpu_oci_hook.files.state_dir import open_state_directory, path_exists

MAX_SHARED_DIRECTORIES = 32
"""Prepared directories that the state directory has at most: images choose what is in them."""

SHARED_PREFIXES = ("libraries-", "links-")  # earlier versions had the second kind in the state directory too

_TOUCH_INTERVAL = 600.0  # seconds after which a use is recorded again, in the directory's mtime


class TooManyDirectoriesError(OSError):
    """A state directory has all prepared directories that it may have."""


def prepare_directory(path: str, entries: tuple[tuple[str, str], ...]) -> None:
    """Create a directory with these entries unless it exists and has exactly these.

    Killed at any moment, the path leads to a complete directory or to none.

    Arguments:
        path: its last component must identify its content. Its parent is created when it is missing.
        entries: (name, link target); an empty target stands for an empty file.

    Raises:
        OSError: it cannot be created.
    """
    if _is_prepared(path, entries):
        return
    try:
        os.mkdir(path.rpartition("/")[0], 0o755)
    except FileExistsError:
        _remove_abandoned(path)
    _create_directory(path, entries)


def _remove_abandoned(path: str) -> None:
    """Remove the unfinished directories that killed processes have left."""
    parent, _, name = path.rpartition("/")
    for other in os.listdir(parent):
        process = other.removeprefix(f"{name}.")
        if process.isdigit() and len(process) <= 7 and not path_exists(f"/proc/{process}"):
            remove_directory(f"{parent}/{other}")


def prepare_shared_directory(path: str, entries: tuple[tuple[str, str], ...]) -> None:
    """Create such a directory in a state directory, for many containers; see `prepare_directory`.

    Raises:
        TooManyDirectoriesError: there are MAX_SHARED_DIRECTORIES already; see `prepared_cleanup`.
        OSError: it cannot be created.
    """
    if _is_prepared(path, entries, touch=True):
        return
    parent_fd = open_state_directory(path.rpartition("/")[0], create=True)
    if parent_fd < 0:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    try:
        # Unfinished ones of starts at the same time, with a process id in the name, do not count.
        names = [name for name in os.listdir(parent_fd) if not name.rpartition(".")[2].isdigit()]
        if sum(name.startswith(SHARED_PREFIXES) for name in names) >= MAX_SHARED_DIRECTORIES:
            raise TooManyDirectoriesError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        _create_directory(path, entries)
    finally:
        os.close(parent_fd)


def _create_directory(path: str, entries: tuple[tuple[str, str], ...]) -> None:
    temporary = f"{path}.{os.getpid()}"
    remove_directory(temporary)  # left by a killed process that had our process id
    os.mkdir(temporary, 0o755)
    try:
        _fill_directory(temporary, entries)
        try:
            os.rename(temporary, path)
        except OSError:
            if _is_prepared(path, entries) or not path_exists(path):
                raise
            # Its content does not match its name: a container that may remount has written into it. Other containers
            # still use it, so it is kept under another name.
            os.rename(path, f"{path}.{os.urandom(8).hex()}")
            os.rename(temporary, path)
    except OSError:
        remove_directory(temporary)
        if not _is_prepared(path, entries):  # else another process was faster
            raise


def _fill_directory(path: str, entries: tuple[tuple[str, str], ...]) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(fd, 0o755)  # containers with other user ids walk through it, whatever the umask says
        for name, target in entries:
            if target:
                os.symlink(target, name, dir_fd=fd)
            else:
                os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444, dir_fd=fd))
    finally:
        os.close(fd)


def _is_prepared(path: str, entries: tuple[tuple[str, str], ...], *, touch: bool = False) -> bool:
    """Tell whether a directory exists, is trusted, and has these entries and no others.

    Arguments:
        touch: record in the directory's mtime that it is used; see `prepared_cleanup`.
    """
    directory_fd = open_state_directory(path, create=False)
    if directory_fd < 0:
        return False
    missing = dict(entries)
    try:
        with os.scandir(directory_fd) as listing:
            for entry in listing:
                target = missing.pop(entry.name, None)
                if target is None:
                    return False
                if target:
                    if os.readlink(entry.name, dir_fd=directory_fd) != target:
                        return False
                elif not entry.is_file(follow_symlinks=False):
                    return False
        if touch and not missing and time.time() - os.fstat(directory_fd).st_mtime > _TOUCH_INTERVAL:
            _record_use(directory_fd)
    except OSError:
        return False
    finally:
        os.close(directory_fd)
    return not missing


def _record_use(directory_fd: int) -> None:
    try:
        os.utime(directory_fd)
    except OSError:
        pass  # a read-only file system, where nothing is removed either


def remove_directory(path: str) -> None:
    """Remove a directory of files and links as far as possible."""
    try:
        for name in os.listdir(path):
            os.unlink(f"{path}/{name}")
        os.rmdir(path)
    except OSError:
        pass
