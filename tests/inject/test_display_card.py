"""The display card of a DGX Station: `all` does not include it, its index and UUID do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_oci_hook.files import state_dir
from gpu_oci_hook.inject import pipeline
from gpu_oci_hook.simulate import host_tree
from support.bundles import container_spec, host_config, make_bundle
from support.command_line import Command

pytestmark = pytest.mark.usefixtures("isolated_state")


@pytest.fixture(params=["DGX Display", "NVIDIA DGX Display"])
def station(request: pytest.FixtureRequest, tmp_path: Path) -> host_tree.SimulatedHost:
    """Three GPUs, the second one for the display."""
    report = host_tree.build_host(tmp_path / "host", gpus=3)
    path = tmp_path / f"host/proc/driver/nvidia/gpus/{report.gpus[1].pci}/information"
    path.chmod(0o644)
    path.write_text(path.read_text().replace(report.gpus[1].model, request.param))
    (tmp_path / "config.toml").write_text(f'[host]\nroot = "{report.directory}"\nload-modules = false\n')
    return report


@pytest.mark.parametrize(
    ("asked", "given"), [("all", [0, 2]), ("1", [1]), ("0-1", [0, 1]), ("nvidia.com/gpu=all", [0, 2])]
)
def test_all_is_every_gpu_but_the_display_card(
    station: host_tree.SimulatedHost, tmp_path: Path, asked: str, given: list[int]
) -> None:
    spec = container_spec(f"NVIDIA_VISIBLE_DEVICES={asked}")
    bundle = make_bundle(tmp_path / "b", spec)
    outcome = pipeline.prepare_injection(spec, host_config(station.directory), str(bundle), state_dir.StateCache())
    assert [gpu.index for gpu, _ in outcome.chosen_gpus] == given
    reasons = [item.reason for item in outcome.plan.withheld if "GPU 1" in item.name]
    if "all" in asked:
        assert reasons == ["it is the machine's display card, which all does not include"]


def test_the_device_all_of_a_cdi_file_does_not_include_it_either(
    station: host_tree.SimulatedHost, tmp_path: Path, command: Command
) -> None:
    assert command("cdi", "generate", "--output", str(tmp_path / "gpu.json")).status == 0
    devices = {device["name"]: device for device in json.loads((tmp_path / "gpu.json").read_text())["devices"]}
    node = f"/dev/nvidia{station.gpus[1].minor}"
    assert node in [entry["path"] for entry in devices["1"]["containerEdits"]["deviceNodes"]]
    assert node not in [entry["path"] for entry in devices["all"]["containerEdits"]["deviceNodes"]]
