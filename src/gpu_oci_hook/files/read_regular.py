"""Read regular files: bounded in size, and never waiting on a FIFO or opening a terminal as ours.

Import budget: pass-through.
"""

# No `from __future__ import annotations`: that module is a file more to load in every call. For the same reason the
# functions for config.json are in this module: a create that asks for nothing loads this one module and no other.

import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# A container that requests a GPU has one of these in its config.json. An engine that escaped plain ASCII letters would
# hide them, and the container would start without a GPU; none does. `config.load.list_request_words` has those that the
# configuration adds.
REQUEST_TRIGGERS = (
    b"NVIDIA_VISIBLE_DEVICES", b"CUDA_VERSION", b"nvidia-container-devices",
    b"/gpu-oci-hook/",  # in the mounts of a kept bundle, from which an earlier injection is removed
)  # fmt: skip
# Hooks that inject GPUs by themselves, as files with these names. They are removed where config.json can be changed.
HOOK_TRIGGERS = (b"nvidia-container-runtime-hook", b"nvidia-container-toolkit")
TRIGGERS = (*REQUEST_TRIGGERS, *HOOK_TRIGGERS)

PROC_SELF_FD = "/proc/self/fd"  # the host's /proc: opens an inode again without its name
CONFIG_JSON_LIMIT = 32 << 20

# O_NONBLOCK: a FIFO must not make us wait. O_NOCTTY: a terminal must not become ours.
_READ_FLAGS = posix.O_RDONLY | posix.O_NONBLOCK | posix.O_NOCTTY | posix.O_CLOEXEC
_FIRST_READ_SIZE = 1 << 14
_MAX_READ_SIZE = 1 << 20


class UnusableFileError(ValueError):
    """A file that is not read: it is not a regular file, is too large, or has an impossible name.

    Arguments:
        predicate: the reason without its subject, such as "is not a regular file"; the text is "it" and the predicate.
    """

    def __init__(self, predicate: str) -> None:
        super().__init__(f"it {predicate}")
        self.predicate = predicate


class ImpossibleNameError(UnusableFileError):
    """A name that no file can have."""


def open_regular_file(
    path: str, *, dir_fd: int | None = None, follow_symlinks: bool = True, stat_first: bool = False
) -> int:
    """Open a regular file for reading and return the descriptor.

    Arguments:
        dir_fd: a descriptor of the directory that a relative path starts from.
        follow_symlinks: whether the last component may be a symbolic link.
        stat_first: look at the file before it is opened, since opening a device can have effects. A file that is
            exchanged between the two is opened: where other users can do that, use `reopen_regular_fd`.

    Raises:
        UnusableFileError: it is not a regular file, or (`ImpossibleNameError`) no file can have this name.
        OSError: it is missing or cannot be opened.
    """
    flags = _READ_FLAGS if follow_symlinks else _READ_FLAGS | posix.O_NOFOLLOW
    try:
        if stat_first:
            _require_regular(posix.stat(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks))
        fd = posix.open(path, flags, dir_fd=dir_fd)
    except UnusableFileError:
        raise
    except ValueError:
        predicate = "has a NUL character in its name" if "\0" in path else "has a name that no file can have"
        raise ImpossibleNameError(predicate) from None
    try:
        _require_regular(posix.fstat(fd))
    except BaseException:
        posix.close(fd)
        raise
    return fd


def reopen_regular_fd(path_fd: int, dir_fd: int = -1, name: str = "") -> int:
    """Open the regular file behind an O_PATH descriptor for reading and return the new descriptor.

    It is opened through /proc, not by a name that may have become a device: opening one can have effects.

    Arguments:
        dir_fd, name: the file's directory and name, used where there is no /proc; the inodes are compared.

    Raises:
        UnusableFileError: it is not a regular file, or the name leads to another file by now.
        OSError: it cannot be opened.
    """
    status = posix.fstat(path_fd)
    _require_regular(status)
    try:
        fd = posix.open(f"{PROC_SELF_FD}/{path_fd}", _READ_FLAGS)
    except FileNotFoundError:
        if dir_fd < 0:
            raise
        fd = posix.open(name, _READ_FLAGS | posix.O_NOFOLLOW, dir_fd=dir_fd)
    reopened = posix.fstat(fd)
    if (reopened.st_dev, reopened.st_ino) != (status.st_dev, status.st_ino):
        posix.close(fd)
        raise UnusableFileError("was replaced while it was being opened")
    return fd


def read_fd(fd: int, limit: int) -> bytes:
    """Read a descriptor to its end. Files of procfs and sysfs count, whose size is not known before.

    Raises:
        UnusableFileError: it has more than `limit` bytes.
        OSError: it cannot be read.
    """
    # One read brings a whole file, and a second one its end; room for the limit would be a megabyte for one line.
    size = min(limit, max(posix.fstat(fd).st_size, _FIRST_READ_SIZE)) + 1
    parts: list[bytes] = []
    total = 0
    while total <= limit and (part := posix.read(fd, size)):
        parts.append(part)
        total += len(part)
        size = min(limit + 1, max(size, min(2 * size, _MAX_READ_SIZE)))
    if total > limit:
        amount = f"{limit >> 20} MiB" if limit and limit % (1 << 20) == 0 else f"{limit} bytes"
        raise UnusableFileError(f"is larger than {amount}")
    return b"".join(parts)


def read_regular_fd(path_fd: int, limit: int, dir_fd: int = -1, name: str = "") -> bytes:
    """Read the regular file behind an O_PATH descriptor: see `reopen_regular_fd` and `read_fd`."""
    fd = reopen_regular_fd(path_fd, dir_fd, name)
    try:
        return read_fd(fd, limit)
    finally:
        posix.close(fd)


def read_regular_file(
    path: str,
    limit: int,
    *,
    dir_fd: int | None = None,
    follow_symlinks: bool = True,
    stat_first: bool = False,
    check_status: "Callable[[posix.stat_result], None] | None" = None,
) -> bytes:
    """Read a whole regular file.

    Arguments:
        limit: the most bytes that it may have.
        dir_fd, follow_symlinks, stat_first: see `open_regular_file`.
        check_status: called with the status of the very file that is read; raises to refuse it.

    Raises:
        UnusableFileError: it is not a regular file, has more than `limit` bytes, or an impossible name.
        OSError: it is missing or cannot be read.
    """
    fd = open_regular_file(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks, stat_first=stat_first)
    try:
        if check_status is not None:
            check_status(posix.fstat(fd))
        return read_fd(fd, limit)
    finally:
        posix.close(fd)


def read_regular_head(path: str, size: int) -> bytes:
    """Read the first bytes of a regular file; raises as `open_regular_file` does."""
    fd = open_regular_file(path)
    try:
        return posix.read(fd, size)
    finally:
        posix.close(fd)


def _require_regular(status: posix.stat_result) -> None:
    kind = status.st_mode & 0o170000  # S_IFMT, without the import
    if kind != 0o100000:
        raise UnusableFileError("is a directory, not a regular file" if kind == 0o040000 else "is not a regular file")


# --- config.json --------------------------------------------------------------------------------------------


def read_config_json(path: str) -> bytes | None:
    """Read a bundle's config.json; return None when it is missing, for the low-level runtime to report.

    Raises:
        Fault: it is not a regular file, is larger than CONFIG_JSON_LIMIT, or cannot be read.
    """
    try:
        return read_regular_file(path, CONFIG_JSON_LIMIT)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        from gpu_oci_hook.errors import Fault, describe_os_error

        reason = describe_os_error(error)
        raise Fault(f"cannot be read: {reason}", where=path) from None


def is_oversized_without_triggers(path: str, triggers: tuple[bytes, ...]) -> bool:
    """Tell whether a config.json is larger than CONFIG_JSON_LIMIT and asks for no device.

    Such a file is passed to the low-level runtime as it is. It is searched in pieces, without holding it in memory.
    """
    try:
        if posix.stat(path).st_size <= CONFIG_JSON_LIMIT:
            return False
        fd = open_regular_file(path)
        try:
            tail = b""
            while part := posix.read(fd, _MAX_READ_SIZE):
                if has_trigger(tail + part, triggers):
                    return False
                tail = part[-max(map(len, triggers)) :]
        finally:
            posix.close(fd)
    except (OSError, ValueError):
        return False
    return True


def has_trigger(data: bytes, triggers: tuple[bytes, ...]) -> bool:
    """Tell whether a config.json may ask for a device, from its bytes alone."""
    return any(trigger in data for trigger in triggers)
