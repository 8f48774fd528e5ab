"""YAML text as plain dicts, lists and scalars with the line of each, bounded, and strict where engines are.

PyYAML's parser makes events of the text; values are made of them here, since its own constructor knows no bounds
(aliases!), takes a key twice, and has other rules for words (see `scalars`). What engines read is what go-yaml 2 reads,
a translation of an old libyaml. Without libyaml the outcome is the same, only slower.

Cost rule: cold (PyYAML). Memory: `NODES` values, wherever they come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from gpu_oci_hook.cdi.spec.finding import Finding
from gpu_oci_hook.cdi.spec.go_decoding import MAX_DEPTH, MAX_VALUES
from gpu_oci_hook.errors import clip_text
from gpu_oci_hook.formats.json_lines import join_json_path
from gpu_oci_hook.formats.yaml_scalars import (
    TAG_PREFIX,
    Scalar,
    format_scalar,
    is_known_tag,
    parse_plain_scalar,
    parse_tagged_scalar,
)

YamlValue = Any  # dict[str, Tree] | list[Tree] | str | int | float | bool | None


class InvalidYamlError(Exception):
    """The text is nothing that an engine could read; carries the finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


class YamlDocument:
    """What a text says.

    data: its values. line_numbers: the line of each by its JSON path; what an alias brought has the alias's line only.
    spellings: the spelling of each word without quotes that stands for something else than a text, by its JSON path.
    findings: warnings.
    """

    __slots__ = ("data", "findings", "line_numbers", "spellings")

    def __init__(self) -> None:
        self.data: YamlValue = None
        self.line_numbers: dict[str, int] = {}
        self.spellings: dict[str, str] = {}
        self.findings: list[Finding] = []


def parse_yaml_document(text: str, path: str) -> YamlDocument:
    """The first document of a YAML text.

    Arguments:
        text: without a byte order mark.
        path: the file, for findings.

    Raises:
        Broken: it is not YAML, not YAML that engines read, or more of it than anybody needs.
    """
    fast = getattr(yaml, "CSafeLoader", None)
    if fast is not None:
        reader = _DocumentBuilder(path)
        try:
            reader.consume_events(yaml.parse(text, Loader=fast))
            return reader.result
        except yaml.YAMLError as error:
            # libyaml 0.2.5 refuses `[a:, b]`, go-yaml 2 does not (seen with podman 4.3).
            if "found unexpected ':'" not in str(error):
                raise InvalidYamlError(_make_error_finding(error, text, path)) from error
    reader = _DocumentBuilder(path)
    try:
        reader.consume_events(yaml.parse(text, Loader=_GoYamlLoader))
    except yaml.YAMLError as error:
        raise InvalidYamlError(_make_error_finding(error, text, path)) from error
    return reader.result


_BLANKS = "\0 \t\r\n\x85\u2028\u2029"


class _GoYamlLoader(yaml.SafeLoader):
    """PyYAML's own parser with go-yaml's opinion of tabs between words, of directives, and of what ends a word.

    Without it, JSON that is indented with tabs would be no YAML.
    """

    def scan_to_next_token(self) -> None:
        while True:
            # libyaml, yaml_parser_scan_to_next_token: where a block's indentation could begin, a tab is none.
            while self.peek() == " " or (self.peek() == "\t" and (self.flow_level or not self.allow_simple_key)):
                self.forward()
            if self.peek() == "#":
                while self.peek() not in "\0\r\n\x85\u2028\u2029":
                    self.forward()
            if not self.scan_line_break():  # type: ignore[no-untyped-call]
                return
            if not self.flow_level:
                self.allow_simple_key = True

    def scan_plain_spaces(self, indent: int, start_mark: Any) -> list[str]:
        length = 0
        while self.peek(length) in " \t":
            length += 1
        spaces: str = self.prefix(length)
        self.forward(length)
        if self.peek() in "\r\n\x85\u2028\u2029":
            return super().scan_plain_spaces(indent, start_mark) or []
        return [spaces] if spaces else []

    def scan_plain(self) -> yaml.ScalarToken:
        """A word without quotes: between brackets `,?[]{}` end it, and a colon only before a blank."""
        pieces: list[str] = []
        spaces: list[str] = []
        start = end = self.get_mark()
        indent = self.indent + 1
        while self.peek() != "#":
            length = 0
            while (letter := self.peek(length)) not in _BLANKS:
                if letter == ":" and self.peek(length + 1) in _BLANKS:
                    break
                if self.flow_level and letter in ",?[]{}":
                    break
                length += 1
            if not length:
                break
            self.allow_simple_key = False
            pieces += [*spaces, self.prefix(length)]
            self.forward(length)
            end = self.get_mark()
            spaces = self.scan_plain_spaces(indent, start)
            if not spaces or (not self.flow_level and self.column < indent):
                break
        return yaml.ScalarToken("".join(pieces), True, start, end)

    def scan_directive_name(self, start_mark: Any) -> str:
        name: str = super().scan_directive_name(start_mark)  # type: ignore[no-untyped-call]
        if name not in ("YAML", "TAG"):
            raise yaml.scanner.ScannerError(None, None, "found unknown directive name", start_mark)
        return name


class _OpenCollection:
    """A list or mapping that is being read."""

    __slots__ = ("anchor", "depth_below", "is_merge_key", "key", "key_line", "line", "value", "values_before", "where")

    def __init__(self, value: YamlValue, where: str, anchor: str | None, line: int, values_before: int) -> None:
        self.value = value
        self.where = where
        self.anchor = anchor
        self.line = line
        self.values_before = values_before  # how many values there were before this one
        self.depth_below = 0  # how many levels lie below this one
        self.key: str | None = None  # of a mapping: whose value comes next
        self.key_line = 0
        self.is_merge_key = False  # that key is <<


class _DocumentBuilder:
    def __init__(self, path: str) -> None:
        self.path = path
        self.result = YamlDocument()
        self.open_collections: list[_OpenCollection] = []
        self.value_count = 0
        self.flow_depth = 0  # how many brackets are open
        # Of each anchor: value, how many values it is, how many levels deep; None while it is being read.
        self.anchors: dict[str, tuple[YamlValue, int, int] | None] = {}

    def consume_events(self, events: Iterator[yaml.Event]) -> None:
        for event in events:
            line = event.start_mark.line + 1 if event.start_mark else 0
            if isinstance(event, yaml.DocumentStartEvent):
                # go-yaml 2 refuses others: "found incompatible YAML document". Seen with podman 4.3.
                if event.version not in (None, (1, 1)):
                    self._raise_invalid(
                        "declares a version of YAML that engines do not read", "Remove the %YAML line", line
                    )
            elif isinstance(event, yaml.ScalarEvent):
                self._add_scalar(event, line)
            elif isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
                self._open_collection(event, line)
            elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
                self._close_collection()
            elif isinstance(event, yaml.AliasEvent):
                self._add_alias(event.anchor or "", line)
            elif isinstance(event, yaml.DocumentEndEvent):
                break
        else:
            self._raise_invalid("is empty: engines find no data in it", "", 0)
        try:
            more = isinstance(next(events), yaml.DocumentStartEvent)
        except yaml.YAMLError:
            more = True
        if more:
            text = "has more than one YAML document: engines read the first and ignore the rest"
            self.result.findings.append(Finding("warning", self.path, "", text, "Make a file of each"))

    def _raise_invalid(self, text: str, cure: str, line: int, where: str = "") -> None:
        raise InvalidYamlError(Finding("error", self.path, where, text, cure, line))

    def _get_next_path(self) -> str:
        """The path of the value that comes next."""
        if not self.open_collections:
            return ""
        top = self.open_collections[-1]
        if isinstance(top.value, list):
            return join_json_path(top.where, len(top.value))
        return top.where if top.key is None else join_json_path(top.where, top.key)

    def _count_values(self, line: int, values: int = 1, depth: int = 0) -> None:
        self.value_count += values
        if self.value_count > MAX_VALUES:
            why = " (aliases repeat what they name)" if values > 1 else ""
            self._raise_invalid(f"has more than {MAX_VALUES} values{why}: no CDI file needs so many", "", line)
        if len(self.open_collections) + depth > MAX_DEPTH:
            self._raise_invalid(f"is nested deeper than {MAX_DEPTH} levels: no CDI file needs so many", "", line)

    def _check_tag(self, tag: str | None, line: int) -> None:
        if tag and not is_known_tag(tag):
            text = f"the tag {clip_text(tag, 80)} is ignored by engines"
            self.result.findings.append(Finding("warning", self.path, self._get_next_path(), text, "Remove it", line))

    def _add_scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        self._count_values(line)
        self._check_tag(event.tag, line)
        where = self._get_next_path()
        value: Scalar = event.value
        # So go-yaml 2 and PyYAML's own parser; libyaml 0.2.5 takes it for a letter. Seen with podman 4.3.
        if event.style in (None, "") and "?" in event.value and self.flow_depth:
            cure = "Put the word in quotes"
            self._raise_invalid("not YAML for engines: a question mark in a word between brackets", cure, line, where)
        # libyaml refuses escapes of half a character by itself, PyYAML's parser does not.
        if not event.value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in event.value):
            self._raise_invalid("not YAML: found invalid Unicode character escape code", "", line)
        if event.tag is not None:
            try:
                value = parse_tagged_scalar(event.value, event.tag)
            except ValueError as error:
                self._raise_invalid(f"{clip_text(event.value, 80)!r} is tagged {error}", "Remove the tag", line, where)
        elif event.implicit[0]:
            value = parse_plain_scalar(event.value)
        top = self.open_collections[-1] if self.open_collections else None
        if top is not None and isinstance(top.value, dict) and top.key is None:
            top.is_merge_key = event.value == "<<" and (event.implicit[0] or event.tag == f"{TAG_PREFIX}merge")
            if value is None:
                self._raise_invalid("a key is null", "Give it a name", line, where)
            top.key = format_scalar(value)
            top.key_line = line
            if event.anchor:
                self.anchors[event.anchor] = (value, 1, 0)
            return
        if not isinstance(value, str):
            self.result.spellings[where] = event.value
        self._attach_value(value, event.anchor, 1, 0, line)

    def _open_collection(self, event: yaml.CollectionStartEvent, line: int) -> None:
        top = self.open_collections[-1] if self.open_collections else None
        if top is not None and isinstance(top.value, dict) and top.key is None:
            self._raise_invalid("a key is a list or a mapping", "Keys are words", line, top.where)
        self._count_values(line, depth=1)
        self._check_tag(event.tag, line)
        value: YamlValue = [] if isinstance(event, yaml.SequenceStartEvent) else {}
        if event.anchor:
            self.anchors[event.anchor] = None
        self.flow_depth += bool(event.flow_style) or bool(self.flow_depth)
        self.open_collections.append(
            _OpenCollection(value, self._get_next_path(), event.anchor, line, self.value_count - 1)
        )

    def _close_collection(self) -> None:
        frame = self.open_collections.pop()
        self.flow_depth -= bool(self.flow_depth)
        self._attach_value(
            frame.value,
            frame.anchor,
            self.value_count - frame.values_before,
            frame.depth_below + 1,
            frame.line,
            opened=True,
        )

    def _add_alias(self, anchor: str, line: int) -> None:
        if anchor not in self.anchors:
            self._raise_invalid(f"the alias *{clip_text(anchor, 80)} names no anchor", "", line, self._get_next_path())
        named = self.anchors[anchor]
        if named is None:
            self._raise_invalid(f"the anchor &{clip_text(anchor, 80)} contains itself", "", line, self._get_next_path())
            return
        value, values, deep = named
        self._count_values(line, values, deep)
        top = self.open_collections[-1] if self.open_collections else None
        if top is not None and isinstance(top.value, dict) and top.key is None:
            if value is None or isinstance(value, list | dict):
                self._raise_invalid("a key is no word", "Keys are words", line, top.where)
            top.key = format_scalar(value)
            top.key_line = line
            return
        self._attach_value(_copy_value(value), None, values, deep, line)

    def _attach_value(
        self, value: YamlValue, anchor: str | None, values: int, depth: int, line: int, *, opened: bool = False
    ) -> None:
        """Puts a value where it belongs."""
        if anchor:
            self.anchors[anchor] = (value, values, depth)
        if not self.open_collections:
            self.result.data = value
            self.result.line_numbers[""] = line
            return
        top = self.open_collections[-1]
        top.depth_below = max(top.depth_below, depth)
        if isinstance(top.value, list):
            self.result.line_numbers.setdefault(join_json_path(top.where, len(top.value)), line)
            top.value.append(value)
            return
        key, top.key = top.key, None
        if key is None:
            return
        if not top.is_merge_key:
            # The line of the key, which is where people look.
            self._set_mapping_key(top, key, value, top.key_line)
            return
        top.is_merge_key = False
        # go-yaml 2 takes a list of mappings from its end.
        for mapping in reversed(value) if isinstance(value, list) else [value]:
            if not isinstance(mapping, dict):
                self._raise_invalid("<< wants a mapping, or a list of mappings", "", line, top.where)
            for name, one in mapping.items():
                self._set_mapping_key(top, name, one, line)

    def _set_mapping_key(self, top: _OpenCollection, key: str, value: YamlValue, line: int) -> None:
        where = join_json_path(top.where, key)
        if key in top.value:
            first = self.result.line_numbers.get(where, 0)
            text = "is there twice" + (f", first on line {first}" if first else "")
            self._raise_invalid(f"{text}: engines refuse the file", "Remove one of them", line, where)
        self.result.line_numbers[where] = line
        top.value[key] = value


def _copy_value(value: YamlValue) -> YamlValue:
    """A copy that shares nothing that can change; its depth is bounded already."""
    if isinstance(value, dict):
        return {key: _copy_value(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_copy_value(one) for one in value]
    return value


def _make_error_finding(error: yaml.YAMLError, text: str, path: str) -> Finding:
    """PyYAML's complaint as a finding with its line."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:
        # A ReaderError: it has a position and a character, and libyaml's a text only.
        return Finding("error", path, "", "not YAML: it has a character that YAML does not allow")
    number = mark.line + 1
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return Finding("error", path, "", "not YAML: a tab in the indentation", "Indent with spaces", number)
    problem = getattr(error, "problem", None) or "it makes no sense"
    return Finding("error", path, "", f"not YAML: {clip_text(problem, 200)}", "", number)
