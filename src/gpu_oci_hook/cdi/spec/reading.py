"""Read a CDI file, JSON or YAML, within bounds, with all problems as findings.

Engines read both formats with one YAML parser, whatever the suffix. This module does the same, but parses valid JSON
with the faster JSON parser. The result is what Go's decoder makes of the file (see `go_decoding`): keys as the
specification spells them, text where text is expected, no nulls. Memory and time are bounded by `MAX_SPEC_SIZE` and
`go_decoding.MAX_VALUES`.

Import budget: cold.
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

# The largest known files have some 300 KiB (16 GPUs with 7 MIG instances each).
MAX_SPEC_SIZE = 4 << 20

# Characters that YAML forbids, so engines refuse them in JSON too.
_FORBIDDEN_CHARACTER = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

# JSON escapes that YAML 1.1 lacks. Observed with podman 4.3: such a file is refused.
_JSON_ONLY_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*(\\/|\\u[dD][89a-fA-F])")


class SpecDocument:
    """The content of a CDI file.

    Attributes:
        data: dicts, lists and scalars; None if the file cannot be parsed.
        findings: problems; at least one error if `data` is None.
    """

    __slots__ = ("_line_numbers", "_text", "data", "findings")

    def __init__(self, findings: list[Finding]) -> None:
        self.data: object | None = None
        self.findings = findings
        self._line_numbers: Mapping[str, int] | None = {}
        self._text = ""

    @property
    def line_numbers(self) -> Mapping[str, int]:
        """The line of each JSON path, as far as known; `finding.find_line_number` finds the nearest.

        Those of a JSON file are computed on first use.
        """
        if self._line_numbers is None:
            self._line_numbers = map_json_line_numbers(self._text)[0]
        return self._line_numbers


def read_spec_file(path: str, check_stat: Callable[[os.stat_result], None] | None = None) -> SpecDocument:
    """Read a file; problems become findings, and only `check_stat` can raise.

    Arguments:
        path: path of the file, for people; symbolic links are followed, as engines do.
        check_stat: gets the status of the open file before it is read, and may raise to refuse it.
    """
    try:
        return parse_spec(read_regular_file(path, MAX_SPEC_SIZE, check_status=check_stat), path)
    except OSError as error:
        hint = f"Make it readable for every user: chmod 0644 {path}" if isinstance(error, PermissionError) else ""
        return _make_failed_document(path, f"cannot be read: {describe_os_error(error)}", hint)
    except UnusableFileError as error:
        return _make_failed_document(path, error.predicate)


def parse_spec(data: bytes, path: str) -> SpecDocument:
    """Parse the bytes of a file.

    Arguments:
        path: path of the file, for findings; YAML in a file with the suffix .json gets a warning.
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
    if document.data is None and not any(finding.level == "error" for finding in document.findings):
        document.findings.append(Finding("error", path, "", "is empty: engines find no data in it"))
    return document


class _InvalidSpecError(Exception):
    """Carries the finding that explains why there is no data."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


def _make_failed_document(path: str, text: str, hint: str = "") -> SpecDocument:
    return SpecDocument([Finding("error", path, "", text, hint)])


def _decode_text(data: bytes, document: SpecDocument, path: str) -> str:
    """Decode the bytes in the encodings that engines accept; appends a warning for unusual ones."""
    encoding = "utf-8"
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "utf-16"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        text = f"is not {encoding.upper()}"
        raise _InvalidSpecError(Finding("error", path, "", text, "Save it as UTF-8", line)) from error
    if encoding == "utf-16" or text.startswith("\ufeff"):
        problem = "is written in UTF-16" if encoding == "utf-16" else "starts with a byte order mark"
        hint = "Save it as UTF-8 without a byte order mark"
        document.findings.append(Finding("warning", path, "", f"{problem}, which not every program reads", hint, 1))
        text = text.removeprefix("\ufeff")
    forbidden = _FORBIDDEN_CHARACTER.search(text)
    if forbidden:
        line = text.count("\n", 0, forbidden.start()) + 1
        problem = f"has a character that YAML, and so engines, do not allow (U+{ord(forbidden[0]):04X})"
        raise _InvalidSpecError(Finding("error", path, "", problem, "Remove it", line))
    return text


def _read_json(text: str, document: SpecDocument, path: str) -> bool:
    """Read a text as JSON; return False if it is not JSON but may be YAML."""
    if not text.lstrip().startswith(("{", "[")):
        return False
    has_duplicate_keys = False

    def build_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
        nonlocal has_duplicate_keys
        members = dict(pairs)
        has_duplicate_keys = has_duplicate_keys or len(members) != len(pairs)
        return members

    try:
        value = json.loads(text, object_pairs_hook=build_object, parse_constant=_reject_json_constant)
    except RecursionError as error:
        finding = Finding("error", path, "", f"is nested deeper than {MAX_DEPTH} levels: no CDI file needs so many")
        raise _InvalidSpecError(finding) from error
    except ValueError as error:
        if not path.endswith(".json"):
            return False
        return _retry_as_yaml(error, text, document, path)
    document._text, document._line_numbers = text, None
    if has_duplicate_keys:
        line_numbers, duplicates = map_json_line_numbers(text)
        line = find_line_number(line_numbers, duplicates[0])
        problem = "is present twice: engines refuse the file"
        raise _InvalidSpecError(Finding("error", path, duplicates[0], problem, "Remove one of them", line))
    escape = _JSON_ONLY_ESCAPE.search(text)
    if escape:
        line = text.count("\n", 0, escape.start(1)) + 1
        problem = f"has the escape {escape[1]}, which is JSON, but engines read JSON as YAML and refuse it"
        document.findings.append(Finding("warning", path, "", problem, "Write the character itself", line))
    _decode_values(value, {}, document, path)
    return True


def _reject_json_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _retry_as_yaml(error: ValueError, text: str, document: SpecDocument, path: str) -> bool:
    """Read a .json file that is not JSON as YAML, as engines do; if that fails too, the finding is about JSON."""
    try:
        _read_yaml(text, document, path)
    except _InvalidSpecError as refusal:
        if "values" in refusal.finding.text or not isinstance(error, json.JSONDecodeError):
            raise
        problem = f"not JSON: {error.msg[:1].lower()}{error.msg[1:]}"
        raise _InvalidSpecError(Finding("error", path, "", problem, "", error.lineno)) from error
    return True


def _read_yaml(text: str, document: SpecDocument, path: str) -> None:
    """Read a text as YAML."""
    # Not at the top: JSON files do not need PyYAML.
    from gpu_oci_hook.cdi.spec.yaml_tree import InvalidYamlError, parse_yaml_document

    try:
        result = parse_yaml_document(text, path)
    except InvalidYamlError as error:
        raise _InvalidSpecError(error.finding) from error
    document._line_numbers = result.line_numbers
    document.findings += result.findings
    if path.endswith(".json"):
        problem = "is YAML, not JSON: engines read it, other programs do not"
        document.findings.append(Finding("warning", path, "", problem, "Rename it to .yaml"))
    _decode_values(result.data, result.spellings, document, path)


def _decode_values(value: object, spellings: Mapping[str, str], document: SpecDocument, path: str) -> None:
    """Decode the values as engines do, and turn the decoder's notes into findings."""
    decoder = GoDecoder(spellings)
    try:
        document.data = decoder.decode_document(value)
    except SpecTooLargeError as error:
        raise _InvalidSpecError(Finding("error", path, "", str(error))) from error
    for level, where, text, hint in decoder.notes:
        line = find_line_number(document.line_numbers, where)
        document.findings.append(Finding(level, path, where, clip_text(text), hint, line))
    if any(level == "error" for level, _, _, _ in decoder.notes):
        document.data = None
