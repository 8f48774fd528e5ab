"""Containers in a container: our runtime, run inside a container that our runtime made, gives that container's GPUs.

The outer container has the whole machine at /host and all capabilities, as an engine in a container has. Its device
cgroup, which the kernel enforces, and its /dev are what our runtime gave it. The inner containers are below its cgroup.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook.simulate import host_tree
from support.e2e import engines, machine
from support.e2e.engines import BareRuntime, ContainerRequest
from support.e2e.host import InstalledRuntime
from support.e2e.requirements import require_programs

# By number, from capability.h. A machine of tests may lack some.
CAPABILITIES = {
    0: "CHOWN", 1: "DAC_OVERRIDE", 3: "FOWNER", 5: "KILL", 6: "SETGID", 7: "SETUID", 8: "SETPCAP",
    10: "NET_BIND_SERVICE", 12: "NET_ADMIN", 18: "SYS_CHROOT", 21: "SYS_ADMIN", 24: "SYS_RESOURCE", 27: "MKNOD",
    29: "AUDIT_WRITE", 31: "SETFCAP", 38: "PERFMON", 39: "BPF",
}  # fmt: skip

# {dev} is empty, or binds the container's own /dev over that of the simulated host.
OUTER = """set -e
mount -t proc proc /host/proc
mount -t tmpfs tmpfs /host/run
{dev}
exec /bin/busybox chroot /host /bin/sh {inner}
"""


@dataclass
class NestedHost:
    """A simulated host as the inner runtime sees it, and what runs there.

    Arguments:
        report: the host.
        outer: the runtime of the outer container. inner: the runtime in it.
        root: the inner runtime's host root.
    """

    report: host_tree.SimulatedHost
    outer: Path
    inner: Path
    root: Path


@pytest.fixture(scope="module")
def nested_host(workspace: Path, runtime: InstalledRuntime) -> Callable[..., NestedHost]:
    """Build a host and its copy for inside; the copy does not count as simulated, so that its nodes are judged."""

    def build(name: str, **options: Any) -> NestedHost:
        report = host_tree.build_host(workspace / name, **options)
        assert not report.left_out
        copy = workspace / f"{name}-inside"
        if not copy.exists():
            machine.run_command(["/bin/cp", "-a", str(report.directory), str(copy)]).check()
            (copy / ".gpu-oci-hook-simulate").unlink()
        outer = runtime.wrapper("runc", workspace / name)
        return NestedHost(report, outer, runtime.wrapper(machine.find_program("runc"), copy, name="-inside"), copy)

    return build


@pytest.fixture(scope="module", params=["v1", "v2"])
def bare_runtime(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, image: Path, runtime: InstalledRuntime
) -> Iterator[BareRuntime]:
    """Runc on each cgroup version; `place.runtime` is set by `run_inside`."""
    require_programs("runc", "busybox", "gcc", "unshare", "nsenter")
    bare_runtime = BareRuntime("runc", request.param, "run")
    place = tmp_path_factory.mktemp("nested")
    bare_runtime.start(engines.EngineHome(place, image, lambda name: Path(machine.find_program(name))))
    yield bare_runtime
    bare_runtime.stop()
    machine.remove_tree(place)


@dataclass(frozen=True)
class InnerResult:
    """How an inner container ended; `opened` is what the probe could open of each node it was asked about."""

    status: int
    text: str
    opened: dict[str, str]
    made: dict[str, str]


def list_own_capabilities() -> list[str]:
    """Return the capabilities of this process, of those that an engine in a container uses."""
    status = Path("/proc/self/status").read_text()
    effective = int(next(line for line in status.splitlines() if line.startswith("CapEff:")).split()[1], 16)
    return [f"CAP_{name}" for number, name in CAPABILITIES.items() if effective >> number & 1]


def run_inside(
    bare_runtime: BareRuntime,
    host: NestedHost,
    given: str,
    asked: Sequence[str],
    words: Sequence[str],
    *,
    own_dev: bool,
    capabilities: str = "utility,compute",
) -> dict[str, InnerResult]:
    """Start a container that gets `given`, and in it one container for each request of `asked`.

    Arguments:
        words: the probe's words.
        capabilities: the outer container's driver capabilities. The inner ones have the default.
        own_dev: the inner runtime sees the outer container's /dev, else one with every node of the machine.
    """
    bare_runtime.place.runtime = lambda _: host.outer
    script = bare_runtime.place.directory / "outer.sh"
    outer = bare_runtime.bundle(
        ContainerRequest(
            ["/bin/sh", f"/host{script}"],
            [f"NVIDIA_VISIBLE_DEVICES={given}", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}"],
            binds=[("/", "/host")],
        )
    )
    config = json.loads((outer / "config.json").read_text())
    for names in config["process"]["capabilities"].values():
        names[:] = list_own_capabilities()
    config["linux"].pop("maskedPaths", None)
    config["linux"].pop("readonlyPaths", None)
    (outer / "config.json").write_text(json.dumps(config))
    inner: dict[str, Path] = {}
    lines = []
    for number, selector in enumerate(asked):
        bundle = bare_runtime.bundle(ContainerRequest(["/probe", *words], [f"NVIDIA_VISIBLE_DEVICES={selector}"]))
        inner_config = json.loads((bundle / "config.json").read_text())
        inner_config["linux"]["cgroupsPath"] = f"{config['linux']['cgroupsPath']}/inner{number}"
        (bundle / "config.json").write_text(json.dumps(inner_config))
        inner[selector] = bundle
        state = f"--root /run/inner run --bundle {bundle} inner{number}"
        lines.append(f"{host.inner} {state} >{bundle}/out 2>{bundle}/err </dev/null; echo $? >{bundle}/status")
    inside = bare_runtime.place.directory / "inside.sh"
    inside.write_text("\n".join(lines) + "\n")
    dev = f"mount -o rbind /dev /host{host.root}/dev" if own_dev else ""
    script.write_text(OUTER.format(dev=dev, inner=inside))
    bare_runtime.start_bundle(outer).check()
    results = {}
    for selector, bundle in inner.items():
        out = (bundle / "out").read_text()
        answer = json.loads(out) if out.startswith("{") else {}
        results[selector] = InnerResult(
            int((bundle / "status").read_text()),
            (bundle / "err").read_text(),
            {**answer.get("nodes", {}), **answer.get("read", {})},
            answer.get("made", {}),
        )
        shutil.rmtree(bundle)
    machine.remove_tree(outer)
    return results


def opened(result: InnerResult) -> set[str]:
    """The nodes that a container could open: without a driver the kernel says that there is no such device."""
    assert result.status == 0, result.text
    return {path for path, answer in result.opened.items() if answer == "ENXIO"}


@pytest.mark.parametrize("own_dev", [True, False], ids=["its-own-dev", "every-node"])
def test_inner_containers_get_exactly_the_outer_containers_gpus(
    bare_runtime: BareRuntime, nested_host: Callable[..., NestedHost], *, own_dev: bool
) -> None:
    """The outer container has GPUs 1 and 3 of four; inside they are GPUs 0 and 1, as for nvidia-smi there."""
    host = nested_host("nested-host", gpus=4)
    first, second = host.report.gpus[1], host.report.gpus[3]
    absent = host.report.gpus[2]
    nodes = {gpu.index: f"/dev/nvidia{gpu.minor}" for gpu in host.report.gpus}
    words = [word for gpu in host.report.gpus for word in ("--node", nodes[gpu.index], "--make", f"195:{gpu.minor}")]
    expected = {
        "all": {nodes[1], nodes[3]},
        "0": {nodes[1]},
        "1": {nodes[3]},
        first.uuid: {nodes[1]},
        second.uuid: {nodes[3]},
        f"{second.uuid},0": {nodes[1], nodes[3]},
        "nvidia.com/gpu=1": {nodes[3]},
    }
    refused = ("2", absent.uuid)
    results = run_inside(bare_runtime, host, "1,3", [*expected, *refused, "none"], words, own_dev=own_dev)
    for selector, own in expected.items():
        result = results[selector]
        assert opened(result) == own, selector
        assert all(result.opened[node] == "ENOENT" for node in set(nodes.values()) - own), selector
        # What it makes itself does not open either, unless it is its own.
        assert {f"/dev/nvidia{numbers[4:]}" for numbers, answer in result.made.items() if answer == "ENXIO"} == own
    for selector in refused:
        assert results[selector].status != 0
        assert "there is no GPU" in results[selector].text
        assert "cannot be given to containers here" in results[selector].text
    assert opened(results["none"]) == set()


@pytest.mark.parametrize("own_dev", [True, False], ids=["its-own-dev", "every-node"])
def test_inner_containers_get_exactly_the_outer_containers_mig_devices(
    bare_runtime: BareRuntime, nested_host: Callable[..., NestedHost], *, own_dev: bool
) -> None:
    host = nested_host("nested-mig", gpus=1, mig=["7"])
    (gpu,) = host.report.gpus
    numbers = {part: (3 + part.gi * 9, 3 + part.gi * 9 + part.ci + 1) for part in gpu.mig}
    given = gpu.mig[2]
    words = [word for pair in numbers.values() for n in pair for word in ("--read", f"/dev/nvidia-caps/nvidia-cap{n}")]
    own = {f"/dev/nvidia-caps/nvidia-cap{number}" for number in numbers[given]}
    asked = ("all", "0:0", f"MIG-{gpu.uuid}/{given.gi}/{given.ci}")
    absent = ("0:1", f"MIG-{gpu.uuid}/{gpu.mig[0].gi}/{gpu.mig[0].ci}")
    results = run_inside(bare_runtime, host, "0:2", [*asked, *absent], words, own_dev=own_dev)
    for selector in asked:
        assert opened(results[selector]) == own, selector
    for selector in absent:
        assert results[selector].status != 0
        assert "no MIG device" in results[selector].text


def test_a_container_with_the_driver_alone_has_no_gpu_for_others(
    bare_runtime: BareRuntime, nested_host: Callable[..., NestedHost]
) -> None:
    """It has the control nodes, and the driver's files below /proc show every GPU."""
    host = nested_host("nested-host", gpus=4)
    for own_dev in (True, False):
        results = run_inside(
            bare_runtime, host, "none", ["all", "0", "none"], ["--node", "/dev/nvidia0"], own_dev=own_dev
        )
        for selector in ("all", "0"):
            assert results[selector].status != 0
            assert "none of its GPUs can be used" in results[selector].text
        assert opened(results["none"]) == set()


@pytest.mark.parametrize("own_dev", [True, False], ids=["its-own-dev", "every-node"])
def test_a_capability_that_the_outer_container_lacks_is_refused_with_the_reason(
    bare_runtime: BareRuntime, nested_host: Callable[..., NestedHost], *, own_dev: bool
) -> None:
    """The kernel would let nobody in there open /dev/nvidia-uvm."""
    host = nested_host("nested-host", gpus=4)
    words = ["--node", "/dev/nvidia0"]
    (result,) = run_inside(bare_runtime, host, "1", ["all"], words, own_dev=own_dev, capabilities="utility").values()
    assert result.status != 0
    assert "/dev/nvidia-uvm is required for compute, but" in result.text
    assert "the device cgroup of this container or session denies 510:0" in result.text
