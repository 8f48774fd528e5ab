"""Read and change a container's root file system, which may be hostile.

These rules hold against an image, and against a process that exchanges names at the same time:

- Every path is walked from a held descriptor, each component opened with O_NOFOLLOW.
- The target of a link is split and walked from the root.
- ".." is walked again from the root, not resolved by the kernel: the directory may have been moved.
- Nothing is written in place, so a hard link to a file of the host keeps its content.
- A file is read through the descriptor that was checked to be a regular file.

Import budget: GPU container.
"""

from __future__ import annotations

import errno
import os
import stat

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files.directory import (
    PATH_FLAGS,
    Directory,
    make_os_error,
    make_os_fault,
    read_mount_id,
)
from gpu_oci_hook.files.path_walk import PathWalker
from gpu_oci_hook.files.read_regular import PROC_SELF_FD, read_regular_fd
from gpu_oci_hook.files.replace import CREATE_FLAGS, is_protected_fd, make_temporary_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class Rootfs:
    """The root of a container's file system, held open. It is a context manager. All paths are the container's.

    Arguments:
        path: of the root on the host. This path is trusted, its content is not.
        follow: whether its last component may be a link. runc refuses that, so nothing may be changed before.

    Raises:
        Fault: it cannot be opened.
    """

    __slots__ = ("_fd", "_walker", "path")

    def __init__(self, path: str, *, follow: bool = True) -> None:
        self.path = path
        self._fd = -1
        self._walker = PathWalker(-1)
        try:
            flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
            self._fd = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
        except FileNotFoundError:
            hint = "Create it, or correct root.path in config.json"
            raise Fault("the rootfs does not exist", where=path, hint=hint) from None
        except (OSError, ValueError) as error:
            if not follow and os.path.islink(path):
                hint = "Name the directory that it leads to as root.path in config.json"
                raise Fault("the rootfs is a symbolic link, which runc refuses", where=path, hint=hint) from None
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
        """Close every descriptor. The root must not be used afterwards."""
        self._walker.drop_cached()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def is_host_root(self) -> bool:
        """Tell whether it is the host's own root, which must never be changed."""
        return os.path.samestat(os.fstat(self._fd), os.stat("/"))

    def get_mount_id(self) -> bytes:
        """Return the kernel's number of its mount, or b"" where /proc does not show it."""
        return self._walker.get_mount_id()

    def restrict_writes(self, guard: Callable[[Directory], bool]) -> None:
        """Allow changes only in directories that the guard accepts: see `PathWalker.write_guard`.

        Elsewhere they raise `CrossMountError` from now on. Without a guard they do so in every other mount.
        """
        self._walker.write_guard = guard

    def drop_cached_directories(self) -> None:
        """Forget the held directories: a path may lead to another one now, for example below a new mount."""
        self._walker.drop_cached()

    def find_nearest_directory(self, path: str) -> tuple[str, bool]:
        """Return the last directory on a path that exists, and whether it lies in another mount than the root."""
        try:
            nearest = self._walker.open_nearest(path)
            return nearest.path, not nearest.is_in_root_mount
        except (OSError, ValueError):
            return path, False  # using it reports the reason

    def can_replace(self, path: str) -> bool:
        """Tell whether a file can be created or replaced, as far as mounts and file attributes decide (chattr(1))."""
        parent, _, name = path.rpartition("/")
        try:
            directory = self._walker.open_nearest(parent)
            if not directory.is_in_root_mount or directory.is_protected:
                return False
            fd = os.open(name, PATH_FLAGS, dir_fd=self._walker.open_directory(parent, create=False).fd)
        except (OSError, ValueError):
            return True  # it does not exist, or writing it reports the reason
        try:
            return read_mount_id(fd) == self._walker.get_mount_id() and not is_protected_fd(fd)
        finally:
            os.close(fd)

    def open_writable_layer(self) -> Rootfs | None:
        """Open the root without its mounts and writable, where only the runtime has made it read-only; else None."""
        from gpu_oci_hook.files.mounts import clone_writable_mount

        fd = clone_writable_mount(self._fd)
        if fd < 0:
            return None
        layer = Rootfs(f"{PROC_SELF_FD}/{fd}")
        layer.path = self.path
        os.close(fd)
        return layer if layer.is_writable() else None

    def open_directory(self, path: str, *, create: bool = True) -> Directory:
        """Open a directory, for several entries of it.

        Arguments:
            create: create missing directories, with mode 0755.

        Raises:
            Fault: it is missing, is not a directory, or cannot be created, or its links loop.
        """
        try:
            return self._walker.open_directory(path, create=create)
        except (OSError, ValueError) as error:
            raise make_os_fault("cannot use the directory", path, error, writing=create) from error

    def resolve_path(self, path: str) -> str | None:
        """Return the path without links, or None when it is missing, loops, or leads through a file."""
        try:
            last, missing = self._walker.walk_path(path)
        except (OSError, ValueError):
            return None
        return None if missing else last.path

    def resolve_destination(self, path: str) -> str:
        """Return the path, without links, at which a mount would appear; components may be missing.

        Raises:
            Fault: links loop, a component is not a directory, or a name is impossible.
        """
        parent, _, name = path.rstrip("/").rpartition("/")
        try:
            # Twenty files are mounted in a few directories, and the path to each directory is walked once.
            if name not in ("", ".", "..") and "\0" not in name and len(os.fsencode(name)) <= 255:
                try:
                    directory = self._walker.open_directory(parent, create=False)
                    if directory.readlink(name) is None:
                        return "/" + "/".join([*directory.parts, name])
                except FileNotFoundError:
                    return f"{self._walker.resolve_missing(parent)}/{name}"
        except (OSError, ValueError):
            pass  # the complete walk reports the reason
        try:
            last, missing = self._walker.walk_path(path)
        except (OSError, ValueError) as error:
            raise make_os_fault("cannot be reached", path, error) from error
        return "/" + "/".join(last.parts + missing)

    def stat_path(self, path: str, *, follow: bool = False) -> os.stat_result | None:
        """Return the status of a path, or None when it is missing.

        Arguments:
            follow: follow a link at the end, inside the root.
        """
        try:
            if not follow:
                directory, name = self._walker.open_parent(path, create=False)
                if name:
                    return directory.stat_name(name)
            last, missing = self._walker.walk_path(path)
            return None if missing else os.fstat(last.fd)
        except (OSError, ValueError):
            return None

    def stat_names(self, path: str, names: Iterable[str]) -> dict[str, os.stat_result]:
        """Return the status of each of these names that exists in one directory, links not followed."""
        statuses: dict[str, os.stat_result] = {}
        try:
            directory = self._walker.open_directory(path, create=False)
            for name in names:
                status = directory.stat_name(name)
                if status is not None:
                    statuses[name] = status
        except (OSError, ValueError):
            pass
        return statuses

    def readlink(self, path: str) -> str | None:
        """Return the target of a symbolic link, or None for everything else."""
        try:
            directory, name = self._walker.open_parent(path, create=False)
            return directory.readlink(name) if name else None
        except (OSError, ValueError):
            return None

    def list_names(self, path: str, limit: int = 20000) -> list[str]:
        """Return the names in a directory: see `Directory.list_names`, or [] when it is not one."""
        try:
            return self._walker.open_directory(path, create=False).list_names(limit)
        except (OSError, ValueError):
            return []

    def read_file(self, path: str, limit: int) -> bytes | None:
        """Read a regular file of at most `limit` bytes, links followed inside the root, or None for everything else."""
        try:
            last, missing = self._walker.walk_path(path)
            if missing or not last.parts:
                return None
            try:
                return read_regular_fd(last.fd, limit)
            except FileNotFoundError:  # there is no /proc
                parent, missing = self._walker.walk_path("/".join(last.parts[:-1]))
                return None if missing else read_regular_fd(last.fd, limit, parent.fd, last.parts[-1])
        except (OSError, ValueError):
            return None

    def make_symlink(self, path: str, target: str) -> bool:
        """Create a symbolic link and its parent directories: see `Directory.make_symlink`."""
        directory, name = self._open_parent(path)
        return directory.make_symlink(name, target)

    def write_file(self, path: str, data: bytes, mode: int = 0o644) -> bool:
        """Write a file and create its parent directories: see `Directory.write_file`."""
        directory, name = self._open_parent(path)
        return directory.write_file(name, data, mode)

    def chmod(self, path: str, mode: int) -> bool:
        """Change the mode of a file or directory, links followed inside the root.

        It is changed through the checked descriptor: the name may lead to another file meanwhile.

        Returns:
            Whether it was changed.

        Raises:
            Fault: it is missing, or the kernel refuses.
        """
        try:
            last, missing = self._walker.walk_path(path)
            if missing:
                raise make_os_error(errno.ENOENT)
            last.check_write_guard()
            if stat.S_IMODE(os.fstat(last.fd).st_mode) == mode:
                return False
            os.chmod(f"{PROC_SELF_FD}/{last.fd}", mode)
        except (OSError, ValueError) as error:
            raise make_os_fault("cannot change the mode", path, error) from error
        return True

    def clear_mount_point(self, path: str) -> bool:
        """Make room for a file mount: see `Directory.clear_mount_point`. Missing directories are not created."""
        try:
            directory, name = self._walker.open_parent(path, create=False)
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            raise make_os_fault("cannot make room for a file", path, error, writing=True) from error
        return directory.clear_mount_point(name)

    def is_writable(self) -> bool:
        """Tell whether files can be created in it, by creating one without a name.

        A full disk counts as writable: the first write then reports the reason.
        """
        try:
            if os.fstatvfs(self._fd).f_flag & os.ST_RDONLY:
                return False
            try:
                os.close(os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=self._fd))
            except OSError as error:
                # overlayfs has O_TMPFILE since Linux 6.3; EISDIR: file systems without it
                if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
                    raise
                name = make_temporary_name()
                os.close(os.open(name, CREATE_FLAGS, 0o600, dir_fd=self._fd))
                os.unlink(name, dir_fd=self._fd)
        except OSError as error:
            if error.errno == errno.EMFILE:  # says nothing about the root
                raise make_os_fault("cannot be tried for writing", self.path, error) from error
            return error.errno in _DISK_FULL
        return True

    def _open_parent(self, path: str) -> tuple[Directory, str]:
        try:
            return self._walker.open_parent(path, create=True)
        except (OSError, ValueError) as error:
            raise make_os_fault("cannot make its parent directory", path, error, writing=True) from error


def read_rootfs_path(spec: dict[str, object], bundle: str) -> str:
    """Return the absolute path of the container's root file system.

    Raises:
        Fault: `root.path` is missing or not a string.
    """
    root = spec.get("root")
    path = root.get("path") if isinstance(root, dict) else None
    if not isinstance(path, str) or not path or "\0" in path:
        raise Fault('"root.path" is missing', where=f"{bundle}/config.json")
    return os.path.abspath(os.path.join(bundle, path))


def refuse_host_root(rootfs: Rootfs) -> None:
    """Refuse to inject into the machine's own root: links to nowhere would replace its driver.

    Raises:
        Fault: it is the machine's root.
    """
    if rootfs.is_host_root():
        raise Fault(
            "the container's root file system is this machine's own, whose driver would be replaced",
            where=rootfs.path,
            hint="Start the container without requesting a GPU: it sees the machine's own driver and device nodes",
        )
