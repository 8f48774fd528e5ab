"""Edit a TOML document as text: add and change keys, take them out, everything else stays as it is.

New tables are appended as text, which leaves every byte before them alone. Only where that is not possible (the table
is there already, or is written inline) tomlkit edits the document. Each result is parsed again and compared with what
it has to mean: a mistake of either way is a refusal, never a damaged file.

Import budget: cold.
"""

from __future__ import annotations

import copy
import json
import re
import tomllib
from typing import Any

from gpu_oci_hook.errors import Fault

_BOM = b"\xef\xbb\xbf"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_POSITION = re.compile(r" \(at line (\d+), column (\d+)\)$")
_BY_HAND = "Edit it by hand as docs/engines.md shows"

Path = tuple[str, ...]


class TomlText:
    """A TOML document of people.

    Arguments:
        data: the file, None for an empty document. A byte order mark is kept.
        path: of the file, for messages.

    Raises:
        Fault: it is not TOML in UTF-8; `where` has the line.
    """

    def __init__(self, data: bytes | None, path: str) -> None:
        self._path = path
        raw = data or b""
        self.has_bom = raw.startswith(_BOM)
        try:
            self.text = raw.removeprefix(_BOM).decode()
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            raise Fault("the file is not UTF-8", where=f"{path}:{line}") from None
        # Mixed line ends stay mixed; what is added has the one of the first line.
        self._newline = "\r\n" if "\r\n" in self.text[: self.text.find("\n") + 1] else "\n"
        self.values: dict[str, Any] = _parse_toml(self.text, path)

    def to_bytes(self) -> bytes:
        """Return the document as the content of a file."""
        return (_BOM if self.has_bom else b"") + self.text.encode()

    def get(self, *names: str) -> Any:
        """Return the value at a path, None where there is none."""
        return get_at(self.values, names)

    def find_line(self, word: str) -> int:
        """Return the first line with a word outside of a comment, 1 if there is none; for messages."""
        for number, line in enumerate(self.text.split("\n"), 1):
            if word in line.partition("#")[0]:
                return number
        return 1

    def set_values(self, settings: list[tuple[Path, Any]]) -> None:
        """Set the values at paths; a dict becomes a table.

        Raises:
            Fault: the document is written in a way in which they cannot be set.
        """
        expected = copy.deepcopy(self.values)
        for names, value in settings:
            _set_at(expected, names, value, self._path)
        appended = self._append(settings)
        if _means(appended, expected):
            self.text, self.values = appended, expected
            return
        self._adopt(_edit_with_tomlkit(self.text, settings, []), expected)

    def remove_values(self, paths: list[Path]) -> None:
        """Remove the keys and tables at paths, as far as they are there.

        Raises:
            Fault: the document is written in a way in which they cannot be removed.
        """
        paths = [names for names in paths if self.get(*names) is not None]
        if not paths:
            return
        expected = copy.deepcopy(self.values)
        for names in paths:
            parent = get_at(expected, names[:-1])
            if isinstance(parent, dict):
                parent.pop(names[-1], None)
        cut = _cut_paths(self.text, paths)
        if _means_without_empty_tables(cut, expected):
            self.text, self.values = cut, tomllib.loads(cut)
            return
        self._adopt(_edit_with_tomlkit(self.text, [], paths), expected)

    def _adopt(self, text: str, expected: dict[str, Any]) -> None:
        if self._newline == "\r\n":
            text = re.sub(r"(?<!\r)\n", "\r\n", text)
        if not _means_without_empty_tables(text, expected):
            raise Fault("the file is written in a way that cannot be edited safely", where=self._path, hint=_BY_HAND)
        self.text, self.values = text, tomllib.loads(text)

    def _append(self, settings: list[tuple[Path, Any]]) -> str:
        lines: list[str] = []
        top: list[str] = []
        for names, value in settings:
            if lines and len(names) > 1:
                lines.append("")
            if isinstance(value, dict):
                lines += _render_table(names, value)
            elif len(names) == 1:
                top.append(f"{_render_key(names[0])} = {_render_value(value)}")
            else:
                lines += _render_table(names[:-1], {names[-1]: value})
        body = self.text
        if body and not body.endswith("\n"):
            body += self._newline
        separator = self._newline if body.strip() and lines else ""
        head = "".join(f"{line}{self._newline}" for line in top)
        if head and not body:
            head += self._newline
        text = "".join(f"{line}{self._newline}" for line in lines)
        return head + body + separator + text


def get_at(values: Any, names: Path) -> Any:
    """Return the value at a path in nested dicts, None where there is none."""
    for name in names:
        values = values.get(name) if isinstance(values, dict) else None
    return values


def _parse_toml(text: str, path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        message = str(error)
        position = _POSITION.search(message)
        where = f"{path}:{position[1]}:{position[2]}" if position else path
        message = _POSITION.sub("", message)
        raise Fault(f"not TOML: {message[:1].lower()}{message[1:]}", where=where) from None


def _set_at(values: dict[str, Any], names: Path, value: Any, path: str) -> None:
    for name in names[:-1]:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise Fault(f"{name} is not a table", where=path)
    values[names[-1]] = copy.deepcopy(value)


def _means(text: str, expected: dict[str, Any]) -> bool:
    try:
        return bool(tomllib.loads(text) == expected)
    except ValueError:
        return False


def _means_without_empty_tables(text: str, expected: dict[str, Any]) -> bool:
    try:
        return bool(_drop_empty_tables(tomllib.loads(text)) == _drop_empty_tables(expected))
    except ValueError:
        return False


def _drop_empty_tables(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    members = {name: _drop_empty_tables(member) for name, member in value.items()}
    return {name: member for name, member in members.items() if member != {}}


def _render_key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _render_value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_render_value, value))}]"
    return json.dumps(value, ensure_ascii=False)  # strings, whole numbers and booleans are written alike


def _render_table(names: Path, table: dict[str, Any], indent: str = "") -> list[str]:
    lines = [f"{indent}[{'.'.join(map(_render_key, names))}]"]
    lines += [
        f"{indent}  {_render_key(name)} = {_render_value(value)}"
        for name, value in table.items()
        if not isinstance(value, dict)
    ]
    for name, value in table.items():
        if isinstance(value, dict):
            lines += _render_table((*names, name), value, f"{indent}  ")
    return lines


def _cut_paths(text: str, paths: list[Path]) -> str:
    """Remove tables and keys from the text, as far as each is written on lines of its own. Comments stay."""
    sections: list[list[str]] = [[]]
    for line in text.splitlines(keepends=True):
        if _parse_header(line.strip()):
            sections.append([])
        sections[-1].append(line)
    kept = [_cut_section(section, paths) for section in sections]
    result = "".join(line for section in kept for line in section)
    if kept[-1] != sections[-1]:  # the blank line that was written before our table
        stripped = result.rstrip("\r\n")
        result = result[: len(stripped)] + ("" if not stripped else "\r\n" if "\r\n" in result else "\n")
    return result


def _cut_section(lines: list[str], paths: list[Path]) -> list[str]:
    """Remove what is at these paths from a header and the lines below it."""
    header = _parse_header(lines[0].strip()) if lines else ()
    comments = [line for line in lines if line.strip().startswith("#")]
    if header and any(header[: len(names)] == names for names in paths):
        return comments
    kept = [line for line in lines if not _sets_one_of(line, header, paths)]
    has_keys = any(line.strip() and not line.strip().startswith("#") for line in kept[1:])
    return comments if header and kept != lines and not has_keys else kept


def _sets_one_of(line: str, header: Path, paths: list[Path]) -> bool:
    if line.strip().startswith(("#", "[")):
        return False
    try:
        values = tomllib.loads(line)
    except ValueError:
        return False
    return any((*header, name) in paths for name in values)


def _parse_header(line: str) -> Path:
    """Return the path of a table's header, () if it is not one."""
    if not line.startswith("["):
        return ()
    try:
        values: Any = tomllib.loads(line)
    except ValueError:
        return ()
    names: list[str] = []
    while isinstance(values, dict) and len(values) == 1:
        name, values = next(iter(values.items()))
        names.append(name)
    return tuple(names)


def _edit_with_tomlkit(text: str, settings: list[tuple[Path, Any]], removed: list[Path]) -> str:
    """Edit a document with tomlkit. Returns "" where it cannot; the caller compares the meaning anyway."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        document: Any = tomlkit.parse(text)
        for names, value in settings:
            table = document
            for name in names[:-1]:
                if name not in table:
                    table[name] = tomlkit.table()
                table = table[name]
            table[names[-1]] = value
        for names in removed:
            table = document
            for name in names[:-1]:
                table = table[name]
            del table[names[-1]]
        return str(tomlkit.dumps(document))
    except (TOMLKitError, KeyError, TypeError, ValueError, AttributeError, IndexError):
        return ""
