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

from gpu_oci_hook.errors import Fault, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_oci_hook.container.ways import Ways

TRIES = 16  # when somebody swaps names under our hands
MOVED = 10000  # entries moved out of the way one by one
ASIDE = ".gpu-oci-hook-aside"
DESCRIPTORS = "/proc/self/fd"  # the host's /proc: opens an inode again without its name

PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Directory:
    """A directory below the root, held open; what is done by name in it cannot leave it.

    Arguments:
        ways: those of the root that it belongs to; told when something changes.
        fd: an O_PATH descriptor, owned from now on and closed with the last reference.
        parts: the components of its path in the container, free of links.
    """

    __slots__ = ("_ours", "_owner", "_ways", "fd", "parts")

    def __init__(self, ways: Ways, fd: int, parts: list[str]) -> None:
        self.fd = fd
        self.parts = parts
        self._ways = ways
        self._owner: tuple[int, int] | None = None
        self._ours = False

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            close(fd)

    @property
    def path(self) -> str:
        """Its path in the container, free of links when it was opened."""
        return "/" + "/".join(self.parts)

    def check(self) -> None:
        """Refuse to change anything in it where its root says so: see `Ways.guard`.

        Raises: OSError, EXDEV.
        """
        if not self._ours:
            guard = self._ways.guard
            if guard is not None and not guard(self):
                raise error_of(errno.EXDEV)
            self._ours = True  # a descriptor stays in its mount

    def status(self, name: str) -> os.stat_result | None:
        """What the name is (a link is not followed), or None."""
        try:
            return os.stat(_one(name), dir_fd=self.fd, follow_symlinks=False)
        except (OSError, ValueError):
            return None

    def readlink(self, name: str) -> str | None:
        """The text of a symbolic link, or None for anything else."""
        try:
            return os.readlink(_one(name), dir_fd=self.fd)
        except (OSError, ValueError):
            return None

    def link(self, name: str, target: str) -> bool:
        """Make the name a symbolic link with this text; what else is there gives way.

        Returns: whether anything was changed. Raises: Fault when the file system refuses.
        """
        try:
            _one(name)
            self.check()
            try:
                os.symlink(target, name, dir_fd=self.fd)
            except FileExistsError:
                if self.readlink(name) == target:
                    return False
                self._replace(name, lambda new: self._symlink(new, target))
            else:
                self._give(name)
            self._ways.appeared()
            return True
        except (OSError, ValueError) as error:
            raise self._fault("cannot make the symbolic link", name, error) from error

    def write(self, name: str, data: bytes, mode: int = 0o644) -> bool:
        """Make the name a regular file with this content and mode; what else is there gives way.

        Returns: whether anything was changed. Raises: Fault when the file system refuses.
        """
        try:
            self.check()
            if self._holds(_one(name), data, mode):
                return False
            self._replace(name, lambda new: self._fill(new, data, mode))
            self._ways.appeared()
            return True
        except (OSError, ValueError) as error:
            raise self._fault("cannot write the file", name, error) from error

    def clear(self, name: str) -> bool:
        """Make sure that a file can be mounted on the name: only a regular file, or nothing, may be there.

        A mount follows a link at its destination, and opens whatever else is there. Directories are
        renamed, the rest is removed. Returns: whether anything was changed. Raises: Fault.
        """
        try:
            self.check()
            changed = False
            for _ in range(TRIES):
                info = self.status(_one(name))
                if info is None or stat.S_ISREG(info.st_mode):
                    return changed
                self._ways.forget()
                changed = True
                if stat.S_ISDIR(info.st_mode):
                    self._aside(name)
                    continue
                try:
                    os.unlink(name, dir_fd=self.fd)
                except (FileNotFoundError, IsADirectoryError):
                    continue  # swapped meanwhile: look again
            raise error_of(errno.EBUSY)
        except (OSError, ValueError) as error:
            raise self._fault("cannot make room for a file", name, error) from error

    def names(self, limit: int = 20000) -> list[str]:
        """The names in it, sorted; at most `limit` of them, in the file system's order, are looked at."""
        found: list[str] = []
        try:
            fd = os.open(".", _LIST, dir_fd=self.fd)
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

    def _fault(self, what: str, name: str, error: Exception) -> Fault:
        return fault_of(what, f"{self.path.rstrip('/')}/{name}", error, writing=True)

    def _replace(self, name: str, make: Callable[[str], None]) -> None:
        """Make the thing under a name of its own, then rename it over what is there."""
        info = self.status(name)
        if info is not None and not stat.S_ISREG(info.st_mode):
            self._ways.forget()  # it may have been on the way to a directory that we hold
        new = temporary()
        try:
            make(new)
            for _ in range(TRIES):
                try:
                    os.rename(new, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
                    return
                except IsADirectoryError:
                    self._aside(name)
            raise error_of(errno.EBUSY)
        except BaseException:
            try:
                os.unlink(new, dir_fd=self.fd)
            except OSError:
                pass
            raise

    def _symlink(self, name: str, target: str) -> None:
        os.symlink(target, name, dir_fd=self.fd)
        self._give(name)

    def _fill(self, name: str, data: bytes, mode: int) -> None:
        fd = os.open(name, MAKE, 0o600, dir_fd=self.fd)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            self._give(fd)
            os.fchmod(fd, mode)
        finally:
            os.close(fd)

    def _holds(self, name: str, data: bytes, mode: int) -> bool:
        """Whether the name is a regular file with this content and mode."""
        info = self.status(name)
        if info is None or not stat.S_ISREG(info.st_mode):
            return False
        if info.st_size != len(data) or stat.S_IMODE(info.st_mode) != mode:
            return False
        try:
            fd = os.open(name, PATH, dir_fd=self.fd)
            try:
                return contents(fd, len(data), self.fd, name) == data
            finally:
                os.close(fd)
        except OSError:
            return False

    def _give(self, thing: str | int) -> None:
        """Give what we made the owner of the directory: with userns-remap it would belong to nobody."""
        if self._owner is None:
            info = os.fstat(self.fd)
            self._owner = (info.st_uid, info.st_gid)
        if self._owner == (os.geteuid(), os.getegid()):
            return
        try:
            if isinstance(thing, int):
                os.fchown(thing, *self._owner)
            else:
                os.chown(thing, *self._owner, dir_fd=self.fd, follow_symlinks=False)
        except OSError:
            pass  # no privilege, or an id that our user namespace does not know: it stays ours

    def mkdir(self, name: str) -> None:
        """Make an empty directory, 0755 whatever the umask; somebody else's is as good."""
        self.check()
        before = os.umask(0o022)
        try:
            os.mkdir(name, 0o755, dir_fd=self.fd)
        except FileExistsError:
            return
        finally:
            os.umask(before)
        self._give(name)

    def _aside(self, name: str) -> None:
        """Rename what is there to a free name beside it."""
        self._ways.forget()
        for number in range(100):
            tail = ASIDE if number == 0 else f"{ASIDE}-{number}"
            # 255: NAME_MAX of every file system that holds a root
            new = os.fsdecode(os.fsencode(name)[: 255 - len(tail)]) + tail
            if self.status(new) is not None:
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
                _move(name, self.fd, new, self.fd, [MOVED], 64)
            return
        raise error_of(errno.EEXIST)


def contents(fd: int, limit: int, above: int = -1, name: str = "") -> bytes | None:
    """The bytes of the regular file that an O_PATH descriptor stands for, or None.

    It is opened again through /proc, never by a name that may have become a device: opening one can
    have effects. Only a system without /proc pays with the name, and the inodes are compared.
    """
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode) or info.st_size > limit:
        return None
    try:
        again = os.open(f"{DESCRIPTORS}/{fd}", _READ)
    except FileNotFoundError:
        if above < 0:
            raise
        again = os.open(name, _READ | os.O_NOFOLLOW, dir_fd=above)
    try:
        if not os.path.samestat(os.fstat(again), info):
            return None
        pieces = []
        rest = limit + 1
        while rest > 0:
            piece = os.read(again, min(rest, 1 << 20))
            if not piece:
                break
            pieces.append(piece)
            rest -= len(piece)
    finally:
        os.close(again)
    return b"".join(pieces) if rest > 0 else None


def _move(name: str, source: int, new: str, target: int, budget: list[int], depth: int) -> None:
    """Move a directory that cannot be renamed: entry by entry, bounded."""
    os.mkdir(new, 0o700, dir_fd=target)
    inside = os.open(name, _LIST, dir_fd=source)
    try:
        into = os.open(new, _LIST, dir_fd=target)
        try:
            names = os.listdir(inside)
            budget[0] -= len(names)
            if budget[0] < 0 or depth == 0:
                raise error_of(errno.E2BIG)
            for entry in names:
                try:
                    os.rename(entry, entry, src_dir_fd=inside, dst_dir_fd=into)
                except OSError as error:
                    if error.errno != errno.EXDEV:
                        raise
                    _move(entry, inside, entry, into, budget, depth - 1)
            info = os.fstat(inside)
            os.fchown(into, info.st_uid, info.st_gid)
            os.fchmod(into, stat.S_IMODE(info.st_mode))
        finally:
            os.close(into)
    finally:
        os.close(inside)
    os.rmdir(name, dir_fd=source)


def _one(name: str) -> str:
    """The name, if it is one component: anything longer would be walked by the kernel, links and all."""
    if "/" in name or name in ("", ".", ".."):
        raise ValueError(name)
    return name


def temporary() -> str:
    """A name of our own: random, so that an image cannot lay names in our way; a hit is an error anyway."""
    return f".gpu-oci-hook-{os.urandom(8).hex()}"


def error_of(number: int) -> OSError:
    """The OSError that the kernel would give us."""
    return OSError(number, os.strerror(number))


class Outside(Fault):
    """What was to be changed lies in another mount than the one that may be changed."""


def fault_of(what: str, path: str, error: Exception, *, writing: bool = False) -> Fault:
    """The Fault for an OSError, or for a ValueError of a name that no file can have."""
    if not isinstance(error, OSError):
        return Fault(f"{what}: no file can have this name", where=path)
    kind = Outside if error.errno == errno.EXDEV else Fault
    return kind(f"{what}: {words(error, writing=writing)}", where=path)


def mount_number(fd: int) -> bytes:
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
