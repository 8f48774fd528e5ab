"""The administrator's log: one JSON line per container that asks for a GPU, written with structlog.

Cold: loaded only when `[runtime] log-file` is set. A log that cannot be opened or written never stops a start.
"""

from __future__ import annotations

import os
import traceback
from typing import TYPE_CHECKING

from gpu_oci_hook.errors import clipped, words

if TYPE_CHECKING:
    from gpu_oci_hook.config import Config
    from gpu_oci_hook.pipeline import Outcome

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

# Warnings written for one start: an image has its word in some of them, and shall not fill the disk.
_MOST = 50


class _Line:
    """Appends whole lines to a file with one write each, so that 64 starts at once do not mix theirs."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def msg(self, message: str) -> None:
        """Writes one line; a full disk is nobody's reason to fail a start."""
        try:
            os.write(self._fd, message.encode("utf-8", "backslashreplace") + b"\n")
        except OSError:
            pass

    debug = info = warning = error = msg


class Log:
    """What is told of a start.

    Arguments:
        container: the id that the engine has given; "" when there is none.
    """

    def __init__(self, fd: int, level: str, container: str = "") -> None:
        import structlog

        self._log = structlog.wrap_logger(
            _Line(fd),
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.JSONRenderer(),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(_LEVELS.get(level, 20)),
        )
        if container:
            self._log = self._log.bind(container=clipped(container))

    def failed(self, bundle: str, error: Exception) -> None:
        """A start that does not happen; the traceback is for debugging alone."""
        from gpu_oci_hook import failure

        self._log.error("refused", bundle=bundle, reason=failure.sentence(error))
        self._log.debug("traceback", bundle=bundle, text="".join(traceback.format_exception(error)))

    def done(self, bundle: str, outcome: Outcome, changed: list[str]) -> None:
        """A start that goes on, with its warnings."""
        warnings = outcome.plan.warnings
        for warning in warnings[:_MOST]:
            self._log.warning("warning", bundle=bundle, text=clipped(warning, 2000))
        if len(warnings) > _MOST:
            self._log.warning("warning", bundle=bundle, text=f"and {len(warnings) - _MOST} more warnings")
        self._log.info(
            "injected" if outcome.rootfs is not None else outcome.plan.state,
            bundle=bundle,
            origin=clipped(outcome.request.origin, 2000),
            gpus=[gpu.uuid for gpu, _ in outcome.chosen],
            cdi=[name for name, _, _ in outcome.cdi],
            capabilities=list(outcome.request.capabilities),
            edits=len(outcome.plan.edits),
            withheld=len(outcome.plan.withheld),
        )
        for line in changed:
            self._log.debug("changed", bundle=bundle, text=line)


def open_log(config: Config, container: str = "") -> Log | str:
    """The log that the configuration names, or why it cannot be had."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(config.log_file, flags, 0o640)
    except OSError as error:
        return words(error, writing=True)
    except ValueError:
        return "no file can have this name"
    try:
        return Log(fd, config.log_level, container)
    except ImportError as error:
        os.close(fd)
        return f"the launcher does not find {error.name}; gpu-oci-hook install writes one that does"
