"""Replace files atomically: temporary file, fsync, rename."""

from __future__ import annotations

import errno
import os
import stat

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.trust import is_untrusted_owner

_FILE_MODE = 0o644  # rootless engines read it too (field report A3-06)


_TEMPORARY_INFIX = ".gpu-oci-hook-"


_MAX_LINKS = 40  # as the kernel: path_resolution(7)


def _replace_file(directory_fd: int, name: str, data: bytes, old_status: os.stat_result | None) -> None:
    fresh = f".{name}{_TEMPORARY_INFIX}{os.getpid()}-{os.urandom(4).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(fresh, flags, 0o600, dir_fd=directory_fd)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            if old_status is not None and (old_status.st_uid, old_status.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(fd, old_status.st_uid, old_status.st_gid)
            os.fchmod(fd, _FILE_MODE)
            _sync_descriptor(fd)
        finally:
            os.close(fd)
        os.rename(fresh, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
    except BaseException:
        try:
            os.unlink(fresh, dir_fd=directory_fd)
        except OSError:
            pass
        raise
    _sync_descriptor(directory_fd)


def _sync_descriptor(fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that has nothing to wait for
            raise


def _split_resolved_path(path: str) -> tuple[str, str]:
    """The directory and the name of the file that a path means, links followed.

    Raises:
        Fault: it can be no file's.
    """
    if not path or "\0" in path:
        raise Fault("a file's name is empty or has a NUL character", where=path)
    if path.endswith("/"):
        raise Fault("it names a directory, and a CDI file is to be written there", where=path)
    directory, name = os.path.split(_resolve_links(path))
    return directory, name or "."


def _resolve_links(path: str) -> str:
    """The path with its links followed; what is missing at the end stays as it is.

    As root a link that belongs to another user is not followed: in a directory like /tmp anybody can lay one, and the
    kernel's own protection (sysctl fs.protected_symlinks) ends with who reads the links himself.

    Raises:
        Fault: there is such a link, or links go round in a circle.
    """
    done: list[str] = []
    try:
        pending = (path if path.startswith("/") else f"{os.getcwd()}/{path}").split("/")[::-1]
    except OSError as error:
        raise Fault(f"the current directory is lost: {describe_os_error(error)}", where=path) from None
    links = 0
    while pending:
        part = pending.pop()
        if part in ("", "."):
            continue
        if part == "..":
            del done[-1:]
            continue
        here = "/" + "/".join([*done, part])
        try:
            status = os.lstat(here)
            target = os.readlink(here) if stat.S_ISLNK(status.st_mode) else None
        except OSError:
            target = None  # missing, or not to be looked at: who opens it hears the reason
        if target is None:
            done.append(part)
            continue
        links += 1
        if links > _MAX_LINKS:
            raise Fault("its links go round in a circle, and a CDI file is to be written there", where=path)
        if is_untrusted_owner(status.st_uid):
            what = f"{here} is a link that belongs to user {status.st_uid} and is not followed while running as root"
            raise Fault(what, where=path, hint="Name the file itself")
        if target.startswith("/"):
            done.clear()
        pending += target.split("/")[::-1]
    return "/" + "/".join(done)
