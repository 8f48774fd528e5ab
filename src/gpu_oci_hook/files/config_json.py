"""Read a bundle's config.json: a bounded, regular file, never a wait on a FIFO."""

# No `from __future__ import annotations`: that module is a file more to load in every call.

import posix

CONFIG_JSON_LIMIT = 32 << 20


def read_config_json(path: str) -> bytes | None:
    """The bytes of a bundle's config.json; None when it is missing, for the low-level runtime to say so.

    Raises:
        Fault: it is no regular file, larger than CONFIG_JSON_LIMIT, or cannot be read.
    """
    try:
        # A FIFO in the file's place must not make us wait.
        fd = posix.open(path, posix.O_RDONLY | posix.O_NONBLOCK | posix.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _make_unreadable_fault(path, error) from None
    try:
        status = posix.fstat(fd)
        if status.st_mode & 0o170000 != 0o100000:  # S_ISREG, without the import
            raise _make_config_fault(path, "it is not a regular file")
        if status.st_size > CONFIG_JSON_LIMIT:
            raise _make_config_fault(path, f"it is larger than {CONFIG_JSON_LIMIT >> 20} MiB")
        parts = []
        size = 0
        while part := posix.read(fd, max(status.st_size + 1 - size, 65536)):
            parts.append(part)
            size += len(part)
            if size > CONFIG_JSON_LIMIT:
                raise _make_config_fault(path, f"it is larger than {CONFIG_JSON_LIMIT >> 20} MiB")
        return b"".join(parts)
    except OSError as error:
        raise _make_unreadable_fault(path, error) from None
    finally:
        posix.close(fd)


def _make_config_fault(path: str, reason: str) -> Exception:
    from gpu_oci_hook.errors import Fault

    return Fault(f"the bundle's configuration is refused: {reason}", where=path)


def _make_unreadable_fault(path: str, error: Exception) -> Exception:
    from gpu_oci_hook.errors import describe_os_error

    return _make_config_fault(path, describe_os_error(error) if isinstance(error, OSError) else str(error))


def is_oversized_without_triggers(path: str, triggers: tuple[bytes, ...]) -> bool:
    """Whether a config.json is larger than we read and asks for nothing: that one is the runtime's alone.

    It is looked at in pieces, so that its size costs time and no memory.
    """
    try:
        if posix.stat(path).st_size <= CONFIG_JSON_LIMIT:
            return False
        fd = posix.open(path, posix.O_RDONLY | posix.O_NONBLOCK | posix.O_CLOEXEC)
        try:
            tail = b""
            while part := posix.read(fd, 1 << 20):
                if has_trigger(tail + part, triggers):
                    return False
                tail = part[-max(map(len, triggers)) :]
        finally:
            posix.close(fd)
    except (OSError, ValueError):
        return False
    return True


def has_trigger(data: bytes, triggers: tuple[bytes, ...]) -> bool:
    """Whether a config.json may ask for a device, told from its bytes alone."""
    return any(trigger in data for trigger in triggers)
