"""Read the device rules of a cgroup of version 1: the lines of its file `devices.list`.

A line allows what it names, and what no line names is denied. "a *:* rwm" stands for a cgroup that allows everything
but some devices, which the kernel does not list (Linux, security/device_cgroup.c, devcgroup_seq_show).

Pure: text in, decisions out.

Import budget: cold.
"""

from __future__ import annotations

ALLOW_ALL_LINE = "a *:* rwm"


def find_allowing_line(text: str, access: str, major: int, minor: int) -> str:
    """Return the line that allows an access to a character device; "" if it is denied.

    As in the kernel, one line must allow all of the access.

    Arguments:
        text: of devices.list.
        access: letters of "rwm".
    """
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        numbers, _, letters = rest.partition(" ")
        line_major, _, line_minor = numbers.partition(":")
        if (
            kind in ("a", "c")
            and line_major in ("*", str(major))
            and line_minor in ("*", str(minor))
            and not set(access) - set(letters)
        ):
            return line
    return ""
