"""Read and change the entries of one held directory below a container's root, without leaving it.

Nothing is written in place: see `files.replace`. Another process may exchange names at any moment. Then the wrong entry
of this directory is renamed or removed, never one outside of it.

Import budget: GPU container.
"""

from __future__ import annotations

import errno
import os
import stat

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.read_regular import UnusableFileError, read_regular_fd
from gpu_oci_hook.files.replace import create_owned, is_protected_fd, replace_file_at, replace_symlink_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_oci_hook.files.path_walk import PathWalker

MAX_RETRIES = 16  # when another process exchanges names at the same time
ASIDE_SUFFIX = ".gpu-oci-hook-aside"

PATH_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NAME_MAX = 255  # bytes, of every file system that can be a container's root


class Directory:
    """A held directory below the container's root.

    Arguments:
        walker: the root's, whose cache is dropped when an entry changes.
        fd: an O_PATH descriptor, owned from now on and closed with the last reference.
        parts: the components of its path in the container, without links.
    """

    __slots__ = ("_guard_passed", "_in_root_mount", "_owner", "_protected", "_walker", "fd", "parts")

    def __init__(self, walker: PathWalker, fd: int, parts: list[str]) -> None:
        self.fd = fd
        self.parts = parts
        self._walker = walker
        self._owner: tuple[int, int] | None = None
        self._guard_passed = False
        self._in_root_mount: bool | None = None
        self._protected: bool | None = None

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            close(fd)

    @property
    def path(self) -> str:
        """Path in the container, without links when it was opened."""
        return "/" + "/".join(self.parts)

    @property
    def is_protected(self) -> bool:
        """Whether it is immutable or append-only: see `is_protected_fd`."""
        if self._protected is None:
            self._protected = is_protected_fd(self.fd)
        return self._protected

    @property
    def is_in_root_mount(self) -> bool:
        """Whether it lies in the mount of the root, and not in another one below it; a descriptor stays in its mount.

        The kernel tells it by the descriptor (proc(5), fdinfo); where there is no /proc, all is taken for one mount.
        """
        if self._in_root_mount is None:
            self._in_root_mount = read_mount_id(self.fd) == self._walker.get_mount_id()
        return self._in_root_mount

    def check_write_guard(self) -> None:
        """Refuse changes in another mount than the root's, or where the root's `PathWalker.write_guard` does.

        Raises:
            OSError: EXDEV.
        """
        if not self._guard_passed:
            guard = self._walker.write_guard
            if not (self.is_in_root_mount if guard is None else guard(self)):
                raise make_os_error(errno.EXDEV)
            self._guard_passed = True

    def stat_name(self, name: str) -> os.stat_result | None:
        """Return the status of an entry, links not followed, or None when there is none."""
        try:
            return os.stat(_check_component(name), dir_fd=self.fd, follow_symlinks=False)
        except (OSError, ValueError):
            return None

    def readlink(self, name: str) -> str | None:
        """Return the target of a symbolic link, or None for everything else."""
        try:
            return os.readlink(_check_component(name), dir_fd=self.fd)
        except (OSError, ValueError):
            return None

    def make_symlink(self, name: str, target: str) -> bool:
        """Create a symbolic link; another entry of that name is replaced, a directory moved aside.

        Returns:
            Whether anything was changed.

        Raises:
            Fault: the file system refuses.
        """
        try:
            _check_component(name)
            self.check_write_guard()
            try:
                create_owned(self._get_owner(), lambda: os.symlink(target, name, dir_fd=self.fd))
            except FileExistsError:
                if self.readlink(name) == target:
                    return False
                self._drop_cached_if_special(name)
                replace_symlink_at(self.fd, name, target, owner=self._get_owner(), move_directory=self._move_aside)
            self._walker.drop_missing()
            return True
        except (OSError, ValueError) as error:
            raise self._make_entry_fault("cannot make the symbolic link", name, error) from error

    def write_file(self, name: str, data: bytes, mode: int = 0o644) -> bool:
        """Write a regular file; another entry of that name is replaced, a directory moved aside.

        Returns:
            Whether anything was changed.

        Raises:
            Fault: the file system refuses.
        """
        try:
            self.check_write_guard()
            if self._has_content(_check_component(name), data, mode):
                return False
            self._drop_cached_if_special(name)
            replace_file_at(
                self.fd,
                name,
                data,
                mode=mode,
                owner=self._get_owner(),
                owner_required=False,
                move_directory=self._move_aside,
            )
            self._walker.drop_missing()
            return True
        except (OSError, ValueError) as error:
            raise self._make_entry_fault("cannot write the file", name, error) from error

    def create_empty_file(self, name: str) -> None:
        """Create an empty file with mode 0444, as a mount point; an existing entry is kept."""
        # A tmpfs of a user namespace takes files of its own users only, from the beginning.
        self.check_write_guard()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            create_owned(self._get_owner(), lambda: os.close(os.open(name, flags, 0o444, dir_fd=self.fd)))
        except FileExistsError:
            pass
        self._walker.drop_missing()

    def clear_mount_point(self, name: str) -> bool:
        """Remove everything but a regular file, so that a file can be mounted on the name.

        A mount follows a link at its destination, and opens every other kind of file. A directory is moved aside, the
        rest is removed.

        Returns:
            Whether anything was changed.

        Raises:
            Fault: the file system refuses.
        """
        try:
            changed = False
            for _ in range(MAX_RETRIES):
                info = self.stat_name(_check_component(name))
                if info is None or stat.S_ISREG(info.st_mode):
                    return changed
                self.check_write_guard()
                self._walker.drop_cached()
                changed = True
                if stat.S_ISDIR(info.st_mode):
                    self._move_aside(name)
                    continue
                try:
                    os.unlink(name, dir_fd=self.fd)
                except (FileNotFoundError, IsADirectoryError):
                    continue  # exchanged meanwhile: check again
            raise make_os_error(errno.EBUSY)
        except (OSError, ValueError) as error:
            raise self._make_entry_fault("cannot make room for a file", name, error) from error

    def list_names(self, limit: int = 20000) -> list[str]:
        """Return the names of the entries, sorted; only the first `limit` in the file system's order are read."""
        names: list[str] = []
        try:
            fd = os.open(".", _LIST_FLAGS, dir_fd=self.fd)
        except OSError:
            return names
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    if len(names) >= limit:
                        break
                    names.append(entry.name)
        except OSError:
            return []
        finally:
            os.close(fd)
        return sorted(names)

    def mkdir(self, name: str) -> None:
        """Create an empty directory with mode 0755, whatever the umask; an existing one is kept."""
        self.check_write_guard()
        old_umask = os.umask(0o022)
        try:
            create_owned(self._get_owner(), lambda: os.mkdir(name, 0o755, dir_fd=self.fd))
        except FileExistsError:
            pass
        finally:
            os.umask(old_umask)

    def _make_entry_fault(self, what: str, name: str, error: Exception) -> Fault:
        return make_os_fault(what, f"{self.path.rstrip('/')}/{name}", error, writing=True)

    def _drop_cached_if_special(self, name: str) -> None:
        """Drop the cache before an entry is replaced that is not a regular file: it may be on a cached path."""
        info = self.stat_name(name)
        if info is not None and not stat.S_ISREG(info.st_mode):
            self._walker.drop_cached()

    def _has_content(self, name: str, data: bytes, mode: int) -> bool:
        """Tell whether the name is a regular file with this content and mode."""
        info = self.stat_name(name)
        if info is None or not stat.S_ISREG(info.st_mode):
            return False
        if info.st_size != len(data) or stat.S_IMODE(info.st_mode) != mode:
            return False
        try:
            fd = os.open(name, PATH_FLAGS, dir_fd=self.fd)
            try:
                return read_regular_fd(fd, len(data), self.fd, name) == data
            finally:
                os.close(fd)
        except (OSError, UnusableFileError):
            return False

    def _get_owner(self) -> tuple[int, int]:
        """Return the directory's owner, who also gets the entries created in it."""
        # With docker's userns-remap the container has no user for files of the host's root.
        if self._owner is None:
            info = os.fstat(self.fd)
            self._owner = (info.st_uid, info.st_gid)
        return self._owner

    def _move_aside(self, name: str) -> None:
        """Rename an entry to a free name in the same directory."""
        self._walker.drop_cached()
        for number in range(100):
            suffix = ASIDE_SUFFIX if number == 0 else f"{ASIDE_SUFFIX}-{number}"
            new_name = os.fsdecode(os.fsencode(name)[: _NAME_MAX - len(suffix)]) + suffix
            if self.stat_name(new_name) is not None:
                continue
            try:
                os.rename(name, new_name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    continue
                if error.errno != errno.EXDEV:
                    raise
                # overlayfs without redirect_dir cannot rename a directory of a lower layer.
                from gpu_oci_hook.files.move_tree import move_tree

                move_tree(name, self.fd, new_name)
            return
        raise make_os_error(errno.EEXIST)


def _check_component(name: str) -> str:
    """Return the name if it is one component: the kernel would follow links in a longer path.

    Raises:
        ValueError: it is not.
    """
    if "/" in name or name in ("", ".", ".."):
        raise ValueError(name)
    return name


def make_os_error(number: int) -> OSError:
    """Return the OSError that the interpreter raises for an errno."""
    return OSError(number, os.strerror(number))


class CrossMountError(Fault):
    """A change in another mount than the one that may be changed."""


def make_os_fault(what: str, path: str, error: Exception, *, writing: bool = False) -> Fault:
    """Return the Fault for an OSError, or for the ValueError of a name that no file can have."""
    if not isinstance(error, OSError):
        return Fault(f"{what}: no file can have this name", where=path)
    kind = CrossMountError if error.errno == errno.EXDEV else Fault
    return kind(f"{what}: {describe_os_error(error, writing=writing)}", where=path)


def read_mount_id(fd: int) -> bytes:
    """Return the kernel's number of a descriptor's mount (proc(5), fdinfo), or b"" where /proc does not show it."""
    try:
        info_fd = os.open(f"/proc/self/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            fdinfo = os.read(info_fd, 4096)
        finally:
            os.close(info_fd)
    except OSError:
        return b""
    for line in fdinfo.split(b"\n"):
        if line.startswith(b"mnt_id:"):
            return line[7:].strip()
    return b""
