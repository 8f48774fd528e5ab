"""Serialise a CDI specification as YAML or JSON, deterministically."""

from __future__ import annotations

import json

from gpu_oci_hook.cdi.provenance import PROVENANCE_MARK
from gpu_oci_hook.errors import Fault, make_printable
from gpu_oci_hook.generate.spec_writer import _MAX_LINE_WIDTH, _PLAIN_SCALAR, _UNSAFE_IN_YAML, _YAML_KEYWORDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_oci_hook.generate.content import ContainerEdits


OUTPUT_FORMATS = ("yaml", "json")


def serialise_spec(spec: ContainerEdits, output_format: str, comments: tuple[str, ...] = ()) -> bytes:
    """The file's bytes.

    Arguments:
        output_format: of FORMS. comments: lines for people, after our mark (`origin` knows some again); JSON has none.

    Raises:
        Fault: a path of the host's is no UTF-8, which no CDI file can say.
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
        odd = error.object[max(0, error.start - 80) : error.end].rpartition("\n")[2]
        raise Fault(f"a path has bytes that are no UTF-8, and no CDI file can name it: {odd}") from None


def _emit_yaml_lines(value: ContainerEdits | list[object], indent: str = "") -> Iterator[str]:
    """The lines of an object or a list that is not empty."""
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
    if isinstance(entry, list) and all(isinstance(one, str | int) for one in entry):
        flow = f"{key_text} [{', '.join(_format_yaml_scalar(one) for one in entry)}]"
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
            # JSON's escapes for what lies beyond 16 bits would be two characters in YAML.
            quoted = "".join(
                c if c.isprintable() or "\ud800" <= c <= "\udfff" else _escape_character(c) for c in quoted
            )
        return f'"{quoted}"'
    return json.dumps(value)


def _escape_character(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def choose_output_format(path: str, requested_format: str) -> tuple[str, str]:
    """The form for a path, and a warning or "".

    Arguments:
        requested_format: of FORMS; "" lets the suffix decide, and yaml where that says nothing.
    """
    suffix = path.rpartition("/")[2].rpartition(".")[2]
    if suffix not in OUTPUT_FORMATS and path:
        return requested_format or "yaml", f"{path}: engines read files that end in .yaml or .json, and no others"
    form = requested_format or (suffix if path else "yaml")
    if path and form != suffix:
        return form, f"{path}: it gets {form.upper()} under a name for {suffix.upper()}"
    return form, ""
