"""Every engine, every promise: a container that asks for GPU 0 gets GPU 0, its libraries and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from support.e2e.engines import ContainerRequest, Engine
from support.e2e.host import SimulatedHost
from support.e2e.matrix import MATRIX
from support.e2e.probe import CONTROL_NODES, LIBRARIES, ProbeResult, build_probe_command, parse_probe_output


class Scenes:
    """The containers of one engine, each run once and looked at by several checks."""

    def __init__(self, engine: Engine, host: SimulatedHost) -> None:
        self.engine, self.host = engine, host
        self.env = [f"NVIDIA_VISIBLE_DEVICES={host.cards[0].index}"]

    @cache  # noqa: B019 - lives as long as the session, as it shall
    def normal(self) -> ProbeResult:
        """A container that asks for GPU 0 and runs ldconfig later."""
        words = " ".join(build_probe_command(self.host))
        script = f"{words}; echo @@; ldconfig -p; echo @@; ldconfig; ldconfig -p; echo @@; {words}"
        done = self.engine.run(ContainerRequest(["/bin/sh", "-c", script], self.env)).check()
        first, listed, later, second = done.stdout.split("@@\n")
        seen = parse_probe_output(first)
        return ProbeResult(seen.nodes, seen.made, seen.libraries, listed, later, parse_probe_output(second).libraries)


@pytest.fixture(scope="session")
def scenes(engine: Engine, simulated: SimulatedHost) -> Scenes:
    """The engine's containers."""
    return Scenes(engine, simulated)


def allowed_nodes(scenes: Scenes) -> None:
    seen = scenes.normal()
    wanted = (*CONTROL_NODES, scenes.host.cards[0].node)
    assert {node: seen.nodes[node] for node in wanted} == dict.fromkeys(wanted, "ENXIO")


def other_gpu(scenes: Scenes) -> None:
    """Its node is not there, cannot be made, and if it came in by a mount of the user's, the device cgroup
    refuses it.
    """
    other = scenes.host.cards[1]
    seen = scenes.normal()
    assert seen.nodes[other.node] == "ENOENT"
    if scenes.engine.user_namespace:
        assert seen.made[other.numbers] == "mknod EPERM"
    elif scenes.engine.device_cgroup:
        assert seen.made[other.numbers] == "EPERM"
    if scenes.engine.device_cgroup:
        bind = [(f"{scenes.host.root}{other.node}", "/dev/smuggled")]
        done = scenes.engine.run(
            ContainerRequest(["/probe", "--node", "/dev/smuggled"], scenes.env, binds=bind)
        ).check()
        assert parse_probe_output(done.stdout).nodes == {"/dev/smuggled": "EPERM"}


def libraries(scenes: Scenes) -> None:
    assert scenes.normal().libraries == dict.fromkeys(LIBRARIES, "ok")


def listed(scenes: Scenes) -> None:
    text = scenes.normal().listed
    assert "libcuda.so.1 (" in text
    assert "libc.so.6 (" in text, "the image's own libraries are gone from the cache"


def later_ldconfig(scenes: Scenes) -> None:
    seen = scenes.normal()
    assert "libcuda.so.1 (" in seen.listed_later
    assert seen.libraries_later == dict.fromkeys(LIBRARIES, "ok")


def read_only(scenes: Scenes) -> None:
    done = scenes.engine.run(ContainerRequest(build_probe_command(scenes.host), scenes.env, read_only=True)).check()
    seen = parse_probe_output(done.stdout)
    assert seen.libraries == dict.fromkeys(LIBRARIES, "ok")
    assert seen.nodes[scenes.host.cards[0].node] == "ENXIO"
    refused = scenes.engine.run(ContainerRequest(["/bin/touch", "/usr/written"], scenes.env, read_only=True))
    assert "Read-only file system" in refused.text, refused


def executed(scenes: Scenes) -> None:
    name = scenes.engine.background(ContainerRequest(["/bin/sleep", "1000"], scenes.env))
    try:
        seen = parse_probe_output(scenes.engine.exec(name, build_probe_command(scenes.host)).check().stdout)
    finally:
        scenes.engine.remove(name)
    assert seen.libraries == dict.fromkeys(LIBRARIES, "ok")
    assert seen.nodes[scenes.host.cards[0].node] == "ENXIO"
    assert seen.nodes[scenes.host.cards[1].node] == "ENOENT"


def every_gpu(scenes: Scenes) -> None:
    done = scenes.engine.run(ContainerRequest(build_probe_command(scenes.host), ["NVIDIA_VISIBLE_DEVICES=all"])).check()
    nodes = parse_probe_output(done.stdout).nodes
    assert nodes == dict.fromkeys(nodes, "ENXIO")


def asks_nothing(scenes: Scenes) -> None:
    seen = parse_probe_output(scenes.engine.run(ContainerRequest(build_probe_command(scenes.host))).check().stdout)
    assert seen.nodes == dict.fromkeys(seen.nodes, "ENOENT")
    assert all("cannot open shared object file" in answer for answer in seen.libraries.values())


def failure(scenes: Scenes) -> None:
    done = scenes.engine.run(ContainerRequest(build_probe_command(scenes.host), ["NVIDIA_VISIBLE_DEVICES=9"]))
    assert done.status == scenes.engine.refusal, done
    assert "NVIDIA_VISIBLE_DEVICES" in done.text, done
    assert "This host has GPUs 0 to 1" in done.text, done
    assert "Traceback" not in done.text, done


CHECKS: dict[str, Callable[[Scenes], None]] = {
    "nodes ENXIO": allowed_nodes,
    "other GPU denied": other_gpu,
    "all GPUs": every_gpu,
    "dlopen": libraries,
    "ldconfig -p": listed,
    "later ldconfig": later_ldconfig,
    "read-only": read_only,
    "exec": executed,
    "asks nothing": asks_nothing,
    "failure told": failure,
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda name: name.replace(" ", "-"))
def test_matrix(scenes: Scenes, check: str) -> None:
    row = scenes.engine.name if scenes.engine.device_cgroup else f"{scenes.engine.name} (no device cgroup)"
    MATRIX.note(row, check, "FAILED")
    CHECKS[check](scenes)
    MATRIX.note(row, check, "ok")
