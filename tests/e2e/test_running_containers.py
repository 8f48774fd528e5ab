"""What happens to containers that run: their resources are updated, and the low-level runtime is another one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.e2e import machine
from support.e2e.engines import BareRuntime, ContainerRequest, EngineHome
from support.e2e.host import InstalledRuntime, SimulatedHost
from support.e2e.requirements import require_programs

GPU0 = ["NVIDIA_VISIBLE_DEVICES=0"]
# The resources of every `podman update`, whatever changes.
PODMAN_RESOURCES: dict[str, Any] = {"devices": [{"allow": False, "access": "rwm"}]}


@pytest.fixture(scope="module", params=[("runc", "v1"), ("crun", "v1"), ("crun", "v2")], ids=" ".join)
def engine(
    request: pytest.FixtureRequest, workspace: Path, image: Path, runtime_for: Callable[[str], Path]
) -> Iterator[BareRuntime]:
    low_level, cgroup = request.param
    require_programs(low_level)
    made = BareRuntime(low_level, cgroup, "create")
    directory = workspace / f"running-{low_level}-{cgroup}"
    directory.mkdir()
    made.start(EngineHome(directory, image, runtime_for))
    yield made
    made.stop()


def open_node(engine: BareRuntime, name: str, node: str) -> str:
    """What the container's attempt to open a node answers."""
    found: dict[str, dict[str, str]] = json.loads(engine.exec(name, ["/probe", "--node", node]).check().stdout)
    return found["nodes"][node]


def is_alive(pid: int) -> bool:
    """Tell whether a process exists that has not ended; one that nobody waits for stays a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("way", ["file", "stdin"])
def test_an_update_leaves_a_running_container_its_gpu(
    engine: BareRuntime, simulated: SimulatedHost, tmp_path: Path, way: str
) -> None:
    node = simulated.cards[0].node
    name = engine.background(ContainerRequest(["/bin/sleep", "60"], GPU0))
    try:
        assert open_node(engine, name, node) == "ENXIO"
        path = tmp_path / "resources.json"
        path.write_text(json.dumps(PODMAN_RESOURCES))
        line = engine.command("update", f"--resources={path if way == 'file' else '-'}", name)
        script = ["/bin/sh", "-c", f'exec "$@" <{path}', "sh", *line]
        machine.run_command(script).check()
        assert open_node(engine, name, node) == "ENXIO"
    finally:
        engine.remove(name)


def test_containers_stay_in_reach_after_the_low_level_runtime_was_changed(
    workspace: Path, image: Path, runtime: InstalledRuntime, simulated: SimulatedHost
) -> None:
    wrapper = runtime.wrapper("runc", simulated.root, name="-changed")
    directory = workspace / "changed"
    directory.mkdir()
    engine = BareRuntime("runc", "v1", "create")
    engine.start(EngineHome(directory, image, lambda _: wrapper))
    name = engine.background(ContainerRequest(["/bin/sleep", "60"], GPU0))
    config = wrapper.with_suffix(".toml")
    try:
        config.write_text(config.read_text().replace('["runc"]', '["crun"]'))
        state = json.loads(machine.run_command(engine.command("state", name)).check().stdout)
        assert state["status"] == "running"
        assert open_node(engine, name, simulated.cards[0].node) == "ENXIO"
        machine.run_command(engine.command("delete", "--force", name)).check()
        assert not is_alive(state["pid"])
        assert machine.run_command(engine.command("state", name)).status != 0
    finally:
        config.write_text(config.read_text().replace('["crun"]', '["runc"]'))
        engine.stop()
