"""Which GPUs and MIG devices there are: those whose nodes are there, have the right numbers, and may be opened here."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook.host.gpus import read_machine_gpus
from gpu_oci_hook.host.mig.capability_files import list_mig_instance_ids
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.simulate import host_tree
from support.bundles import skip_or_fail

pytestmark = pytest.mark.usefixtures("isolated_state")

DEVICES_CGROUP = Path("/sys/fs/cgroup/devices")

# Reads the host in a device cgroup of its own: v1, which this machine has, by its file.
IN_CGROUP = """
import os, sys
from pathlib import Path
group = Path(sys.argv[1])
(group / "cgroup.procs").write_text(str(os.getpid()))
(group / "devices.deny").write_text("a")
for rule in ("c 1:3 rwm", "c *:* m", *sys.argv[4:]):
    (group / "devices.allow").write_text(rule)
from gpu_oci_hook.files import state_dir
state_dir.DIRECTORY = sys.argv[3]
from gpu_oci_hook.host.gpus import read_machine_gpus
from gpu_oci_hook.host.root import Host
found = read_machine_gpus(Host(sys.argv[2]), "desktop")
print(*[f"{gpu.index}={gpu.minor}" for gpu in found.gpus])
print(*found.left_out, sep=chr(10))
from gpu_oci_hook.host.mig.capability_files import list_mig_instance_ids
print("mig", *[ids for gpu in found.gpus for ids in list_mig_instance_ids(Host(sys.argv[2]), gpu)])
"""


def build(root: Path, gpus: int = 4, **options: Any) -> Path:
    """Build a host with real nodes; the first two GPUs have each other's minor."""
    report = host_tree.build_host(root, gpus=gpus, **options)
    if report.left_out:
        skip_or_fail("; ".join(report.left_out))
    return root


def find(root: Path) -> list[tuple[int, int]]:
    """Return (index, minor) of the GPUs that count."""
    return [(gpu.index, gpu.minor) for gpu in read_machine_gpus(Host(str(root)), "desktop").gpus]


def test_a_gpu_without_a_node_does_not_count_where_others_have_one(tmp_path: Path) -> None:
    root = build(tmp_path / "host")
    for minor in (0, 1, 2):
        (root / f"dev/nvidia{minor}").unlink()
    found = read_machine_gpus(Host(str(root)), "desktop")
    assert [(gpu.index, gpu.minor) for gpu in found.gpus] == [(0, 3)]
    assert len(found.left_out) == 3
    assert f"{root}/dev/nvidia1 is missing" in found.left_out[0]


def test_the_index_counts_among_the_gpus_that_are_there(tmp_path: Path) -> None:
    root = build(tmp_path / "host")
    (root / "dev/nvidia1").unlink()
    assert find(root) == [(0, 0), (1, 2), (2, 3)]


def test_a_machine_that_has_just_started_has_no_node_and_all_its_gpus(tmp_path: Path) -> None:
    root = build(tmp_path / "host")
    for minor in range(4):
        (root / f"dev/nvidia{minor}").unlink()
    assert find(root) == [(0, 1), (1, 0), (2, 2), (3, 3)]


def test_a_node_with_the_numbers_of_another_device_does_not_count(tmp_path: Path) -> None:
    root = build(tmp_path / "host", 2)
    (root / "dev/nvidia0").unlink()
    os.mknod(root / "dev/nvidia0", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    found = read_machine_gpus(Host(str(root)), "desktop")
    assert [(gpu.index, gpu.minor) for gpu in found.gpus] == [(0, 1)]
    assert "has the number 1:3 and not the GPU's, 195:0" in found.left_out[0]


def test_plain_files_count_as_nodes(tmp_path: Path) -> None:
    """Trees of files that tests make have no device nodes."""
    root = build(tmp_path / "host", 2)
    for minor in (0, 1):
        (root / f"dev/nvidia{minor}").unlink()
    (root / "dev/nvidia1").touch()
    assert find(root) == [(0, 1)]


@pytest.fixture
def in_device_cgroup(tmp_path: Path) -> Iterator[Callable[..., list[str]]]:
    """Read a host in a device cgroup that allows only the given rules; return what it prints, by line."""
    if os.geteuid() or not (DEVICES_CGROUP / "devices.list").exists():
        skip_or_fail("a device cgroup: needs root and cgroup v1")
    group = DEVICES_CGROUP / f"gpu-oci-hook-test-{uuid.uuid4().hex[:8]}"
    group.mkdir()

    def read(root: Path, *rules: str, code: str = "") -> list[str]:
        words = [sys.executable, "-c", IN_CGROUP + code, str(group), str(root), str(tmp_path / "cgroup-state"), *rules]
        return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()

    yield read
    group.rmdir()


def test_a_node_that_the_device_cgroup_denies_does_not_count(
    tmp_path: Path, in_device_cgroup: Callable[..., list[str]]
) -> None:
    """A privileged-looking container has every node of the machine in its /dev, and may open some."""
    root = build(tmp_path / "host")
    (root / ".gpu-oci-hook-simulate").unlink()
    lines = in_device_cgroup(root, "c 195:3 rw", "c 195:0 rw", code="print('problems', found.problems)")
    assert lines[0] == "0=0 1=3"
    (root / "dev/nvidia1").unlink()
    missing = in_device_cgroup(root, "c 195:3 rw", "c 195:0 rw", code="print('problems', found.problems)")
    assert lines[-1] == missing[-1] == "problems []", "nothing is wrong: the container was made so"
    assert "/dev/nvidia1 cannot be opened: the device cgroup of this container or session denies 195:1" in lines[1]


def test_mig_devices_count_by_what_the_device_cgroup_allows_too(
    tmp_path: Path, in_device_cgroup: Callable[..., list[str]]
) -> None:
    """Missing nodes decide nothing: the driver's tools create them when an instance is first used."""
    root = build(tmp_path / "host", 1, mig=["7"])
    host = Host(str(root))
    gpu = read_machine_gpus(host, "desktop").gpus[0]
    every = list_mig_instance_ids(host, gpu)
    assert len(every) == 7
    gi, ci = every[2]
    own = [f"c 235:{3 + gi * 9 + more} r" for more in (0, ci + 1)]
    assert in_device_cgroup(root, "c 195:0 rw", *own)[-1] == f"mig ({gi}, {ci})"
    (root / ".gpu-oci-hook-simulate").unlink()
    shutil.rmtree(root / "dev/nvidia-caps")
    assert list_mig_instance_ids(host, gpu) == every
    assert in_device_cgroup(root, "c 195:0 rw", *own)[-1] == f"mig ({gi}, {ci})"


def test_optional_nodes_count_by_what_the_device_cgroup_allows_too(
    tmp_path: Path, in_device_cgroup: Callable[..., list[str]]
) -> None:
    root = build(tmp_path / "host", 1, features=("gdrcopy",), imex=2)
    code = """
from gpu_oci_hook.host.device_nodes import read_device_majors
from gpu_oci_hook.host.optional.features import find_feature, find_imex_channels
from gpu_oci_hook.host.optional.graphics import add_graphics_items
from gpu_oci_hook.model.optional_devices import OptionalItems
host = Host(sys.argv[2])
majors = read_device_majors(host)
channels, absent = find_imex_channels(host, majors)
feature = find_feature(host, host, majors, "gdrcopy")
items = OptionalItems()
add_graphics_items(items, host, found.gpus, found.gpus, [])
print(list(channels), absent, [node.path for node in feature.nodes], feature.absent)
print([node.path for node, _ in items.best_effort_nodes], [name for _, name, _ in items.withheld])
"""
    (root / ".gpu-oci-hook-simulate").unlink()
    first, second = in_device_cgroup(root, "c 195:0 rw", "c 234:1 rw", "c 226:128 rw", code=code)[-2:]
    assert first.startswith("[1] [('/dev/nvidia-caps-imex-channels/channel0', ")
    assert "channel0 cannot be opened: the device cgroup of this container or session denies 234:0" in first
    assert "[] [('/dev/gdrdrv', " in first and "denies 508:0" in first
    assert second == "['/dev/dri/renderD128'] ['/dev/dri/card1']"


def test_without_any_node_the_device_cgroup_decides(tmp_path: Path, in_device_cgroup: Callable[..., list[str]]) -> None:
    root = build(tmp_path / "host")
    (root / ".gpu-oci-hook-simulate").unlink()
    for minor in range(4):
        (root / f"dev/nvidia{minor}").unlink()
    assert in_device_cgroup(root, "c 195:2 rw")[0] == "0=2"
    assert not list((tmp_path / "cgroup-state").glob(".gpu-oci-hook-*")), "the node made for the question is gone"


def test_a_simulated_host_serves_where_no_gpu_node_can_be_opened(
    tmp_path: Path, in_device_cgroup: Callable[..., list[str]]
) -> None:
    """In an unprivileged container `simulate` can create nodes, and nobody can open them."""
    assert in_device_cgroup(build(tmp_path / "host", 2))[0] == "0=1 1=0"
