"""What was learnt once: small files in a directory that only we may write.

Losing any of them costs time, never correctness, so nothing here ever fails a start: what cannot be read,
is not ours, or others could have written counts as not there; what cannot be written is not kept.
Cost rule: on every path; `os` and `sys` only.
"""

from __future__ import annotations

import os

# Where the state lies. A user namespace's root sees the machine's /run/gpu-oci-hook as somebody else's and
# then uses the user's own run directory.
DIRECTORY = "/run/gpu-oci-hook"
LIMIT = 8 << 20

# The configuration that holds when the environment names none; here, since the shim must know it before it
# can afford `config`.
CONFIG = "/etc/gpu-oci-hook/config.toml"

_OTHERS_WRITE = 0o022
_MARK = 16


def directories() -> list[str]:
    """The places where state may lie, best first."""
    places = [DIRECTORY]
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    if own.startswith("/") and _own(own):
        places.append(own + "/gpu-oci-hook")
    return places


def _own(path: str) -> bool:
    """Whether a run directory is its user's alone: a root that came by `su` or `sudo` may have the user's in its
    environment, who could swap what lies in it.
    """
    try:
        status = os.stat(path)
    except OSError:
        return False
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_WRITE


def _trusted(fd: int) -> bool:
    status = os.fstat(fd)
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_WRITE


def _open_directory(path: str, *, create: bool) -> int:
    """The descriptor of a state directory that is ours, or -1."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(path, flags)
    except OSError:
        if not create:
            return -1
        try:
            os.mkdir(path, 0o755)
            fd = os.open(path, flags)
        except OSError:
            return -1
    if _trusted(fd):
        return fd
    os.close(fd)
    return -1


def read(name: str) -> bytes | None:
    """The bytes remembered under a name, or None when there are none that can be trusted."""
    for place in directories():
        directory = _open_directory(place, create=False)
        if directory < 0:
            continue
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        except OSError:
            continue
        finally:
            os.close(directory)
        try:
            status = os.fstat(fd)
            size = status.st_size
            regular = status.st_mode & 0o170000 == 0o100000  # S_ISREG, without the import
            if regular and _trusted(fd) and size <= LIMIT:
                data = os.read(fd, size + 1)
                if len(data) == size and data[:_MARK] == _mark(data[_MARK:]):
                    return data[_MARK:]
        except OSError:
            pass
        finally:
            os.close(fd)
    return None


def write(name: str, data: bytes) -> bool:
    """Remembers bytes under a name, all or nothing; False when they could not be kept."""
    for place in directories():
        directory = _open_directory(place, create=True)
        if directory < 0:
            continue
        temporary = f".{name}.{os.getpid()}"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(temporary, flags, 0o644, dir_fd=directory)
            try:
                view = memoryview(_mark(data) + data)
                while view:
                    view = view[os.write(fd, view) :]
                os.fchmod(fd, 0o644)  # whatever the umask says, others must not write
            finally:
                os.close(fd)
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
            return True
        except OSError:
            try:
                os.unlink(temporary, dir_fd=directory)
            except OSError:
                pass
        finally:
            os.close(directory)
    return False


def place() -> str:
    """The directory where state lies or would be made; "" when there is none that can be ours."""
    for path in directories():
        fd = _open_directory(path, create=False)
        if fd >= 0:
            os.close(fd)
            return path
        parent = path.rpartition("/")[0]
        if not os.path.lexists(path) and os.access(parent, os.W_OK, effective_ids=True):
            return path
    return ""


def digest(data: bytes) -> str:
    """A short name for data, the same in every process (`hash` is not); no defence against forgery."""
    return f"{int.from_bytes(data, 'big') % ((1 << 61) - 1):x}"


def _mark(data: bytes) -> bytes:
    """Tells damaged data: `marshal` would take a damaged length for true and fill the machine's memory."""
    return digest(data).rjust(_MARK, "0").encode("ascii")


def prepare(path: str, entries: tuple[tuple[str, str], ...]) -> None:
    """Makes a directory with these links and empty files, whole or not at all, unless it is there and whole.

    Arguments:
        path: its name must tell its content. entries: (name, link text), an empty text for an empty file.

    Raises:
        OSError: it cannot be made.
    """
    if _prepared(path, entries):
        return
    parent = path.rpartition("/")[0]
    os.makedirs(parent, 0o755, exist_ok=True)
    fresh = f"{path}.{os.getpid()}"
    _remove(fresh)  # left by one that was killed and had our number
    os.mkdir(fresh, 0o755)
    try:
        fd = os.open(fresh, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchmod(fd, 0o755)  # containers with other user ids walk through it, whatever the umask says
            for name, target in entries:
                if target:
                    os.symlink(target, name, dir_fd=fd)
                else:
                    os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444, dir_fd=fd))
        finally:
            os.close(fd)
        try:
            os.rename(fresh, path)
        except OSError:
            if _prepared(path, entries) or not os.path.lexists(path):
                raise
            # Not what its name says: a container that may mount anew has written into it. Others use it still,
            # so it is kept.
            os.rename(path, f"{path}.{os.urandom(8).hex()}")
            os.rename(fresh, path)
    except OSError:
        _remove(fresh)
        if not _prepared(path, entries):  # else somebody was faster
            raise


def _prepared(path: str, entries: tuple[tuple[str, str], ...]) -> bool:
    """Whether a directory is there, ours, with these entries and no others."""
    directory = _open_directory(path, create=False)
    if directory < 0:
        return False
    wanted = dict(entries)
    try:
        with os.scandir(directory) as found:
            for entry in found:
                target = wanted.pop(entry.name, None)
                if target is None:
                    return False
                if target:
                    if os.readlink(entry.name, dir_fd=directory) != target:
                        return False
                elif not entry.is_file(follow_symlinks=False):
                    return False
    except OSError:
        return False
    finally:
        os.close(directory)
    return not wanted


def _remove(path: str) -> None:
    """Removes a directory of files, as far as it goes."""
    try:
        for name in os.listdir(path):
            os.unlink(f"{path}/{name}")
        os.rmdir(path)
    except OSError:
        pass


class Lock:
    """Keeps the same thing from being learnt by many processes at once; never a reason to fail.

    Without a place for the lock file, or when the holder takes longer than `patience` seconds, the caller
    goes on without it: the work is then done twice, with the same result.
    """

    __slots__ = ("_fd", "_name", "_patience")

    def __init__(self, name: str, patience: float = 10.0) -> None:
        self._name = name
        self._patience = patience
        self._fd = -1

    def __enter__(self) -> Lock:
        import fcntl  # only on the cold path
        import time

        for place in directories():
            directory = _open_directory(place, create=True)
            if directory < 0:
                continue
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                self._fd = os.open(self._name + ".lock", flags, 0o600, dir_fd=directory)
            except OSError:
                continue
            finally:
                os.close(directory)
            end = time.monotonic() + self._patience
            while True:
                try:
                    fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return self
                except OSError:
                    if time.monotonic() > end:
                        return self
                    time.sleep(0.005)
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Memory:
    """This module as an object, so that a test or a dry run can hand in another memory."""

    __slots__ = ()

    def get(self, name: str) -> bytes | None:
        """See `read`."""
        return read(name)

    def put(self, name: str, data: bytes) -> None:
        """See `write`."""
        write(name, data)

    def lock(self, name: str) -> Lock:
        """See `Lock`."""
        return Lock(name)
