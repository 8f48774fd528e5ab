"""Create a directory of links and empty files in one step, for containers to mount.

Import budget: GPU container.
"""

from __future__ import annotations

import os

from gpu_oci_hook.files.state_dir import open_state_directory, path_exists


def prepare_directory(path: str, entries: tuple[tuple[str, str], ...]) -> None:
    """Create a directory with these entries unless it exists and has exactly these.

    Killed at any moment, the path leads to a complete directory or to none.

    Arguments:
        path: its last component must identify its content.
        entries: (name, link target); an empty target stands for an empty file.

    Raises:
        OSError: it cannot be created.
    """
    if _is_prepared(path, entries):
        return
    try:
        os.mkdir(path.rpartition("/")[0], 0o755)
    except FileExistsError:
        pass
    temporary = f"{path}.{os.getpid()}"
    _remove_directory(temporary)  # left by a killed process that had our process id
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
        _remove_directory(temporary)
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


def _is_prepared(path: str, entries: tuple[tuple[str, str], ...]) -> bool:
    """Tell whether a directory exists, is trusted, and has these entries and no others."""
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
    except OSError:
        return False
    finally:
        os.close(directory_fd)
    return not missing


def _remove_directory(path: str) -> None:
    """Remove a directory of files as far as possible."""
    try:
        for name in os.listdir(path):
            os.unlink(f"{path}/{name}")
        os.rmdir(path)
    except OSError:
        pass
