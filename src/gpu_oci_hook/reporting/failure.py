"""How an engine learns why a start failed: one line in its log file, the same text on stderr.

containerd's shim reads the last error line of the JSON log; podman wants exactly one JSON object in it; CRI-O
and conmon quote stderr (ecosystem facts 2.1 to 2.4). Cold: loaded only when a start has failed.
"""

from __future__ import annotations

import os
import time

from gpu_oci_hook.errors import Fault, clip_text, describe_os_error, make_printable
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.formats.fastjson import dump_json

RUNTIME_NAME = "gpu-oci-runtime"

HOOK_LOG = "hook.log"
"""The file with the reasons of failed hooks, in the directory where our state lies."""
HOOK_LOG_LIMIT = 64 << 10
"""Bytes of that file; a full one is called `hook.log.1` in place of the one before."""

# Targets of crun's --log that are no files.
_NON_FILE_TARGETS = ("journald:", "syslog:")


def describe_error(error: BaseException) -> str:
    """What to tell about an error, on one line.

    An error that is none of ours is a mistake in the program: the operator gets its kind and place, and the
    word for it, but never a traceback.
    """
    if isinstance(error, Fault):
        return str(error)
    if isinstance(error, OSError):
        subject = error.filename if isinstance(error.filename, str) else ""
        return make_printable(f"{subject}: {describe_os_error(error)}" if subject else describe_os_error(error))
    if isinstance(error, MemoryError):
        return "the memory that this process may use is too small"
    place = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        place = f" at {os.path.basename(code.co_filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return make_printable(
        f"internal error: {type(error).__name__}{place}: {clip_text(str(error), 2000)}. Please report it"
    )


def report_failure(error: BaseException, log_path: str, log_format: str, program: str = RUNTIME_NAME) -> bool:
    """Writes the failure to the engine's log, if it named one, and to stderr; never fails itself.

    Returns:
        Whether the log has it.
    """
    message = f"{program}: {describe_error(error)}"
    logged = _append_to_log(message, "error", log_path, log_format)
    _write_stderr(message)
    return logged


def save_hook_failure(error: BaseException, program: str, bundle: str = "") -> None:
    """Leaves the reason of a failed hook where people can look for it; never fails itself.

    crun, podman's runtime, says of a failed hook nothing but its exit status: stderr is lost. The file lies where our
    state does, in a directory that is this user's alone.

    Arguments:
        bundle: the container's, where it is known: in its path is the container's id.
    """
    line = _format_text_line(f"{program}: {describe_error(error)}", "error", bundle)
    for place in _list_hook_log_directories():
        directory = state_dir.open_state_directory(place, create=True)
        if directory < 0:
            continue
        try:
            if _append_to_hook_log(directory, line):
                return
        except (OSError, ValueError):
            continue
        finally:
            os.close(directory)


def _append_to_hook_log(directory: int, line: bytes) -> bool:
    """Adds a line to the file, if that is a file and this user's alone; whether it did."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    for _ in range(2):
        fd = os.open(HOOK_LOG, flags, 0o600, dir_fd=directory)
        try:
            status = os.fstat(fd)
            regular = status.st_mode & 0o170000 == 0o100000  # S_ISREG, without the import
            if not regular or not state_dir.is_trusted_fd(fd):
                return False
            if not status.st_size or status.st_size + len(line) <= HOOK_LOG_LIMIT:
                os.write(fd, line)
                return True
        finally:
            os.close(fd)
        os.rename(HOOK_LOG, f"{HOOK_LOG}.1", src_dir_fd=directory, dst_dir_fd=directory)
    return False  # others have filled the new one meanwhile


def _list_hook_log_directories() -> list[str]:
    """Where the reason may be left, best first.

    A hook of a CDI file has no environment but PATH, so a user's run directory is also looked for where systemd makes
    it: by the number that the user has outside this user namespace.
    """
    found = state_dir.list_state_directories()
    if len(found) == 1:
        from gpu_oci_hook.files.user_namespace import map_uid_to_parent

        outside = map_uid_to_parent(os.geteuid())
        run = f"/run/user/{outside}"
        if outside and state_dir.is_private_directory(run):
            found.append(f"{run}/gpu-oci-hook")
    return found


def _append_to_log(message: str, level: str, log_path: str, log_format: str) -> bool:
    """Adds a line to a log; whether that worked."""
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
        return False  # stderr still says it
    return True


def _format_text_line(message: str, level: str, bundle: str = "") -> bytes:
    more = f" bundle={_quote_text(clip_text(make_printable(bundle)))}" if bundle else ""
    return f'time="{_format_timestamp()}" level={level} msg={_quote_text(message)}{more}\n'.encode(
        "utf-8", "backslashreplace"
    )


def _quote_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _format_timestamp() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def report_warning(text: str, log_path: str = "", log_format: str = "text", program: str = RUNTIME_NAME) -> None:
    """Says something on stderr, and in a log if one is named, that stops nothing."""
    message = clip_text(make_printable(f"{program}: warning: {text}"), 4000)
    _append_to_log(message, "warning", log_path, log_format)
    _write_stderr(message)


def _write_stderr(message: str) -> None:
    try:
        os.write(2, message.encode("utf-8", "backslashreplace") + b"\n")
    except OSError:
        pass
