"""docker's `--gpus` in all its forms: with plain runc and our prestart hook, and beside our runtime, never twice."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.e2e import machine
from support.e2e.engines import ContainerRequest, Docker, EngineHome
from support.e2e.hook_engines import HookedDocker, write_hook
from support.e2e.host import InstalledRuntime, SimulatedHost
from support.e2e.probe import CONTROL_NODES, build_probe_command, parse_probe_output
from support.e2e.requirements import require_programs

UTILITY = {"libnvidia-ml.so.1"}
COMPUTE = {"libcuda.so.1", "libcuda.so"}
# docker gives a request without capabilities the capability "gpu", which means the runtime's default.
EVERYTHING = UTILITY | COMPUTE


class BesideOurRuntime(Docker):
    """docker whose runtime is ours, and whose daemon finds NVIDIA's name for our hook, too."""

    hook = Path()

    def __init__(self, *, remap: bool = False) -> None:
        super().__init__(remap=remap)
        self.name = f"{self.name} beside our runtime"

    def start(self, place: EngineHome) -> None:
        self.path = f"{self.hook.parent}:{self.path}"
        super().start(place)


@pytest.fixture(
    scope="module",
    params=[HookedDocker(), HookedDocker(remap=True), BesideOurRuntime(), BesideOurRuntime(remap=True)],
    ids=lambda engine: engine.name.replace(" ", "-"),
)
def docker(
    request: pytest.FixtureRequest,
    workspace: Path,
    image: Path,
    runtime: InstalledRuntime,
    runtime_for: Callable[[str], Path],
    simulated: SimulatedHost,
) -> Iterator[HookedDocker | BesideOurRuntime]:
    engine: HookedDocker | BesideOurRuntime = request.param
    require_programs(*engine.programs)
    directory = Path(tempfile.mkdtemp(prefix="g-", dir=workspace))
    directory.chmod(0o755)
    engine.hook = write_hook(directory / "hook", runtime.shim, simulated.root)
    try:
        engine.start(EngineHome(directory, image, runtime_for))
        yield engine
    finally:
        try:
            engine.stop()
        finally:
            machine.remove_tree(directory)


# The value of --gpus, with the UUIDs of the host's GPUs in place of {0} and {1}; the GPUs and libraries that it gives.
FORMS: dict[str, tuple[tuple[int, ...], set[str]]] = {
    "all": ((0, 1), EVERYTHING),
    "-1": ((0, 1), EVERYTHING),
    "2": ((0, 1), EVERYTHING),
    "1": ((0,), EVERYTHING),
    "count=1": ((0,), EVERYTHING),
    "device=1": ((1,), EVERYTHING),
    "device={1}": ((1,), EVERYTHING),
    '"device=0,{1}"': ((0, 1), EVERYTHING),
    '"device=0,1"': ((0, 1), EVERYTHING),
    '"device=0","capabilities=compute,utility"': ((0,), EVERYTHING),
    '"capabilities=compute,utility","device=1"': ((1,), EVERYTHING),
    "device=1,capabilities=utility": ((1,), UTILITY),
    "all,capabilities=utility": ((0, 1), UTILITY),
    '"device=0",capabilities=compute': ((0,), COMPUTE),
    "driver=nvidia,device=1": ((1,), EVERYTHING),
    '"device=1","options=nothing=true"': ((1,), EVERYTHING),
    "0": ((), set()),
}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.replace(" ", "-"))
def test_each_form_gives_its_gpus_and_its_libraries_once(
    docker: HookedDocker | BesideOurRuntime, simulated: SimulatedHost, form: str
) -> None:
    indices, libraries = FORMS[form]
    value = form.format(*(card.uuid for card in simulated.cards))
    words = " ".join(build_probe_command(simulated))
    script = f"{words}; echo @@; cat /proc/self/mountinfo"
    done = docker.run(ContainerRequest(["/bin/sh", "-c", script], options=["--gpus", value])).check()
    line, table = done.stdout.split("@@\n")
    seen = parse_probe_output(line)
    assert {card.index for card in simulated.cards if seen.nodes[card.node] == "ENXIO"} == set(indices)
    assert {seen.nodes[card.node] for card in simulated.cards if card.index not in indices} <= {"ENOENT"}
    assert {name for name, answer in seen.libraries.items() if answer == "ok"} == libraries
    assert seen.nodes["/dev/nvidiactl"] == ("ENXIO" if libraries else "ENOENT")
    assert seen.nodes[CONTROL_NODES[1]] == ("ENXIO" if libraries & COMPUTE else "ENOENT")
    if not set(indices) & {1} and not docker.user_namespace:
        assert seen.made == {simulated.cards[1].numbers: "EPERM"}
    points = list_driver_points(table)
    assert len(points) == len(set(points)), "something is mounted twice"
    assert bool(points) == bool(libraries)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("3", "there is no GPU 2"),
        ("device=9", "there is no GPU 9"),
        ("device=GPU-00000000-0000-0000-0000-000000000000", "there is no GPU"),
        ('"device=0","capabilities=flying"', "could not select device driver"),  # by docker itself
    ],
)
def test_what_cannot_be_given_stops_the_container_with_the_reason(
    docker: HookedDocker | BesideOurRuntime, value: str, said: str
) -> None:
    done = docker.run(ContainerRequest(["/bin/true"], options=["--gpus", value]))
    assert done.status == docker.refusal, done
    assert said in done.text, done
    assert "Traceback" not in done.text


def test_the_option_counts_and_not_the_variable_of_the_image(
    docker: HookedDocker | BesideOurRuntime, simulated: SimulatedHost
) -> None:
    """docker appends its own entry, and of repeated ones the last counts."""
    options = ["--env", "NVIDIA_VISIBLE_DEVICES=all", "--gpus", "device=1"]
    done = docker.run(ContainerRequest(build_probe_command(simulated), options=options)).check()
    nodes = parse_probe_output(done.stdout).nodes
    assert {card.index for card in simulated.cards if nodes[card.node] == "ENXIO"} == {1}


def test_of_several_requests_the_last_counts_and_nothing_is_mounted_twice(
    docker: HookedDocker | BesideOurRuntime, simulated: SimulatedHost
) -> None:
    """docker adds a variable and the hook for each, as compose does for several device requests of a service."""
    words = " ".join(build_probe_command(simulated))
    script = f"{words}; echo @@; cat /proc/self/mountinfo"
    options = ["--gpus", "device=0", "--gpus", "device=1"]
    line, table = docker.run(ContainerRequest(["/bin/sh", "-c", script], options=options)).check().stdout.split("@@\n")
    seen = parse_probe_output(line)
    assert {card.index for card in simulated.cards if seen.nodes[card.node] == "ENXIO"} == {1}
    assert {name for name, answer in seen.libraries.items() if answer == "ok"} == EVERYTHING
    assert list_driver_points(table) == sorted(set(list_driver_points(table)))


def list_driver_points(table: str) -> list[str]:
    """The mount points of driver files in a mount table, each as often as something is mounted on it."""
    points = [entry.split(" ")[4] for entry in table.splitlines()]
    return sorted(point for point in points if "nvidia" in point or "libcuda" in point)
