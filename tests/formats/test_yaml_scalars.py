"""Words without quotes mean what they mean to a real engine (the table is podman's, see support/podman_cases)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_oci_hook.formats import yaml_scalars
from support.podman_cases import SCALARS


@pytest.mark.parametrize(("word", "read"), SCALARS.items())
def test_a_word_is_read_as_podman_reads_it(word: str, read: str) -> None:
    assert yaml_scalars.format_scalar(yaml_scalars.parse_plain_scalar(word)) == read


@given(st.text(alphabet="0123456789abcdefxo+-._eEyn~<TZ:", max_size=12) | st.text())
def test_any_word_is_something_and_comes_out_as_text(word: str) -> None:
    assert isinstance(yaml_scalars.format_scalar(yaml_scalars.parse_plain_scalar(word)), str)


@given(st.integers(-(1 << 63), (1 << 64) - 1))
def test_numbers_of_64_bits_are_numbers(number: int) -> None:
    assert yaml_scalars.parse_plain_scalar(str(number)) == number
    assert yaml_scalars.parse_plain_scalar(hex(number)) == number


@given(st.floats(allow_nan=False, width=32))
def test_a_fraction_as_text_is_the_shortest_that_is_the_same_fraction(number: float) -> None:
    text = yaml_scalars.format_scalar(number)
    again = float(text.replace("Inf", "inf"))
    assert yaml_scalars._round_to_float32(again) == yaml_scalars._round_to_float32(number)
    assert len(text) <= 16


@pytest.mark.parametrize(
    ("text", "tag", "value"),
    [
        ("007", "str", "007"),
        ("7", "int", 7),
        ("7", "float", 7.0),
        ("yes", "bool", True),
        ("~", "null", None),
        ("ZGV2", "binary", "dev"),
        ("2001-01-01", "timestamp", "2001-01-01"),
    ],
)
def test_a_tag_of_yaml_counts(text: str, tag: str, value: object) -> None:
    assert yaml_scalars.parse_tagged_scalar(text, yaml_scalars.TAG_PREFIX + tag) == value


@pytest.mark.parametrize(
    ("text", "tag"), [("a", "int"), ("a", "bool"), ("1", "null"), ("?", "binary"), ("/w==", "binary")]
)
def test_a_tag_that_does_not_fit_is_an_error_in_words(text: str, tag: str) -> None:
    with pytest.raises(ValueError, match=f"!!{tag}"):
        yaml_scalars.parse_tagged_scalar(text, yaml_scalars.TAG_PREFIX + tag)


def test_a_foreign_tag_changes_nothing() -> None:
    assert yaml_scalars.parse_tagged_scalar("7", "!foo") == "7"
    assert not yaml_scalars.is_known_tag("!foo") and not yaml_scalars.is_known_tag(
        f"{yaml_scalars.TAG_PREFIX}python/object"
    )
