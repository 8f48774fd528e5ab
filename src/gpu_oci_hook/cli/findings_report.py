"""Print findings about CDI files, one line for each cause.

A driver upgrade breaks fifty paths of a file at once, and a field that an engine does not know occurs in every device.
The JSON form and --verbose list every finding.

Import budget: cold.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpu_oci_hook.cdi.provenance import REGENERATE_HINT_PREFIX
from gpu_oci_hook.cdi.spec.finding import Finding
from gpu_oci_hook.cli.printing import print_line

_LEVEL_COLOURS = {"error": "red", "warning": "yellow", "info": None}


def finding_to_json(finding: Finding) -> dict[str, object]:
    """Return a finding as the JSON forms of `cdi list` and `cdi validate` have it."""
    return {
        "level": finding.level,
        "line": finding.line,
        "where": finding.where,
        "text": finding.text,
        "cure": finding.hint,
    }


def print_findings(findings: Iterable[Finding], *, prefix: str = "", every_finding: bool = False) -> None:
    """Print a line for each cause, or for each finding, each with the prefix."""
    for finding in findings if every_finding else merge_findings_by_cause(findings):
        print_line(f"{prefix}{finding}", colour=_LEVEL_COLOURS[finding.level])


def merge_findings_by_cause(findings: Iterable[Finding]) -> list[Finding]:
    """Return the first finding of each cause with the number of the others.

    The command that rewrites a file is kept in the first finding about that file only.
    """
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        text = finding.text.replace(finding.variable_text, "", 1) if finding.variable_text else finding.text
        groups.setdefault((finding.file, finding.level, text, finding.hint), []).append(finding)
    shown_hints: set[tuple[str, str]] = set()
    merged = []
    for first, *others in groups.values():
        if others:
            noun = "path" if first.variable_text else "location"
            count = f"{len(others)} more {noun}{'' if len(others) == 1 else 's'}"
            first = first._replace(text=f"{first.text} (and {count})")
        if first.hint.startswith(REGENERATE_HINT_PREFIX):
            key = first.file, first.hint
            first = first._replace(hint="" if key in shown_hints else first.hint)
            shown_hints.add(key)
        merged.append(first)
    return merged
