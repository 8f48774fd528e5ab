"""What is wrong with CDI files as lines for people: one for each cause, however many places have it.

A driver's upgrade makes fifty paths of a file wrong at once, and one field that an engine does not know is in every
device. Programs get all of it, as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpu_oci_hook.cdi.finding import Finding
from gpu_oci_hook.cdi.stale import ANEW
from gpu_oci_hook.cli import output

_COLOURS = {"error": "red", "warning": "yellow", "info": None}


def show(found: Iterable[Finding], *, mark: str = "") -> None:
    """Prints a line for each cause; `mark` comes before it."""
    for one in causes(found):
        output.line(f"{mark}{one}", colour=_COLOURS[one.level])


def causes(found: Iterable[Finding]) -> list[Finding]:
    """The first finding of each cause, with the number of the others; what makes a file anew is said once for it."""
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for one in found:
        text = one.text.replace(one.about, "", 1) if one.about else one.text
        alike.setdefault((one.file, one.level, text, one.cure), []).append(one)
    told: set[tuple[str, str]] = set()
    lines = []
    for first, *others in alike.values():
        if others:
            what = "path" if first.about else "place"
            more = f"{len(others)} more {what}{'' if len(others) == 1 else 's'}"
            first = first._replace(text=f"{first.text} (and {more})")
        if first.cure.startswith(ANEW):
            key = first.file, first.cure
            first = first._replace(cure="" if key in told else first.cure)
            told.add(key)
        lines.append(first)
    return lines
