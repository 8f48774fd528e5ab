"""Represent one problem of a CDI file: level, location, text and hint.

Import budget: cold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from gpu_oci_hook.errors import clip_text, make_printable

Level = Literal["error", "warning", "info"]


class Finding(NamedTuple):
    """One problem of a CDI file.

    Attributes:
        level: "error": engines refuse the whole file, or nothing can be injected from it. "warning": engines read it,
            but older ones do not, or it does something else than it seems to. "info": anything else worth knowing.
        file: path of the file.
        where: JSON path ("devices[0].containerEdits.mounts[1].hostPath"); "" for the whole file.
        text: the problem, a sentence without its full stop.
        hint: what to do, likewise; "" for none.
        line: line number, from 1; 0 if unknown.
        variable_text: the part of the text that differs between similar findings, such as a path; "" for none.
    """

    level: Level
    file: str
    where: str
    text: str
    hint: str = ""
    line: int = 0
    variable_text: str = ""

    def __str__(self) -> str:
        """Format as one line: FILE:LINE: LEVEL: WHERE: TEXT. HINT."""
        location = f"{self.file}:{self.line}" if self.line else self.file
        parts = [location, self.level, clip_text(self.where, 300), clip_text(self.text, 1000)]
        line = ": ".join(part for part in parts if part)
        return make_printable(f"{line}. {clip_text(self.hint, 1000)}" if self.hint else line)


def find_line_number(line_numbers: Mapping[str, int], where: str) -> int:
    """Return the line of a JSON path, or of the nearest enclosing path whose line is known; 0 if there is none."""
    while where:
        if where in line_numbers:
            return line_numbers[where]
        where = where[: max(where.rfind("."), where.rfind("["), 0)]
    return line_numbers.get("", 0)
