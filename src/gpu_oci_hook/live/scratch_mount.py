"""A tmpfs for generated files that are bind-mounted into a container which has no bundle.

It is mounted on a new directory, and detached once the files are mounted in the container: the bind mounts keep it
alive, it has no other path, and it ends with the container.

Import budget: cold.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.formats.program_names import HOOK_PROGRAM
from gpu_oci_hook.live.mount_api import detach_mount, mount_tmpfs

SCRATCH_SOURCE = HOOK_PROGRAM
"""The source that the mount table shows for mounts of it."""

_SIZE = "64m"
_PREFIX = f"{HOOK_PROGRAM}-scratch-"
_STALE_AFTER = 600  # seconds; a process that works on a container is killed long before
_DIRECTORIES = ("/run", "/tmp")  # noqa: S108  mkdtemp makes a directory of this user's own


@contextmanager
def make_scratch_directory() -> Iterator[str]:
    """Make an empty directory to mount on, and remove it afterwards.

    Raises:
        Fault: no directory can be made.
    """
    problem = ""
    for parent in _DIRECTORIES:
        _remove_stale_directories(parent)
        try:
            path = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
            break
        except OSError as error:
            problem = describe_os_error(error, writing=True)
    else:
        raise Fault(f"cannot make a temporary directory: {problem}", where=" and ".join(_DIRECTORIES))
    try:
        yield path
    finally:
        try:
            os.rmdir(path)
        except OSError:
            pass  # a killed child has left its mount there


def _remove_stale_directories(parent: str) -> None:
    """Remove the empty directories of this user that killed processes have left."""
    try:
        with os.scandir(parent) as entries:
            for entry in entries:
                if entry.name.startswith(_PREFIX):
                    status = entry.stat(follow_symlinks=False)
                    if status.st_uid == os.geteuid() and status.st_mtime < time.time() - _STALE_AFTER:
                        os.rmdir(entry.path)
    except OSError:
        pass


@contextmanager
def mount_scratch(path: str) -> Iterator[None]:
    """Mount the tmpfs on a directory in this mount namespace, and detach it afterwards.

    Raises:
        Fault: the kernel refuses.
    """
    parent, _, name = path.rpartition("/")
    directory_fd = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            mount_tmpfs(path, SCRATCH_SOURCE, _SIZE)
        except OSError as error:
            raise Fault(f"cannot mount a tmpfs for generated files: {describe_os_error(error)}", where=path) from None
        try:
            yield
        finally:
            detach_mount(directory_fd, name)
    finally:
        os.close(directory_fd)
