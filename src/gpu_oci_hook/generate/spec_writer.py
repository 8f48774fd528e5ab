"""Write, replace and remove CDI files atomically, and tell whose file exists at a path.

Import budget: cold.
"""

from __future__ import annotations

import os
import stat
from typing import Literal

from gpu_oci_hook.cdi.provenance import is_own_spec_data
from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.read_regular import UnusableFileError, open_regular_file, read_regular_file
from gpu_oci_hook.files.replace import remove_stale_temporaries, replace_file_at
from gpu_oci_hook.files.trust import resolve_trusted_links

_MAX_FILE_SIZE = 64 << 20
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_MODE = 0o644  # rootless engines read it too

FileOwner = Literal["none", "ours", "cdi", "other"]
WriteAction = Literal["wrote", "unchanged", "made readable"]


def classify_existing_file(path: str) -> FileOwner:
    """Tell whose file exists at a path.

    Returns:
        "none" for no file or an empty one, "ours", "cdi" for a CDI file of another tool, "other" for any other file.

    Raises:
        Fault: the path is not a regular file, or it cannot be read.
    """
    directory, name = _split_resolved_path(path)
    try:
        directory_fd = os.open(directory, _DIRECTORY_FLAGS | os.O_PATH)
    except (FileNotFoundError, NotADirectoryError):
        return "none"
    except OSError as error:
        raise Fault(f"its directory cannot be read: {describe_os_error(error)}", where=path) from None
    try:
        data = _read_existing_file(directory_fd, name, path)[0]
    finally:
        os.close(directory_fd)
    if not data:
        return "none"
    if is_own_spec_data(data):
        return "ours"
    return "cdi" if b"cdiVersion" in data else "other"


def write_spec_file(path: str, data: bytes) -> WriteAction:
    """Write a file atomically, with mode 0644.

    A file with the same content keeps its inode and time. After a crash either the old or the new file exists. Links
    are followed, and the owner is kept. The directory is created if its parent exists (/etc/cdi): a path that lacks
    more is likely a typing error. All steps use one open directory, so a user who can exchange directories or names on
    the path can at most prevent the write.

    Raises:
        Fault: the file cannot be written; the old file is unchanged.
    """
    directory, name = _split_resolved_path(path)
    try:
        _create_directory(directory, path)
        directory_fd = os.open(directory, _DIRECTORY_FLAGS)
        try:
            old_data, status = _read_existing_file(directory_fd, name, path)
            if old_data == data and status is not None:
                if stat.S_IMODE(status.st_mode) == _FILE_MODE:
                    return "unchanged"
                _make_readable(directory_fd, name)
                return "made readable"
            remove_stale_temporaries(directory_fd)
            owner = None if status is None else (status.st_uid, status.st_gid)
            replace_file_at(directory_fd, name, data, mode=_FILE_MODE, owner=owner, durable=True)
        finally:
            os.close(directory_fd)
    except (OSError, UnusableFileError) as error:
        raise Fault(f"cannot be written: {describe_os_error(error, writing=True)}", where=path) from None
    return "wrote"


def remove_spec_file(path: str) -> bool:
    """Remove a file, or the link of that name; return whether there was one.

    Raises:
        Fault: the file cannot be removed.
    """
    directory, _, name = path.rpartition("/")
    try:
        real_directory = resolve_trusted_links(directory or ("/" if path.startswith("/") else "."))
        directory_fd = os.open(real_directory, _DIRECTORY_FLAGS | os.O_PATH)
        try:
            os.unlink(name, dir_fd=directory_fd)
        finally:
            os.close(directory_fd)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise Fault(f"cannot be removed: {describe_os_error(error, writing=True)}", where=path) from None
    return True


def _create_directory(directory: str, spec_path: str) -> None:
    """Create a directory that every user can read, whatever the umask.

    Raises:
        Fault: its parent is missing as well.
    """
    if os.path.isdir(directory):
        return
    parent = os.path.dirname(directory)
    if not os.path.lexists(parent):
        raise Fault(f"there is no directory {parent}", where=spec_path, hint=f"Create it first: mkdir -p {directory}")
    old_umask = os.umask(0o022)
    try:
        os.mkdir(directory, 0o755)
    except FileExistsError:
        pass  # created by another process, or a file: the next step reports that
    finally:
        os.umask(old_umask)


def _make_readable(directory_fd: int, name: str) -> None:
    fd = open_regular_file(name, dir_fd=directory_fd, follow_symlinks=False)
    try:
        os.fchmod(fd, _FILE_MODE)
    finally:
        os.close(fd)


def _split_resolved_path(path: str) -> tuple[str, str]:
    """Return the directory and the name of the file that a path means, links followed.

    Raises:
        Fault: it cannot be the path of a file.
    """
    if not path or "\0" in path:
        raise Fault("a file's name is empty or has a NUL character", where=path)
    if path.endswith("/"):
        raise Fault("is a directory", where=path, hint=f"Name a file, such as {path}nvidia.yaml")
    directory, name = os.path.split(resolve_trusted_links(path))
    return directory, name or "."


def _read_existing_file(directory_fd: int, name: str, path: str) -> tuple[bytes | None, os.stat_result | None]:
    """Read a regular file with its status, (None, None) if it is missing; never waits for a FIFO.

    Raises:
        Fault: it is not a regular file, is too large to be a CDI file, or cannot be read.
    """
    statuses: list[os.stat_result] = []
    try:
        data = read_regular_file(
            name,
            _MAX_FILE_SIZE,
            dir_fd=directory_fd,
            follow_symlinks=False,
            stat_first=True,
            check_status=statuses.append,
        )
    except FileNotFoundError:
        return None, None
    except UnusableFileError as error:
        hint = f"Name a file, such as {path}/nvidia.yaml" if os.path.isdir(path) else "Name another file"
        raise Fault(str(error), where=path, hint=hint) from None
    except OSError as error:
        raise Fault(f"the existing file cannot be read: {describe_os_error(error)}", where=path) from None
    return data, statuses[0]
