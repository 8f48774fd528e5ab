"""`list`, `explain` and `simulate` about what goes in beside GPUs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from support.command_line import Command, DebianBundle, read_json

pytestmark = [
    pytest.mark.usefixtures("isolated_state"),
    pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can make device nodes"),
]


@pytest.fixture
def host(command: Command, tmp_path: Path) -> Path:
    directory = tmp_path / "h"
    answer = command("simulate", directory, "--imex", "3", "--features", "gds,nvswitch")
    assert (answer.status, answer.err) == (0, "")
    return directory


def test_list_says_what_there_is_with_gpus_and_who_asks_for_it(command: Command, host: Path) -> None:
    short = command("list", "--root", host).out
    assert (
        "\noptional       GPUDirect Storage (NVIDIA_GDS=enabled); NVSwitch devices (NVIDIA_NVSWITCH=enabled); " in short
    )
    assert (
        "; IMEX channels 0 to 2 (NVIDIA_IMEX_CHANNELS=…)\nnot present    RDMA devices, GDRCopy; -v says why\n" in short
    )
    answer = command("list", "--root", host, "-v")
    for line in (
        "GPUDirect Storage (NVIDIA_GDS=enabled): available\n   /dev/nvidia-fs0, /dev/nvidia-fs1",
        "RDMA devices (NVIDIA_MOFED=enabled): not available\n   /dev/infiniband/uverbs*: no infiniband_verbs in",
        "IMEX channels (NVIDIA_IMEX_CHANNELS=…): available\n   0 to 2\n",
    ):
        assert line in answer.out
    assert "added by the configuration" not in answer.out


def test_list_as_json_has_features_channels_and_added_files(command: Command, host: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        '[[inject.extra]]\npath = "/etc/ld.so.cache"\ncontainer = "/x"\ncapability = "video"\n'
        '[[inject.extra]]\npath = "/none"\nkind = "directory"\n'
    )
    document = read_json(command("list", "--root", host, "--format", "json"), "list")
    features = {one["feature"]: one for one in document["features"]}
    assert list(features) == ["gds", "mofed", "gdrcopy", "nvswitch"]
    assert features["nvswitch"]["there"] and "/dev/nvidia-nvswitchctl" in features["nvswitch"]["nodes"]
    assert features["gds"]["files"] == ["/etc/cufile.json", "/run/udev"]
    assert not features["gdrcopy"]["there"] and features["gdrcopy"]["missing"][0]["path"] == "/dev/gdrdrv"
    assert document["imex"] == {"channels": [0, 1, 2], "missing": []}
    assert document["extra"] == [
        {"path": "/etc/ld.so.cache", "container": "/x", "capability": "video", "kind": "file", "missing": None},
        {"path": "/none", "container": "/none", "capability": None, "kind": "directory", "missing": "it is missing"},
    ]
    assert "/etc/ld.so.cache  /x" in command("list", "--root", host).out


def test_explain_says_by_whose_word_channels_and_features_go_in(command: Command, host: Path, tmp_path: Path) -> None:
    made = DebianBundle(tmp_path / "b").request(
        "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_IMEX_CHANNELS=1-2", "NVIDIA_GDS=enabled"
    )
    document = read_json(command("explain", "-b", made.path, "--root", host, "--format", "json"), "explain")
    origin = "NVIDIA_IMEX_CHANNELS=1-2 (process.env[2])"
    assert document["request"]["channels"] == [{"word": "1-2", "origin": origin}]
    assert document["request"]["features"] == [{"feature": "gds", "origin": "NVIDIA_GDS=enabled (process.env[3])"}]
    assert document["request"]["management"] is None
    reasons = {edit["path"]: edit["reason"] for edit in document["edits"] if edit["kind"] == "device"}
    assert reasons["/dev/nvidia-caps-imex-channels/channel2"] == f"IMEX channel 2: {origin}"
    text = command("explain", "-b", made.path, "--root", host).out
    assert "GPUDirect Storage: NVIDIA_GDS=enabled (process.env[3]):" in text


def test_explain_shows_where_an_addition_and_a_removal_come_from(command: Command, host: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        '[inject]\nremove = ["nvidia-debugdump"]\n[[inject.extra]]\npath = "/etc/ld.so.cache"\ncontainer = "/x"\n'
    )
    made = DebianBundle(tmp_path / "b").request("NVIDIA_VISIBLE_DEVICES=0")
    text = command("explain", "-b", made.path, "--root", host).out
    assert f"    [[inject.extra]] 1 of {config}: every GPU container:\n      /x <- /etc/ld.so.cache" in text
    assert f'  [inject] remove = "nvidia-debugdump" of {config}:\n    binary    /usr/bin/nvidia-debugdump' in text


def test_explain_of_a_management_container_without_the_right_says_what_is_missing(
    command: Command, host: Path, tmp_path: Path
) -> None:
    made = DebianBundle(tmp_path / "b").request("NVIDIA_VISIBLE_DEVICES=management.nvidia.com/gpu=all")
    answer = command("explain", "-b", made.path, "--root", host)
    assert answer.status == 1 and "lacks CAP_SYS_ADMIN" in answer.err
    spec = json.loads((made.path / "config.json").read_text())
    spec["process"]["capabilities"] = {"bounding": ["CAP_SYS_ADMIN"]}
    (made.path / "config.json").write_text(json.dumps(spec))
    document = read_json(command("explain", "-b", made.path, "--root", host, "--format", "json"), "explain")
    assert document["request"]["management"].startswith("NVIDIA_VISIBLE_DEVICES=management.nvidia.com/gpu=all")


@pytest.mark.parametrize("words", [["--imex", "-1"], ["--imex", "2049"], ["--features", "gds,warp"]])
def test_simulate_refuses_what_it_does_not_know(command: Command, tmp_path: Path, words: list[str]) -> None:
    answer = command("simulate", tmp_path / "other", *words)
    assert answer.status in (1, 2) and answer.err
    if "warp" in words[-1]:
        assert "Use any of gds, mofed, gdrcopy, nvswitch" in answer.err
