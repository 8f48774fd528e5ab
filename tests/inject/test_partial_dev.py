"""A host, or a container, with the nodes of some GPUs: the runtime and every command count the same GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.inject import pipeline
from gpu_oci_hook.simulate import host_tree
from support.bundles import (
    container_spec,
    host_config,
    inject_in_process,
    list_device_numbers,
    make_bundle,
    skip_or_fail,
)
from support.command_line import Command

pytestmark = pytest.mark.usefixtures("isolated_state")


@pytest.fixture
def partial(tmp_path: Path) -> host_tree.SimulatedHost:
    """Eight GPUs by the driver's files, and one node, /dev/nvidia3."""
    report = host_tree.build_host(tmp_path / "host", gpus=8)
    if report.left_out:
        skip_or_fail("; ".join(report.left_out))
    for minor in {*range(8)} - {3}:
        (tmp_path / f"host/dev/nvidia{minor}").unlink()
    (tmp_path / "config.toml").write_text(f'[host]\nroot = "{report.directory}"\nload-modules = false\n')
    return report


def gpu_nodes(bundle: Path, host: Path | str, asked: str) -> set[str]:
    """The GPU nodes of a container that asks for these devices."""
    spec = inject_in_process(make_bundle(bundle, container_spec(f"NVIDIA_VISIBLE_DEVICES={asked}")), host_config(host))
    return {path for path in list_device_numbers(spec) if path.removeprefix("/dev/nvidia").isdigit()}


def test_requests_count_the_gpus_whose_nodes_are_there(partial: host_tree.SimulatedHost, tmp_path: Path) -> None:
    own = next(gpu for gpu in partial.gpus if gpu.minor == 3)
    for number, asked in enumerate(("0", "all", own.uuid, own.pci, "0-0")):
        assert gpu_nodes(tmp_path / f"b{number}", partial.directory, asked) == {"/dev/nvidia3"}, asked


def test_a_start_warns_that_indices_count_the_others(partial: host_tree.SimulatedHost, tmp_path: Path) -> None:
    """On a server a missing node is a mistake, and a container by index may get another GPU than it got yesterday."""
    spec = container_spec("NVIDIA_VISIBLE_DEVICES=0")
    bundle = str(make_bundle(tmp_path / "b", spec))
    plan = pipeline.prepare_injection(spec, host_config(partial.directory), bundle, state_dir.StateCache()).plan
    (warning,) = [text for text in plan.warnings if "indices count the others" in text]
    assert "/dev/nvidia1, /dev/nvidia0, /dev/nvidia2, /dev/nvidia4 and 3 more missing" in warning


def test_a_gpu_without_a_node_is_refused_with_the_reason(partial: host_tree.SimulatedHost, tmp_path: Path) -> None:
    other = next(gpu for gpu in partial.gpus if gpu.minor == 1)
    for number, asked in enumerate((other.uuid, "1")):
        with pytest.raises(Fault) as caught:
            gpu_nodes(tmp_path / f"b{number}", partial.directory, asked)
        assert f"there is no GPU {asked}" in str(caught.value).replace('"', "")
        assert f"{partial.directory}/dev/nvidia1 is missing; and 6 more" in str(caught.value)


def test_list_explain_and_cdi_generate_count_the_same(
    partial: host_tree.SimulatedHost, tmp_path: Path, command: Command
) -> None:
    own = next(gpu for gpu in partial.gpus if gpu.minor == 3)
    listed = json.loads(command("list", "--no-nvml", "--format", "json").out)
    assert [(gpu["index"], gpu["uuid"]) for gpu in listed["gpus"]] == [(0, own.uuid)]
    assert sum("cannot be given to containers here" in text for text in listed["problems"]) == 7
    bundle = make_bundle(tmp_path / "b", container_spec("NVIDIA_VISIBLE_DEVICES=0"))
    explained = command("explain", "--bundle", str(bundle))
    assert own.uuid in explained.out and "/dev/nvidia3" in explained.out
    assert command("cdi", "generate", "--output", str(tmp_path / "cdi.json"), "--no-hook").status == 0
    devices = {device["name"]: device for device in json.loads((tmp_path / "cdi.json").read_text())["devices"]}
    nodes = [node["path"] for node in devices["0"]["containerEdits"]["deviceNodes"]]
    assert "/dev/nvidia3" in nodes and "1" not in devices


def test_without_a_usable_gpu_the_reasons_are_said(tmp_path: Path) -> None:
    host = tmp_path / "host"
    host_tree.build_host(host, gpus=1)
    information = next((host / "proc/driver/nvidia/gpus").glob("*/information"))
    text = "".join(line for line in information.read_text().splitlines(keepends=True) if "Device Minor" not in line)
    information.chmod(0o644)
    information.write_text(text)
    with pytest.raises(Fault) as caught:
        gpu_nodes(tmp_path / "b", host, "all")
    assert "none of its GPUs can be used" in str(caught.value)
    assert "information has no device minor" in str(caught.value)
    assert "has no GPU in /proc/driver/nvidia/gpus" not in str(caught.value)
