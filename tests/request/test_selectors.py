"""From words to GPUs."""

from __future__ import annotations

import pytest

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.model.machine import Gpu
from gpu_oci_hook.model.request import DeviceRequest
from gpu_oci_hook.request.selectors import format_ranges, normalize_pci_address, resolve_gpus

MANY = [
    Gpu(index=n, uuid=f"GPU-{n:08d}-aaaa-0000-0000-000000000000", pci=f"0000:{n:02x}:00.0", minor=n, model="x")
    for n in range(200)
]
GPUS = [
    Gpu(index=0, uuid="GPU-11111111-aaaa-0000-0000-000000000001", pci="0000:01:00.0", minor=1, model="A"),
    Gpu(index=1, uuid="GPU-11112222-aaaa-0000-0000-000000000002", pci="0000:02:00.0", minor=0, model="A"),
    Gpu(index=2, uuid="GPU-33333333-aaaa-0000-0000-000000000003", pci="0001:02:00.0", minor=2, model="A"),
    Gpu(index=3, uuid="GPU-44444444-aaaa-0000-0000-000000000004", pci="0002:02:00.0", minor=3, model="A"),
]


def chosen(*words: str) -> list[int]:
    return [gpu.index for gpu, _ in resolve_gpus(tuple(DeviceRequest(word, "here") for word in words), GPUS)]


@pytest.mark.parametrize(
    ("words", "indices"),
    [
        (["0"], [0]),
        (["all"], [0, 1, 2, 3]),
        (["ALL"], [0, 1, 2, 3]),
        (["2", "0"], [0, 2]),
        (["0", "GPU-11111111-aaaa-0000-0000-000000000001"], [0]),
        (["0", "0000:01:00.0", "00000000:01:00.0", "01:00.0"], [0]),
        (["GPU-3333"], [2]),
        (["gpu-3333"], [2]),
        (["33333333-aaaa"], [2]),
        (["0-2"], [0, 1, 2]),
        (["3-3"], [3]),
        (["0001:02:00.0"], [2]),
        (["2", "all"], [0, 1, 2, 3]),
        ([], []),
    ],
)
def test_a_word_names_the_gpus_that_it_means(words: list[str], indices: list[int]) -> None:
    assert chosen(*words) == indices


@pytest.mark.parametrize(
    "word",
    ["9", "4", "GPU-9999", "0000:09:00.0", "-1", "+1", "1e0", "0x0", "two", "1.0", "\u0663", "9" * 5000, ""],
)
def test_an_unknown_word_fails_and_names_the_ids_that_exist(word: str) -> None:
    with pytest.raises(Fault) as caught:
        chosen(word)
    text = str(caught.value)
    assert "there is no GPU" in text
    ids = [gpu.uuid for gpu in GPUS] if word.startswith(("GPU", "999")) else [gpu.pci for gpu in GPUS]
    for one in ids if word.startswith(("GPU", "0000", "999")) else ["This host has GPUs 0 to 3; see gpu-oci-hook list"]:
        assert one in text


def test_an_unknown_index_is_a_short_sentence_on_any_machine() -> None:
    with pytest.raises(Fault) as caught:
        chosen("7")
    assert str(caught.value) == "here: there is no GPU 7. This host has GPUs 0 to 3; see gpu-oci-hook list"


@pytest.mark.parametrize("word", ["777", "GPU-ffff", "0001:aa:00.0", "two", "0-777"])
def test_on_a_machine_with_many_gpus_an_unknown_word_costs_one_short_line(word: str) -> None:
    with pytest.raises(Fault) as caught:
        resolve_gpus((DeviceRequest(word, "here"),), MANY)
    assert len(str(caught.value)) < 300
    assert "to 199" in caught.value.hint or "and 196 more" in caught.value.hint


def test_of_uuids_that_begin_alike_only_a_few_are_told() -> None:
    with pytest.raises(Fault, match=r"a prefix of 200 UUIDs: .* and 196 more") as caught:
        resolve_gpus((DeviceRequest("GPU-0000", "here"),), MANY)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([0], "0"),
        ([0, 1], "0 to 1"),
        ([0, 2, 3, 4, 7], "0, 2 to 4, 7"),
        (list(range(0, 40, 2)), "0, 2, 4, 6, 8, 10, 12, 14 and 12 more"),
    ],
)
def test_indices_are_told_as_ranges(numbers: list[int], said: str) -> None:
    assert format_ranges(numbers) == said


@pytest.mark.parametrize(("word", "meant"), [("gpu0", "0"), ("GPU3", "3"), ("mig0:1", "0:1")])
def test_a_name_that_generators_write_is_told_the_plain_word(word: str, meant: str) -> None:
    with pytest.raises(Fault, match=f"Did you mean {meant}"):
        chosen(word)


def test_a_kind_without_a_device_is_told_how_to_name_one() -> None:
    with pytest.raises(Fault, match=r"It is a CDI kind: use nvidia.com/gpu=0"):
        chosen("nvidia.com/gpu")


@pytest.mark.parametrize(
    ("word", "absent"),
    [("0-9", "GPUs 4 to 9 do not exist"), ("2-4", "GPU 4 does not exist"), ("7-8", "GPUs 7 to 8 do not exist")],
)
def test_a_range_that_goes_too_far_says_which_gpus_there_are_not(word: str, absent: str) -> None:
    with pytest.raises(Fault, match=absent) as caught:
        chosen(word)
    assert "This host has GPUs 0 to 3" in caught.value.hint


@pytest.mark.parametrize("word", ["GPU-", "GPU-4", "gpu-44b"])
def test_a_beginning_that_is_too_short_says_how_long_it_has_to_be(word: str) -> None:
    with pytest.raises(Fault, match="too short") as caught:
        chosen(word)
    assert caught.value.hint == "Give at least 4 digits after GPU-"


@pytest.mark.parametrize(("word", "meant"), [("al", "all"), ("alll", "all"), ("NONE", "none"), ("viod", "void")])
def test_a_mistyped_word_is_told_what_it_may_have_meant(word: str, meant: str) -> None:
    with pytest.raises(Fault, match=f'Did you mean "{meant}"') as caught:
        chosen(word)
    assert 'PCI address, "all" and "none"' in caught.value.hint


def test_a_beginning_of_two_uuids_fails_and_names_both() -> None:
    with pytest.raises(Fault, match="a prefix of 2 UUIDs") as caught:
        chosen("GPU-1111")
    assert GPUS[0].uuid in str(caught.value)
    assert GPUS[1].uuid in str(caught.value)


def test_the_uuid_of_two_gpus_fails_and_says_what_tells_them_apart() -> None:
    uuids = (GPUS[0].uuid, GPUS[0].uuid.upper())  # selectors ignore case
    twins = [Gpu(index=n, uuid=uuids[n], pci=f"0000:0{n}:00.0", minor=n, model="A") for n in range(2)]
    for selector in (GPUS[0].uuid, "GPU-1111"):
        with pytest.raises(Fault) as caught:
            resolve_gpus((DeviceRequest(selector, "here"),), twins)
        assert f'"{selector}" is the UUID of GPUs 0, 1' in str(caught.value)
        assert "index or PCI address" in caught.value.hint


def test_a_range_that_runs_backwards_says_how_to_write_it() -> None:
    with pytest.raises(Fault, match="Use 0-3"):
        chosen("3-0")


def test_the_place_of_device_mounts_is_no_device() -> None:
    with pytest.raises(Fault, match="volume-mounts"):
        chosen("/var/run/nvidia-container-devices")


def test_the_first_word_that_names_a_gpu_is_its_origin() -> None:
    asks = (DeviceRequest("all", "first"), DeviceRequest("0", "second"))
    assert {origin for _, origin in resolve_gpus(asks, GPUS)} == {"first"}


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:01:00.0", "0000:01:00.0"),
        ("00000000:0A:1f.7", "0000:0a:1f.7"),
        ("1:0.0", "0000:01:00.0"),
        ("01:00", "0000:01:00.0"),
        ("10000:01:00.0", "10000:01:00.0"),
        ("0000:100:00.0", ""),
        ("0000:01:20.0", ""),
        ("0000:01:00.8", ""),
        ("a:b:c:d", ""),
        ("", ""),
    ],
)
def test_pci_addresses_of_all_tools_are_one(text: str, address: str) -> None:
    assert normalize_pci_address(text) == address


@pytest.mark.parametrize("word", ["1", "0-2"])
def test_a_gpu_that_cannot_be_used_keeps_its_index(word: str) -> None:
    with pytest.raises(Fault) as caught:
        resolve_gpus((DeviceRequest(word, "here"),), [GPUS[0], *GPUS[2:]])
    said = "has a gap: GPU 1 cannot be used" if "-" in word else "there is no GPU 1. This host has GPUs 0, 2 to 3"
    assert said in str(caught.value)
    assert [gpu.index for gpu, _ in resolve_gpus((DeviceRequest("2-3", "here"),), [GPUS[0], *GPUS[2:]])] == [2, 3]
