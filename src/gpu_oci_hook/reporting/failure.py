"""Report why a start or a hook failed: one line in the engine's log file, the same text on stderr.

Which of the two an engine shows differs (facts: engine-error-channels).

Import budget: cold.
"""

from __future__ import annotations

import os
import time

from gpu_oci_hook.errors import Fault, clip_text, describe_os_error, make_printable
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.formats.fastjson import dump_json

RUNTIME_NAME = "gpu-oci-runtime"

HOOK_LOG = "hook.log"
"""The file with the reasons of failed hooks, in the state directory."""
HOOK_LOG_LIMIT = 64 << 10
"""The most bytes of that file; a full one is renamed to `hook.log.1`, which replaces the one before."""

SYSTEM_LOG_SOCKET = "/dev/log"

# Targets of crun's --log that are not files.
_NON_FILE_TARGETS = ("journald:", "syslog:")


def describe_error(error: BaseException) -> str:
    """Return one line about an error.

    An unexpected exception is a bug: the line has its type, source line and text, but never a traceback.
    """
    if isinstance(error, Fault):
        return str(error)
    if isinstance(error, OSError):
        subject = error.filename if isinstance(error.filename, str) else ""
        if not subject and isinstance(error, FileNotFoundError) and _is_current_directory_deleted():
            return "the current directory was deleted. Change to another directory"
        return make_printable(f"{subject}: {describe_os_error(error)}" if subject else describe_os_error(error))
    if isinstance(error, MemoryError):
        return "the memory that this process may use is too small"
    location = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        location = f" at {os.path.basename(code.co_filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return make_printable(
        f"internal error: {type(error).__name__}{location}: {clip_text(str(error), 2000)}. Please report it"
    )


def make_output_fault(error: OSError, stream: str = "standard output") -> Fault:
    """Return the fault of an output stream that takes nothing, for example because the disk is full.

    Arguments:
        stream: "standard output" or "standard error".
    """
    return Fault(f"the output cannot be written: {describe_os_error(error, writing=True)}", where=stream)


def _is_current_directory_deleted() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def report_failure(error: BaseException, log_path: str, log_format: str, program: str = RUNTIME_NAME) -> bool:
    """Write a failure to the engine's log, if there is one, and to stderr; never raises.

    Arguments:
        log_path, log_format: see `shim.main.CommandLine`.
        program: the name that the line begins with.

    Returns:
        Whether it is in the log.
    """
    message = f"{program}: {describe_error(error)}"
    logged = _append_to_log(message, "error", log_path, log_format)
    _write_stderr(message)
    return logged


def save_hook_failure(error: BaseException, program: str, bundle: str = "") -> None:
    """Append the reason of a failed hook to a file in the state directory, or else to the system log; never raises.

    crun shows only the exit status of a failed hook, and its stderr is lost (facts: crun-hook-failure-text).

    Arguments:
        bundle: the container's, with its id in the path, or "" when it is not known.
    """
    line = _format_text_line(f"{program}: {describe_error(error)}", "error", bundle)
    for path in _list_hook_log_directories():
        directory_fd = state_dir.open_state_directory(path, create=True)
        if directory_fd < 0:
            continue
        try:
            if _append_to_hook_log(directory_fd, line):
                return
        except (OSError, ValueError):
            continue
        finally:
            os.close(directory_fd)
    _send_to_system_log(f"{program}: {describe_error(error)}")


def _send_to_system_log(message: str) -> None:
    """Send a message to syslog or the journal: a hook in the container's own user namespace can write no file."""
    import socket

    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.settimeout(1)
            connection.connect(SYSTEM_LOG_SOCKET)
            connection.send(f"<11>{message}".encode("utf-8", "backslashreplace"))  # facility user, severity error
    except OSError:
        pass  # the message is on stderr


def _append_to_hook_log(directory_fd: int, line: bytes) -> bool:
    """Append a line to the file if it is a private regular file; return whether that worked."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    for _ in range(2):
        fd = os.open(HOOK_LOG, flags, 0o600, dir_fd=directory_fd)
        try:
            status = os.fstat(fd)
            is_regular = status.st_mode & 0o170000 == 0o100000  # S_ISREG, without the import
            if not is_regular or not state_dir.is_trusted_fd(fd):
                return False
            if not status.st_size or status.st_size + len(line) <= HOOK_LOG_LIMIT:
                os.write(fd, line)
                return True
        finally:
            os.close(fd)
        os.rename(HOOK_LOG, f"{HOOK_LOG}.1", src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
    return False  # other processes have filled the new one meanwhile


def _list_hook_log_directories() -> list[str]:
    """Return the directories for the file, best first.

    A hook of a CDI file has PATH as its only environment variable. So a user's run directory is also tried at systemd's
    path, which has the user's number outside this user namespace.
    """
    directories = state_dir.list_state_directories()
    if len(directories) == 1:
        from gpu_oci_hook.files.user_namespace import map_uid_to_parent

        outside = map_uid_to_parent(os.geteuid())
        run = f"/run/user/{outside}"
        if outside and state_dir.is_private_directory(run):
            directories.append(f"{run}/gpu-oci-hook")
    return directories


def _append_to_log(message: str, level: str, log_path: str, log_format: str) -> bool:
    """Append a line to a log file; return whether that worked."""
    if not log_path or log_path.startswith(_NON_FILE_TARGETS):
        return False
    if log_format == "json":
        line = dump_json({"level": level, "msg": message, "time": _format_timestamp()}) + b"\n"
    else:
        line = _format_text_line(message, level)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(log_path.removeprefix("file:"), flags, 0o644)
        try:
            os.write(fd, line)
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return False  # it is still on stderr
    return True


def _format_text_line(message: str, level: str, bundle: str = "") -> bytes:
    suffix = f" bundle={_quote_text(clip_text(make_printable(bundle)))}" if bundle else ""
    return f'time="{_format_timestamp()}" level={level} msg={_quote_text(message)}{suffix}\n'.encode(
        "utf-8", "backslashreplace"
    )


def _quote_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _format_timestamp() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def report_warning(text: str, log_path: str = "", log_format: str = "text", program: str = RUNTIME_NAME) -> None:
    """Write a warning to stderr, and to a log file if there is one."""
    message = clip_text(make_printable(f"{program}: warning: {text}"), 4000)
    _append_to_log(message, "warning", log_path, log_format)
    _write_stderr(message)


def _write_stderr(message: str) -> None:
    try:
        os.write(2, message.encode("utf-8", "backslashreplace") + b"\n")
    except OSError:
        pass
