"""A container's root file system, which is hostile: every path below it is walked by file descriptor.

Cost rule: on the way of every GPU container, so `os`, `errno` and `stat` only. A walk costs one open and one
close for each component; the directories used last stay open, so that a second name in the same directory
costs its own system call and nothing else. openat2(RESOLVE_IN_ROOT) would be shorter, but ctypes costs 3 ms.

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

from gpu_oci_hook.errors import Fault, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

LINKS = 40  # as the kernel: path_resolution(7)
STEPS = 20000  # walked again for each "..", so a hostile text could else cost minutes
KEPT = 32  # directories held open
MOVED = 10000  # entries moved out of the way one by one
TRIES = 16  # when somebody swaps names under our hands
ASIDE = ".gpu-oci-hook-aside"
DESCRIPTORS = "/proc/self/fd"  # the host's /proc: opens an inode again without its name

_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Directory:
    """A directory below the root, held open; what is done by name in it cannot leave it.

    Arguments:
        root: the root that it belongs to.
        fd: an O_PATH descriptor, owned from now on and closed with the last reference.
        parts: the components of its path in the container, free of links.
    """

    __slots__ = ("_owner", "_root", "fd", "parts")

    def __init__(self, root: Rootfs, fd: int, parts: list[str]) -> None:
        self.fd = fd
        self.parts = parts
        self._root = root
        self._owner: tuple[int, int] | None = None

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            close(fd)

    @property
    def path(self) -> str:
        """Its path in the container, free of links when it was opened."""
        return "/" + "/".join(self.parts)

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
            try:
                os.symlink(target, name, dir_fd=self.fd)
            except FileExistsError:
                if self.readlink(name) == target:
                    return False
                self._replace(name, lambda new: self._symlink(new, target))
            else:
                self._give(name)
            return True
        except (OSError, ValueError) as error:
            raise self._fault("cannot make the symbolic link", name, error) from error

    def write(self, name: str, data: bytes, mode: int = 0o644) -> bool:
        """Make the name a regular file with this content and mode; what else is there gives way.

        Returns: whether anything was changed. Raises: Fault when the file system refuses.
        """
        try:
            if self._holds(_one(name), data, mode):
                return False
            self._replace(name, lambda new: self._fill(new, data, mode))
            return True
        except (OSError, ValueError) as error:
            raise self._fault("cannot write the file", name, error) from error

    def clear(self, name: str) -> bool:
        """Make sure that a file can be mounted on the name: only a regular file, or nothing, may be there.

        A mount follows a link at its destination, and opens whatever else is there. Directories are
        renamed, the rest is removed. Returns: whether anything was changed. Raises: Fault.
        """
        try:
            changed = False
            for _ in range(TRIES):
                info = self.status(_one(name))
                if info is None or stat.S_ISREG(info.st_mode):
                    return changed
                self._root.forget()
                changed = True
                if stat.S_ISDIR(info.st_mode):
                    self._aside(name)
                    continue
                try:
                    os.unlink(name, dir_fd=self.fd)
                except (FileNotFoundError, IsADirectoryError):
                    continue  # swapped meanwhile: look again
            raise _error(errno.EBUSY)
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
        return _fault(what, f"{self.path.rstrip('/')}/{name}", error)

    def _replace(self, name: str, make: Callable[[str], None]) -> None:
        """Make the thing under a name of its own, then rename it over what is there."""
        info = self.status(name)
        if info is not None and not stat.S_ISREG(info.st_mode):
            self._root.forget()  # it may have been on the way to a directory that we hold
        # random, so that an image cannot lay names in our way; a hit is an error in any case
        new = f".gpu-oci-hook-{os.urandom(8).hex()}"
        try:
            make(new)
            for _ in range(TRIES):
                try:
                    os.rename(new, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
                    return
                except IsADirectoryError:
                    self._aside(name)
            raise _error(errno.EBUSY)
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
        fd = os.open(name, _MAKE, 0o600, dir_fd=self.fd)
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
            fd = os.open(name, _PATH, dir_fd=self.fd)
            try:
                return _contents(fd, len(data), self.fd, name) == data
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

    def _mkdir(self, name: str) -> None:
        """Make an empty directory, 0755 whatever the umask; somebody else's is as good."""
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
        self._root.forget()
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
        raise _error(errno.EEXIST)


class Rootfs:
    """The root of a container's file system. All paths are the container's: "/usr/lib/x".

    Arguments:
        path: where it is on the host; this path is trusted, what is below it is not.

    Raises: Fault when it cannot be opened. A context manager; `close` gives the descriptors back.
    """

    __slots__ = ("_fd", "_known", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1
        self._known: dict[str, Directory] = {}
        try:
            self._fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            raise _fault("cannot open the container's root file system", path, error) from error

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
        self.forget()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def forget(self) -> None:
        """Let go of the directories that are held for speed: a path may lead elsewhere now."""
        self._known.clear()

    def directory(self, path: str, *, create: bool = True) -> Directory:
        """A handle on a directory, for several names in it; missing ones are made (0755).

        Raises: Fault when it is missing (and not to be made), loops, or something else is there.
        """
        try:
            return self._directory(path, create=create)
        except (OSError, ValueError) as error:
            raise _fault("cannot use the directory", path, error) from error

    def resolve(self, path: str) -> str | None:
        """The same place without links; None when it is missing, loops or leads through a file."""
        try:
            found, missing = self._walk(path)
        except (OSError, ValueError):
            return None
        return None if missing else found.path

    def destination(self, path: str) -> str:
        """Like `resolve`, but what is missing at the end is kept as given: where a mount would land.

        Raises: Fault when links loop, a file stands where a directory must be, a name is impossible.
        """
        try:
            found, missing = self._walk(path)
        except (OSError, ValueError) as error:
            raise _fault("cannot be reached", path, error) from error
        return "/" + "/".join(found.parts + missing)

    def status(self, path: str, *, follow: bool = False) -> os.stat_result | None:
        """What is there, or None; a link at the end is followed (inside the root) only on request."""
        try:
            if not follow:
                where, name = self._parent(path, create=False)
                if name:
                    return where.status(name)
            found, missing = self._walk(path)
            return None if missing else os.fstat(found.fd)
        except (OSError, ValueError):
            return None

    def readlink(self, path: str) -> str | None:
        """The text of a symbolic link, or None for anything else."""
        try:
            where, name = self._parent(path, create=False)
            return where.readlink(name) if name else None
        except (OSError, ValueError):
            return None

    def names(self, path: str, limit: int = 20000) -> list[str]:
        """The names in a directory, sorted and bounded; [] when it is none."""
        try:
            return self._directory(path, create=False).names(limit)
        except (OSError, ValueError):
            return []

    def read(self, path: str, limit: int) -> bytes | None:
        """A regular file of at most `limit` bytes, links followed inside the root; None for all else."""
        try:
            found, missing = self._walk(path)
            if missing or not found.parts:
                return None
            try:
                return _contents(found.fd, limit)
            except FileNotFoundError:
                above, missing = self._walk("/".join(found.parts[:-1]))
                return None if missing else _contents(found.fd, limit, above.fd, found.parts[-1])
        except (OSError, ValueError):
            return None

    def link(self, path: str, target: str) -> bool:
        """Make a symbolic link and the directories above it: see `Directory.link`."""
        where, name = self._place(path)
        return where.link(name, target)

    def write(self, path: str, data: bytes, mode: int = 0o644) -> bool:
        """Write a file and make the directories above it: see `Directory.write`."""
        where, name = self._place(path)
        return where.write(name, data, mode)

    def clear(self, path: str) -> bool:
        """Make room for a file mount: see `Directory.clear`. What is missing stays missing."""
        try:
            where, name = self._parent(path, create=False)
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            raise _fault("cannot make room for a file", path, error) from error
        return where.clear(name)

    def writable(self) -> bool:
        """Whether files can be made in it, found out by making one that has no name."""
        try:
            if os.fstatvfs(self._fd).f_flag & os.ST_RDONLY:
                return False
            try:
                os.close(os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=self._fd))
            except OSError as error:
                # overlayfs learnt O_TMPFILE with Linux 6.3; EISDIR: file systems that never heard of it
                if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
                    return False
                name = f".gpu-oci-hook-{os.urandom(8).hex()}"
                os.close(os.open(name, _MAKE, 0o600, dir_fd=self._fd))
                os.unlink(name, dir_fd=self._fd)
        except OSError:
            return False
        return True

    def _place(self, path: str) -> tuple[Directory, str]:
        try:
            return self._parent(path, create=True)
        except (OSError, ValueError) as error:
            raise _fault("cannot make the directory above it", path, error) from error

    def _parent(self, path: str, *, create: bool) -> tuple[Directory, str]:
        """The directory that holds the last name of a path, and that name ("" when there is none)."""
        above, _, name = path.rstrip("/").rpartition("/")
        if name in (".", ".."):
            return self._directory(path, create=create), ""
        return self._directory(above, create=create), name

    def _directory(self, path: str, *, create: bool) -> Directory:
        known = self._known.get(path)
        if known is None:
            known, missing = self._walk(path, create=create)
            if missing:
                raise _error(errno.ENOENT)
            if not stat.S_ISDIR(os.fstat(known.fd).st_mode):
                raise _error(errno.ENOTDIR)
            if len(self._known) >= KEPT:
                self._known.clear()
            self._known[path] = known
        return known

    def _walk(self, path: str, *, create: bool = False) -> tuple[Directory, list[str]]:
        """Walk a path below the root, component by component.

        Returns: a handle on the last thing that exists (a file, too: the caller asks), and the
        components that are missing after it. Raises: OSError; ValueError for impossible names.
        """
        pending = path.split("/")
        pending.reverse()
        missing: list[str] = []
        links = steps = 0
        here = Directory(self, os.dup(self._fd), [])
        while pending:
            name = pending.pop()
            if name in ("", "."):
                continue
            steps += 1
            if steps > STEPS:
                raise _error(errno.ELOOP)
            if missing:
                if name == "..":
                    missing.pop()
                elif len(os.fsencode(name)) > 255 or "\0" in name:
                    raise _error(errno.ENAMETOOLONG)
                else:
                    missing.append(name)
                continue
            if name == "..":
                if not here.parts:
                    continue
                if not stat.S_ISDIR(os.fstat(here.fd).st_mode):
                    raise _error(errno.ENOTDIR)
                pending += reversed(here.parts[:-1])
            else:
                try:
                    fd, text = _step(here.fd, name)
                except FileNotFoundError:
                    if create:
                        here._mkdir(name)
                        pending.append(name)
                    else:
                        missing.append(name)
                    continue
                if fd >= 0:
                    here.parts.append(name)
                    here = Directory(self, fd, here.parts)
                    continue
                links += 1
                if links > LINKS:
                    raise _error(errno.ELOOP)
                pending += reversed(text.split("/"))
                if not text.startswith("/"):
                    continue
            here = Directory(self, os.dup(self._fd), [])
        return here, missing


def _step(above: int, name: str) -> tuple[int, str]:
    """Open one component: (descriptor, "") for a thing, (-1, its text) for a symbolic link."""
    try:
        return os.open(name, _PATH | os.O_DIRECTORY, dir_fd=above), ""
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
    for _ in range(TRIES):
        try:
            return -1, os.readlink(name, dir_fd=above)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        fd = os.open(name, _PATH, dir_fd=above)
        if not stat.S_ISLNK(os.fstat(fd).st_mode):
            return fd, ""
        os.close(fd)  # it has become a link since
    raise _error(errno.ELOOP)


def _contents(fd: int, limit: int, above: int = -1, name: str = "") -> bytes | None:
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
                raise _error(errno.E2BIG)
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


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def _fault(what: str, path: str, error: Exception) -> Fault:
    reason = words(error) if isinstance(error, OSError) else "no file can have this name"
    return Fault(f"{what}: {reason}", where=path)
