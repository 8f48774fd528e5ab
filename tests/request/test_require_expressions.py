"""Requirement expressions: grammar, comparison, and the sentence of a failure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.request.require_expressions import (
    HostProperties,
    compare_versions,
    evaluate_requirements,
    make_unknown_property_fault,
    parse_requirement,
)

HOST = HostProperties("GPU 0", cuda="12.5", cuda_at_least="12.5", driver="555.42.02", arch="8.0", brand=("geforce",))
BLANK = HostProperties("GPU 0", cuda="", cuda_at_least="13.1", driver="600.10", arch="", brand=())


def verdict(*expressions: str, host: HostProperties = HOST) -> str:
    pairs = tuple((f"NVIDIA_REQUIRE_{n}", text) for n, text in enumerate(expressions))
    try:
        unknown = evaluate_requirements(pairs, [host], [])
    except Fault as fault:
        return str(fault)
    return "unknown " + " ".join(unknown) if unknown else "met"


@pytest.mark.parametrize(
    "expression",
    [
        "cuda>=12.4", "cuda>=12.5", "cuda=12.5", "cuda=12.5.0", "cuda!=12.4", "cuda<13", "cuda<=12.5", "cuda>12.4.99",
        "driver>=555", "driver=555.42.2", "arch>=7.5", "brand=geforce", "brand=GeForce", "brand!=tesla",
        "cuda>=99 brand=geforce", "cuda>=99,driver>=1 driver>=555,brand=geforce", "  cuda>=12.4  ", ",cuda>=12.4,",
        "", "os=linux", "os=linux,cuda>=12",
    ],
)  # fmt: skip
def test_an_expression_that_the_host_meets_is_met(expression: str) -> None:
    assert verdict(expression) == "met"


@pytest.mark.parametrize(
    "expression",
    ["cuda>=12.8", "cuda=12", "driver<555", "arch>8", "brand=tesla", "cuda>=12,brand=tesla", "brand!=geforce"],
)
def test_an_expression_that_the_host_does_not_meet_fails(expression: str) -> None:
    assert "is not met" in verdict(expression)


def test_all_variables_must_hold() -> None:
    assert verdict("cuda>=12", "driver>=999").startswith("NVIDIA_REQUIRE_1:")


def test_a_failure_names_variable_alternatives_host_values_and_the_nearest() -> None:
    text = verdict("cuda>=12.8,brand=tesla brand=tesla,driver>=535,driver<536 cuda>=13,driver>=1")
    assert text.startswith("NVIDIA_REQUIRE_0: ")
    for part in (
        '"cuda>=12.8,brand=tesla"', '"brand=tesla,driver>=535,driver<536"', "cuda 12.5", "brand geforce",
        "driver 555.42.02", 'nearest is "cuda>=13,driver>=1", where cuda>=13 fails', "NVIDIA_DISABLE_REQUIRE=1",
    ):  # fmt: skip
        assert part in text


@pytest.mark.parametrize(
    ("expression", "remedy"),
    [
        ("cuda>=99", "Update the host's driver or use an image for an older CUDA; NVIDIA_DISABLE"),
        ("driver=999", "Update the host's driver"),
        ("driver<400", "Use an older driver or a newer image; NVIDIA_DISABLE"),
        ("driver=400", "Use an older driver"),
        ("driver!=555.42.02", "Use another driver"),
        ("arch>=99", "Choose another GPU or an image that is made for this one; NVIDIA_DISABLE"),
        ("brand=tesla", "Choose another GPU"),
        ("cuda>=99,arch>=99", "for an older CUDA, and choose another GPU"),
    ],
)
def test_the_remedy_is_that_of_the_property_that_fails(expression: str, remedy: str) -> None:
    assert remedy in verdict(expression)


def test_a_value_of_the_host_is_named_once() -> None:
    assert verdict("driver>=600,driver<601").count("has driver ") == 1
    assert "driver 555.42.02, driver" not in verdict("driver>=600,driver<601")


def test_a_long_list_of_alternatives_is_cut() -> None:
    text = verdict(" ".join(f"brand=tesla,driver>={n},driver<{n + 1}" for n in range(60)))
    assert "or 54 more" in text
    assert len(text) < 1500


@pytest.mark.parametrize(
    ("expression", "column"),
    [
        ("cuda=>12", 5), ("cuda", 5), ("cuda>=", 7), (">=12", 1), ("cuda>=foo", 7), ("cuda>=12 driver=>1", 16),
        ("cuda>=12,arch~9", 16), ("brand>tesla", 6), ("cuda==12", 5), ("cuda>=12,driver>=1..2", 18), ("cuda!12", 5),
    ],
)  # fmt: skip
def test_a_syntax_error_has_its_column(expression: str, column: int) -> None:
    assert f"cannot parse at column {column}:" in verdict(expression)


def test_an_unknown_property_is_not_checked_and_warned_about() -> None:
    warnings: list[str] = []
    assert parse_requirement("V", "os=linux,cuda>=1", warnings)[0][0].name == "cuda"
    assert len(warnings) == 1


def test_a_driver_newer_than_the_table_includes_the_newest_cuda_known() -> None:
    assert verdict("cuda>=13.1", host=BLANK) == "met"
    assert verdict("cuda>=13.2", host=BLANK) == "unknown cuda"
    assert verdict("cuda<13", host=BLANK) == "unknown cuda"


def test_an_unknown_value_is_asked_for_only_when_it_decides() -> None:
    assert verdict("arch>=8 driver>=600", host=BLANK) == "met"
    assert verdict("arch>=8,driver>=700 cuda>=13.1", host=BLANK) == "met"
    assert "is not met" in verdict("arch>=8,driver>=700", host=BLANK)
    assert verdict("arch>=8,driver>=600", host=BLANK) == "unknown arch"


def test_what_stays_unknown_is_a_failure_that_says_why() -> None:
    pairs = (("NVIDIA_REQUIRE_ARCH", "arch>=8"),)
    text = str(make_unknown_property_fault(pairs, [BLANK], ("arch",), "NVML did not answer"))
    assert "arch is not known: NVML did not answer" in text
    assert "arch unknown" in text


@given(st.lists(st.integers(0, 999), min_size=1, max_size=4), st.lists(st.integers(0, 999), min_size=1, max_size=4))
def test_dotted_numbers_compare_part_by_part_with_zeros_for_absent_parts(left: list[int], right: list[int]) -> None:
    padded = [part + [0] * (4 - len(part)) for part in (left, right)]
    expected = (padded[0] > padded[1]) - (padded[0] < padded[1])
    assert compare_versions(".".join(map(str, left)), ".".join(map(str, right))) == expected


@given(st.text(alphabet="cudarivebn=<>!,. 0123456789\u00e9\n", max_size=40))
def test_any_text_is_parsed_or_refused_with_a_sentence(text: str) -> None:
    try:
        parse_requirement("V", text, [])
    except Fault as fault:
        assert "\n" not in str(fault)


def test_many_properties_that_are_unknown_are_one_warning() -> None:
    warnings: list[str] = []
    assert parse_requirement("NVIDIA_REQUIRE_X", "a=1 cuda>1,b=2 " + "c=3 " * 1000, warnings)[0][0].name == "cuda"
    assert warnings == [
        'NVIDIA_REQUIRE_X: "a=1" and 1001 more has no known property (cuda, driver, arch, brand): not checked'
    ]


@pytest.mark.parametrize(
    "expression", ["cuda>99," * 10000, "cuda>99 " * 10000, "x" * 100000, "cuda>" + "9" * 100000, "cuda" + "!" * 100000]
)
def test_a_sentence_stays_one_that_engines_keep_whole(expression: str) -> None:
    said = verdict(expression)
    assert len(said) < 4000
    assert said.endswith(("NVIDIA_DISABLE_REQUIRE=1 skips the check", "to skip the check"))
