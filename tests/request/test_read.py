"""What a config.json asks for, and who may ask."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.request.read import read_request
from gpu_oci_hook.request.require_variables import parse_legacy_cuda_version


def spec(*env: object, bounding: tuple[str, ...] = (), mounts: tuple[object, ...] = ()) -> dict[str, object]:
    return {
        "process": {"env": ["PATH=/bin", *env], "capabilities": {"bounding": list(bounding)}},
        "mounts": list(mounts),
    }


def words(request_spec: object, **config: object) -> list[str] | str:
    request = read_request(request_spec, Config(**config))
    if not request.needs_driver:
        return "nothing"
    return [ask.selector for ask in request.device_requests] or "none"


def null(name: str, root: str = "/var/run/nvidia-container-devices") -> dict[str, object]:
    return {"source": "/dev/null", "destination": f"{root}/{name}", "type": "bind"}


@pytest.mark.parametrize(
    ("env", "asked"),
    [
        ((), "nothing"),
        (("NVIDIA_VISIBLE_DEVICES=",), "nothing"),
        (("NVIDIA_VISIBLE_DEVICES=  ",), "nothing"),
        (("NVIDIA_VISIBLE_DEVICES=,",), "nothing"),
        (("NVIDIA_VISIBLE_DEVICES=void",), "nothing"),
        (("NVIDIA_VISIBLE_DEVICES=0,all,void",), "nothing"),
        (("NVIDIA_VISIBLE_DEVICES=none",), "none"),
        (("NVIDIA_VISIBLE_DEVICES=all",), ["all"]),
        (("NVIDIA_VISIBLE_DEVICES= 0 , 1 ,",), ["0", "1"]),
        (("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void"), "nothing"),
        (("NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=1"), ["1"]),
        (("NVIDIA_VISIBLE_DEVICES",), "nothing"),
        (("CUDA_VERSION=11.8",), ["all"]),
        (("CUDA_VERSION=",), "nothing"),
        (("CUDA_VERSION=11.8", "NVIDIA_REQUIRE_CUDA=cuda>=11.8"), "nothing"),
        (("CUDA_VERSION=11.8", "NVIDIA_VISIBLE_DEVICES="), "nothing"),
        ((7, None, "NVIDIA_VISIBLE_DEVICES=0"), ["0"]),
    ],
)
def test_the_variable_means_what_the_contract_says(env: tuple[object, ...], asked: object) -> None:
    assert words(spec(*env)) == asked


def test_the_last_of_two_values_wins_and_the_person_is_told() -> None:
    request = read_request(spec("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void"), Config())
    assert any("set twice" in warning for warning in request.warnings)


def test_none_beside_a_gpu_is_a_contradiction() -> None:
    with pytest.raises(Fault, match='mixes "none"'):
        words(spec("NVIDIA_VISIBLE_DEVICES=1,0,none"))


@pytest.mark.parametrize(
    ("policy", "bounding", "asked"),
    [
        ("always", (), ["all"]),
        ("privileged", (), "nothing"),
        ("privileged", ("CAP_SYS_ADMIN",), ["all"]),
        ("never", ("CAP_SYS_ADMIN",), "nothing"),
    ],
)
def test_who_may_ask_by_environment_is_the_administrators_word(
    policy: str, bounding: tuple[str, ...], asked: object
) -> None:
    given_spec = spec("NVIDIA_VISIBLE_DEVICES=all", bounding=bounding)
    assert words(given_spec, env=policy) == asked
    request = read_request(given_spec, Config(env=policy))
    assert bool(request.withheld) == (asked == "nothing")
    assert len(request.warnings) == (asked == "nothing")


@pytest.mark.parametrize(
    ("mounts", "env", "asked"),
    [
        ((null("0"),), "NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices", ["0"]),
        ((null("0"), null("GPU-1", "/run/nvidia-container-devices")), "A=b", ["0", "GPU-1"]),
        ((null("0"),), "NVIDIA_VISIBLE_DEVICES=all", ["0"]),
        ((null("0"),), "NVIDIA_VISIBLE_DEVICES=void", "nothing"),
        ((null("0", "/var/run/nvidia-container-devicesX"),), "A=b", "nothing"),
        (({"source": "/dev/null", "destination": "/var/run/nvidia-container-devices"},), "A=b", "nothing"),
        (({"source": "/dev/zero", "destination": "/var/run/nvidia-container-devices/0"},), "A=b", "nothing"),
        (({"source": "/dev//null", "destination": "/var/run//nvidia-container-devices/./0/"},), "A=b", ["0"]),
        (("text", None, {"source": 1}), "A=b", "nothing"),
    ],
)
def test_mounts_ask_before_the_environment_and_only_below_their_directory(
    mounts: tuple[object, ...], env: str, asked: object
) -> None:
    assert words(spec(env, mounts=mounts)) == asked


def test_mounts_can_be_switched_off_and_explain_says_so() -> None:
    request = read_request(spec("A=b", mounts=(null("0"),)), Config(volume_mounts=False))
    assert not request.needs_driver
    assert "volume-mounts" in request.withheld[0][1]


def test_legacy_images_get_everything_supported_and_are_held_to_their_cuda() -> None:
    request = read_request(spec("CUDA_VERSION=9.0.116"), Config())
    assert request.capabilities == ("compute", "compat32", "graphics", "utility", "video", "display", "ngx")
    assert request.requirements == (("CUDA_VERSION", "cuda>=9.0"),)
    assert words(spec("CUDA_VERSION=9.0"), legacy_images=False) == "nothing"


@pytest.mark.parametrize(
    ("value", "capabilities"),
    [
        (None, ("compute", "utility")),
        ("", ("compute", "utility")),
        (" , ", ("compute", "utility")),
        ("video", ("video",)),
        ("compute, graphics", ("compute", "graphics")),
        ("all", ("compute", "compat32", "graphics", "utility", "video", "display", "ngx")),
        ("utility,all", ("compute", "compat32", "graphics", "utility", "video", "display", "ngx")),
    ],
)
def test_capabilities_are_what_the_variable_says(value: str | None, capabilities: tuple[str, ...]) -> None:
    env = [] if value is None else [f"NVIDIA_DRIVER_CAPABILITIES={value}"]
    assert read_request(spec("NVIDIA_VISIBLE_DEVICES=0", *env), Config()).capabilities == capabilities


def test_an_unknown_capability_names_the_valid_ones_and_the_nearest() -> None:
    with pytest.raises(Fault) as caught:
        words(spec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=compute,vidoe"))
    assert '"vidoe"' in str(caught.value)
    assert 'Did you mean "video"?' in str(caught.value)
    assert "compat32" in str(caught.value)


def test_a_capability_that_the_administrator_excludes_fails_by_name_and_all_means_what_is_left() -> None:
    supported = ("compute", "utility")
    with pytest.raises(
        Fault, match=r'=graphics \(process.env\[2\]\): the capability "graphics" is not allowed on this host'
    ):
        words(spec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=graphics"), supported_capabilities=supported)
    request = read_request(
        spec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all"), Config(supported_capabilities=supported)
    )
    assert request.capabilities == supported


def test_a_container_that_asks_for_nothing_may_have_any_nonsense_in_its_capabilities() -> None:
    assert words(spec("NVIDIA_DRIVER_CAPABILITIES=nonsense")) == "nothing"


@pytest.mark.parametrize("value", ["1", "true", "YES", "on"])
def test_requirements_can_be_switched_off_by_the_container(value: str) -> None:
    request = read_request(
        spec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=99", f"NVIDIA_DISABLE_REQUIRE={value}"), Config()
    )
    assert request.requirements_disabled_by == f"NVIDIA_DISABLE_REQUIRE={value}"
    assert not request.warnings


def test_requirement_variables_are_all_taken_but_jetpacks() -> None:
    request = read_request(
        spec(
            "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_B=driver>=1", "NVIDIA_REQUIRE_A=cuda>=1",
            "NVIDIA_REQUIRE_JETPACK=csv-mounts=all", "NVIDIA_REQUIRE_EMPTY=",
        ),
        Config(),
    )  # fmt: skip
    assert request.requirements == (("NVIDIA_REQUIRE_A", "cuda>=1"), ("NVIDIA_REQUIRE_B", "driver>=1"))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0", "0.0"), ("8", "8.0"), ("7.5", "7.5"), ("9.0.116", "9.0"), ("v11.6", "11.6"),
        ("foo", ""), ("9.0.116.50", ""), ("9.0.116foo", ""), ("7.foo", ""), ("9..0", ""), ("9.", ""),
        (".5.10", ""), ("-9", ""), ("+9", ""),
    ],
)  # fmt: skip
def test_a_legacy_cuda_version_is_read_leniently_but_not_guessed(text: str, version: str) -> None:
    assert parse_legacy_cuda_version(text) == version


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


def test_void_beside_other_words_is_warned_about() -> None:
    request = read_request(spec("NVIDIA_VISIBLE_DEVICES=0,void"), Config())
    assert not request.needs_driver
    assert request.warnings == [
        'NVIDIA_VISIBLE_DEVICES mixes "void" with other values (0,void): the container gets nothing'
    ]
    assert read_request(spec("NVIDIA_VISIBLE_DEVICES=void"), Config()).warnings == []


def test_compat32_alone_is_warned_about() -> None:
    for said, warned in (("compat32", True), ("compat32,compute", False)):
        request = read_request(spec("NVIDIA_VISIBLE_DEVICES=0", f"NVIDIA_DRIVER_CAPABILITIES={said}"), Config())
        assert any("adds no library" in text for text in request.warnings) is warned


def test_an_empty_capability_variable_is_not_said_to_be_unset() -> None:
    for env, said in ((("NVIDIA_DRIVER_CAPABILITIES=",), "empty"), ((), "not set")):
        request = read_request(spec("NVIDIA_VISIBLE_DEVICES=0", *env), Config())
        assert request.capabilities_origin == f"NVIDIA_DRIVER_CAPABILITIES is {said}: the default"


@given(env=JSON, capabilities=JSON, mounts=JSON, linux=JSON)
def test_any_json_in_any_place_is_read_or_refused_with_a_sentence(
    env: object, capabilities: object, mounts: object, linux: object
) -> None:
    some = [*env, "NVIDIA_VISIBLE_DEVICES=0"] if isinstance(env, list) else env
    for value in (
        {"process": {"env": some, "capabilities": capabilities}, "mounts": mounts, "linux": linux},
        {"process": env},
        env,
    ):
        try:
            read_request(value, Config())
        except Fault as fault:
            assert "\n" not in str(fault)


@pytest.mark.parametrize("name", ["NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_REQUIRE_X"])
def test_a_variable_longer_than_any_program_can_be_given_is_refused_unread(name: str) -> None:
    long = f"{name}=" + "0," * (64 << 10)
    asking = spec("NVIDIA_VISIBLE_DEVICES=all", long)
    with pytest.raises(Fault, match=f"{name} is longer than 128 KiB"):
        read_request(asking, Config())
    assert not read_request(asking, Config(env="never")).needs_driver


def test_what_an_image_repeats_without_end_is_said_once_and_shortly() -> None:
    again = [f"NVIDIA_VISIBLE_DEVICES={'x' * 5000}{number}" for number in range(1000)]
    request = read_request(spec(*again, f"NVIDIA_VISIBLE_DEVICES=0{',0' * 5000}"), Config())
    assert len(request.warnings) == 1
    assert "process.env[1001] (0,0" in request.warnings[0]
    assert len(request.warnings[0]) < 1000
    assert len(request.origin) < 500


def test_a_word_that_neither_disables_the_requirements_nor_says_no_is_told() -> None:
    env = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=99", "NVIDIA_DISABLE_REQUIRE=maybe")
    request = read_request(spec(*env), Config())
    assert request.requirements_disabled_by == ""
    assert request.warnings == ["NVIDIA_DISABLE_REQUIRE=maybe is neither yes nor no: requirements are checked"]
    assert not read_request(spec(*env[:2], "NVIDIA_DISABLE_REQUIRE=0"), Config()).warnings
