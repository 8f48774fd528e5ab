"""A container's root file system, which is hostile: every path below it is walked by file descriptor.

Cost rule: on the way of every GPU container, so `os`, `errno` and `stat` only.

What holds against an image, and against another process that swaps names while we work: the only anchors
are descriptors that we hold; a component is opened with O_NOFOLLOW relative to one; the text of a link is
taken apart and walked again from the root; ".." goes back by walking again, never by asking the kernel, for
a directory may have been moved meanwhile; nothing is written in place, so a hard link to a file of the
host keeps its content; a file is read through the descriptor that proved to be a regular file.
"""

from __future__ import annotations

import errno
import os
import stat

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files.directory import (
    Directory,
    make_os_error,
    make_os_fault,
    read_mount_id,
)
from gpu_oci_hook.files.path_walk import PathWalker
from gpu_oci_hook.files.read_regular import PROC_SELF_FD, read_regular_fd
from gpu_oci_hook.files.replace import CREATE_FLAGS, make_temporary_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class Rootfs:
    """The root of a container's file system. All paths are the container's: "/usr/lib/x".

    Arguments:
        path: where it is on the host; this path is trusted, what is below it is not.

    Raises: Fault when it cannot be opened. A context manager; `close` gives the descriptors back.
    """

    __slots__ = ("_fd", "_walker", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1
        self._walker = PathWalker(-1)
        try:
            self._fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            raise make_os_fault("cannot open the container's root file system", path, error) from error
        self._walker = PathWalker(self._fd)

    def __enter__(self) -> Rootfs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Give every descriptor back; using the root afterwards is a bug."""
        self._walker.drop_cached()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def is_host_root(self) -> bool:
        """Whether it is this machine's own root, into which nothing must ever be put."""
        return os.path.samestat(os.fstat(self._fd), os.stat("/"))

    def get_mount_id(self) -> bytes:
        """The kernel's number of the mount that it is; b"" where /proc does not tell."""
        return read_mount_id(self._fd)

    def restrict_writes(self, guard: Callable[[Directory], bool]) -> None:
        """From now on change things only where this says so: see `PathWalker.write_guard`. Elsewhere it is an `CrossMountError`."""
        self._walker.write_guard = guard

    def open_writable_layer(self) -> Rootfs | None:
        """The same without its mounts, and not read-only, where only the runtime has made it so; else None."""
        from gpu_oci_hook.files.mounts import clone_writable_mount

        fd = clone_writable_mount(self._fd)
        if fd < 0:
            return None
        layer = Rootfs(f"{PROC_SELF_FD}/{fd}")
        layer.path = self.path
        os.close(fd)
        return layer if layer.is_writable() else None

    def open_directory(self, path: str, *, create: bool = True) -> Directory:
        """A handle on a directory, for several names in it; missing ones are made (0755).

        Raises: Fault when it is missing (and not to be made), loops, or something else is there.
        """
        try:
            return self._walker.open_directory(path, create=create)
        except (OSError, ValueError) as error:
            raise make_os_fault("cannot use the directory", path, error, writing=create) from error

    def resolve_path(self, path: str) -> str | None:
        """The same place without links; None when it is missing, loops or leads through a file."""
        try:
            found, missing = self._walker.walk_path(path)
        except (OSError, ValueError):
            return None
        return None if missing else found.path

    def resolve_destination(self, path: str) -> str:
        """Like `resolve`, but what is missing at the end is kept as given: where a mount would land.

        Raises: Fault when links loop, a file stands where a directory must be, a name is impossible.
        """
        above, _, name = path.rstrip("/").rpartition("/")
        try:
            # Twenty files go to a few directories: the way to one of them is walked once.
            if name not in ("", ".", "..") and "\0" not in name and len(os.fsencode(name)) <= 255:
                try:
                    where = self._walker.open_directory(above, create=False)
                    if where.readlink(name) is None:
                        return "/" + "/".join([*where.parts, name])
                except FileNotFoundError:
                    return f"{self._walker.resolve_missing(above)}/{name}"
        except (OSError, ValueError):
            pass  # the whole walk knows what to say
        try:
            found, missing = self._walker.walk_path(path)
        except (OSError, ValueError) as error:
            raise make_os_fault("cannot be reached", path, error) from error
        return "/" + "/".join(found.parts + missing)

    def stat_path(self, path: str, *, follow: bool = False) -> os.stat_result | None:
        """What is there, or None; a link at the end is followed (inside the root) only on request."""
        try:
            if not follow:
                where, name = self._walker.open_parent(path, create=False)
                if name:
                    return where.stat_name(name)
            found, missing = self._walker.walk_path(path)
            return None if missing else os.fstat(found.fd)
        except (OSError, ValueError):
            return None

    def stat_names(self, path: str, names: Iterable[str]) -> dict[str, os.stat_result]:
        """What is there of these names in one directory, links not followed: the way there is walked once."""
        found: dict[str, os.stat_result] = {}
        try:
            where = self._walker.open_directory(path, create=False)
            for name in names:
                status = where.stat_name(name)
                if status is not None:
                    found[name] = status
        except (OSError, ValueError):
            pass
        return found

    def readlink(self, path: str) -> str | None:
        """The text of a symbolic link, or None for anything else."""
        try:
            where, name = self._walker.open_parent(path, create=False)
            return where.readlink(name) if name else None
        except (OSError, ValueError):
            return None

    def list_names(self, path: str, limit: int = 20000) -> list[str]:
        """The names in a directory, sorted and bounded; [] when it is none."""
        try:
            return self._walker.open_directory(path, create=False).list_names(limit)
        except (OSError, ValueError):
            return []

    def read_file(self, path: str, limit: int) -> bytes | None:
        """A regular file of at most `limit` bytes, links followed inside the root; None for all else."""
        try:
            found, missing = self._walker.walk_path(path)
            if missing or not found.parts:
                return None
            try:
                return read_regular_fd(found.fd, limit)
            except FileNotFoundError:
                above, missing = self._walker.walk_path("/".join(found.parts[:-1]))
                return None if missing else read_regular_fd(found.fd, limit, above.fd, found.parts[-1])
        except (OSError, ValueError):
            return None

    def make_symlink(self, path: str, target: str) -> bool:
        """Make a symbolic link and the directories above it: see `PrepareDirectory.link`."""
        where, name = self._open_parent(path)
        return where.make_symlink(name, target)

    def write_file(self, path: str, data: bytes, mode: int = 0o644) -> bool:
        """Write a file and make the directories above it: see `PrepareDirectory.write`."""
        where, name = self._open_parent(path)
        return where.write_file(name, data, mode)

    def chmod(self, path: str, mode: int) -> bool:
        """Change the mode of what is there, links followed inside the root; whether anything was changed.

        Through the descriptor that was looked at: a name may be another thing's by then.
        Raises: Fault when it is missing, or the kernel refuses.
        """
        try:
            found, missing = self._walker.walk_path(path)
            if missing:
                raise make_os_error(errno.ENOENT)
            found.check_write_guard()
            if stat.S_IMODE(os.fstat(found.fd).st_mode) == mode:
                return False
            os.chmod(f"{PROC_SELF_FD}/{found.fd}", mode)
        except (OSError, ValueError) as error:
            raise make_os_fault("cannot change the mode", path, error) from error
        return True

    def clear_mount_point(self, path: str) -> bool:
        """Make room for a file mount: see `PrepareDirectory.clear`. What is missing stays missing."""
        try:
            where, name = self._walker.open_parent(path, create=False)
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            raise make_os_fault("cannot make room for a file", path, error, writing=True) from error
        return where.clear_mount_point(name)

    def is_writable(self) -> bool:
        """Whether files can be made in it, found out by making one that has no name.

        A full disk counts as one that can be written: the first write then gives the true reason.
        """
        try:
            if os.fstatvfs(self._fd).f_flag & os.ST_RDONLY:
                return False
            try:
                os.close(os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=self._fd))
            except OSError as error:
                # overlayfs learnt O_TMPFILE with Linux 6.3; EISDIR: file systems that never heard of it
                if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
                    return error.errno in _DISK_FULL
                name = make_temporary_name()
                os.close(os.open(name, CREATE_FLAGS, 0o600, dir_fd=self._fd))
                os.unlink(name, dir_fd=self._fd)
        except OSError as error:
            return error.errno in _DISK_FULL
        return True

    def _open_parent(self, path: str) -> tuple[Directory, str]:
        try:
            return self._walker.open_parent(path, create=True)
        except (OSError, ValueError) as error:
            raise make_os_fault("cannot make the directory above it", path, error, writing=True) from error


def read_rootfs_path(spec: dict[str, object], bundle: str) -> str:
    """The absolute path of the container's root file system.

    Raises:
        Fault: `root.path` is missing or no text.
    """
    root = spec.get("root")
    path = root.get("path") if isinstance(root, dict) else None
    if not isinstance(path, str) or not path or "\0" in path:
        raise Fault('"root.path" is missing', where=f"{bundle}/config.json")
    return os.path.abspath(os.path.join(bundle, path))
