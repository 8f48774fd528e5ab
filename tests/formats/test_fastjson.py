"""JSON through the accelerator alone, held against the standard library."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats import fastjson

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=30,
)


@given(VALUES)
def test_what_is_written_is_what_the_standard_library_writes_and_reads_back_the_same(value: object) -> None:
    written = fastjson.dump_json(value)
    assert written == json.dumps(value, separators=(",", ":")).encode()
    assert fastjson.parse_json(written) == value


@given(VALUES, st.text(alphabet=" \t\n\r", max_size=3))
def test_white_space_and_raw_characters_are_read_as_the_standard_library_does(value: object, space: str) -> None:
    text = space + json.dumps(value, indent=1, ensure_ascii=False) + space
    try:
        data = text.encode()
    except UnicodeEncodeError:  # a lone surrogate has no UTF-8
        return
    assert fastjson.parse_json(data) == json.loads(text)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_as_the_standard_library_does_or_refused(data: bytes) -> None:
    try:
        value = fastjson.parse_json(data)
    except Fault as fault:
        assert "\n" not in str(fault)
        try:
            found = json.loads(data.decode())
        except (ValueError, RecursionError):
            return
        assert "NaN" in str(found).replace("nan", "NaN") or "inf" in str(found)
    else:
        assert value == json.loads(data.decode())


@given(VALUES, st.data())
def test_a_mutated_document_never_brings_another_error(value: object, data: st.DataObject) -> None:
    text = bytearray(fastjson.dump_json(value))
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    try:
        fastjson.parse_json(bytes(text))
    except Fault:
        pass


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "-Infinity", "", "{", "[1,]", "{'a':1}", "\ufeff{}", "1 2"])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(Fault):
        fastjson.parse_json(text.encode())


@pytest.mark.parametrize("depth", [50_000, 1_000_000])
def test_depth_is_bounded(depth: int) -> None:
    with pytest.raises(Fault, match="nested too deeply"):
        fastjson.parse_json(b"[" * depth)


def test_a_number_that_json_cannot_say_is_refused_when_written() -> None:
    with pytest.raises(Fault, match="cannot be written"):
        fastjson.dump_json(fastjson.parse_json(b"[1e999]"))


def test_an_error_has_line_and_column() -> None:
    with pytest.raises(Fault, match="line 2, column 6"):
        fastjson.parse_json(b'{"a":1,\n "b":}')
    with pytest.raises(Fault, match="Unterminated string starting at line 1, column 2"):
        fastjson.parse_json(b'["a')
