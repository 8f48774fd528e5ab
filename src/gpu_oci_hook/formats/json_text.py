"""Edit a JSON document as text: set and remove members, everything else stays as it is.

A document that is parsed and written again loses its indentation and puts short lists on many lines. Here only the
members that change are written, with the indentation and line ends of the document.

Import budget: cold.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]  # in CPython since 2.6
from typing import Any, NoReturn

from gpu_oci_hook.errors import Fault

_BLANKS = re.compile(r"[ \t\r\n]*")
_DEFAULT_INDENT = "  "
_BOM = "\ufeff"


@dataclass(frozen=True)
class _Member:
    name: str
    start: int
    value_start: int
    value_end: int


@dataclass(frozen=True)
class _ObjectSpan:
    """An object in the text: the positions of its braces and of its members."""

    start: int
    closing: int
    members: tuple[_Member, ...]


class JsonText:
    """A JSON document whose top level is an object.

    Arguments:
        data: the file, None or only blanks for an empty object. A byte order mark is kept.
        path: of the file, for messages.

    Raises:
        Fault: it is not JSON in UTF-8, or its top level is not an object; `where` has the line.
    """

    def __init__(self, data: bytes | None, path: str) -> None:
        self._path = path
        self.text = _decode(data or b"", path)
        self._bom = _BOM if self.text.startswith(_BOM) else ""
        self.text = self.text.removeprefix(_BOM)
        self._newline = "\r\n" if "\r\n" in self.text else "\n"
        if not self.text.strip():
            self.text = f"{{}}{self._newline}"
        document = self._parse()
        if not isinstance(document, dict):
            if document is not None:
                raise Fault("the top level of the file is not an object", where=f"{path}:1", hint="Put it in { }")
            self.text = self.text.replace("null", "{}", 1)  # dockerd takes null as a file without settings

    def to_bytes(self) -> bytes:
        """Return the document as the content of a file."""
        return (self._bom + self.text).encode()

    def get(self, *names: str) -> Any:
        """Return the value at a path, None where there is none."""
        value: Any = self._parse()
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    def find_line(self, *names: str) -> int:
        """Return the line of the deepest member of a path that exists, counted from 1."""
        position, line = self._skip_blanks(0), 1
        for name in names:
            if self.text[position] != "{":
                break
            member = self._find_member(self._scan_object(position), name)
            if member is None:
                break
            position, line = member.value_start, self._count_line(member.start)
        return line

    def set(self, names: tuple[str, ...], value: object) -> None:
        """Set the value at a path; objects on the way are created.

        Raises:
            Fault: a value on the way is not an object, or a key of the path is there twice.
        """
        position = self._skip_blanks(0)
        for depth, name in enumerate(names):
            span = self._scan_object(position)
            member = self._find_member(span, name)
            rest: object = value
            for inner in reversed(names[depth + 1 :]):
                rest = {inner: rest}
            if member is None:
                self._insert(span, name, rest)
                return
            position = member.value_start
            is_null = self.text[member.value_start : member.value_end] == "null"
            if depth == len(names) - 1 or is_null:
                rendered = self._render(rest, self._line_indent(member.start))
                self.text = self.text[: member.value_start] + rendered + self.text[member.value_end :]
                return
            if self.text[position] != "{":
                raise Fault(f'"{name}" is not an object', where=f"{self._path}:{self._count_line(member.start)}")

    def remove(self, names: tuple[str, ...]) -> None:
        """Remove the member at a path, if it is there."""
        position = self._skip_blanks(0)
        for name in names[:-1]:
            member = self._find_member(self._scan_object(position), name)
            if member is None or self.text[member.value_start] != "{":
                return
            position = member.value_start
        span = self._scan_object(position)
        member = self._find_member(span, names[-1])
        if member is None:
            return
        index = span.members.index(member)
        if len(span.members) == 1:
            start, end = span.start + 1, span.closing
        elif index == len(span.members) - 1:
            start, end = span.members[index - 1].value_end, member.value_end
        else:
            start, end = member.start, span.members[index + 1].start
        self.text = self.text[:start] + self.text[end:]

    def _parse(self) -> Any:
        try:
            return json.loads(self.text, parse_constant=_reject_constant)
        except json.JSONDecodeError as error:
            what = f"not JSON: {error.msg[:1].lower()}{error.msg[1:]}"
            raise Fault(what, where=f"{self._path}:{error.lineno}:{error.colno}") from None
        except (ValueError, RecursionError) as error:
            raise Fault(f"not JSON: {error}", where=self._path) from None

    def _skip_blanks(self, position: int) -> int:
        match = _BLANKS.match(self.text, position)
        return match.end() if match else position

    def _count_line(self, position: int) -> int:
        return self.text.count("\n", 0, position) + 1

    def _scan_object(self, position: int) -> _ObjectSpan:
        """Find the members of the object that begins at a position of the text, which is valid JSON."""
        decoder = json.JSONDecoder()
        members: list[_Member] = []
        at = self._skip_blanks(position + 1)
        while self.text[at] != "}":
            start = at
            name, at = scanstring(self.text, at + 1, True)
            value_start = self._skip_blanks(self._skip_blanks(at) + 1)
            _, value_end = decoder.raw_decode(self.text, value_start)
            members.append(_Member(name, start, value_start, value_end))
            at = self._skip_blanks(value_end)
            if self.text[at] == ",":
                at = self._skip_blanks(at + 1)
        return _ObjectSpan(position, at, tuple(members))

    def _find_member(self, span: _ObjectSpan, name: str) -> _Member | None:
        found = [member for member in span.members if member.name == name]
        if len(found) > 1:
            first, second = (self._count_line(member.start) for member in found[:2])
            what = f'the key "{name}" is set twice, first in line {first}'
            raise Fault(what, where=f"{self._path}:{second}", hint="Remove one of them")
        return found[0] if found else None

    def _line_indent(self, position: int) -> str:
        """Return the blanks at the beginning of the line of a position."""
        start = self.text.rfind("\n", 0, position) + 1
        line = self.text[start:position]
        return line[: len(line) - len(line.lstrip(" \t"))]

    def _is_on_one_line(self, span: _ObjectSpan) -> bool:
        return bool(span.members) and "\n" not in self.text[span.start : span.members[0].start]

    def _indent_unit(self) -> str:
        top = self._scan_object(self._skip_blanks(0))
        if not top.members or self._is_on_one_line(top):
            return _DEFAULT_INDENT
        return self._line_indent(top.members[0].start) or _DEFAULT_INDENT

    def _insert(self, span: _ObjectSpan, name: str, value: object) -> None:
        key = json.dumps(name, ensure_ascii=False)
        if self._is_on_one_line(span):
            last = span.members[-1].value_end
            self.text = f"{self.text[:last]}, {key}: {json.dumps(value, ensure_ascii=False)}{self.text[last:]}"
            return
        if span.members:
            indent = self._line_indent(span.members[0].start)
            last = span.members[-1].value_end
            head, tail = f"{self.text[:last]},", self.text[last:]
        else:
            outer = self._line_indent(span.start)
            indent = outer + self._indent_unit()
            head, tail = self.text[: span.start + 1], self._newline + outer + self.text[span.closing :]
        self.text = f"{head}{self._newline}{indent}{key}: {self._render(value, indent)}{tail}"

    def _render(self, value: object, indent: str) -> str:
        text = json.dumps(value, indent=self._indent_unit(), ensure_ascii=False)
        return text.replace("\n", self._newline + indent)


def _decode(data: bytes, path: str) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise Fault("the file is written in UTF-16", where=f"{path}:1", hint="Save it as UTF-8")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Fault("the file is not UTF-8", where=f"{path}:{line}") from None


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")
