"""MIG devices in real containers: a container opens its own capability nodes, and the kernel denies its neighbour's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook.simulate import host_tree
from support.e2e import engines, machine
from support.e2e.engines import BareRuntime, ContainerRequest
from support.e2e.host import InstalledRuntime
from support.e2e.requirements import require_programs
from support.nvml_double import NvmlDouble

CAPS = 235


@pytest.fixture(scope="module")
def double(workspace: Path) -> NvmlDouble:
    """A host with a GPU in seven parts and one in four devices, and an NVML that knows their UUIDs."""
    require_programs("gcc")
    return NvmlDouble(host_tree.build_host(workspace / "mig", gpus=2, mig=["7", "3g,1c.2g,1g"]))


@pytest.fixture(scope="module", params=[("runc", "v1"), ("runc", "v2"), ("crun", "v1")], ids="-".join)
def bare_runtime(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, image: Path, runtime: InstalledRuntime,
    double: NvmlDouble,
) -> Iterator[BareRuntime]:  # fmt: skip
    """Bundles by hand, given to each runtime through the shim."""
    low_level, cgroup = request.param
    require_programs("runc", low_level)
    bare_runtime = BareRuntime(low_level, cgroup, "run")
    root = Path(double.report.directory)
    place = tmp_path_factory.mktemp("mig")
    bare_runtime.start(engines.EngineHome(place, image, lambda name: runtime.wrapper(name, root)))
    yield bare_runtime
    bare_runtime.stop()
    machine.remove_tree(place)


def cap(minor: int, gi: int, ci: int = -1) -> int:
    """The number of a capability's node, by the driver's formula."""
    return 3 + (minor * 15 + gi) * 9 + ci + 1


def node(number: int) -> str:
    return f"/dev/nvidia-caps/nvidia-cap{number}"


def probed(bare_runtime: BareRuntime, double: NvmlDouble, asked: str, own: set[int], *env: str, **more: Any) -> None:
    """Opens every capability of the host: `own` are the numbers of those that must be open."""
    every = sorted(
        {1, 2}
        | {cap(gpu.minor, one.gi) for gpu in double.report.gpus for one in gpu.mig}
        | {cap(gpu.minor, one.gi, one.ci) for gpu in double.report.gpus for one in gpu.mig}
    )
    assert own < set(every)
    words = ["/probe"]
    for number in every:
        words += ["--read", node(number), "--make", f"{CAPS}:{number}"]
    binds = [(f"{double.report.directory}{node(number)}", f"/dev/smuggled{number}") for number in every]
    words += [word for number in every for word in ("--read", f"/dev/smuggled{number}")]
    done = bare_runtime.run(
        ContainerRequest(words, [f"NVIDIA_VISIBLE_DEVICES={asked}", *env], binds=binds, **more)
    ).check()
    answer = json.loads(done.stdout)
    for number in every:
        mine = number in own
        # Its own is there and can be opened but for the driver; another one is not there, and neither made nor
        # brought in by a mount does it open.
        assert answer["read"][node(number)] == ("ENXIO" if mine else "ENOENT"), number
        assert answer["made"][f"{CAPS}:{number}"] == ("ENXIO" if mine else "EPERM"), number
        assert answer["read"][f"/dev/smuggled{number}"] == ("ENXIO" if mine else "EPERM"), number


def test_a_container_opens_the_nodes_of_its_mig_device_and_not_its_neighbours(
    bare_runtime: BareRuntime, double: NvmlDouble
) -> None:
    minor = double.report.gpus[0].minor
    probed(bare_runtime, double, "0:1", {cap(minor, 8), cap(minor, 8, 0)})


def test_one_of_two_compute_instances_does_not_open_the_other(bare_runtime: BareRuntime, double: NvmlDouble) -> None:
    minor = double.report.gpus[1].minor
    probed(bare_runtime, double, "1:2", {cap(minor, 3), cap(minor, 3, 1)})


def test_a_uuid_that_nvml_knows_gives_the_same(bare_runtime: BareRuntime, double: NvmlDouble) -> None:
    gpu = double.report.gpus[1]
    probed(bare_runtime, double, gpu.mig[0].uuid, {cap(gpu.minor, 1), cap(gpu.minor, 1, 0)})
    assert double.call_count >= 1


def test_a_whole_gpu_in_mig_mode_opens_none_of_its_parts(bare_runtime: BareRuntime, double: NvmlDouble) -> None:
    probed(bare_runtime, double, "0", set())


def test_the_parent_is_open_and_the_other_gpu_is_not(bare_runtime: BareRuntime, double: NvmlDouble) -> None:
    first, second = double.report.gpus
    words = ["/probe", "--node", f"/dev/nvidia{first.minor}", "--node", f"/dev/nvidia{second.minor}"]
    words += ["--make", f"195:{second.minor}"]
    answer = json.loads(bare_runtime.run(ContainerRequest(words, ["NVIDIA_VISIBLE_DEVICES=0:0"])).check().stdout)
    assert answer["nodes"] == {f"/dev/nvidia{first.minor}": "ENXIO", f"/dev/nvidia{second.minor}": "ENOENT"}
    assert answer["made"] == {f"195:{second.minor}": "EPERM"}


def test_a_wrong_device_is_one_line_with_the_valid_ones(bare_runtime: BareRuntime, double: NvmlDouble) -> None:
    done = bare_runtime.run(ContainerRequest(["/probe"], ["NVIDIA_VISIBLE_DEVICES=0:9"]))
    assert done.status != 0
    assert "there is no MIG device 0:9. This host has the MIG devices 0:0 to 0:6" in done.text
    assert "Traceback" not in done.text


def test_configuring_mig_is_for_privileged_containers(bare_runtime: BareRuntime) -> None:
    env = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_MIG_CONFIG_DEVICES=all"]
    done = bare_runtime.run(ContainerRequest(["/probe"], env))
    assert done.status != 0
    assert "CAP_SYS_ADMIN" in done.text
