"""systemd's DeviceAllow with and without devices."""

from __future__ import annotations

import random

import pytest

from gpu_oci_hook.live.device_allow import add_devices, find_allowing_pattern, remove_devices

NODES = {"/dev/nvidia0": (195, 0), "/dev/null": (1, 3)}
RUNC = [("char-pts", "rwm"), ("/dev/char/1:3", "rwm"), ("char-*", "m"), ("/dev/char/195:1", "rw")]


def assign(entries: list[tuple[str, str]], added: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Add entries as systemd does: a later one replaces an earlier one for the same path."""
    return list({**dict(entries), **dict(added)}.items())


def test_only_what_is_missing_is_added() -> None:
    assert add_devices(RUNC, [(195, 0), (195, 1), (1, 3)]) == [("/dev/char/195:0", "rw")]
    assert add_devices([("/dev/char/195:0", "m"), ("/dev/char/195:1", "r")], [(195, 0), (195, 1)]) == [
        ("/dev/char/195:0", "rwm"),
        ("/dev/char/195:1", "rw"),
    ]


def test_the_right_to_create_a_node_stays() -> None:
    entries = [("/dev/nvidia0", "rw"), ("/dev/char/195:0", "rwm"), ("/dev/gone", "rw"), ("/dev/char/x", "r"), *RUNC]
    assert remove_devices(entries, [(195, 0), (195, 1)], NODES.get) == [
        ("/dev/char/195:0", "m"),
        ("/dev/gone", "rw"),
        ("/dev/char/x", "r"),
        *RUNC[:-1],
    ]


def test_allowing_and_denying_undo_each_other_and_nothing_grows() -> None:
    dice = random.Random(3)
    entries = RUNC
    for _ in range(500):
        devices = dice.sample([(195, 0), (195, 1), (195, 2), (510, 0)], 2)
        if dice.random() < 0.5:
            entries = assign(entries, add_devices(entries, devices))
            assert add_devices(entries, devices) == []
        else:
            entries = remove_devices(entries, devices, NODES.get)
            assert [path for path, _ in add_devices(entries, devices)] == [f"/dev/char/{a}:{b}" for a, b in devices]
        assert len(entries) <= len(RUNC) + 4
    entries = remove_devices(entries, [(195, 0), (195, 2), (510, 0), (195, 1)], NODES.get)
    assert assign(entries, add_devices(entries, [(195, 1)])) == RUNC


@pytest.mark.parametrize(
    ("entry", "pattern"),
    [
        (("char-*", "rw"), "char-*"),
        (("char-195", "r"), "char-195"),
        (("char-nvidia", "w"), "char-nvidia"),
        (("char-*", "m"), ""),
        (("char-nvid", "rw"), ""),
        (("block-*", "rw"), ""),
    ],
)
def test_a_pattern_that_allows_the_device_among_others_is_found(entry: tuple[str, str], pattern: str) -> None:
    assert find_allowing_pattern([("char-pts", "rw"), entry], (195, 0), ["nvidia", "nvidia-frontend"]) == pattern
