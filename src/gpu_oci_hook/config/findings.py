"""A finding about a config file, with its line.

Import budget: cold.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from gpu_oci_hook.config.toml_document import find_key_lines, find_line
from gpu_oci_hook.errors import make_printable

FindingKind = Literal["unknown", "wrong"]
"""An unknown key is only a warning for the shim. A wrong value stops containers that request a GPU."""

# Path of a key or value, what is wrong with it, and the kind of finding.
RawFinding = tuple[tuple[str, ...], str, FindingKind]


# A NamedTuple, since importing dataclasses would cost the shim 5 ms.
class ConfigFinding(NamedTuple):
    """One problem of a config file.

    Attributes:
        key: the path of the key or value, such as "request.env" or "cdi.spec-dirs.1".
        line: its line, 0 if unknown.
        what: the problem, as a sentence without its full stop.
    """

    key: str
    line: int
    what: str
    kind: FindingKind

    def __str__(self) -> str:
        return make_printable(f"line {self.line}: {self.key}: {self.what}" if self.line else f"{self.key}: {self.what}")


def locate_findings(raw_findings: list[RawFinding], text: str) -> list[ConfigFinding]:
    """Add the lines to findings and sort them by line.

    Arguments:
        text: the text of the config file.
    """
    if not raw_findings:
        return []
    key_lines = find_key_lines(text)
    findings = [
        ConfigFinding(".".join(path), find_line(key_lines, path), what, kind) for path, what, kind in raw_findings
    ]
    return sorted(findings, key=lambda finding: finding.line)
