"""IMEX channels, switched features and management containers, as far as the words go."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.model.request import Request
from gpu_oci_hook.request.environment import MANAGEMENT_DEVICE
from gpu_oci_hook.request.read import read_request

GPU = "NVIDIA_VISIBLE_DEVICES=0"


def asked(*env: str, mounts: tuple[str, ...] = (), privileged: bool = False, **config: object) -> Request:
    made: dict[str, Any] = {
        "process": {"env": list(env)},
        "mounts": [
            {"source": "/dev/null", "destination": f"/var/run/nvidia-container-devices/{name}"} for name in mounts
        ],
    }
    if privileged:
        made["process"]["capabilities"] = {"bounding": ["CAP_SYS_ADMIN"]}
    return read_request(made, Config(**config))


def spans(request: Request) -> list[tuple[int, int]]:
    return [(span.first, span.last) for span in request.imex_channels]


def features(request: Request) -> list[str]:
    return [feature.key for feature in request.features]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("0", [(0, 0)]),
        ("3, 5-7 ,channel9", [(3, 3), (5, 7), (9, 9)]),
        ("0-1048575", [(0, 1048575)]),
        ("all", [(0, 1048575)]),
        ("none", []),
        ("", []),
        ("void", []),
        ("void,3", []),
        (" , ", []),
    ],
)
def test_channels_are_numbers_ranges_all_or_none(said: str, expected: list[tuple[int, int]]) -> None:
    request = asked(GPU, f"NVIDIA_IMEX_CHANNELS={said}")
    assert spans(request) == expected
    assert (not request.withheld, not request.warnings) == (True, True)
    assert [span.is_all for span in request.imex_channels] == [said == "all"] * len(expected)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("x", '"x" is not an IMEX channel'),
        ("-1", '"-1" is not an IMEX channel'),
        ("1-", '"1-" is not an IMEX channel'),
        ("1-2-3", '"1-2-3" is not an IMEX channel'),
        ("\u0661", "is not an IMEX channel"),
        ("ALL", '"ALL" is not an IMEX channel'),
        ("12345678", "is not an IMEX channel"),
        ("1048576", 'the IMEX channel "1048576" is out of range'),
        ("7-3", "runs backwards"),
        ("none,3", 'mixes "none" with channels'),
    ],
)
def test_a_word_that_is_no_channel_is_an_error_with_the_valid_ones(said: str, sentence: str) -> None:
    with pytest.raises(Fault) as caught:
        asked(GPU, f"NVIDIA_IMEX_CHANNELS={said}")
    assert sentence in str(caught.value)
    assert caught.value.hint and caught.value.where.startswith("NVIDIA_IMEX_CHANNELS=")


def test_channels_come_by_mounts_too_and_mounts_outweigh_the_variable() -> None:
    request = asked(GPU, "NVIDIA_IMEX_CHANNELS=9", mounts=("imex/0", "imex/4-5"))
    assert spans(request) == [(0, 0), (4, 5)]
    assert all(
        span.origin.startswith("mount /var/run/nvidia-container-devices/imex/") for span in request.imex_channels
    )
    assert [ask.selector for ask in request.device_requests] == ["0"], "a channel's mount is no GPU's"
    request = asked(mounts=("0", "imex/0"))
    assert ([ask.selector for ask in request.device_requests], spans(request)) == (["0"], [(0, 0)])


def test_mounts_that_may_not_ask_leave_the_word_to_the_variable() -> None:
    request = asked(GPU, "NVIDIA_IMEX_CHANNELS=9", mounts=("imex/0",), volume_mounts=False)
    assert spans(request) == [(9, 9)]
    assert ("IMEX channels", "requested by mounts, but [request] volume-mounts is off") in request.withheld


def test_without_the_driver_a_container_gets_no_channel_and_is_told_how() -> None:
    for request in (asked("NVIDIA_IMEX_CHANNELS=0"), asked(mounts=("imex/0",)), asked("NVIDIA_IMEX_CHANNELS=x")):
        assert not request.needs_driver and not request.imex_channels
        assert (
            "set NVIDIA_VISIBLE_DEVICES=none to get the driver without a GPU" in dict(request.withheld)["IMEX channels"]
        )
    assert spans(asked("NVIDIA_VISIBLE_DEVICES=none", "NVIDIA_IMEX_CHANNELS=0")) == [(0, 0)]


def test_a_legacy_image_asks_for_no_channels() -> None:
    assert not asked("CUDA_VERSION=9.0").imex_channels


@pytest.mark.parametrize("env", ["privileged", "never"])
def test_who_may_not_ask_for_gpus_by_environment_may_not_ask_for_anything_else(env: str) -> None:
    request = asked(GPU, "NVIDIA_IMEX_CHANNELS=0", "NVIDIA_GDS=enabled", mounts=("0",), env=env)
    assert request.needs_driver and not request.imex_channels and not request.features
    assert [name for name, _ in request.withheld] == ["IMEX channels", "GPUDirect Storage"]
    assert len(request.warnings) == 2 and all("[request] env is" in warning for warning in request.warnings)
    by_mount = asked(GPU, mounts=("0", "imex/0"), env=env)
    assert spans(by_mount) == [(0, 0)], "a mount is no image's word"
    if env == "privileged":
        may = asked(GPU, "NVIDIA_IMEX_CHANNELS=0", "NVIDIA_GDS=enabled", privileged=True, env=env)
        assert spans(may) == [(0, 0)] and features(may) == ["gds"]


def test_the_administrator_gives_all_channels_or_none() -> None:
    always = asked(GPU, imex_channels="always")
    assert [(span.is_all, span.required) for span in always.imex_channels] == [(True, False)]
    never = asked(GPU, "NVIDIA_IMEX_CHANNELS=0", imex_channels="never")
    assert not never.imex_channels and '[inject] imex-channels is "never"' in dict(never.withheld)["IMEX channels"]
    assert not asked("A=b", imex_channels="always").imex_channels, "a container without the driver gets nothing"


@pytest.mark.parametrize("word", ["GDS", "MOFED", "GDRCOPY", "NVSWITCH"])
def test_a_feature_is_switched_on_by_its_variable_and_off_by_words_for_off(word: str) -> None:
    name, key = f"NVIDIA_{word}", word.lower()
    request = asked(GPU, f"{name}=enabled")
    assert features(request) == [key] and request.features[0].required
    assert request.features[0].origin == f"{name}=enabled (process.env[1])"
    for off in ("", "disabled", "0", "void", "none"):
        request = asked(GPU, f"{name}={off}")
        assert (features(request), request.withheld, request.warnings) == ([], [], [])
    for other in ("1", "true", "Enabled", "yes"):
        request = asked(GPU, f"{name}={other}")
        assert features(request) == []
        assert request.warnings == [f'{name}={other} is invalid and counts as not set: use "enabled"']


@pytest.mark.parametrize("key", ["gds", "mofed", "gdrcopy", "nvswitch"])
def test_a_feature_is_switched_by_config(key: str) -> None:
    always = asked(GPU, **{key: "always"})
    assert features(always) == [key] and not always.features[0].required
    assert always.features[0].origin == f'[inject] {key} = "always"'
    never = asked(GPU, f"NVIDIA_{key.upper()}=enabled", **{key: "never"})
    assert features(never) == [] and never.withheld[0][1].endswith(f'[inject] {key} is "never"') and never.warnings


def test_management_is_everything_for_a_privileged_container() -> None:
    for request in (
        asked(f"NVIDIA_VISIBLE_DEVICES={MANAGEMENT_DEVICE}", privileged=True),
        asked(mounts=("cdi/management.nvidia.com/gpu/all",), privileged=True),
    ):
        assert request.needs_driver and request.management_origin and not request.device_requests
        assert set(request.capabilities) >= {"compute", "utility", "graphics"}
        assert request.capabilities_origin == "management container: all supported capabilities"
    few = asked(
        f"NVIDIA_VISIBLE_DEVICES={MANAGEMENT_DEVICE}", "NVIDIA_DRIVER_CAPABILITIES=utility", privileged=True,
        supported_capabilities=("utility", "compute"),
    )  # fmt: skip
    assert few.capabilities == ("compute", "utility")


@pytest.mark.parametrize("mounted", [True, False], ids=["mount", "env"])
def test_no_image_can_make_a_container_a_management_container(mounted: bool) -> None:
    env = () if mounted else (f"NVIDIA_VISIBLE_DEVICES={MANAGEMENT_DEVICE}",)
    mounts = ("cdi/management.nvidia.com/gpu/all",) if mounted else ()
    with pytest.raises(Fault, match=r"the container lacks CAP_SYS_ADMIN\. Run it privileged"):
        asked(*env, mounts=mounts)
    with pytest.raises(Fault, match=r'\[request\] management is "never"'):
        asked(*env, mounts=mounts, privileged=True, management="never")


@pytest.mark.parametrize("word", ["cdi/management.nvidia.com/gpu/all", "cdi/management.nvidia.com/gpu=all"])
def test_management_is_no_device_like_any_other_with_gpus_that_another_runtime_has_named(word: str) -> None:
    """A CDI file may define a device of that name, which would bring everything."""
    made = {
        "annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=0"},
        "mounts": [{"source": "/dev/null", "destination": f"/var/run/nvidia-container-devices/{word}"}],
    }
    with pytest.raises(Fault, match=r"the container lacks CAP_SYS_ADMIN\. Run it privileged"):
        read_request(made, Config())
    request = read_request({**made, "process": {"capabilities": {"bounding": ["CAP_SYS_ADMIN"]}}}, Config())
    assert (
        [ask.selector for ask in request.device_requests] == ["0"]
        and not request.management_origin
        and not request.cdi_devices
    )


def test_a_capability_of_a_user_namespace_makes_no_management_container() -> None:
    """It is one over that namespace alone: whoever has it there could not make these nodes."""
    made = {
        "process": {
            "env": [f"NVIDIA_VISIBLE_DEVICES={MANAGEMENT_DEVICE}"],
            "capabilities": {"bounding": ["CAP_SYS_ADMIN"]},
        },
        "linux": {"namespaces": [{"type": "mount"}, {"type": "user"}]},
    }
    with pytest.raises(Fault, match=r"has CAP_SYS_ADMIN in its user namespace only\. Run it privileged"):
        read_request(made, Config())
    request = read_request(made, Config(env="privileged"))
    assert not request.needs_driver
    assert request.withheld[0][1] == (
        '[request] env is "privileged" and the container has CAP_SYS_ADMIN in its user namespace only'
    )


def test_management_stands_alone() -> None:
    with pytest.raises(Fault, match="already includes every device"):
        asked(f"NVIDIA_VISIBLE_DEVICES=0,{MANAGEMENT_DEVICE}", privileged=True)
