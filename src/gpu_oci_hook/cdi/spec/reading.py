"""A CDI file read: JSON or YAML, bounded, with everything that is wrong with it as findings.

Engines read both with one YAML parser, whatever the suffix; so does this, except that what is JSON goes through the
faster parser for it. What comes out is what Go's decoder makes of the file (see `shape`): keys spelled as the
specification spells them, text where text belongs, nothing that is null.

Cost rule: cold (json, PyYAML). Memory and time are bounded by `MAX_SPEC_SIZE` and `yaml_tree.NODES`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping

from gpu_oci_hook.cdi.spec.finding import Finding, find_line_number
from gpu_oci_hook.cdi.spec.go_decoding import MAX_DEPTH, GoDecoder, SpecTooLargeError
from gpu_oci_hook.errors import clip_text, describe_os_error
from gpu_oci_hook.files.read_regular import UnusableFileError, read_regular_file
from gpu_oci_hook.formats.json_lines import map_json_line_numbers

# The largest files that are known have some 300 KiB (16 GPUs with 7 MIG instances each).
MAX_SPEC_SIZE = 4 << 20

# What YAML does not allow in a text, and so engines not in JSON either.
_FORBIDDEN_CHARACTER = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

# Escapes of JSON that YAML 1.1 lacks. Seen with podman 4.3: such a file is refused.
_JSON_ONLY_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*(\\/|\\u[dD][89a-fA-F])")


class SpecDocument:
    """A file that was read.

    data: what it says, as dicts, lists and scalars; None when that could not be found out.
    findings: what is to be said of it; at least one error when data is None.
    line_numbers: the line of each JSON path, as far as known (`finding.find_line_number` finds the nearest).
    """

    __slots__ = ("_line_numbers", "_text", "data", "findings")

    def __init__(self, findings: list[Finding]) -> None:
        self.data: object | None = None
        self.findings = findings
        self._line_numbers: Mapping[str, int] | None = {}
        self._text = ""

    @property
    def line_numbers(self) -> Mapping[str, int]:
        """See above; of a JSON file found when first asked for."""
        if self._line_numbers is None:
            self._line_numbers = map_json_line_numbers(self._text)[0]
        return self._line_numbers


def read_spec_file(path: str, check_stat: Callable[[os.stat_result], None] | None = None) -> SpecDocument:
    """Reads a file, whatever it is; never raises for what is there, but what `check_stat` raises.

    Arguments:
        path: as a person would write it; symbolic links are followed, as engines do.
        check_stat: is shown the status of the very file that is read then, whatever the path leads to by now, and may
            refuse it.
    """
    try:
        return parse_spec(read_regular_file(path, MAX_SPEC_SIZE, check_status=check_stat), path)
    except OSError as error:
        cure = "Give every user the right to read it (chmod 0644)" if isinstance(error, PermissionError) else ""
        return _make_failed_document(path, f"cannot be read: {describe_os_error(error)}", cure)
    except UnusableFileError as error:
        return _make_failed_document(path, error.predicate)


def parse_spec(data: bytes, path: str) -> SpecDocument:
    """What the bytes of a file say.

    Arguments:
        data: its content.
        path: its path, for findings, and for its suffix: a YAML text in a JSON file is worth a warning.
    """
    document = SpecDocument([])
    if len(data) > MAX_SPEC_SIZE:
        return _make_failed_document(path, f"is larger than {MAX_SPEC_SIZE >> 20} MiB")
    try:
        text = _decode_text(data, document, path)
        if not _read_json(text, document, path):
            _read_yaml(text, document, path)
    except _InvalidSpecError as refusal:
        document.data = None
        document.findings.append(refusal.finding)
        return document
    if document.data is None and not any(one.level == "error" for one in document.findings):
        document.findings.append(Finding("error", path, "", "is empty: engines find no data in it"))
    return document


class _InvalidSpecError(Exception):
    """Carries the finding that says why there is no data."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


def _make_failed_document(path: str, text: str, cure: str = "", line: int = 0) -> SpecDocument:
    return SpecDocument([Finding("error", path, "", text, cure, line)])


def _decode_text(data: bytes, document: SpecDocument, path: str) -> str:
    """The text of these bytes, in the encodings that engines take."""
    encoding = "utf-8"
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "utf-16"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        name = encoding.upper()
        raise _InvalidSpecError(Finding("error", path, "", f"is not {name}", "Save it as UTF-8", line)) from error
    if encoding == "utf-16" or text.startswith("\ufeff"):
        what = "is written in UTF-16" if encoding == "utf-16" else "starts with a byte order mark"
        cure = "Save it as UTF-8 without one"
        document.findings.append(Finding("warning", path, "", f"{what}, which not every program reads", cure, 1))
        text = text.removeprefix("\ufeff")
    forbidden = _FORBIDDEN_CHARACTER.search(text)
    if forbidden:
        line = text.count("\n", 0, forbidden.start()) + 1
        what = f"has a character that YAML and so engines do not allow (U+{ord(forbidden[0]):04X})"
        raise _InvalidSpecError(Finding("error", path, "", what, "Take it out", line))
    return text


def _read_json(text: str, document: SpecDocument, path: str) -> bool:
    """Reads a text as JSON; False when it is none but may be YAML."""
    if not text.lstrip().startswith(("{", "[")):
        return False
    twice = False

    def pairs(found: list[tuple[str, object]]) -> dict[str, object]:
        nonlocal twice
        made = dict(found)
        twice = twice or len(made) != len(found)
        return made

    try:
        tree = json.loads(text, object_pairs_hook=pairs, parse_constant=_reject_json_constant)
    except RecursionError as error:
        finding = Finding("error", path, "", f"is nested deeper than {MAX_DEPTH} levels: no CDI file needs so many")
        raise _InvalidSpecError(finding) from error
    except ValueError as error:
        if not path.endswith(".json"):
            return False
        return _retry_as_yaml(error, text, document, path)
    document._text, document._line_numbers = text, None
    if twice:
        lines, paths = map_json_line_numbers(text)
        what = "is there twice: engines refuse the file"
        raise _InvalidSpecError(
            Finding("error", path, paths[0], what, "Remove one of them", find_line_number(lines, paths[0]))
        )
    escape = _JSON_ONLY_ESCAPE.search(text)
    if escape:
        line = text.count("\n", 0, escape.start(1)) + 1
        what = f"has the escape {escape[1]}, which is JSON, but engines read JSON as YAML and refuse it"
        cure = "Write the character itself"
        document.findings.append(Finding("warning", path, "", what, cure, line))
    _decode_values(tree, {}, document, path)
    return True


def _reject_json_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _retry_as_yaml(error: ValueError, text: str, document: SpecDocument, path: str) -> bool:
    """A file called JSON that is none: engines read it as YAML, if that works; the complaint is about JSON."""
    try:
        _read_yaml(text, document, path)
    except _InvalidSpecError as refusal:
        if "values" in refusal.finding.text or not isinstance(error, json.JSONDecodeError):
            raise
        what = f"not JSON: {error.msg[:1].lower()}{error.msg[1:]}"
        line = error.lineno
        raise _InvalidSpecError(Finding("error", path, "", what, "", line)) from error
    return True


def _read_yaml(text: str, document: SpecDocument, path: str) -> None:
    """Reads a text as YAML."""
    from gpu_oci_hook.cdi.spec.yaml_tree import (
        InvalidYamlError,
        parse_yaml_document,  # PyYAML: not for JSON
    )

    try:
        result = parse_yaml_document(text, path)
    except InvalidYamlError as broken:
        raise _InvalidSpecError(broken.finding) from broken
    document._line_numbers = result.line_numbers
    document.findings += result.findings
    if path.endswith(".json"):
        what = "is YAML, not JSON: engines read it, other programs do not"
        document.findings.append(Finding("warning", path, "", what, "Call it .yaml"))
    _decode_values(result.data, result.spellings, document, path)


def _decode_values(tree: object, spellings: Mapping[str, str], document: SpecDocument, path: str) -> None:
    """Takes the values over in the shape that engines give them."""
    shaper = GoDecoder(spellings)
    try:
        document.data = shaper.decode_document(tree)
    except SpecTooLargeError as error:
        raise _InvalidSpecError(Finding("error", path, "", str(error))) from error
    for level, where, text, cure in shaper.notes:
        line = find_line_number(document.line_numbers, where)
        document.findings.append(Finding(level, path, where, clip_text(text), cure, line))
    if any(level == "error" for level, _, _, _ in shaper.notes):
        document.data = None
