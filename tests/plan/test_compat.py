"""Which libcuda wins, the driver's or the image's, row by row."""

from __future__ import annotations

import pytest

from gpu_oci_hook.plan.compat import decide_cuda_compat, list_compat_branches
from gpu_oci_hook.plan.compat_branches import COMPAT_BRANCHES, LONG_LIVED_BRANCHES

DIR = "/usr/local/cuda-12.6/compat"


def found(*versions: str) -> tuple[tuple[str, str], ...]:
    return tuple((f"{DIR}/libcuda.so.{version}", version) for version in versions)


@pytest.mark.parametrize(
    ("compat", "host", "datacenter", "uses", "said", "warned"),
    [
        (("560.35.03",), "535.183.06", True, True, "560 > 535", ""),
        (("575.57.08",), "550.163.01", True, True, "supports branch 550", ""),
        (("575.57.08",), "555.42.02", True, False, "535, 550, 560, 565, 570, and the driver 555.42.02 is of branch 555",
         "CUDA would fail with error 803"),
        (("590.44.01",), "565.57.01", True, False, "is of branch 565", "made for the driver branches 535, 550, 570"),
        (("590.44.01",), "580.65.06", True, True, "supports branch 580", ""),
        # A release that the table does not have: the long-lived branches.
        (("565.57.01",), "550.163.01", True, True, "supports branch 550", ""),
        (("565.57.01",), "560.35.03", True, False, "is used on the long-lived driver branches only: 418", "error 803"),
        (("640.12",), "620.5", True, True, "640 > 620", ""),
        (("640.12",), "630.5", True, False, "is of branch 630", "error 803"),
        (("535.183.06",), "535.104.05", True, False, "same major", ""),
        (("525.60.13",), "555.42.02", True, False, "older", ""),
        (("525.60.13",), "555.42.02", False, False, "older", ""),
        (("560.35.03",), "535.183.06", False, False, "data-centre", "error 804"),
        (("560.35.03", "555.42.02"), "535.183.06", True, False, "ambiguous", "libcuda.so.555.42.02"),
        (("560.35.03", "555.42.02"), "580.65.06", False, False, "ambiguous", "libcuda.so.560.35.03"),
        ((), "535.183.06", True, False, "no compat", ""),
    ],
)  # fmt: skip
def test_policy_auto_decides_by_versions_and_gpu_class(
    compat: tuple[str, ...], host: str, datacenter: bool, uses: bool, said: str, warned: str
) -> None:
    verdict = decide_cuda_compat(found(*compat), host, "auto", has_only_datacenter_gpus=lambda: datacenter)
    assert verdict.directory == (DIR if uses else "")
    assert said in verdict.reason
    assert warned in verdict.warning
    assert bool(verdict.warning) == bool(warned)


def test_a_version_of_three_digits_is_compared_as_a_number_and_not_as_text() -> None:
    assert decide_cuda_compat(found("1000.1"), "620.9", "auto", has_only_datacenter_gpus=lambda: True).directory == DIR
    assert not decide_cuda_compat(found("620.9"), "1000.1", "auto", has_only_datacenter_gpus=lambda: True).directory


def test_the_table_of_compat_releases_names_older_branches_in_order() -> None:
    for branch, supported in COMPAT_BRANCHES.items():
        assert list(supported) == sorted(set(supported)) and supported[-1] < branch
    assert list(LONG_LIVED_BRANCHES) == sorted(set(LONG_LIVED_BRANCHES))
    assert list_compat_branches(1)[0] == []


def test_the_policy_always_uses_compat_on_any_gpu_and_whatever_its_age() -> None:
    verdict = decide_cuda_compat(found("525.60.13"), "555.42.02", "always", has_only_datacenter_gpus=lambda: False)
    assert verdict.directory == DIR
    assert "always" in verdict.reason


def test_the_policy_always_does_not_choose_between_two() -> None:
    verdict = decide_cuda_compat(found("560.1", "555.1"), "535.1", "always", has_only_datacenter_gpus=lambda: True)
    assert not verdict.directory
    assert "several" in verdict.warning


def test_the_policy_never_uses_none_and_says_who_said_so() -> None:
    verdict = decide_cuda_compat(found("560.35.03"), "535.183.06", "never", has_only_datacenter_gpus=lambda: True)
    assert not verdict.directory
    assert "never" in verdict.reason
    assert not verdict.warning


def test_thousands_of_them_are_not_all_listed() -> None:
    verdict = decide_cuda_compat(
        found(*(f"560.35.{number}" for number in range(5000))),
        "535.183.06",
        "auto",
        has_only_datacenter_gpus=lambda: True,
    )
    assert verdict.warning.endswith("and 4996 more")
    assert len(verdict.warning) < 500
