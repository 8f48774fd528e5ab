"""Write the administrator's log (`[runtime] log-file`): JSON lines about each container that asks for a GPU.

A log that cannot be opened or written never makes a start fail.

Import budget: cold.
"""

from __future__ import annotations

import os
import stat
import traceback
from typing import TYPE_CHECKING

from gpu_oci_hook.errors import clip_text, describe_os_error
from gpu_oci_hook.model.plan_input import NOT_ON_HOST

if TYPE_CHECKING:
    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.model.outcome import Outcome

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

# Warnings written for one start: images influence some of them, and must not fill the disk.
_MAX_WARNINGS = 50


class _LineWriter:
    """A logger that appends each line with one write, so that lines of concurrent starts do not mix."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def msg(self, message: str) -> None:
        """Write one line; a full disk is ignored."""
        try:
            os.write(self._fd, message.encode("utf-8", "backslashreplace") + b"\n")
        except OSError:
            pass

    debug = info = warning = error = msg


class StartLog:
    """The log of one start.

    Arguments:
        fd: a descriptor of the log file, opened for appending.
        level: the least level that is written, "debug" to "error".
        container_id: the engine's id of the container, or "" when there is none.
    """

    def __init__(self, fd: int, level: str, container_id: str = "") -> None:
        import structlog

        self._log = structlog.wrap_logger(
            _LineWriter(fd),
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.JSONRenderer(),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(_LEVELS.get(level, 20)),
        )
        if container_id:
            self._log = self._log.bind(container=clip_text(container_id))

    def log_failure(self, bundle: str, error: Exception) -> None:
        """Log a start that failed; the traceback has the level debug."""
        from gpu_oci_hook.reporting.failure import describe_error

        self._log.error("refused", bundle=bundle, reason=describe_error(error))
        self._log.debug("traceback", bundle=bundle, text="".join(traceback.format_exception(error)))

    def log_outcome(self, bundle: str, outcome: Outcome, changes: list[str]) -> None:
        """Log a start that goes on, and its warnings.

        Arguments:
            changes: what was changed in the bundle and the container's root, one line each.
        """
        warnings = outcome.plan.warnings
        for warning in warnings[:_MAX_WARNINGS]:
            self._log.warning("warning", bundle=bundle, text=clip_text(warning, 2000))
        if len(warnings) > _MAX_WARNINGS:
            self._log.warning("warning", bundle=bundle, text=f"and {len(warnings) - _MAX_WARNINGS} more warnings")
        self._log.info(
            "injected" if outcome.rootfs is not None else outcome.plan.state,
            bundle=bundle,
            origin=clip_text(outcome.request.origin, 2000),
            gpus=[gpu.uuid for gpu, _ in outcome.chosen_gpus],
            cdi=[name for name, _, _ in outcome.cdi_devices],
            capabilities=list(outcome.request.capabilities),
            edits=len(outcome.plan.edits),
            withheld=len(outcome.plan.withheld),
            not_on_host=[item.name for item in outcome.plan.withheld if item.reason.startswith(NOT_ON_HOST)],
        )
        for line in changes:
            self._log.debug("changed", bundle=bundle, text=line)


def describe_unusable_log_file(path: str) -> str:
    """Return why a path cannot be a log file, such as "is a directory"; "" if it can, or nothing is there yet."""
    try:
        mode = os.lstat(path).st_mode
    except (OSError, ValueError):
        return ""
    if stat.S_ISFIFO(mode):
        return "is a FIFO, and its lines are lost while nothing reads it"
    reasons = {
        stat.S_IFDIR: "is a directory",
        stat.S_IFLNK: "is a symbolic link, which is not followed",
        stat.S_IFSOCK: "is a socket",
        stat.S_IFBLK: "is a block device",
    }
    return reasons.get(stat.S_IFMT(mode), "")


def open_start_log(config: Config, container_id: str = "") -> StartLog | str:
    """Open the log that the configuration names; return the reason instead when that is not possible."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    path = config.log_file
    try:
        fd = os.open(path, flags, 0o640)
    except OSError as error:
        unusable = describe_unusable_log_file(path)
        return f"it {unusable}" if unusable else describe_os_error(error, writing=True)
    except ValueError:
        return "no file can have this name"
    if stat.S_ISBLK(os.fstat(fd).st_mode):  # the lines would go over what is on the disk
        os.close(fd)
        return "it is a block device"
    try:
        return StartLog(fd, config.log_level, container_id)
    except ImportError as error:
        os.close(fd)
        return f"the launcher does not find {error.name}; gpu-oci-hook install writes one that does"
