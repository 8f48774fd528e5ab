"""One thing to say about a CDI file: how bad, where, what, and what to do.

Cost rule: cold, but cheap: nothing but NamedTuple.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from gpu_oci_hook.errors import clip_text, make_printable

Level = Literal["error", "warning", "info"]


class Finding(NamedTuple):
    """One thing to say about a CDI file.

    level: "error": engines refuse the whole file, or nothing can be made of it. "warning": engines read it, but older
    ones do not, or it does not do what it seems to say. "info": worth knowing.
    file: its path. where: the JSON path ("devices[0].containerEdits.mounts[1].hostPath"), or "" for the whole file.
    text: what is so, a sentence without its full stop. hint: what to do, likewise, or "".
    line: counted from 1; 0 when nobody knows.
    variable_text: what of the text is this finding's alone, such as a path, where many are alike; "" for nothing.
    """

    level: Level
    file: str
    where: str
    text: str
    hint: str = ""
    line: int = 0
    variable_text: str = ""

    def __str__(self) -> str:
        """One line: file:line: where: text. cure; what is no error says so before `where`."""
        place = f"{self.file}:{self.line}" if self.line else self.file
        level = "" if self.level == "error" else self.level
        parts = [place, level, clip_text(self.where, 300), clip_text(self.text, 1000)]
        line = ": ".join(part for part in parts if part)
        return make_printable(f"{line}. {clip_text(self.hint, 1000)}" if self.hint else line)


def find_line_number(line_numbers: Mapping[str, int], where: str) -> int:
    """The line of a path, or of the nearest thing around it whose line is known; 0 where there is none."""
    while where:
        if where in line_numbers:
            return line_numbers[where]
        where = where[: max(where.rfind("."), where.rfind("["), 0)]
    return line_numbers.get("", 0)
