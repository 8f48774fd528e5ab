"""The line of each value in a JSON text that is known to be right; Python's own parser does not tell.

Cost rule: only when there is something to say about the file.
"""

from __future__ import annotations

import re
from json.decoder import scanstring  # type: ignore[attr-defined]

_TOKEN = re.compile(r'[ \t\n\r]*([{}\[\],:]|"|[^ \t\n\r{}\[\],:"]+)')


def map_json_line_numbers(text: str) -> tuple[dict[str, int], list[str]]:
    """The line of each value by its JSON path, and the paths of the keys that are there more than once.

    Of a key that is there twice the last line counts.
    """
    lines: dict[str, int] = {}
    twice: list[str] = []
    # Path of each thing that is open, the index that comes next (-1: a mapping), and the keys so far.
    open_: list[tuple[str, list[int], set[str]]] = []
    where, line, place, counted = "", 1, 0, 0
    while match := _TOKEN.match(text, place):
        sign, start, place = match[1], match.start(1), match.end()
        line += text.count("\n", counted, start)
        counted = start
        if sign == ",":
            above, index, _ = open_[-1]
            if index[0] >= 0:
                index[0] += 1
                where = join_json_path(above, index[0])
            continue
        if sign == ":":
            continue
        if sign in ("}", "]"):
            open_.pop()
            continue
        word = ""
        if sign == '"':
            word, place = scanstring(text, place, False)
        if sign == '"' and open_ and open_[-1][1][0] < 0 and _is_object_key(text, place):
            above, _, keys = open_[-1]
            where = join_json_path(above, word)
            if word in keys:
                twice.append(where)
            keys.add(word)
            lines[where] = line
            continue
        lines.setdefault(where, line)
        if sign == "{":
            open_.append((where, [-1], set()))
        elif sign == "[":
            open_.append((where, [0], set()))
            where = join_json_path(where, 0)
    return lines, twice


def _is_object_key(text: str, position: int) -> bool:
    """Whether the string that ends at a place is followed by a colon."""
    match = _TOKEN.match(text, position)
    return match is not None and match[1] == ":"


def join_json_path(where: str, key: str | int) -> str:
    """The path of what lies under a key or an index of what lies at `where`."""
    if isinstance(key, int):
        return f"{where}[{key}]"
    if key.isascii() and key.replace("_", "a").isalnum():
        return f"{where}.{key}" if where else key
    quoted = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'{where}["{quoted}"]'
