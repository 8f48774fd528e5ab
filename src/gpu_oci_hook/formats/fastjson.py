"""Parse and write JSON with CPython's accelerator `_json` alone.

`import json` also imports `re` and `enum`, and costs more than the interpreter's own start. `_json` does all the work
of the default encoder and decoder. Where it is missing (another interpreter), the standard library's module is used. A
test compares the two.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_WHITESPACE = " \t\n\r"


def _reject_constant(name: str) -> object:
    """Refuse NaN and Infinity, which RFC 8259 and the low-level runtimes do not accept."""
    raise ValueError(f"{name} is not JSON")


class _ScannerContext:
    """The attributes that `_json.make_scanner` reads from a `json.JSONDecoder`."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(_reject_constant)
    memo: dict[str, str] = {}


def _reject_value(value: object) -> object:
    raise TypeError(f"{type(value).__name__} has no JSON form")


_scan: Callable[[str, int], tuple[object, int]]
_encode: Callable[[object, int], tuple[str, ...]] | None
try:
    import _json

    # typeshed's stubs describe the classes of the C module, not the protocol that they require.
    _scan = _json.make_scanner(_ScannerContext())  # type: ignore[arg-type]
    _encode = _json.make_encoder(
        None, _reject_value, _json.encode_basestring_ascii, None, ":", ",", False, False, False
    )
except (ImportError, AttributeError, TypeError):  # not CPython, or one whose accelerator has changed
    import json as _slow

    _scan = _slow.JSONDecoder(parse_constant=_reject_constant).scan_once  # type: ignore[attr-defined]
    _encode = None


def parse_json(data: bytes) -> object:
    """Return the JSON value in UTF-8 bytes.

    Raises:
        Fault: not UTF-8, not JSON, more than one value, or nested deeper than the interpreter can follow.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Fault(f"it is not UTF-8 (byte {error.start})") from None
    start = len(text) - len(text.lstrip(_WHITESPACE))
    try:
        try:
            value, end = _scan(text, start)
        except SystemError:
            # Up to CPython 3.12 the accelerator cannot raise its error unless this module is loaded.
            import json.decoder  # noqa: F401  the accelerator looks it up by name

            value, end = _scan(text, start)
    except StopIteration as stop:
        raise Fault(f"not valid JSON: a value is expected at {_describe_position(text, stop.value)}") from None
    except RecursionError:
        raise Fault("it is nested too deeply") from None
    except ValueError as error:  # json.JSONDecodeError among them
        at = getattr(error, "pos", None)
        reason = getattr(error, "msg", str(error))
        reason = reason.removesuffix(" at")  # "Unterminated string starting at"
        position = "" if at is None else f" at {_describe_position(text, at)}"
        raise Fault(f"not valid JSON: {reason}{position}") from None
    rest = text[end:].lstrip(_WHITESPACE)
    if rest:
        raise Fault(f"not valid JSON: extra data at {_describe_position(text, len(text) - len(rest))}")
    return value


def parse_config_json(data: bytes, path: str) -> dict[str, object]:
    """Return the object in a config.json's bytes.

    Raises:
        Fault: not JSON, or not an object.
    """
    try:
        spec = parse_json(data)
    except Fault as fault:
        raise Fault(str(fault), where=path) from None
    if not isinstance(spec, dict):
        raise Fault("must be a JSON object", where=path)
    return spec


def dump_json(value: object) -> bytes:
    """Return the value as compact JSON in ASCII bytes, keys in their order.

    Raises:
        Fault: a number has no JSON form (1e999 parses as infinity), or the nesting is too deep.
    """
    try:
        if _encode is None:
            return _slow.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")
        return "".join(_encode(value, 0)).encode("ascii")
    except (ValueError, TypeError, RecursionError) as error:
        raise Fault(f"it cannot be written as JSON: {error}") from None


def dump_changed_spec(spec: dict[str, object], path: str, data: bytes) -> bytes:
    """Return the bytes of a config.json that was parsed from `data` and edited; none if the edits changed nothing."""
    return dump_json(spec) + b"\n" if spec != parse_config_json(data, path) else b""


def _describe_position(text: str, at: int) -> str:
    line = text.count("\n", 0, at) + 1
    column = at - text.rfind("\n", 0, at)
    return f"line {line}, column {column}"
