"""Move a directory that cannot be renamed: overlayfs refuses that for a directory of a lower layer.

Import budget: cold.
"""

from __future__ import annotations

import errno
import os
import stat

from gpu_oci_hook.files.replace import create_owned

MAX_MOVED_ENTRIES = 10000
_MAX_DEPTH = 64
_LIST_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def move_tree(name: str, parent_fd: int, new_name: str) -> None:
    """Move a directory to another name in its parent directory, entry by entry.

    Raises:
        OSError: an entry cannot be moved, there are too many, or another process interferes.
    """
    _move_level(name, parent_fd, new_name, parent_fd, [MAX_MOVED_ENTRIES], _MAX_DEPTH)


def _move_level(name: str, parent_fd: int, new_name: str, new_parent_fd: int, budget: list[int], depth: int) -> None:
    """Move one level of a directory, then those below it.

    Arguments:
        budget: how many entries may still be moved, as its only item.
        depth: how many levels of directories may still be entered.
    """
    old_fd = os.open(name, _LIST_FLAGS, dir_fd=parent_fd)
    try:
        info = os.fstat(old_fd)
        owner = (info.st_uid, info.st_gid)
        create_owned(owner, lambda: os.mkdir(new_name, 0o700, dir_fd=new_parent_fd))
        new_fd = os.open(new_name, _LIST_FLAGS, dir_fd=new_parent_fd)
        try:
            new = os.fstat(new_fd)
            if (
                new.st_uid not in (info.st_uid, os.geteuid())
                or stat.S_IMODE(new.st_mode) != 0o700
                or os.listdir(new_fd)
            ):
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))  # another process has exchanged it
            names = os.listdir(old_fd)
            budget[0] -= len(names)
            if budget[0] < 0 or depth == 0:
                raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
            for entry in names:
                try:
                    os.rename(entry, entry, src_dir_fd=old_fd, dst_dir_fd=new_fd)
                except OSError as error:
                    if error.errno != errno.EXDEV:
                        raise
                    _move_level(entry, old_fd, entry, new_fd, budget, depth - 1)
            if (new.st_uid, new.st_gid) != owner:
                os.fchown(new_fd, *owner)
            os.fchmod(new_fd, stat.S_IMODE(info.st_mode))
        finally:
            os.close(new_fd)
    finally:
        os.close(old_fd)
    os.rmdir(name, dir_fd=parent_fd)
