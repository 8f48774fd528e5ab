"""Qualified CDI names: what the reference library's parser takes and refuses."""

from __future__ import annotations

import pytest

from gpu_oci_hook.formats import cdi_names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nvidia.com/gpu=0", ("nvidia.com", "gpu", "0")),
        ("nvidia.com/gpu=0:1", ("nvidia.com", "gpu", "0:1")),
        ("a/b=c", ("a", "b", "c")),  # one letter each: where the incumbent panics
        ("vendor-1.x_y/class.sub=GPU-1234.a_b:c", ("vendor-1.x_y", "class.sub", "GPU-1234.a_b:c")),
        ("nvidia.com/gpu=a=b", None),  # the name begins after the first =
        ("/dev/null=x", None),  # a path
        ("nvidia.com/gpu", None),
        ("nvidia.com/gpu=", None),
        ("nvidia.com=gpu", None),
        ("/gpu=0", None),
        ("nvidia.com/=0", None),
        ("1vendor/gpu=0", None),
        ("vendor./gpu=0", None),
        ("vendor/gpu-=0", None),
        ("vendor/gpu=-0", None),
        ("vendor/gpu=0:", None),
        ("vendor/gpu=0 ", None),
        ("vendör/gpu=0", None),
        ("vendor/gpu=٣", None),
        ("vendor/sub/gpu=0", None),
        ("", None),
    ],
)
def test_names_are_taken_apart_as_the_reference_library_does(text: str, expected: tuple[str, str, str] | None) -> None:
    assert cdi_names.parse_qualified_name(text) == expected


def test_a_kind_is_a_vendor_and_a_class() -> None:
    assert cdi_names.parse_cdi_kind("nvidia.com/gpu") == ("nvidia.com", "gpu")
    assert cdi_names.parse_cdi_kind("nvidia.com") is None
    assert cdi_names.parse_cdi_kind("nvidia.com/gpu=0") is None
