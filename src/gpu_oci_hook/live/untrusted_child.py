"""Go on in a child process that shares neither terminal nor descriptors with its parent, and print what it prints.

A process that joins another user's namespaces imports modules from files which that user can exchange. Such code has
the user's own rights. With the terminal of an administrator it would have more: it could read or send keystrokes.

Import budget: cold.
"""

from __future__ import annotations

import codecs
import os
import select
import signal
import sys

from gpu_oci_hook.errors import make_printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_CHECK_INTERVAL = 0.2  # seconds after which the end of the child is looked for


def continue_in_untrusted_child(kept_fds: Iterable[int]) -> None:
    """Return in a child process. The parent prints its output, with control characters escaped, and ends as it does.

    Arguments:
        kept_fds: descriptors that the child needs; all others are closed, and the first three replaced.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    output, errors = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for fd, replacement in ((0, null), (1, output[1]), (2, errors[1])):
            os.dup2(replacement, fd)
        _close_descriptors({0, 1, 2, *kept_fds})
        return
    os.close(output[1])
    os.close(errors[1])
    try:
        status = _copy_output(child, {output[0]: 1, errors[0]: 2})
    except KeyboardInterrupt:
        os.kill(child, signal.SIGKILL)
        status = 128 + signal.SIGINT
    os._exit(status)


def _close_descriptors(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                pass  # the one that has listed the directory


def _copy_output(child: int, targets: dict[int, int]) -> int:
    """Copy what the child prints until it ends; return its exit status.

    A process that it has left behind may keep its output open.

    Arguments:
        targets: the descriptor to write to, by the one to read from.
    """
    decoders = {fd: codecs.getincrementaldecoder("utf-8")("backslashreplace") for fd in targets}
    ended = -1
    while True:
        ready = select.select(list(decoders), [], [], _CHECK_INTERVAL if ended < 0 else 0)[0]
        for fd in ready:
            data = os.read(fd, 65536)
            _write_text(targets[fd], decoders[fd].decode(data, final=not data))
            if not data:
                del decoders[fd]
        if ended >= 0 and not ready:
            return ended
        if ended < 0:
            pid, status = os.waitpid(child, os.WNOHANG if decoders else 0)
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
                ended = code if code >= 0 else 128 - code


def _write_text(fd: int, text: str) -> None:
    data = "\n".join([make_printable(line) for line in text.split("\n")]).encode("utf-8", "backslashreplace")
    while data:
        data = data[os.write(fd, data) :]
