"""How an engine learns why a start failed: one line in its log file, the same text on stderr.

containerd's shim reads the last error line of the JSON log; podman wants exactly one JSON object in it; CRI-O
and conmon quote stderr (ecosystem facts 2.1 to 2.4). Cold: loaded only when a start has failed.
"""

from __future__ import annotations

import os
import time

from gpu_oci_hook import state
from gpu_oci_hook.errors import Fault, clipped, printable, words
from gpu_oci_hook.formats import fastjson

NAME = "gpu-oci-runtime"

KEPT = "hook.log"
"""The file with the reasons of failed hooks, in the directory where our state lies."""
KEPT_LIMIT = 64 << 10
"""Bytes of that file; a full one is called `hook.log.1` in place of the one before."""

# Targets of crun's --log that are no files.
_NO_FILE = ("journald:", "syslog:")


def sentence(error: BaseException) -> str:
    """What to tell about an error, on one line.

    An error that is none of ours is a mistake in the program: the operator gets its kind and place, and the
    word for it, but never a traceback.
    """
    if isinstance(error, Fault):
        return str(error)
    if isinstance(error, OSError):
        subject = error.filename if isinstance(error.filename, str) else ""
        return printable(f"{subject}: {words(error)}" if subject else words(error))
    if isinstance(error, MemoryError):
        return "the memory that this process may use is too small"
    place = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        place = f" at {os.path.basename(code.co_filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return printable(f"internal error: {type(error).__name__}{place}: {clipped(str(error), 2000)}. Please report it")


def report(error: BaseException, log: str, log_format: str, name: str = NAME) -> bool:
    """Writes the failure to the engine's log, if it named one, and to stderr; never fails itself.

    Returns:
        Whether the log has it.
    """
    message = f"{name}: {sentence(error)}"
    logged = _append(message, "error", log, log_format)
    _say(message)
    return logged


def keep(error: BaseException, name: str, bundle: str = "") -> None:
    """Leaves the reason of a failed hook where people can look for it; never fails itself.

    crun, podman's runtime, says of a failed hook nothing but its exit status: stderr is lost. The file lies where our
    state does, in a directory that is this user's alone.

    Arguments:
        bundle: the container's, where it is known: in its path is the container's id.
    """
    line = _text_line(f"{name}: {sentence(error)}", "error", bundle)
    for place in _places():
        directory = state.open_directory(place, create=True)
        if directory < 0:
            continue
        try:
            if _keep(directory, line):
                return
        except (OSError, ValueError):
            continue
        finally:
            os.close(directory)


def _keep(directory: int, line: bytes) -> bool:
    """Adds a line to the file, if that is a file and this user's alone; whether it did."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    for _ in range(2):
        fd = os.open(KEPT, flags, 0o600, dir_fd=directory)
        try:
            status = os.fstat(fd)
            regular = status.st_mode & 0o170000 == 0o100000  # S_ISREG, without the import
            if not regular or not state.trusted(fd):
                return False
            if not status.st_size or status.st_size + len(line) <= KEPT_LIMIT:
                os.write(fd, line)
                return True
        finally:
            os.close(fd)
        os.rename(KEPT, f"{KEPT}.1", src_dir_fd=directory, dst_dir_fd=directory)
    return False  # others have filled the new one meanwhile


def _places() -> list[str]:
    """Where the reason may be left, best first.

    A hook of a CDI file has no environment but PATH, so a user's run directory is also looked for where systemd makes
    it: by the number that the user has outside this user namespace.
    """
    found = state.directories()
    if len(found) == 1:
        try:
            with open("/proc/self/uid_map", "rb") as file:
                rows = [[int(word) for word in row.split()] for row in file.read(4096).splitlines()]
        except (OSError, ValueError):
            return found
        user = os.geteuid()
        outside = next((there + user - here for here, there, count in rows if here <= user < here + count), 0)
        run = f"/run/user/{outside}"
        if outside and state.own(run):
            found.append(f"{run}/gpu-oci-hook")
    return found


def _append(message: str, level: str, log: str, log_format: str) -> bool:
    """Adds a line to a log; whether that worked."""
    if not log or log.startswith(_NO_FILE):
        return False
    if log_format == "json":
        line = fastjson.dumps({"level": level, "msg": message, "time": _moment()}) + b"\n"
    else:
        line = _text_line(message, level)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(log.removeprefix("file:"), flags, 0o644)
        try:
            os.write(fd, line)
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return False  # stderr still says it
    return True


def _text_line(message: str, level: str, bundle: str = "") -> bytes:
    more = f" bundle={_quoted(clipped(printable(bundle)))}" if bundle else ""
    return f'time="{_moment()}" level={level} msg={_quoted(message)}{more}\n'.encode("utf-8", "backslashreplace")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _moment() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def warn(text: str, log: str = "", log_format: str = "text", name: str = NAME) -> None:
    """Says something on stderr, and in a log if one is named, that stops nothing."""
    message = clipped(printable(f"{name}: warning: {text}"), 4000)
    _append(message, "warning", log, log_format)
    _say(message)


def _say(message: str) -> None:
    try:
        os.write(2, message.encode("utf-8", "backslashreplace") + b"\n")
    except OSError:
        pass
