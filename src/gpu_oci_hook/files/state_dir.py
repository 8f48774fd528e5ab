"""What was learnt once: small files in a directory that only we may write.

Losing any of them costs time, never correctness, so nothing here ever fails a start: what cannot be read,
is not ours, or others could have written counts as not there; what cannot be written is not kept.
Cost rule: on every path; `posix` and `sys` only (`os` costs a seventh of the interpreter's start).
"""

# No `from __future__ import annotations`: that module is a file more to load in every call.

import posix
import sys

# Where the state lies. A user namespace's root sees the machine's /run/gpu-oci-hook as somebody else's and
# then uses the user's own run directory.
DIRECTORY = "/run/gpu-oci-hook"
LIMIT = 8 << 20

# The configuration that holds when the environment names none; here, since the shim must know it before it
# can afford `config.load`.
DEFAULT_CONFIG_PATH = "/etc/gpu-oci-hook/config.toml"

_OTHERS_WRITE = 0o022
_CHECKSUM_SIZE = 16


def get_environment_variable(name: str) -> str | None:
    """An environment variable of this process, as `os.environ` would have it."""
    value = posix.environ.get(name.encode())
    return None if value is None else value.decode(sys.getfilesystemencoding(), "surrogateescape")


def list_state_directories() -> list[str]:
    """The places where state may lie, best first."""
    places = [DIRECTORY]
    run = get_environment_variable("XDG_RUNTIME_DIR") or ""
    if run.startswith("/") and is_private_directory(run):
        places.append(run + "/gpu-oci-hook")
    return places


def is_private_directory(path: str) -> bool:
    """Whether a run directory is its user's alone: a root that came by `su` or `sudo` may have the user's in its
    environment, who could swap what lies in it.
    """
    try:
        status = posix.stat(path)
    except OSError:
        return False
    return status.st_uid == posix.geteuid() and not status.st_mode & _OTHERS_WRITE


def is_trusted_fd(fd: int) -> bool:
    """Whether what is open there is this user's, and nobody else may write it."""
    status = posix.fstat(fd)
    return status.st_uid == posix.geteuid() and not status.st_mode & _OTHERS_WRITE


def open_state_directory(path: str, *, create: bool) -> int:
    """The descriptor of a state directory that is ours, or -1."""
    flags = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_NOFOLLOW | posix.O_CLOEXEC
    try:
        fd = posix.open(path, flags)
    except OSError:
        if not create:
            return -1
        try:
            posix.mkdir(path, 0o755)
            fd = posix.open(path, flags)
        except OSError:
            return -1
    if is_trusted_fd(fd):
        return fd
    posix.close(fd)
    return -1


def read_state(name: str) -> bytes | None:
    """The bytes remembered under a name, or None when there are none that can be trusted."""
    for place in list_state_directories():
        directory = open_state_directory(place, create=False)
        if directory < 0:
            continue
        try:
            flags = posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_CLOEXEC
            fd = posix.open(name, flags, dir_fd=directory)
        except OSError:
            continue
        finally:
            posix.close(directory)
        try:
            status = posix.fstat(fd)
            size = status.st_size
            regular = status.st_mode & 0o170000 == 0o100000  # S_ISREG, without the import
            if regular and is_trusted_fd(fd) and size <= LIMIT:
                data = posix.read(fd, size + 1)
                if len(data) == size and data[:_CHECKSUM_SIZE] == _make_checksum(data[_CHECKSUM_SIZE:]):
                    return data[_CHECKSUM_SIZE:]
        except OSError:
            pass
        finally:
            posix.close(fd)
    return None


def write_state(name: str, data: bytes) -> bool:
    """Remembers bytes under a name, all or nothing; False when they could not be kept."""
    # Imported here, since every call loads this module and few write.
    from gpu_oci_hook.files.replace import remove_stale_temporaries, replace_file_at

    for place in list_state_directories():
        directory = open_state_directory(place, create=True)
        if directory < 0:
            continue
        try:
            remove_stale_temporaries(directory)
            replace_file_at(directory, name, _make_checksum(data) + data, mode=0o644)
            return True
        except OSError:
            continue
        finally:
            posix.close(directory)
    return False


def find_state_directory() -> str:
    """The directory where state lies or would be made; "" when there is none that can be ours."""
    for path in list_state_directories():
        fd = open_state_directory(path, create=False)
        if fd >= 0:
            posix.close(fd)
            return path
        parent = path.rpartition("/")[0]
        if not path_exists(path) and posix.access(parent, posix.W_OK, effective_ids=True):
            return path
    return ""


def path_exists(path: str) -> bool:
    """Whether anything has this name, be it a link to nowhere."""
    try:
        posix.lstat(path)
    except (OSError, ValueError):
        return False
    return True


def compute_digest(data: bytes) -> str:
    """A short name for data, the same in every process (`hash` is not); no defence against forgery."""
    return f"{int.from_bytes(data, 'big') % ((1 << 61) - 1):x}"


def _make_checksum(data: bytes) -> bytes:
    """Tells damaged data: `marshal` would take a damaged length for true and fill the machine's memory."""
    return compute_digest(data).rjust(_CHECKSUM_SIZE, "0").encode("ascii")


class StateLock:
    """Keeps the same thing from being learnt by many processes at once; never a reason to fail.

    Without a place for the lock file, or when the holder takes longer than `timeout` seconds, the caller
    goes on without it: the work is then done twice, with the same result.
    """

    __slots__ = ("_fd", "_name", "_timeout")

    def __init__(self, name: str, timeout: float = 10.0) -> None:
        self._name = name
        self._timeout = timeout
        self._fd = -1

    def __enter__(self) -> "StateLock":
        import fcntl  # only on the cold path
        import time

        for place in list_state_directories():
            directory = open_state_directory(place, create=True)
            if directory < 0:
                continue
            flags = posix.O_RDWR | posix.O_CREAT | posix.O_NOFOLLOW | posix.O_CLOEXEC
            try:
                self._fd = posix.open(self._name + ".lock", flags, 0o600, dir_fd=directory)
            except OSError:
                continue
            finally:
                posix.close(directory)
            end = time.monotonic() + self._timeout
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
            posix.close(self._fd)
            self._fd = -1


class StateCache:
    """This module as an object, so that a test or a dry run can hand in another memory."""

    __slots__ = ()

    def get(self, name: str) -> bytes | None:
        """See `read_state`."""
        return read_state(name)

    def put(self, name: str, data: bytes) -> None:
        """See `write_state`."""
        write_state(name, data)

    def lock(self, name: str) -> "StateLock":
        """See `StateLock`."""
        return StateLock(name)


def get_file_signature(path: str) -> tuple[int, ...]:
    """What changes when a file changes; () when it cannot be looked at."""
    try:
        status = posix.stat(path)
    except OSError:
        return ()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
