"""What a plain YAML word means to CDI engines: the rules of go-yaml 2, which is neither YAML 1.1 nor 1.2.

Engines read every CDI file, JSON too, with sigs.k8s.io/yaml: go-yaml 2 makes values of it, those become JSON, and Go's
decoder puts the JSON into its types. PyYAML's own rules differ (`1:30` is 90 there, `0o17` a string, `y` no boolean),
so none of them is used. The rules below were tried word for word with podman 4.3 (tests/e2e/test_podman_cases.py).

Cost rule: cold.
"""

from __future__ import annotations

import binascii
import re
import struct

Scalar = str | int | float | bool | None

TAG_PREFIX = "tag:yaml.org,2002:"

# go-yaml 2, resolve.go: its table of words. `y` and `n` count, unlike in PyYAML.
_WORD_TABLE: tuple[tuple[Scalar, str], ...] = (
    (True, "y Y yes Yes YES true True TRUE on On ON"),
    (False, "n N no No NO false False FALSE off Off OFF"),
    (None, "~ null Null NULL"),
    (float("nan"), ".nan .NaN .NAN"),
    (float("inf"), ".inf .Inf .INF +.inf +.Inf +.INF"),
    (float("-inf"), "-.inf -.Inf -.INF"),
)
_WORD_VALUES: dict[str, Scalar] = {"": None, **{word: value for value, words in _WORD_TABLE for word in words.split()}}

_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
# Go's strconv.ParseInt with base 0: a leading zero alone is octal, too.
_INTEGERS = (
    (re.compile(r"([-+]?)(0|[1-9][0-9]*)", re.ASCII), 10),
    (re.compile(r"([-+]?)0[xX]([0-9a-fA-F]+)", re.ASCII), 16),
    (re.compile(r"([-+]?)0[oO]?([0-7]+)", re.ASCII), 8),
    (re.compile(r"([-+]?)0[bB]([01]+)", re.ASCII), 2),
)
# A number of more digits than this is none that anybody writes; Python refuses 4300.
_MAX_NUMBER_LENGTH = 400


def parse_plain_scalar(text: str) -> Scalar:
    """The value of a word without quotes and without a tag."""
    if text in _WORD_VALUES:
        return _WORD_VALUES[text]
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
    # What does not fit 64 bits becomes a float, as there. Of timestamps the spelling is kept, as there.
    if _FLOAT.fullmatch(digits):
        fraction = float(digits)
        return text if fraction in (float("inf"), float("-inf")) else fraction
    return text


def parse_tagged_scalar(text: str, tag: str) -> Scalar:
    """The value of a word with an explicit tag, quoted or not.

    Raises:
        ValueError: the word is nothing of that kind; its text says so.
    """
    name = tag.removeprefix(TAG_PREFIX)
    if name in ("str", "!") or not is_known_tag(tag):
        return text
    if name == "binary":
        try:
            return binascii.a2b_base64(text, strict_mode=True).decode()
        except ValueError as error:
            raise ValueError("!!binary that is not base64 of a text") from error
    if name == "timestamp":
        return text
    value = parse_plain_scalar(text)
    kind = {bool: "bool", int: "int", float: "float", type(None): "null"}.get(type(value), "str")
    if name == "float" and kind == "int":
        return float(value or 0)
    if name != kind:
        raise ValueError(f"!!{name} that is none")
    return value


def is_known_tag(tag: str) -> bool:
    """Whether engines do anything with a tag but ignore it."""
    names = ("str", "bool", "int", "float", "null", "timestamp", "binary", "merge", "map", "seq")
    return tag == "!" or (tag.startswith(TAG_PREFIX) and tag.removeprefix(TAG_PREFIX) in names)


def format_scalar(value: Scalar) -> str:
    """A scalar where a string is wanted: sigs.k8s.io/yaml writes numbers and booleans out, as Go formats them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _format_float32(value)
    return "" if value is None else str(value)


def _format_float32(value: float) -> str:
    """A float as strconv.FormatFloat(value, 'g', -1, 32) writes it, which is what sigs.k8s.io/yaml calls.

    That is the fewest digits that tell it from other floats of 32 bits, with an exponent below -4 and from 6 on.
    """
    short = _round_to_float32(value)
    if short != short:
        return "NaN"
    if short in (float("inf"), float("-inf")):
        return "+Inf" if short > 0 else "-Inf"
    for places in range(9):
        mantissa, _, power = f"{short:.{places}e}".partition("e")
        if _round_to_float32(float(f"{mantissa}e{power}")) == short:
            break
    exponent = int(power)
    if -4 <= exponent < 6:
        return f"{float(f'{mantissa}e{power}'):.{max(places - exponent, 0)}f}"
    return f"{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def _round_to_float32(value: float) -> float:
    """The nearest float of 32 bits."""
    try:
        single: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return single
