"""Build dicts, lists and scalars with line numbers from YAML text, within bounds, and as strict as engines.

PyYAML's parser turns the text into events. The values are built here, because PyYAML's constructor has no bounds
(aliases!), accepts duplicate keys, and has other rules for plain scalars (see `yaml_scalars`). Engines read what
go-yaml 2 reads, a translation of an old libyaml. Without libyaml the result is the same, only slower. At most
MAX_VALUES values are built, aliases included.

Import budget: cold.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from gpu_oci_hook.cdi.spec.finding import Finding
from gpu_oci_hook.cdi.spec.go_decoding import MAX_DEPTH, MAX_VALUES
from gpu_oci_hook.cdi.spec.go_yaml_loader import GoYamlLoader
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

YamlValue = Any  # dict[str, YamlValue] | list[YamlValue] | str | int | float | bool | None


class InvalidYamlError(Exception):
    """No engine can read the text; carries the finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


class YamlDocument:
    """The content of a YAML text.

    Attributes:
        data: its values.
        line_numbers: line of each value by JSON path; values from an alias have the alias's line only.
        spellings: original spelling of each plain scalar that is not text, by JSON path.
        findings: warnings.
    """

    __slots__ = ("data", "findings", "line_numbers", "spellings")

    def __init__(self) -> None:
        self.data: YamlValue = None
        self.line_numbers: dict[str, int] = {}
        self.spellings: dict[str, str] = {}
        self.findings: list[Finding] = []


def parse_yaml_document(text: str, path: str) -> YamlDocument:
    """Parse the first document of a YAML text.

    Arguments:
        text: the text without a byte order mark.
        path: path of the file, for findings.

    Raises:
        InvalidYamlError: it is not YAML, not YAML that engines read, or too large.
    """
    libyaml_loader = getattr(yaml, "CSafeLoader", None)
    if libyaml_loader is not None:
        builder = _DocumentBuilder(path)
        try:
            builder.consume_events(yaml.parse(text, Loader=libyaml_loader))
            return builder.result
        except yaml.YAMLError as error:
            # libyaml 0.2.5 refuses `[a:, b]`, go-yaml 2 does not (observed with podman 4.3).
            if "found unexpected ':'" not in str(error):
                raise InvalidYamlError(_make_error_finding(error, text, path)) from error
    builder = _DocumentBuilder(path)
    try:
        builder.consume_events(yaml.parse(text, Loader=GoYamlLoader))
    except yaml.YAMLError as error:
        raise InvalidYamlError(_make_error_finding(error, text, path)) from error
    return builder.result


class _OpenCollection:
    """A list or mapping that is being built."""

    __slots__ = ("anchor", "depth_below", "is_merge_key", "key", "key_line", "line", "value", "values_before", "where")

    def __init__(self, value: YamlValue, where: str, anchor: str | None, line: int, values_before: int) -> None:
        self.value = value
        self.where = where
        self.anchor = anchor
        self.line = line
        self.values_before = values_before  # number of values before this one
        self.depth_below = 0  # number of levels below this one
        self.key: str | None = None  # of a mapping: the key whose value comes next
        self.key_line = 0
        self.is_merge_key = False  # whether that key is <<


class _DocumentBuilder:
    """Builds one document from the parser's events."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.result = YamlDocument()
        self.open_collections: list[_OpenCollection] = []
        self.value_count = 0
        self.flow_depth = 0  # number of open brackets
        # (value, number of values, number of levels) of each anchor; None while it is being built.
        self.anchors: dict[str, tuple[YamlValue, int, int] | None] = {}

    def consume_events(self, events: Iterator[yaml.Event]) -> None:
        """Build the first document, and append a warning if there are more.

        Raises:
            InvalidYamlError: engines refuse the text.
            yaml.YAMLError: it is not YAML.
        """
        for event in events:
            line = event.start_mark.line + 1 if event.start_mark else 0
            if isinstance(event, yaml.DocumentStartEvent):
                # go-yaml 2 refuses others: "found incompatible YAML document". Observed with podman 4.3.
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
            has_more = isinstance(next(events), yaml.DocumentStartEvent)
        except yaml.YAMLError:
            has_more = True
        if has_more:
            text = "has more than one YAML document: engines read the first and ignore the rest"
            self.result.findings.append(Finding("warning", self.path, "", text, "Write each to its own file"))

    def _raise_invalid(self, text: str, hint: str, line: int, where: str = "") -> None:
        raise InvalidYamlError(Finding("error", self.path, where, text, hint, line))

    def _get_next_path(self) -> str:
        """Return the JSON path of the value that comes next."""
        if not self.open_collections:
            return ""
        top = self.open_collections[-1]
        if isinstance(top.value, list):
            return join_json_path(top.where, len(top.value))
        return top.where if top.key is None else join_json_path(top.where, top.key)

    def _count_values(self, line: int, values: int = 1, depth: int = 0) -> None:
        self.value_count += values
        if self.value_count > MAX_VALUES:
            reason = " (aliases repeat the values that they name)" if values > 1 else ""
            self._raise_invalid(f"has more than {MAX_VALUES} values{reason}: no CDI file needs so many", "", line)
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
        # As go-yaml 2 and PyYAML's Python parser; libyaml 0.2.5 takes it for a letter. Observed with podman 4.3.
        if event.style in (None, "") and "?" in event.value and self.flow_depth:
            text = "not YAML for engines: a question mark in a word between brackets"
            self._raise_invalid(text, "Put the word in quotes", line, where)
        # libyaml refuses escaped lone surrogates by itself, PyYAML's parser does not.
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
                self._raise_invalid("a key is null", "Use text as keys", line, where)
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
            self._raise_invalid("a key is a list or a mapping", "Use text as keys", line, top.where)
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
        )

    def _add_alias(self, anchor: str, line: int) -> None:
        if anchor not in self.anchors:
            self._raise_invalid(f"the alias *{clip_text(anchor, 80)} names no anchor", "", line, self._get_next_path())
        target = self.anchors[anchor]
        if target is None:
            self._raise_invalid(f"the anchor &{clip_text(anchor, 80)} contains itself", "", line, self._get_next_path())
            return
        value, values, depth = target
        self._count_values(line, values, depth)
        top = self.open_collections[-1] if self.open_collections else None
        if top is not None and isinstance(top.value, dict) and top.key is None:
            if value is None or isinstance(value, list | dict):
                self._raise_invalid("a key is not text", "Use text as keys", line, top.where)
            top.key = format_scalar(value)
            top.key_line = line
            return
        self._attach_value(_copy_value(value), None, values, depth, line)

    def _attach_value(self, value: YamlValue, anchor: str | None, values: int, depth: int, line: int) -> None:
        """Add a value to the collection that is being built.

        Arguments:
            values, depth: number of values in it, itself included, and number of its levels.
        """
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
            # The line of the key, where people look.
            self._set_mapping_key(top, key, value, top.key_line)
            return
        top.is_merge_key = False
        # go-yaml 2 takes a list of mappings from its end.
        for mapping in reversed(value) if isinstance(value, list) else [value]:
            if not isinstance(mapping, dict):
                self._raise_invalid("<< needs a mapping, or a list of mappings", "", line, top.where)
            for name, member in mapping.items():
                self._set_mapping_key(top, name, member, line)

    def _set_mapping_key(self, top: _OpenCollection, key: str, value: YamlValue, line: int) -> None:
        where = join_json_path(top.where, key)
        if key in top.value:
            first = self.result.line_numbers.get(where, 0)
            text = "is present twice" + (f", first on line {first}" if first else "")
            self._raise_invalid(f"{text}: engines refuse the file", "Remove one of them", line, where)
        self.result.line_numbers[where] = line
        top.value[key] = value


def _copy_value(value: YamlValue) -> YamlValue:
    """Copy a value deeply; its depth is bounded already."""
    if isinstance(value, dict):
        return {key: _copy_value(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_copy_value(item) for item in value]
    return value


def _make_error_finding(error: yaml.YAMLError, text: str, path: str) -> Finding:
    """Make a finding with its line from an error of PyYAML."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:
        # A ReaderError: it has a position and a character, and libyaml's only a text.
        return Finding("error", path, "", "not YAML: it has a character that YAML does not allow")
    number = mark.line + 1
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return Finding("error", path, "", "not YAML: a tab in the indentation", "Indent with spaces", number)
    problem = getattr(error, "problem", None) or "it makes no sense"
    return Finding("error", path, "", f"not YAML: {clip_text(problem, 200)}", "", number)
