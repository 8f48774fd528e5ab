"""CDI files whose devices name other GPUs than they give: every node may exist, and the names still point elsewhere."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook.cdi.registry import staleness
from gpu_oci_hook.cdi.resolved_edits import list_edits_by_path, list_named_edits
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.simulate import host_tree
from support.bundles import container_spec, host_config, inject_in_process, make_bundle, skip_or_fail
from support.command_line import Command

pytestmark = pytest.mark.usefixtures("isolated_state")

Spec = dict[str, Any]


def build(root: Path, **options: Any) -> host_tree.SimulatedHost:
    """Build or rebuild a host with real nodes."""
    report = host_tree.build_host(root, **options)
    if report.left_out:
        skip_or_fail("; ".join(report.left_out))
    return report


@pytest.fixture
def generated(tmp_path: Path, command: Command) -> Spec:
    """The file of a host with one GPU, by index and UUID, with graphics; the host has two GPUs now."""
    build(tmp_path / "host", gpus=1)
    (tmp_path / "config.toml").write_text(f'[host]\nroot = "{tmp_path}/host"\nload-modules = false\n')
    words = ("--name", "index", "--name", "uuid", "--capabilities", "all", "--output", str(tmp_path / "gpu.json"))
    answer = command("cdi", "generate", *words)
    assert answer.status == 0, answer.err
    build(tmp_path / "host", gpus=2)
    spec: Spec = json.loads((tmp_path / "gpu.json").read_text())
    return spec


def sentences(spec: Spec, root: Path) -> list[str]:
    """What does not fit about the nodes of the file on this host."""
    pairs = list_edits_by_path(spec)
    return [
        text
        for _, text in staleness.find_spec_mismatch(
            pairs, Host(str(root)), None, list_named_edits(spec)
        ).number_conflicts
    ]


def rename(spec: Spec, kind: str, names: dict[str, str]) -> Spec:
    """Return the file under another kind, with these of its devices under new names."""
    spec = copy.deepcopy(spec)
    spec["kind"] = kind
    spec["devices"] = [
        {**device, "name": names[device["name"]]} for device in spec["devices"] if device["name"] in names
    ]
    return spec


def test_a_device_whose_name_is_another_gpus_by_now_is_told(generated: Spec, tmp_path: Path) -> None:
    """The first two GPUs of a simulated host have each other's minor, so the second one moved the first one's."""
    (uuid,) = [device["name"] for device in generated["devices"] if device["name"].startswith("GPU-")]
    told = f"GPU 0 ({uuid}) has the node /dev/nvidia1, and the spec gives /dev/nvidia0"
    assert sentences(generated, tmp_path / "host") == [told, told]


def test_validate_list_and_resolve_tell_it(generated: Spec, tmp_path: Path, command: Command) -> None:
    (uuid,) = [device["name"] for device in generated["devices"] if device["name"].startswith("GPU-")]
    words = f"GPU 0 ({uuid}) has the node /dev/nvidia1, and the spec gives /dev/nvidia0"
    answer = command("cdi", "validate", str(tmp_path / "gpu.json"))
    assert answer.status == 1 and words in answer.out + answer.err
    directory = tmp_path / "host/etc/cdi"
    directory.mkdir()
    shutil.copy(tmp_path / "gpu.json", directory / "gpu.json")
    assert words in command("cdi", "list").out
    assert words in command("cdi", "resolve", f"nvidia.com/gpu={uuid}").out


def test_an_index_without_a_gpu_and_a_node_that_is_gone_are_told(tmp_path: Path, command: Command) -> None:
    root = tmp_path / "host"
    build(root, gpus=3)
    (tmp_path / "config.toml").write_text(f'[host]\nroot = "{root}"\nload-modules = false\n')
    assert command("cdi", "generate", "--output", str(tmp_path / "gpu.json")).status == 0
    build(root, gpus=2)
    found = sentences(json.loads((tmp_path / "gpu.json").read_text()), root)
    assert "no GPU of this host has the node /dev/nvidia2" in found
    assert "this host has no GPU 2 for containers" in found


def test_a_node_that_cannot_be_given_here_is_told(tmp_path: Path, command: Command) -> None:
    root = tmp_path / "host"
    build(root, gpus=3)
    (tmp_path / "config.toml").write_text(f'[host]\nroot = "{root}"\nload-modules = false\n')
    assert command("cdi", "generate", "--output", str(tmp_path / "gpu.json")).status == 0
    (root / "dev/nvidia2").unlink()
    found = sentences(json.loads((tmp_path / "gpu.json").read_text()), root)
    assert f"/dev/nvidia2 cannot be given to containers here: {root}/dev/nvidia2 is missing" in found


def test_a_drm_number_that_belongs_to_another_card_is_told(tmp_path: Path) -> None:
    """The board's own display controller has come first this time."""
    root = tmp_path / "host"
    report = build(root, gpus=1)
    nodes = [{"path": "/dev/nvidia0"}, {"path": "/dev/dri/card0"}, {"path": "/dev/dri/renderD128"}]
    devices = [{"name": report.gpus[0].uuid, "containerEdits": {"deviceNodes": nodes}}]
    spec = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices}
    assert sentences(spec, root) == [f"GPU 0 ({report.gpus[0].pci}) does not have the node /dev/dri/card0"]
    nodes[1]["path"] = "/dev/dri/card1"
    assert sentences(spec, root) == []


def test_a_mig_device_with_the_nodes_of_another_is_told(tmp_path: Path, command: Command) -> None:
    root = tmp_path / "host"
    build(root, gpus=1, mig=["7"])
    (tmp_path / "config.toml").write_text(f'[host]\nroot = "{root}"\nload-modules = false\n')
    assert command("cdi", "generate", "--output", str(tmp_path / "gpu.json")).status == 0
    spec = json.loads((tmp_path / "gpu.json").read_text())
    assert sentences(spec, root) == []
    build(root, gpus=1, mig=["3g.20gb,1c.2g,1g"])
    assert any(
        text.startswith("MIG device 0:0 does not have the node /dev/nvidia-caps/") for text in sentences(spec, root)
    )


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("k8s.device-plugin.nvidia.com/gpu", {"0": "0"}),
        ("nvidia.com/gpu.coherent", {"0": "gpu0"}),
        ("vendor.com/card", {"0": "GPU-44b97862-417b-5351-9f9b-fc184b5f19e7"}),
    ],
)
def test_files_of_other_kinds_are_compared_where_their_names_mean_gpus(
    generated: Spec, tmp_path: Path, kind: str, names: dict[str, str]
) -> None:
    assert "and the spec gives /dev/nvidia0" in sentences(rename(generated, kind, names), tmp_path / "host")[0]


@pytest.mark.parametrize(("kind", "names"), [("vendor.com/card", {"0": "0"}), ("nvidia.com/gpu", {"0": "mine"})])
def test_names_that_mean_nothing_to_us_are_left_alone(
    generated: Spec, tmp_path: Path, kind: str, names: dict[str, str]
) -> None:
    assert sentences(rename(generated, kind, names), tmp_path / "host") == []


def test_a_uuid_that_the_driver_does_not_know_yet_is_no_reason(generated: Spec, tmp_path: Path) -> None:
    for path in (tmp_path / "host/proc/driver/nvidia/gpus").glob("*/information"):
        lines = path.read_text().splitlines(keepends=True)
        path.chmod(0o644)
        path.write_text("".join(line if "UUID" not in line else "GPU UUID: \t GPU-????????-????\n" for line in lines))
    spec = rename(generated, "nvidia.com/gpu", {"GPU-44b97862-417b-5351-9f9b-fc184b5f19e7": "GPU-44b97862"})
    assert sentences(spec, tmp_path / "host") == []


def test_a_container_does_not_start_with_another_gpu_than_its_device_plugin_named(
    generated: Spec, tmp_path: Path
) -> None:
    directory = tmp_path / "host/etc/cdi"
    directory.mkdir()
    (uuid,) = [device["name"] for device in generated["devices"] if device["name"].startswith("GPU-")]
    spec = rename(generated, "k8s.device-plugin.nvidia.com/gpu", {uuid: uuid})
    (directory / "plugin.json").write_text(json.dumps(spec))
    asked = container_spec(f"NVIDIA_VISIBLE_DEVICES=k8s.device-plugin.nvidia.com/gpu={uuid}")
    with pytest.raises(Fault, match="and the spec gives /dev/nvidia0"):
        inject_in_process(make_bundle(tmp_path / "b", asked), host_config(tmp_path / "host"))
