"""Cache small results between calls, in a directory that only this user may write.

Import budget: pass-through.
"""

# Every call loads this module, so it imports `posix` and `sys` only: `os` costs a seventh of the interpreter's start,
# and `from __future__ import annotations` would be one more file to load.
# Losing the state costs time, never correctness. So nothing here makes a start fail: a file that cannot be read, or
# that another user could have written, counts as missing, and a file that cannot be written is not kept.

import posix
import sys

# A user namespace's root sees the host's /run/gpu-oci-hook as another user's, and uses the user's run directory
# instead.
DIRECTORY = "/run/gpu-oci-hook"
LIMIT = 8 << 20

# The config file when the environment names none. It is here because the shim needs it before it can load
# `config.load`.
DEFAULT_CONFIG_PATH = "/etc/gpu-oci-hook/config.toml"

_OTHERS_WRITE = 0o022
_CHECKSUM_SIZE = 16
_FILE_MODE = 0o644


def get_environment_variable(name: str) -> str | None:
    """Return an environment variable of this process as `os.environ` would."""
    value = posix.environ.get(name.encode())
    return None if value is None else value.decode(sys.getfilesystemencoding(), "surrogateescape")


def list_state_directories() -> list[str]:
    """Return the directories that may have the state, best first."""
    directories = [DIRECTORY]
    run_directory = get_environment_variable("XDG_RUNTIME_DIR") or ""
    if run_directory.startswith("/") and is_private_directory(run_directory):
        directories.append(run_directory + "/gpu-oci-hook")
    return directories


def is_private_directory(path: str) -> bool:
    """Tell whether a run directory belongs to this user and only this user may write it."""
    # After `su` or `sudo` root may have another user's run directory in its environment, who could exchange files.
    try:
        return _is_private(posix.stat(path))
    except OSError:
        return False


def is_trusted_fd(fd: int) -> bool:
    """Tell whether an open file or directory belongs to this user and only this user may write it."""
    return _is_private(posix.fstat(fd))


def _is_private(status: posix.stat_result) -> bool:
    # A minimal `trust.describe_foreign_access`, since a call that only passes through loads no other module. It is
    # stricter too: marshal reads the state, so not even root's files or its group count in another user's place.
    return status.st_uid == posix.geteuid() and not status.st_mode & _OTHERS_WRITE


def open_state_directory(path: str, *, create: bool) -> int:
    """Open a state directory and return the descriptor, or -1 when it is missing or not private.

    Arguments:
        create: create the directory when it is missing.
    """
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
    """Read a cached file, or None when there is none that can be trusted."""
    for path in list_state_directories():
        directory_fd = open_state_directory(path, create=False)
        if directory_fd < 0:
            continue
        try:
            # A minimal `read_regular.read_regular_file`, since a call that only passes through loads no other module.
            flags = posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_CLOEXEC
            fd = posix.open(name, flags, dir_fd=directory_fd)
        except OSError:
            continue
        finally:
            posix.close(directory_fd)
        try:
            status = posix.fstat(fd)
            size = status.st_size
            is_regular = status.st_mode & 0o170000 == 0o100000  # S_ISREG, without the import
            if is_regular and _is_private(status) and size <= LIMIT:
                data = posix.read(fd, size + 1)
                if len(data) == size and data[:_CHECKSUM_SIZE] == _make_checksum(data[_CHECKSUM_SIZE:]):
                    return data[_CHECKSUM_SIZE:]
        except OSError:
            pass
        finally:
            posix.close(fd)
    return None


def write_state(name: str, data: bytes) -> bool:
    """Cache bytes under a name atomically; return False when they could not be kept."""
    from gpu_oci_hook.files.replace import remove_stale_temporaries, replace_file_at  # few calls write

    for path in list_state_directories():
        directory_fd = open_state_directory(path, create=True)
        if directory_fd < 0:
            continue
        try:
            remove_stale_temporaries(directory_fd)
            replace_file_at(directory_fd, name, _make_checksum(data) + data, mode=_FILE_MODE)
            return True
        except OSError:
            continue
        finally:
            posix.close(directory_fd)
    return False


def find_state_directory() -> str:
    """Return the directory that has the state or would be created for it, or "" when none can be used."""
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
    """Tell whether a path exists, dangling links included."""
    try:
        posix.lstat(path)
    except (OSError, ValueError):
        return False
    return True


def compute_digest(data: bytes) -> str:
    """Return a short name for data, the same in every process (unlike `hash`); it does not protect from forgery."""
    return f"{int.from_bytes(data, 'big') % ((1 << 61) - 1):x}"


def _make_checksum(data: bytes) -> bytes:
    """Return the checksum that detects damaged data: marshal would believe a damaged length and fill the memory."""
    return compute_digest(data).rjust(_CHECKSUM_SIZE, "0").encode("ascii")


class StateLock:
    """A lock that keeps processes from computing the same result at the same time.

    It never fails. Without a directory for the lock file, or when the holder takes longer than the timeout, the caller
    goes on without the lock: the work is then done twice, with the same result.

    Arguments:
        name: of the lock.
        timeout: in seconds.
    """

    __slots__ = ("_fd", "_name", "_timeout")

    def __init__(self, name: str, timeout: float = 10.0) -> None:
        self._name = name
        self._timeout = timeout
        self._fd = -1

    def __enter__(self) -> "StateLock":
        import fcntl  # cold
        import time

        for path in list_state_directories():
            directory_fd = open_state_directory(path, create=True)
            if directory_fd < 0:
                continue
            flags = posix.O_RDWR | posix.O_CREAT | posix.O_NOFOLLOW | posix.O_CLOEXEC
            try:
                self._fd = posix.open(self._name + ".lock", flags, 0o600, dir_fd=directory_fd)
            except OSError:
                continue
            finally:
                posix.close(directory_fd)
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
    """This module's functions as an object, which a test or a dry run can replace by another cache."""

    __slots__ = ()

    def get(self, name: str) -> bytes | None:
        """Read cached bytes: see `read_state`."""
        return read_state(name)

    def put(self, name: str, data: bytes) -> None:
        """Cache bytes: see `write_state`."""
        write_state(name, data)

    def lock(self, name: str) -> "StateLock":
        """Return a lock: see `StateLock`."""
        return StateLock(name)


def get_file_signature(path: str) -> tuple[int, ...]:
    """Return the stat signature of a file, which changes when the file changes, or () when there is no such file."""
    try:
        status = posix.stat(path)
    except OSError:
        return ()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
