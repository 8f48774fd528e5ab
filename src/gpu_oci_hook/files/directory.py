"""A directory below a container's root, held open; what is done by name in it cannot lead out of it.

Cost rule: on the way of every GPU container, so `os`, `errno` and `stat` only.

Nothing is written in place: a file is made under a name of its own and renamed, so that a hard link to a
file of the host keeps its content, and a reader sees the old file or the new one. Another process may swap
names at any moment; then the wrong thing in this directory is renamed or removed, never one outside.
"""

from __future__ import annotations

import errno
import os
import stat

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.read_regular import UnusableFileError, read_regular_fd
from gpu_oci_hook.files.replace import give_owner_at, replace_file_at, replace_symlink_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_oci_hook.files.path_walk import PathWalker

MAX_RETRIES = 16  # when somebody swaps names under our hands
MAX_MOVED_ENTRIES = 10000  # entries moved out of the way one by one
ASIDE_SUFFIX = ".gpu-oci-hook-aside"

PATH_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Directory:
    """A directory below the root, held open; what is done by name in it cannot leave it.

    Arguments:
        walker: those of the root that it belongs to; told when something changes.
        fd: an O_PATH descriptor, owned from now on and closed with the last reference.
        parts: the components of its path in the container, free of links.
    """

    __slots__ = ("_guard_passed", "_owner", "_walker", "fd", "parts")

    def __init__(self, walker: PathWalker, fd: int, parts: list[str]) -> None:
        self.fd = fd
        self.parts = parts
        self._walker = walker
        self._owner: tuple[int, int] | None = None
        self._guard_passed = False

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            close(fd)

    @property
    def path(self) -> str:
        """Its path in the container, free of links when it was opened."""
        return "/" + "/".join(self.parts)

    def check_write_guard(self) -> None:
        """Refuse to change anything in it where its root says so: see `PathWalker.write_guard`.

        Raises: OSError, EXDEV.
        """
        if not self._guard_passed:
            guard = self._walker.write_guard
            if guard is not None and not guard(self):
                raise make_os_error(errno.EXDEV)
            self._guard_passed = True  # a descriptor stays in its mount

    def stat_name(self, name: str) -> os.stat_result | None:
        """What the name is (a link is not followed), or None."""
        try:
            return os.stat(_check_component(name), dir_fd=self.fd, follow_symlinks=False)
        except (OSError, ValueError):
            return None

    def readlink(self, name: str) -> str | None:
        """The text of a symbolic link, or None for anything else."""
        try:
            return os.readlink(_check_component(name), dir_fd=self.fd)
        except (OSError, ValueError):
            return None

    def make_symlink(self, name: str, target: str) -> bool:
        """Make the name a symbolic link with this text; what else is there gives way.

        Returns: whether anything was changed. Raises: Fault when the file system refuses.
        """
        try:
            _check_component(name)
            self.check_write_guard()
            try:
                os.symlink(target, name, dir_fd=self.fd)
            except FileExistsError:
                if self.readlink(name) == target:
                    return False
                self._drop_cached_if_special(name)
                replace_symlink_at(self.fd, name, target, owner=self._get_owner(), move_directory=self._move_aside)
            else:
                give_owner_at(self.fd, name, self._get_owner())
            self._walker.drop_missing()
            return True
        except (OSError, ValueError) as error:
            raise self._make_entry_fault("cannot make the symbolic link", name, error) from error

    def write_file(self, name: str, data: bytes, mode: int = 0o644) -> bool:
        """Make the name a regular file with this content and mode; what else is there gives way.

        Returns: whether anything was changed. Raises: Fault when the file system refuses.
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

    def clear_mount_point(self, name: str) -> bool:
        """Make sure that a file can be mounted on the name: only a regular file, or nothing, may be there.

        A mount follows a link at its destination, and opens whatever else is there. Directories are
        renamed, the rest is removed. Returns: whether anything was changed. Raises: Fault.
        """
        try:
            self.check_write_guard()
            changed = False
            for _ in range(MAX_RETRIES):
                info = self.stat_name(_check_component(name))
                if info is None or stat.S_ISREG(info.st_mode):
                    return changed
                self._walker.drop_cached()
                changed = True
                if stat.S_ISDIR(info.st_mode):
                    self._move_aside(name)
                    continue
                try:
                    os.unlink(name, dir_fd=self.fd)
                except (FileNotFoundError, IsADirectoryError):
                    continue  # swapped meanwhile: look again
            raise make_os_error(errno.EBUSY)
        except (OSError, ValueError) as error:
            raise self._make_entry_fault("cannot make room for a file", name, error) from error

    def list_names(self, limit: int = 20000) -> list[str]:
        """The names in it, sorted; at most `limit` of them, in the file system's order, are looked at."""
        found: list[str] = []
        try:
            fd = os.open(".", _LIST_FLAGS, dir_fd=self.fd)
        except OSError:
            return found
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    if len(found) >= limit:
                        break
                    found.append(entry.name)
        except OSError:
            return []
        finally:
            os.close(fd)
        return sorted(found)

    def _make_entry_fault(self, what: str, name: str, error: Exception) -> Fault:
        return make_os_fault(what, f"{self.path.rstrip('/')}/{name}", error, writing=True)

    def _drop_cached_if_special(self, name: str) -> None:
        """Drop the held directories when a name that is about to be replaced is not a regular file.

        It may be a link or a directory that was on the path to one of them.
        """
        info = self.stat_name(name)
        if info is not None and not stat.S_ISREG(info.st_mode):
            self._walker.drop_cached()

    def _has_content(self, name: str, data: bytes, mode: int) -> bool:
        """Whether the name is a regular file with this content and mode."""
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
        """Return the directory's owner, who also gets what is created in it: see userns-remap of docker."""
        if self._owner is None:
            info = os.fstat(self.fd)
            self._owner = (info.st_uid, info.st_gid)
        return self._owner

    def mkdir(self, name: str) -> None:
        """Make an empty directory, 0755 whatever the umask; somebody else's is as good."""
        self.check_write_guard()
        before = os.umask(0o022)
        try:
            os.mkdir(name, 0o755, dir_fd=self.fd)
        except FileExistsError:
            return
        finally:
            os.umask(before)
        give_owner_at(self.fd, name, self._get_owner())

    def _move_aside(self, name: str) -> None:
        """Rename what is there to a free name beside it."""
        self._walker.drop_cached()
        for number in range(100):
            tail = ASIDE_SUFFIX if number == 0 else f"{ASIDE_SUFFIX}-{number}"
            # 255: NAME_MAX of every file system that holds a root
            new = os.fsdecode(os.fsencode(name)[: 255 - len(tail)]) + tail
            if self.stat_name(new) is not None:
                continue
            try:
                os.rename(name, new, src_dir_fd=self.fd, dst_dir_fd=self.fd)
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    continue
                if error.errno != errno.EXDEV:
                    raise
                # overlayfs without redirect_dir cannot rename a directory of a lower layer
                _move_tree(name, self.fd, new, self.fd, [MAX_MOVED_ENTRIES], 64)
            return
        raise make_os_error(errno.EEXIST)


def _move_tree(name: str, source: int, new: str, target: int, budget: list[int], depth: int) -> None:
    """Move a directory that cannot be renamed: entry by entry, bounded."""
    os.mkdir(new, 0o700, dir_fd=target)
    inside = os.open(name, _LIST_FLAGS, dir_fd=source)
    try:
        into = os.open(new, _LIST_FLAGS, dir_fd=target)
        try:
            names = os.listdir(inside)
            budget[0] -= len(names)
            if budget[0] < 0 or depth == 0:
                raise make_os_error(errno.E2BIG)
            for entry in names:
                try:
                    os.rename(entry, entry, src_dir_fd=inside, dst_dir_fd=into)
                except OSError as error:
                    if error.errno != errno.EXDEV:
                        raise
                    _move_tree(entry, inside, entry, into, budget, depth - 1)
            info = os.fstat(inside)
            os.fchown(into, info.st_uid, info.st_gid)
            os.fchmod(into, stat.S_IMODE(info.st_mode))
        finally:
            os.close(into)
    finally:
        os.close(inside)
    os.rmdir(name, dir_fd=source)


def _check_component(name: str) -> str:
    """The name, if it is one component: anything longer would be walked by the kernel, links and all."""
    if "/" in name or name in ("", ".", ".."):
        raise ValueError(name)
    return name


def make_os_error(number: int) -> OSError:
    """The OSError that the kernel would give us."""
    return OSError(number, os.strerror(number))


class CrossMountError(Fault):
    """What was to be changed lies in another mount than the one that may be changed."""


def make_os_fault(what: str, path: str, error: Exception, *, writing: bool = False) -> Fault:
    """The Fault for an OSError, or for a ValueError of a name that no file can have."""
    if not isinstance(error, OSError):
        return Fault(f"{what}: no file can have this name", where=path)
    kind = CrossMountError if error.errno == errno.EXDEV else Fault
    return kind(f"{what}: {describe_os_error(error, writing=writing)}", where=path)


def read_mount_id(fd: int) -> bytes:
    """The kernel's number of the mount that a descriptor lies in; b"" where /proc does not tell (proc(5), fdinfo)."""
    try:
        with open(f"/proc/self/fdinfo/{fd}", "rb", buffering=0) as file:
            said = file.read(4096) or b""
    except OSError:
        return b""
    for line in said.split(b"\n"):
        if line.startswith(b"mnt_id:"):
            return line[7:].strip()
    return b""
