"""Serialise a CDI file as YAML or JSON, deterministically.

PyYAML is not used for writing: it takes longer than everything else for a host with many MIG devices, and its text
differs between releases and between its two emitters. Text that is not plainly a word or a path is quoted, so that
YAML 1.1 readers do not take "0" for a number, "0:1" for sixty-one, or "no" for false.

Import budget: cold.
"""

from __future__ import annotations

import json
import re

from gpu_oci_hook.cdi.provenance import PROVENANCE_MARK
from gpu_oci_hook.errors import Fault, make_printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_oci_hook.generate.content import ContainerEdits

OUTPUT_FORMATS = ("yaml", "json")

_PLAIN_SCALAR = re.compile(r"[A-Za-z/][A-Za-z0-9_./=+-]*", re.ASCII)
# YAML 1.1's further words for true, false and null.
_YAML_KEYWORDS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
_MAX_LINE_WIDTH = 100
# Characters that JSON may contain unescaped, whereas YAML, by which engines read JSON too, forbids them or takes them
# for line breaks.
_UNSAFE_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def serialise_spec(spec: ContainerEdits, output_format: str, comments: tuple[str, ...] = ()) -> bytes:
    """Serialise a file.

    Arguments:
        output_format: one of OUTPUT_FORMATS.
        comments: head comments of a YAML file, after our mark; `cdi.provenance` reads some of them. JSON has none.

    Raises:
        Fault: a path of the host is not UTF-8, so no CDI file can name it.
    """
    if output_format == "json":
        text = (
            _UNSAFE_IN_YAML.sub(lambda hit: _escape_character(hit[0]), json.dumps(spec, indent=2, ensure_ascii=False))
            + "\n"
        )
    else:
        head = [PROVENANCE_MARK, *[f"# {make_printable(comment)}" for comment in comments]]
        text = "\n".join(["---", *head, *_emit_yaml_lines(spec)]) + "\n"
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        line_start = error.object[max(0, error.start - 80) : error.end].rpartition("\n")[2].lstrip()
        raise Fault(f"a path is not valid UTF-8, and no CDI file can name it: {line_start}") from None


def _emit_yaml_lines(value: ContainerEdits | list[object], indent: str = "") -> Iterator[str]:
    """Emit the lines of an object or list that is not empty."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from _emit_yaml_entry(
                f"{indent}{_format_yaml_scalar(key)}:", entry, indent + ("" if isinstance(entry, list) else "  ")
            )
        return
    for entry in value:
        if isinstance(entry, dict | list) and entry:
            first, *rest = _emit_yaml_lines(entry, indent + "  ")
            yield f"{indent}- {first[len(indent) + 2 :]}"
            yield from rest
        else:
            yield f"{indent}- {_format_yaml_scalar(entry)}"


def _emit_yaml_entry(key_text: str, entry: object, indent: str) -> Iterator[str]:
    if not isinstance(entry, dict | list) or not entry:
        yield f"{key_text} {_format_yaml_scalar(entry)}"
        return
    if isinstance(entry, list) and all(isinstance(item, str | int) for item in entry):
        flow = f"{key_text} [{', '.join(_format_yaml_scalar(item) for item in entry)}]"
        if len(flow) <= _MAX_LINE_WIDTH:
            yield flow
            return
    yield key_text
    yield from _emit_yaml_lines(entry, indent)


def _format_yaml_scalar(value: object) -> str:
    if isinstance(value, str):
        if _PLAIN_SCALAR.fullmatch(value) and value.lower() not in _YAML_KEYWORDS:
            return value
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        if not quoted.isprintable():
            # JSON escapes a character beyond 16 bits as a surrogate pair, which YAML takes for two characters.
            quoted = "".join(
                c if c.isprintable() or "\ud800" <= c <= "\udfff" else _escape_character(c) for c in quoted
            )
        return f'"{quoted}"'
    return json.dumps(value)


def _escape_character(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def choose_output_format(path: str, requested_format: str) -> tuple[str, str]:
    """Choose the output format for a path.

    Arguments:
        path: path of the file; "" for standard output.
        requested_format: one of OUTPUT_FORMATS; "" to choose by the suffix, and yaml if that is unknown.

    Returns:
        The format, and a warning or "".
    """
    suffix = path.rpartition("/")[2].rpartition(".")[2]
    if suffix not in OUTPUT_FORMATS and path:
        return requested_format or "yaml", f"{path}: engines only read files that end in .yaml or .json"
    output_format = requested_format or (suffix if path else "yaml")
    if path and output_format != suffix:
        return output_format, f"{path}: contains {output_format.upper()} despite its suffix .{suffix}"
    return output_format, ""
