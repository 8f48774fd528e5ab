"""Parse the bytes of config.toml, and find the lines of its tables and keys.

Import budget: cold.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

from gpu_oci_hook.errors import Fault, make_printable

# Finding the end of a statement by parsing it again and again is quadratic.
_MAX_STATEMENT_LINES = 500


class TomlFault(Fault):
    """The file is not valid TOML.

    Arguments:
        what: the parser's reason.
        path: the file.
        line: counted from 1.
        column: counted from 1, in characters.
        text: the line as it is in the file.
    """

    def __init__(self, what: str, path: str, line: int, column: int, text: str) -> None:
        super().__init__(f"not TOML: {what}", where=f"{path}:{line}:{column}")
        self.line = line
        self.column = column
        self.text = text

    def format_caret(self) -> str:
        """Return the line and, below it, a caret at the column: two lines of at most 100 characters."""
        start = max(0, self.column - 80)
        before = make_printable(self.text[start : self.column - 1].replace("\t", " "))
        after = make_printable(self.text[self.column - 1 : start + 100].replace("\t", " "))
        return f"  {before}{after}\n  {' ' * len(before)}^"


def parse_toml_document(data: bytes, path: str) -> tuple[dict[str, object], str]:
    """Return the TOML document in these bytes, and its text.

    Raises:
        Fault: the bytes are not UTF-8, or contain NUL bytes or a byte order mark.
        TomlFault: the text is not valid TOML.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise Fault("the config file is written in UTF-16", where=path, hint="Save it as UTF-8")
    if data.startswith(b"\xef\xbb\xbf"):
        raise Fault("the config file starts with a byte order mark", where=path, hint="Save it as UTF-8 without one")
    if b"\0" in data:
        line = data.count(b"\n", 0, data.index(b"\0")) + 1
        raise Fault("the config file has a NUL byte", where=f"{path}:{line}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Fault("the config file is not UTF-8", where=f"{path}:{line}") from error
    try:
        return tomllib.loads(text), text
    except RecursionError as error:
        raise Fault("not usable TOML: too deeply nested", where=path) from error
    except ValueError as error:  # TOMLDecodeError, or an integer of more than 4300 digits
        raise _to_toml_fault(error, path, text) from error


def _to_toml_fault(error: ValueError, path: str, text: str) -> TomlFault:
    """Build the fault from the parser's message, which contains the position (an attribute only since Python 3.14)."""
    message = str(error)
    lines = text.replace("\r\n", "\n").split("\n")
    # Messages of tomllib in Python 3.11 to 3.14 about a duplicate; their column is behind the value.
    if message.startswith(("Cannot overwrite a value", "Cannot declare")):
        repetition = _find_repetition(text)
        if repetition is not None:
            what, line = repetition
            content = lines[line - 1]
            return TomlFault(what, path, line, len(content) - len(content.lstrip()) + 1, content)
    message = message.replace("Cannot overwrite a value", "this key is set twice")
    position = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    if position:
        line, column = int(position[1]), int(position[2])
        message = message[: position.start()]
    elif message.endswith(" (at end of document)"):
        line = max((number for number, content in enumerate(lines, 1) if content.strip()), default=1)
        column = len(lines[line - 1]) + 1
        message = message.removesuffix(" (at end of document)") + " at the end of the file"
    else:
        line = column = 1
    content = lines[line - 1] if line <= len(lines) else ""
    return TomlFault(message[:1].lower() + message[1:], path, line, column, content)


def find_key_lines(text: str) -> dict[tuple[str, ...], int]:
    """Return the line on which each table and key of a TOML document is set first."""
    key_lines: dict[tuple[str, ...], int] = {}
    for line, paths, _ in _iterate_statements(text):
        for path in paths:
            key_lines.setdefault(path, line)
    return key_lines


def _iterate_statements(text: str) -> Iterator[tuple[int, list[tuple[str, ...]], bool]]:
    """Iterate over (line, paths of the keys that it sets, parents first, whether it is a header) of each statement.

    A statement of TOML (a header, or a key with its value) is a valid document by itself. The text is cut into
    statements by collecting lines until they parse.
    """
    prefix: tuple[str, ...] = ()
    statement: list[str] = []
    list_indexes: dict[tuple[str, ...], int] = {}
    start = 1
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if not statement:
            start = number
        statement.append(line)
        try:
            document = tomllib.loads("\n".join(statement))
        except (ValueError, RecursionError):
            if len(statement) > _MAX_STATEMENT_LINES:
                break
            continue
        first_line = statement[0].lstrip()
        statement = []
        paths = _list_key_paths(document)
        is_header = first_line.startswith("[")
        if is_header:
            prefix = paths[-1] if paths else ()
            if first_line.startswith("[["):  # a table in a list is identified by its index
                list_indexes[prefix] = list_indexes.get(prefix, -1) + 1
                prefix = (*prefix, str(list_indexes[prefix]))
            paths = [prefix[: depth + 1] for depth in range(len(prefix))]
        else:
            paths = [prefix + path for path in paths]
        yield start, paths, is_header


def _find_repetition(text: str) -> tuple[str, int] | None:
    """Return what is set twice, and the line of the second time; None if it is not found."""
    first_lines: dict[tuple[bool, tuple[str, ...]], int] = {}
    for line, paths, is_header in _iterate_statements(text):
        if not paths:
            continue
        path = paths[-1]
        first = first_lines.setdefault((is_header, path), line)
        if first != line:
            noun = f"the table [{'.'.join(path)}] is defined" if is_header else f"the key {path[-1]} is set"
            return f"{noun} twice, first in line {first}", line
    return None


def _list_key_paths(document: dict[str, object]) -> list[tuple[str, ...]]:
    """List the key paths of a document, parents first, to the depth of our deepest key."""
    paths: list[tuple[str, ...]] = []
    level: list[tuple[tuple[str, ...], object]] = [((), document)]
    for _ in range(3):
        next_level: list[tuple[tuple[str, ...], object]] = []
        for path, value in level:
            if isinstance(value, dict):
                next_level += [((*path, key), child) for key, child in value.items()]
        paths += [path for path, _ in next_level]
        level = next_level
    return paths


def find_line(key_lines: dict[tuple[str, ...], int], path: tuple[str, ...]) -> int:
    """Return the line of a path, or of the list or inline table that contains it; 0 if unknown."""
    while path:
        if path in key_lines:
            return key_lines[path]
        path = path[:-1]
    return 0
