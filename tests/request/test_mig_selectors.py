"""From words to MIG devices, and who may configure them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.model.machine import Gpu
from gpu_oci_hook.model.mig import MigDevice
from gpu_oci_hook.model.request import DeviceRequest
from gpu_oci_hook.request import mig_selectors, selectors
from gpu_oci_hook.request.read import read_request

GPUS = [
    Gpu(index=0, uuid="GPU-11111111-aaaa-0000-0000-000000000001", pci="0000:01:00.0", minor=1, model="A"),
    Gpu(index=1, uuid="GPU-11112222-aaaa-0000-0000-000000000002", pci="0000:02:00.0", minor=0, model="A"),
    Gpu(index=2, uuid="GPU-33333333-aaaa-0000-0000-000000000003", pci="0001:02:00.0", minor=2, model="A"),
]
UUIDS = {
    (0, 1, 0): "MIG-aaaa1111-0000-5000-8000-000000000001",
    (0, 2, 0): "MIG-aaaa2222-0000-5000-8000-000000000002",
    (0, 2, 1): "MIG-bbbb3333-0000-5000-8000-000000000003",
    (1, 7, 0): "MIG-cccc4444-0000-5000-8000-000000000004",
}
DIVIDED = frozenset({0, 1})


class Fake:
    """MIG devices in a dict; NVML can be switched off, or know of others at a second question."""

    def __init__(self, *, silent: str = "", remembers: bool = False) -> None:
        self.silent = silent
        self.asked = 0
        self.known = remembers
        self.uuids = dict(UUIDS)

    def list_for_gpu(self, gpu: Gpu) -> list[MigDevice]:
        there = [key for key in self.uuids if key[0] == gpu.index]
        return [
            MigDevice(gpu=gpu, index=index, gi=key[1], ci=key[2], uuid=self.uuids[key] if self.known else "")
            for index, key in enumerate(there)
        ]

    def find_cached_device(self, uuid: str) -> MigDevice | None:
        found = [one for gpu in GPUS for one in self.list_for_gpu(gpu) if one.uuid.lower() == uuid.lower()]
        return found[0] if found and self.known else None

    def list_with_uuids(self) -> list[MigDevice]:
        if not self.known:
            self.asked += 1
            if self.silent:
                raise Fault(self.silent, hint="a cure of its own")
            self.known = True
        return [one for gpu in GPUS for one in self.list_for_gpu(gpu)]

    def discard_cached_uuids(self) -> None:
        self.known = False


def chosen(*words: str, fake: Fake | None = None) -> list[str]:
    asks = tuple(DeviceRequest(word, "here") for word in words)
    return [one.name for one, _ in mig_selectors.resolve_mig_devices(asks, GPUS, DIVIDED, fake or Fake())]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["0:1"], ["0:1"]),
        ([" 0:2 "], ["0:2"]),
        (["1:0", "0:0"], ["0:0", "1:0"]),
        (["0:0", "0:0"], ["0:0"]),
        (["all"], ["0:0", "0:1", "0:2", "1:0"]),
        (["ALL", "0:1"], ["0:0", "0:1", "0:2", "1:0"]),
        (["MIG-GPU-11111111-aaaa-0000-0000-000000000001/2/1"], ["0:2"]),
        (["mig-gpu-11112222/7/0"], ["1:0"]),
        (["MIG-cccc4444-0000-5000-8000-000000000004"], ["1:0"]),
        (["mig-CCCC4444-0000-5000-8000-000000000004", "1:0"], ["1:0"]),
        (["MIG-bbbb"], ["0:2"]),
        (["2", "GPU-3333", "0000:01:00.0"], []),
        ([], []),
    ],
)
def test_a_word_names_the_mig_devices_that_it_means(words: list[str], names: list[str]) -> None:
    assert chosen(*words) == names


@pytest.mark.parametrize(
    "word",
    [
        "0:9", "2:0", "9:0", "000:77", "MIG-", "MIG-abc", "MIG-dddd", "MIG-dddd5555-0000-5000-8000-000000000005",
        "MIG-GPU-11111111-aaaa-0000-0000-000000000001/3/0", "MIG-GPU-ffff/1/0", "MIG-GPU-11111111/1",
        "MIG-GPU-11111111/1/0/0", "MIG-" + "a" * 5000, "MIG-../../etc", "MIG-GPU-33333333/0/0",
        "MIG-\u0663\u0663\u0663\u0663", "MIG-:", "mig-aaaa:1", "MIG-GPU-11111111:1/1/0",
    ],
)  # fmt: skip
def test_an_unknown_word_fails_and_names_the_devices_that_exist(word: str) -> None:
    with pytest.raises(Fault) as caught:
        chosen(word)
    text = str(caught.value)
    assert "MIG device" in text
    if word.lower().startswith("mig-gpu-"):
        assert "MIG-GPU-11111111-aaaa-0000-0000-000000000001/1/0" in text
        assert "MIG-GPU-11112222-aaaa-0000-0000-000000000002/7/0" in text
    elif word.startswith("MIG-dddd"):  # NVML has said what there is
        assert set(UUIDS.values()) <= set(text.replace(",", "").replace(";", "").split())
    else:
        assert "This host has the MIG devices 0:0 to 0:2, 1:0; see gpu-oci-hook list" in text
    assert len(text) < 600


def test_uuids_are_listed_when_they_are_known_and_asked_for() -> None:
    with pytest.raises(Fault, match="MIG-aaaa1111-0000-5000-8000-000000000001"):
        chosen("MIG-abc", fake=Fake(remembers=True))
    with pytest.raises(Fault, match=r"there is no MIG device 0:9. This host has the MIG devices 0:0 to 0:2, 1:0; "):
        chosen("0:9", fake=Fake(remembers=True))


@pytest.mark.parametrize("word", ["0:77", "MIG-ffff", "MIG-GPU-ffff/1/0"])
def test_on_a_machine_with_many_mig_devices_an_unknown_word_costs_one_short_line(word: str) -> None:
    gpus = [
        Gpu(index=n, uuid=f"GPU-{n:08d}-aaaa-0000-0000-000000000000", pci=f"0000:{n:02x}:00.0", minor=n, model="A")
        for n in range(16)
    ]
    fake = Fake(remembers=True)
    fake.uuids = {(gpu.index, gi, 0): f"MIG-aaaa{gpu.index:02d}{gi:02d}" for gpu in gpus for gi in range(7)}
    with pytest.raises(Fault) as caught:
        fake_gpus = frozenset(gpu.index for gpu in gpus)
        mig_selectors.resolve_mig_devices((DeviceRequest(word, "here"),), gpus, fake_gpus, fake)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 400
    assert "more" in caught.value.hint


def test_a_gpu_without_mig_devices_is_said_to_have_none() -> None:
    with pytest.raises(Fault, match="GPU 2 has no MIG devices, so 2:"):
        chosen("2:0")


def test_a_beginning_of_two_uuids_fails_and_names_both() -> None:
    with pytest.raises(Fault, match="a prefix of 2 UUIDs") as caught:
        chosen("MIG-aaaa")
    assert UUIDS[0, 1, 0] in str(caught.value)
    assert UUIDS[0, 2, 0] in str(caught.value)
    with pytest.raises(Fault, match="a prefix of 2 UUIDs"):
        chosen("MIG-GPU-1111/1/0")


@pytest.mark.parametrize("word", ["0:1", "all", "MIG-GPU-11111111/1/0", "0:9"])
def test_a_word_that_is_no_uuid_never_asks_nvml(word: str) -> None:
    fake = Fake(silent="NVML crashed (SIGSEGV)")
    try:
        chosen(word, fake=fake)
    except Fault as fault:
        assert "NVML" not in fault.what
    assert fake.asked == 0


def test_nvmls_failure_is_told_with_a_word_that_needs_no_nvml() -> None:
    with pytest.raises(Fault) as caught:
        chosen("MIG-bbbb", fake=Fake(silent="NVML did not answer within 10 seconds"))
    text = str(caught.value)
    assert 'only NVML knows which MIG device is "MIG-bbbb"' in text
    assert "within 10 seconds" in text
    assert "Use a name that needs no NVML. This host has the MIG devices 0:0 to 0:2, 1:0" in text


def test_what_is_cached_is_not_asked_again_unless_the_uuid_is_unknown() -> None:
    fake = Fake(remembers=True)
    assert chosen(UUIDS[0, 2, 1], "MIG-cccc", fake=fake) == ["0:2", "1:0"]
    assert fake.asked == 0
    with pytest.raises(Fault, match="there is no MIG device"):
        chosen("MIG-dddd5555-0000-5000-8000-000000000005", fake=fake)
    assert fake.asked == 1


def test_a_machine_without_mig_devices_does_not_ask_nvml_and_says_so() -> None:
    fake = Fake(silent="NVML crashed")
    fake.uuids = {}
    with pytest.raises(Fault, match="This host has no MIG device"):
        chosen("MIG-aaaa1111", fake=fake)
    assert fake.asked == 0


def test_all_means_the_parts_of_divided_gpus_and_the_others_whole() -> None:
    asks = (DeviceRequest("all", "here"),)
    assert [gpu.index for gpu, _ in selectors.resolve_gpus(asks, GPUS, DIVIDED)] == [2]
    asks = (DeviceRequest("all", "here"), DeviceRequest("0", "there"), DeviceRequest("0:1", "elsewhere"))
    assert [(gpu.index, why) for gpu, why in selectors.resolve_gpus(asks, GPUS, DIVIDED)] == [(0, "there"), (2, "here")]


def test_the_parents_of_mig_devices_go_in_and_are_told_from_whole_gpus() -> None:
    fake = Fake()
    asks = (DeviceRequest("2", "here"), DeviceRequest("0:1", "there"), DeviceRequest("0:0", "there"))
    parts = mig_selectors.resolve_mig_devices(asks, GPUS, DIVIDED, fake)  # type: ignore[arg-type]
    given, parents = mig_selectors.add_parent_gpus(selectors.resolve_gpus(asks, GPUS), parts)
    assert [(gpu.index, why) for gpu, why in given] == [(0, "parent of MIG devices 0:0, 0:1: there"), (2, "here")]
    assert parents == {0}
    given, parents = mig_selectors.add_parent_gpus([(GPUS[0], "whole")], parts)
    assert ([why for _, why in given], parents) == (["whole"], frozenset())


def test_a_whole_gpu_in_mig_mode_is_warned_about_with_the_names_of_its_parts() -> None:
    (text,) = mig_selectors.report_whole_mig_gpus(GPUS, frozenset({0}), Fake())  # type: ignore[arg-type]
    assert "GPU 0 is in MIG mode" in text
    assert "0:0, 0:1, 0:2" in text


Rights = Callable[..., tuple[tuple[str, str], ...]]


def rights(*env: str, privileged: bool = True) -> tuple[tuple[str, str], ...]:
    spec = {
        "process": {
            "env": list(env),
            "capabilities": {"bounding": ["CAP_SYS_ADMIN"] if privileged else ["CAP_CHOWN"]},
        }
    }
    return read_request(spec, Config()).mig_rights


VISIBLE = "NVIDIA_VISIBLE_DEVICES=all"
BOTH = ("NVIDIA_MIG_CONFIG_DEVICES=all", "NVIDIA_MIG_MONITOR_DEVICES=all")


def test_a_privileged_container_may_configure_and_monitor() -> None:
    assert rights(VISIBLE, *BOTH) == (
        ("config", "NVIDIA_MIG_CONFIG_DEVICES=all (process.env[1])"),
        ("monitor", "NVIDIA_MIG_MONITOR_DEVICES=all (process.env[2])"),
    )


@pytest.mark.parametrize("value", ["", "none", "void", " "])
def test_these_values_ask_for_no_right(value: str) -> None:
    assert rights(VISIBLE, f"NVIDIA_MIG_CONFIG_DEVICES={value}", privileged=False) == ()


@pytest.mark.parametrize("variable", BOTH)
def test_an_unprivileged_container_is_told_what_it_lacks(variable: str) -> None:
    with pytest.raises(Fault, match="CAP_SYS_ADMIN") as caught:
        rights(VISIBLE, variable, privileged=False)
    assert variable.partition("=")[0] in str(caught.value)


@pytest.mark.parametrize("env", ["privileged", "never"])
def test_who_may_not_ask_for_gpus_by_environment_may_not_ask_for_rights_either(env: str) -> None:
    made = {
        "process": {"env": list(BOTH), "capabilities": {"bounding": ["CAP_SYS_ADMIN"] * (env == "never")}},
        "mounts": [{"source": "/dev/null", "destination": "/var/run/nvidia-container-devices/0"}],
    }
    request = read_request(made, Config(env=env))
    assert request.needs_driver and not request.mig_rights
    assert [name for name, _ in request.withheld] == [
        "the right to configure MIG", "the right to monitor MIG",
    ]  # fmt: skip
    assert all("[request] env is" in text for text in request.warnings)


@pytest.mark.parametrize("value", ["0", "0:1", "ALL", "all,0"])
def test_another_value_names_the_valid_one(value: str) -> None:
    with pytest.raises(Fault, match='Use "all"'):
        rights(VISIBLE, f"NVIDIA_MIG_MONITOR_DEVICES={value}")


def test_rights_over_all_and_single_devices_do_not_go_together() -> None:
    with pytest.raises(Fault, match='MIG device "0:1" is part of one'):
        rights("NVIDIA_VISIBLE_DEVICES=0:1", BOTH[0])


def test_a_container_that_asks_for_no_gpu_is_never_kept_from_starting() -> None:
    assert rights(*BOTH, privileged=False) == ()
    assert rights("NVIDIA_VISIBLE_DEVICES=void", *BOTH, privileged=False) == ()
