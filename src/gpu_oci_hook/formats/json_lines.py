"""Find the line of each value in a valid JSON text, which Python's own parser does not report.

Import budget: cold.
"""

from __future__ import annotations

import re
from json.decoder import scanstring  # type: ignore[attr-defined]

_TOKEN = re.compile(r'[ \t\n\r]*([{}\[\],:]|"|[^ \t\n\r{}\[\],:"]+)')


def map_json_line_numbers(text: str) -> tuple[dict[str, int], list[str]]:
    """Return the line of each value by its JSON path, and the paths of repeated keys.

    The line of a repeated key is that of its last value.
    """
    lines: dict[str, int] = {}
    repeated: list[str] = []
    # The open objects and arrays: path, next index (-1 for an object), keys so far.
    stack: list[tuple[str, list[int], set[str]]] = []
    path, line, position, counted = "", 1, 0, 0
    while match := _TOKEN.match(text, position):
        symbol, start, position = match[1], match.start(1), match.end()
        line += text.count("\n", counted, start)
        counted = start
        if symbol == ",":
            parent, index, _ = stack[-1]
            if index[0] >= 0:
                index[0] += 1
                path = join_json_path(parent, index[0])
            continue
        if symbol == ":":
            continue
        if symbol in ("}", "]"):
            stack.pop()
            continue
        string = ""
        if symbol == '"':
            string, position = scanstring(text, position, False)
        if symbol == '"' and stack and stack[-1][1][0] < 0 and _is_object_key(text, position):
            parent, _, keys = stack[-1]
            path = join_json_path(parent, string)
            if string in keys:
                repeated.append(path)
            keys.add(string)
            lines[path] = line
            continue
        lines.setdefault(path, line)
        if symbol == "{":
            stack.append((path, [-1], set()))
        elif symbol == "[":
            stack.append((path, [0], set()))
            path = join_json_path(path, 0)
    return lines, repeated


def _is_object_key(text: str, position: int) -> bool:
    """Tell whether a colon follows the string that ends at a position."""
    match = _TOKEN.match(text, position)
    return match is not None and match[1] == ":"


def join_json_path(parent: str, key: str | int) -> str:
    """Return the JSON path of a key or an index below another path."""
    if isinstance(key, int):
        return f"{parent}[{key}]"
    if key.isascii() and key.replace("_", "a").isalnum():
        return f"{parent}.{key}" if parent else key
    quoted = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'{parent}["{quoted}"]'
