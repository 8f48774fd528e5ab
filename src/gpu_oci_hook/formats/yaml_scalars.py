"""Resolve plain YAML scalars by the rules of CDI engines: those of go-yaml 2, neither YAML 1.1 nor 1.2.

Engines read every CDI file, JSON files too, with sigs.k8s.io/yaml: go-yaml 2 parses it, the values become JSON, and
Go's decoder converts that to its types. PyYAML's rules differ (`1:30` is 90, `0o17` a string, `y` not a boolean), so
none of them is used. Each rule here was tried with podman 4.3 (tests/e2e/test_podman_cases.py).

Import budget: cold.
"""

from __future__ import annotations

import binascii
import re
import struct

Scalar = str | int | float | bool | None

TAG_PREFIX = "tag:yaml.org,2002:"

# The table of go-yaml 2, resolve.go. Unlike in PyYAML it has `y` and `n`.
_KEYWORD_TABLE: tuple[tuple[Scalar, str], ...] = (
    (True, "y Y yes Yes YES true True TRUE on On ON"),
    (False, "n N no No NO false False FALSE off Off OFF"),
    (None, "~ null Null NULL"),
    (float("nan"), ".nan .NaN .NAN"),
    (float("inf"), ".inf .Inf .INF +.inf +.Inf +.INF"),
    (float("-inf"), "-.inf -.Inf -.INF"),
)
_KEYWORD_VALUES: dict[str, Scalar] = {
    "": None,
    **{keyword: value for value, keywords in _KEYWORD_TABLE for keyword in keywords.split()},
}

_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
# As Go's strconv.ParseInt with base 0: a leading zero alone also means octal.
_INTEGERS = (
    (re.compile(r"([-+]?)(0|[1-9][0-9]*)", re.ASCII), 10),
    (re.compile(r"([-+]?)0[xX]([0-9a-fA-F]+)", re.ASCII), 16),
    (re.compile(r"([-+]?)0[oO]?([0-7]+)", re.ASCII), 8),
    (re.compile(r"([-+]?)0[bB]([01]+)", re.ASCII), 2),
)
# Digits of the longest number; Python refuses 4300.
_MAX_NUMBER_LENGTH = 400


def parse_plain_scalar(text: str) -> Scalar:
    """Return the value of a scalar without quotes and without a tag."""
    if text in _KEYWORD_VALUES:
        return _KEYWORD_VALUES[text]
    if text[0] not in "+-.0123456789" or len(text) > _MAX_NUMBER_LENGTH:
        return text
    digits = text
    if text[0] != ".":
        digits = text.replace("_", "")
        for pattern, base in _INTEGERS:
            match = pattern.fullmatch(digits)
            if match:
                number = int(match[1] + match[2], base)
                if -(1 << 63) <= number < 1 << 64:
                    return number
    # As in go-yaml, an integer of more than 64 bits becomes a float, and a timestamp stays a string.
    if _FLOAT.fullmatch(digits):
        fraction = float(digits)
        return text if fraction in (float("inf"), float("-inf")) else fraction
    return text


def parse_tagged_scalar(text: str, tag: str) -> Scalar:
    """Return the value of a scalar with an explicit tag, quoted or not.

    Raises:
        ValueError: the scalar is not of that type; its text has the reason.
    """
    name = tag.removeprefix(TAG_PREFIX)
    if name in ("str", "!") or not is_known_tag(tag):
        return text
    if name == "binary":
        try:
            return binascii.a2b_base64(text, strict_mode=True).decode()
        except ValueError as error:
            raise ValueError("!!binary that is not the base64 form of a text") from error
    if name == "timestamp":
        return text
    value = parse_plain_scalar(text)
    kind = {bool: "bool", int: "int", float: "float", type(None): "null"}.get(type(value), "str")
    if name == "float" and kind == "int":
        return float(value or 0)
    if name != kind:
        raise ValueError(f"!!{name} that is not a value of this type")
    return value


def is_known_tag(tag: str) -> bool:
    """Tell whether engines interpret a tag; they ignore the others."""
    names = ("str", "bool", "int", "float", "null", "timestamp", "binary", "merge", "map", "seq")
    return tag == "!" or (tag.startswith(TAG_PREFIX) and tag.removeprefix(TAG_PREFIX) in names)


def format_scalar(value: Scalar) -> str:
    """Return a scalar as the string that sigs.k8s.io/yaml makes of it where Go's type is a string."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _format_float32(value)
    return "" if value is None else str(value)


def _format_float32(value: float) -> str:
    """Return a float as strconv.FormatFloat(value, 'g', -1, 32) writes it, which sigs.k8s.io/yaml calls.

    It has the fewest digits that distinguish it from other 32-bit floats, and an exponent below -4 and from 6 on.
    """
    single = _round_to_float32(value)
    if single != single:
        return "NaN"
    if single in (float("inf"), float("-inf")):
        return "+Inf" if single > 0 else "-Inf"
    for places in range(9):
        mantissa, _, power = f"{single:.{places}e}".partition("e")
        if _round_to_float32(float(f"{mantissa}e{power}")) == single:
            break
    exponent = int(power)
    if -4 <= exponent < 6:
        return f"{float(f'{mantissa}e{power}'):.{max(places - exponent, 0)}f}"
    return f"{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def _round_to_float32(value: float) -> float:
    """Return the nearest 32-bit float."""
    try:
        single: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return single
