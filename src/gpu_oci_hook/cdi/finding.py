"""One thing to say about a CDI file: how bad, where, what, and what to do.

Cost rule: cold, but cheap: nothing but NamedTuple.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from gpu_oci_hook.errors import clipped, printable

Level = Literal["error", "warning", "info"]


class Finding(NamedTuple):
    """One thing to say about a CDI file.

    level: "error": engines refuse the whole file, or nothing can be made of it. "warning": engines read it, but older
    ones do not, or it does not do what it seems to say. "info": worth knowing.
    file: its path. where: the JSON path ("devices[0].containerEdits.mounts[1].hostPath"), or "" for the whole file.
    text: what is so, a sentence without its full stop. cure: what to do, likewise, or "".
    line: counted from 1; 0 when nobody knows.
    about: what of the text is this finding's alone, such as a path, where many are alike; "" for nothing.
    """

    level: Level
    file: str
    where: str
    text: str
    cure: str = ""
    line: int = 0
    about: str = ""

    def __str__(self) -> str:
        """One line: file:line: where: text. cure; what is no error says so before `where`."""
        place = f"{self.file}:{self.line}" if self.line else self.file
        level = "" if self.level == "error" else self.level
        parts = [place, level, clipped(self.where, 300), clipped(self.text, 1000)]
        line = ": ".join(part for part in parts if part)
        return printable(f"{line}. {clipped(self.cure, 1000)}" if self.cure else line)


def join(where: str, key: str | int) -> str:
    """The path of what lies under a key or an index of what lies at `where`."""
    if isinstance(key, int):
        return f"{where}[{key}]"
    if key.isascii() and key.replace("_", "a").isalnum():
        return f"{where}.{key}" if where else key
    quoted = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'{where}["{quoted}"]'


def line_of(lines: Mapping[str, int], where: str) -> int:
    """The line of a path, or of the nearest thing around it whose line is known; 0 where there is none."""
    while where:
        if where in lines:
            return lines[where]
        where = where[: max(where.rfind("."), where.rfind("["), 0)]
    return lines.get("", 0)
