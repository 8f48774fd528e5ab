"""How an engine learns why a start failed: one line in its log file, the same text on stderr.

containerd's shim reads the last error line of the JSON log; podman wants exactly one JSON object in it; CRI-O
and conmon quote stderr (ecosystem facts 2.1 to 2.4). Cold: loaded only when a start has failed.
"""

from __future__ import annotations

import os
import time

from gpu_oci_hook.errors import Fault, clipped, printable, words
from gpu_oci_hook.formats import fastjson

NAME = "gpu-oci-runtime"

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


def report(error: BaseException, log: str, log_format: str, name: str = NAME) -> None:
    """Writes the failure to the engine's log, if it named one, and to stderr; never fails itself."""
    message = f"{name}: {sentence(error)}"
    _append(message, "error", log, log_format)
    _say(message)


def _append(message: str, level: str, log: str, log_format: str) -> None:
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    if log and not log.startswith(_NO_FILE):
        if log_format == "json":
            line = fastjson.dumps({"level": level, "msg": message, "time": moment})
        else:
            quoted = message.replace("\\", "\\\\").replace('"', '\\"')
            line = f'time="{moment}" level={level} msg="{quoted}"'.encode("utf-8", "backslashreplace")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(log.removeprefix("file:"), flags, 0o644)
            try:
                os.write(fd, line + b"\n")
            finally:
                os.close(fd)
        except (OSError, ValueError):
            pass  # stderr still says it


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
