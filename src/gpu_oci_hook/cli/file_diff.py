"""Print the change of a text file as a unified diff.

Import budget: cold.
"""

from __future__ import annotations

import difflib

from gpu_oci_hook.cli.printing import print_line
from gpu_oci_hook.errors import make_printable

_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def print_file_diff(path: str, before: bytes | None, after: bytes | None) -> None:
    """Print a unified diff of a file; None stands for no file. Nothing is printed if both are equal."""
    if before == after:
        return
    name = make_printable(path.lstrip("/"))
    lines = difflib.unified_diff(
        _split_lines(before),
        _split_lines(after),
        "/dev/null" if before is None else f"a/{name}",
        "/dev/null" if after is None else f"b/{name}",
        lineterm="",
    )
    for line in lines:
        print_line(line, colour=_COLOURS.get(line[:1]))


def _split_lines(content: bytes | None) -> list[str]:
    text = (content or b"").decode(errors="replace")
    # Tabs become blanks; print_line escapes every other control character, such as the end of a CRLF line.
    return [line.replace("\t", "    ") for line in text.removesuffix("\n").split("\n")] if text else []
