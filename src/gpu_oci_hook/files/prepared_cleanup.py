"""Remove prepared directories that no container uses any more from a state directory.

A directory that a running container has mounted must stay: the kernel would take the libraries in it away from the
container (a removed mount point is unmounted in every mount namespace).

Import budget: cold.
"""

from __future__ import annotations

import errno
import os
import time

from gpu_oci_hook.files.prepared_directory import SHARED_PREFIXES, prepare_shared_directory, remove_directory
from gpu_oci_hook.files.read_regular import PROC_SELF_FD
from gpu_oci_hook.files.state_dir import open_state_directory

UNUSED_AFTER = 3600.0
"""Seconds without a start after which a directory that is mounted nowhere is removed."""

CLEANUP_INTERVAL = 600.0
"""Seconds between two searches: each reads the mounts of all processes."""

_MARKER = "cleanup"  # its mtime is the time of the last search


def prepare_after_cleanup(path: str, entries: tuple[tuple[str, str], ...]) -> None:
    """Remove unused directories, then prepare one; see `prepare_shared_directory`.

    Raises:
        OSError: it cannot be created, or none could be removed.
    """
    parent_fd = open_state_directory(path.rpartition("/")[0], create=False)
    if parent_fd >= 0:
        try:
            remove_unused_directories(parent_fd)
        finally:
            os.close(parent_fd)
    prepare_shared_directory(path, entries)


def remove_unused_directories(parent_fd: int, proc: str = "/proc") -> None:
    """Remove the prepared directories that no process has mounted and no start has used for a while; never raises.

    Arguments:
        parent_fd: of the state directory.
    """
    try:
        if not _take_turn(parent_fd):
            return
        now = time.time()
        candidates = [
            name
            for name in os.listdir(parent_fd)
            if name.startswith(SHARED_PREFIXES)
            and now - os.stat(name, dir_fd=parent_fd, follow_symlinks=False).st_mtime > UNUSED_AFTER
        ]
        for name in _list_unmounted(candidates, proc):
            remove_directory(f"{PROC_SELF_FD}/{parent_fd}/{name}")
    except OSError:
        pass


def _take_turn(parent_fd: int) -> bool:
    """Tell whether the last search is long enough ago, and record this one."""
    try:
        if time.time() - os.stat(_MARKER, dir_fd=parent_fd, follow_symlinks=False).st_mtime < CLEANUP_INTERVAL:
            return False
        os.unlink(_MARKER, dir_fd=parent_fd)
    except FileNotFoundError:
        pass
    os.close(os.open(_MARKER, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=parent_fd))
    return True


def _list_unmounted(names: list[str], proc: str) -> list[str]:
    """Return those of the names that no process of the machine has in its mount table; see proc(5), mountinfo.

    Raises:
        OSError: a process's mounts cannot be read, so nothing is known.
    """
    seen: set[str] = set()
    for process in os.listdir(proc):
        if not process.isdigit() or not names:
            continue
        try:
            namespace = _read_namespace(f"{proc}/{process}/ns/mnt")
            if namespace in seen:
                continue
            with open(f"{proc}/{process}/mountinfo", "rb") as file:
                table = file.read()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except OSError as error:
            if error.errno == errno.EINVAL:  # it is ending and has no mount namespace any more
                continue
            raise
        if namespace:
            seen.add(namespace)
        names = [name for name in names if f"/{name} ".encode() not in table and f"/{name}/".encode() not in table]
    return names


def _read_namespace(path: str) -> str:
    """Return the name of a process's mount namespace, or "" if this process may not see it."""
    try:
        return os.readlink(path)
    except PermissionError:
        return ""
