"""`list`, `explain` and `simulate` on machines that are no desktop: evidence, stores, and the lists line by line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_oci_hook.simulate import boards, host_tree
from support.bundles import container_spec, make_bundle
from support.command_line import Command, read_json

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can make device nodes")

ALL = "NVIDIA_VISIBLE_DEVICES=all"


@pytest.fixture(params=[("wsl", 1), ("jetson", 1), ("jetson", 2)], ids=lambda key: f"{key[0]}-{key[1]}")
def board(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, int, Path]:
    layout, count = request.param
    host_tree.build_host(tmp_path / "h", layout=layout, gpus=count, driver="580.95.05")
    return layout, count, tmp_path / "h"


def test_list_says_what_the_machine_is_and_why(command: Command, board: tuple[str, int, Path]) -> None:
    layout, count, host = board
    document = read_json(command("list", "--root", host, "--no-nvml", "--format", "json"), "list")
    assert document["platform"]["name"] == {"wsl": "wsl", "jetson": "tegra"}[layout]
    assert [gpu["index"] for gpu in document["gpus"]] == list(range(count))
    assert {one["soname"] for one in document["files"]} >= {"libcuda.so.1", "libnvidia-ml.so.1"}
    answer = command("list", "--root", host, "--no-nvml", "-v")
    for sentence in document["platform"]["evidence"]:
        assert sentence in answer.out
    for row in document["lists"]:
        assert row["line"] in answer.out


def test_list_says_what_became_of_each_line_and_each_store(command: Command, tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "j", layout="jetson")
    document = read_json(command("list", "--root", tmp_path / "j", "--format", "json"), "list")
    lists = {(row["type"], row["path"]): (row["line"], row["found"]) for row in document["lists"]}
    assert lists["dev", "/dev/nvidiactl"] == (f"{boards.CSV_DIRECTORY}/devices.csv:8", "missing")
    assert lists["dev", "/dev/nvgpu/igpu0/*"][1] == "matched"
    assert document["driver"] == {"module": None, "libraries": None}
    host_tree.build_host(tmp_path / "w", layout="wsl")
    document = read_json(command("list", "--root", tmp_path / "w", "--format", "json"), "list")
    assert {"place": boards.INTEL_STORE, "found": "not used: it has no libcuda.so.1.1"} in document["places"]
    assert document["lists"] == []
    assert document["gpus"][0]["minor"] is None


def test_explain_says_what_the_machine_is(command: Command, board: tuple[str, int, Path], tmp_path: Path) -> None:
    layout, count, host = board
    made = make_bundle(tmp_path / "b", container_spec(ALL))
    answer = command("explain", "--root", host, "--bundle", made, "--format", "json")
    document = read_json(answer, "explain")
    assert document["platform"]["name"] == {"wsl": "wsl", "jetson": "tegra"}[layout]
    assert [gpu["given"] for gpu in document["gpus"]] == [True] * count
    text = command("explain", "--root", host, "--bundle", made).out
    assert f"platform      {document['platform']['name']}: " in text
    if layout == "jetson":
        assert "devices.csv:2: missing" in text and "listed in drivers.csv:1" in text
    else:
        assert boards.INTEL_STORE in text and "it has no libcuda.so.1.1" in text


def test_explain_of_a_refused_container_says_what_the_machine_is_too(command: Command, tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "h", layout="jetson", gpus=0)
    made = make_bundle(tmp_path / "b", container_spec(ALL))
    answer = command("explain", "--root", tmp_path / "h", "--bundle", made, "--format", "json")
    document = read_json(answer, "explain")
    assert answer.status == 1
    assert document["state"] == "refused" and document["platform"]["name"] == "tegra"
    assert "name no device node that exists" in document["reason"]


def test_simulate_counts_the_gpus_of_a_board(command: Command, tmp_path: Path) -> None:
    answer = command("simulate", tmp_path / "h", "--layout", "jetson")
    assert "built a host with 1 GPU in" in answer.out


def test_simulate_refuses_what_a_board_has_not(command: Command, tmp_path: Path) -> None:
    answer = command("simulate", tmp_path / "h", "--layout", "wsl", "--mig", "2")
    assert answer.status == 2 and "layout wsl has no MIG devices" in answer.err
