"""YAML text as plain dicts, lists and scalars with the line of each, bounded, and strict where engines are.

PyYAML's parser makes events of the text; values are made of them here, since its own constructor knows no bounds
(aliases!), takes a key twice, and has other rules for words (see `scalars`). What engines read is what go-yaml 2 reads,
a translation of libyaml. Without libyaml the outcome is the same, only slower; of 24,000 random changes to a file three
were none the less read otherwise (`[a:, b]`, and tags with brackets in them).

Cost rule: cold (PyYAML). Memory: `NODES` values, wherever they come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from gpu_oci_hook.cdi import scalars
from gpu_oci_hook.cdi.finding import Finding, join
from gpu_oci_hook.cdi.shape import DEPTH, NODES
from gpu_oci_hook.errors import clipped

Tree = Any  # dict[str, Tree] | list[Tree] | str | int | float | bool | None


class Broken(Exception):
    """The text is nothing that an engine could read; carries the finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


class Result:
    """What a text says.

    tree: its values. lines: the line of each by its JSON path; what an alias brought has the alias's line only.
    spelled: the spelling of each word without quotes that stands for something else than a text, by its JSON path.
    findings: warnings.
    """

    __slots__ = ("findings", "lines", "spelled", "tree")

    def __init__(self) -> None:
        self.tree: Tree = None
        self.lines: dict[str, int] = {}
        self.spelled: dict[str, str] = {}
        self.findings: list[Finding] = []


def read(text: str, path: str) -> Result:
    """The first document of a YAML text.

    Arguments:
        text: without a byte order mark.
        path: the file, for findings.

    Raises:
        Broken: it is not YAML, not YAML that engines read, or more of it than anybody needs.
    """
    reader = _Reader(path)
    try:
        reader.feed(yaml.parse(text, Loader=_loader()))
    except yaml.YAMLError as error:
        raise Broken(_complaint(error, text, path)) from error
    return reader.result


def _loader() -> Any:
    """libyaml's parser, or the one that does the same."""
    return getattr(yaml, "CSafeLoader", None) or _Plain


class _Plain(yaml.SafeLoader):
    """PyYAML's own parser with libyaml's, and so the engines', opinion of tabs between words and of directives.

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

    def scan_directive_name(self, start_mark: Any) -> str:
        name: str = super().scan_directive_name(start_mark)  # type: ignore[no-untyped-call]
        if name not in ("YAML", "TAG"):
            raise yaml.scanner.ScannerError(None, None, "found unknown directive name", start_mark)
        return name


class _Frame:
    """A list or mapping that is being read."""

    __slots__ = ("anchor", "before", "deepest", "key", "key_line", "line", "merging", "value", "where")

    def __init__(self, value: Tree, where: str, anchor: str | None, line: int, before: int) -> None:
        self.value = value
        self.where = where
        self.anchor = anchor
        self.line = line
        self.before = before  # how many values there were before this one
        self.deepest = 0  # how many levels lie below this one
        self.key: str | None = None  # of a mapping: whose value comes next
        self.key_line = 0
        self.merging = False  # that key is <<


class _Reader:
    def __init__(self, path: str) -> None:
        self.path = path
        self.result = Result()
        self.frames: list[_Frame] = []
        self.count = 0
        # Of each anchor: value, how many values it is, how many levels deep; None while it is being read.
        self.anchors: dict[str, tuple[Tree, int, int] | None] = {}

    def feed(self, events: Iterator[yaml.Event]) -> None:
        for event in events:
            line = event.start_mark.line + 1 if event.start_mark else 0
            if isinstance(event, yaml.DocumentStartEvent):
                # go-yaml 2 refuses others: "found incompatible YAML document". Seen with podman 4.3.
                if event.version not in (None, (1, 1)):
                    self._stop("declares a version of YAML that engines do not read", "Remove the %YAML line", line)
            elif isinstance(event, yaml.ScalarEvent):
                self._scalar(event, line)
            elif isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
                self._open(event, line)
            elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
                self._close()
            elif isinstance(event, yaml.AliasEvent):
                self._alias(event.anchor or "", line)
            elif isinstance(event, yaml.DocumentEndEvent):
                break
        else:
            self._stop("is empty: engines find no data in it", "", 0)
        try:
            more = isinstance(next(events), yaml.DocumentStartEvent)
        except yaml.YAMLError:
            more = True
        if more:
            text = "has more than one YAML document: engines read the first and ignore the rest"
            self.result.findings.append(Finding("warning", self.path, "", text, "Make a file of each"))

    def _stop(self, text: str, cure: str, line: int, where: str = "") -> None:
        raise Broken(Finding("error", self.path, where, text, cure, line))

    def _where(self) -> str:
        """The path of the value that comes next."""
        if not self.frames:
            return ""
        top = self.frames[-1]
        if isinstance(top.value, list):
            return join(top.where, len(top.value))
        return top.where if top.key is None else join(top.where, top.key)

    def _counted(self, line: int, values: int = 1, deep: int = 0) -> None:
        self.count += values
        if self.count > NODES:
            why = " (aliases repeat what they name)" if values > 1 else ""
            self._stop(f"has more than {NODES} values{why}: no CDI file needs so many", "", line)
        if len(self.frames) + deep > DEPTH:
            self._stop(f"is nested deeper than {DEPTH} levels: no CDI file needs so many", "", line)

    def _tag(self, tag: str | None, line: int) -> None:
        if tag and not scalars.known_tag(tag):
            text = f"the tag {clipped(tag, 80)} is ignored by engines"
            self.result.findings.append(Finding("warning", self.path, self._where(), text, "Remove it", line))

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        self._counted(line)
        self._tag(event.tag, line)
        where = self._where()
        value: scalars.Scalar = event.value
        # libyaml refuses escapes of half a character by itself, PyYAML's parser does not.
        if not event.value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in event.value):
            self._stop("not YAML: found invalid Unicode character escape code", "", line)
        if event.tag is not None:
            try:
                value = scalars.tagged(event.value, event.tag)
            except ValueError as error:
                self._stop(f"{clipped(event.value, 80)!r} is tagged {error}", "Remove the tag", line, where)
        elif event.implicit[0]:
            value = scalars.plain(event.value)
        top = self.frames[-1] if self.frames else None
        if top is not None and isinstance(top.value, dict) and top.key is None:
            top.merging = event.value == "<<" and (event.implicit[0] or event.tag == f"{scalars.TAGS}merge")
            if value is None:
                self._stop("a key is null", "Give it a name", line, where)
            top.key = scalars.text_of(value)
            top.key_line = line
            if event.anchor:
                self.anchors[event.anchor] = (value, 1, 0)
            return
        if not isinstance(value, str):
            self.result.spelled[where] = event.value
        self._done(value, event.anchor, 1, 0, line)

    def _open(self, event: yaml.CollectionStartEvent, line: int) -> None:
        top = self.frames[-1] if self.frames else None
        if top is not None and isinstance(top.value, dict) and top.key is None:
            self._stop("a key is a list or a mapping", "Keys are words", line, top.where)
        self._counted(line, deep=1)
        self._tag(event.tag, line)
        value: Tree = [] if isinstance(event, yaml.SequenceStartEvent) else {}
        if event.anchor:
            self.anchors[event.anchor] = None
        self.frames.append(_Frame(value, self._where(), event.anchor, line, self.count - 1))

    def _close(self) -> None:
        frame = self.frames.pop()
        self._done(frame.value, frame.anchor, self.count - frame.before, frame.deepest + 1, frame.line, opened=True)

    def _alias(self, anchor: str, line: int) -> None:
        if anchor not in self.anchors:
            self._stop(f"the alias *{clipped(anchor, 80)} names no anchor", "", line, self._where())
        named = self.anchors[anchor]
        if named is None:
            self._stop(f"the anchor &{clipped(anchor, 80)} contains itself", "", line, self._where())
            return
        value, values, deep = named
        self._counted(line, values, deep)
        top = self.frames[-1] if self.frames else None
        if top is not None and isinstance(top.value, dict) and top.key is None:
            if value is None or isinstance(value, list | dict):
                self._stop("a key is no word", "Keys are words", line, top.where)
            top.key = scalars.text_of(value)
            top.key_line = line
            return
        self._done(_copy(value), None, values, deep, line)

    def _done(
        self, value: Tree, anchor: str | None, values: int, deep: int, line: int, *, opened: bool = False
    ) -> None:
        """Puts a value where it belongs."""
        if anchor:
            self.anchors[anchor] = (value, values, deep)
        if not self.frames:
            self.result.tree = value
            self.result.lines[""] = line
            return
        top = self.frames[-1]
        top.deepest = max(top.deepest, deep)
        if isinstance(top.value, list):
            self.result.lines.setdefault(join(top.where, len(top.value)), line)
            top.value.append(value)
            return
        key, top.key = top.key, None
        if key is None:
            return
        if not top.merging:
            # The line of the key, which is where people look.
            self._set(top, key, value, top.key_line)
            return
        top.merging = False
        # go-yaml 2 takes a list of mappings from its end.
        for mapping in reversed(value) if isinstance(value, list) else [value]:
            if not isinstance(mapping, dict):
                self._stop("<< wants a mapping, or a list of mappings", "", line, top.where)
            for name, one in mapping.items():
                self._set(top, name, one, line)

    def _set(self, top: _Frame, key: str, value: Tree, line: int) -> None:
        where = join(top.where, key)
        if key in top.value:
            first = self.result.lines.get(where, 0)
            text = "is there twice" + (f", first on line {first}" if first else "")
            self._stop(f"{text}: engines refuse the file", "Remove one of them", line, where)
        self.result.lines[where] = line
        top.value[key] = value


def _copy(value: Tree) -> Tree:
    """A copy that shares nothing that can change; its depth is bounded already."""
    if isinstance(value, dict):
        return {key: _copy(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_copy(one) for one in value]
    return value


def _complaint(error: yaml.YAMLError, text: str, path: str) -> Finding:
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
    return Finding("error", path, "", f"not YAML: {clipped(problem, 200)}", "", number)
