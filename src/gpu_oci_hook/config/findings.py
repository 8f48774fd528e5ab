"""A finding about a config file, with its line.

Import budget: cold.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from gpu_oci_hook.config.toml_document import find_key_lines, find_line
from gpu_oci_hook.errors import make_printable

FindingKind = Literal["unknown", "wrong", "host"]
"""An unknown key is only a warning for the shim. A wrong value stops containers that request a GPU. A finding of kind
"host" is a valid value that does not fit this host, also a warning.
"""

# Path of a key or value, what is wrong with it, and the kind of finding.
RawFinding = tuple[tuple[str, ...], str, FindingKind]


# A NamedTuple, since importing dataclasses would cost the shim 5 ms.
class ConfigFinding(NamedTuple):
    """One problem of a config file.

    Attributes:
        key: the path of the key or value, such as "request.env" or "cdi.spec-dirs.1".
        label: the same as the documentation writes it, such as "[request] env" or "[[inject.extra]] 1: path".
        line: its line, 0 if unknown.
        what: the problem, as a sentence without its full stop.
    """

    key: str
    label: str
    line: int
    what: str
    kind: FindingKind

    @property
    def level(self) -> Literal["error", "warning"]:
        """How bad it is: only an error makes the file invalid."""
        return "error" if self.kind == "wrong" else "warning"

    def format_place(self, path: str) -> str:
        """Return the place of the finding in the file: FILE:LINE."""
        return f"{path}:{self.line}" if self.line else path

    def __str__(self) -> str:
        return make_printable(f"{self.label}: {self.what}")


def locate_findings(raw_findings: list[RawFinding], text: str) -> list[ConfigFinding]:
    """Add the lines to findings and sort them by line.

    Arguments:
        text: the text of the config file.
    """
    if not raw_findings:
        return []
    key_lines = find_key_lines(text)
    findings = [
        ConfigFinding(".".join(path), format_key_label(path), find_line(key_lines, path), what, kind)
        for path, what, kind in raw_findings
    ]
    return sorted(findings, key=lambda finding: finding.line)


def format_key_label(path: tuple[str, ...]) -> str:
    """Return the path of a key or value as the documentation writes it. Tables and items of a list count from 1."""
    if path[:2] == ("inject", "extra") and len(path) > 2:
        return ": ".join([f"[[inject.extra]] {int(path[2]) + 1}", *path[3:]])
    if len(path) < 2:
        return "".join(path)
    table, key, *item = path
    return f"[{table}] {key}" + (f", item {int(item[0]) + 1}" if item and item[0].isdecimal() else "")
