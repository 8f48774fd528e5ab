"""What is wrong with CDI files as lines for people: one for each cause, however many places have it.

A driver's upgrade makes fifty paths of a file wrong at once, and one field that an engine does not know is in every
device. Programs get all of it, as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpu_oci_hook.cdi.provenance import REGENERATE_HINT_PREFIX
from gpu_oci_hook.cdi.spec.finding import Finding
from gpu_oci_hook.cli.printing import print_line

_LEVEL_COLOURS = {"error": "red", "warning": "yellow", "info": None}


def print_findings(findings: Iterable[Finding], *, prefix: str = "") -> None:
    """Prints a line for each cause; `prefix` comes before it."""
    for one in merge_findings_by_cause(findings):
        print_line(f"{prefix}{one}", colour=_LEVEL_COLOURS[one.level])


def merge_findings_by_cause(findings: Iterable[Finding]) -> list[Finding]:
    """The first finding of each cause, with the number of the others; what makes a file anew is said once for it."""
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for one in findings:
        text = one.text.replace(one.variable_text, "", 1) if one.variable_text else one.text
        alike.setdefault((one.file, one.level, text, one.hint), []).append(one)
    told: set[tuple[str, str]] = set()
    lines = []
    for first, *others in alike.values():
        if others:
            what = "path" if first.variable_text else "place"
            more = f"{len(others)} more {what}{'' if len(others) == 1 else 's'}"
            first = first._replace(text=f"{first.text} (and {more})")
        if first.hint.startswith(REGENERATE_HINT_PREFIX):
            key = first.file, first.hint
            first = first._replace(hint="" if key in told else first.hint)
            told.add(key)
        lines.append(first)
    return lines
