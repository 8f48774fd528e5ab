"""`explain` of running containers by the names that their engines give them, without asking a daemon."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.e2e import machine
from support.e2e.engines import BareRuntime, Containerd, ContainerRequest, Docker, Engine, Podman
from support.e2e.host import InstalledRuntime, SimulatedHost


class Running:
    """A container that runs and has requested GPU 0, and `explain` for it."""

    def __init__(self, engine: Engine, runtime: InstalledRuntime, host: SimulatedHost) -> None:
        self.engine = engine
        self.program = runtime.shim.with_name("gpu-oci-hook")
        low_level = engine.low_level if isinstance(engine, BareRuntime) else "runc"
        self.config = runtime.wrapper(low_level, host.root).with_suffix(".toml")
        self.name = engine.background(ContainerRequest(["/bin/sleep", "300"], ["NVIDIA_VISIBLE_DEVICES=0"]))

    @property
    def reference(self) -> str:
        """The container's name for `explain`; "" for a bare runtime, which gives its bundle's name to nobody."""
        if isinstance(self.engine, Containerd):
            return f"containerd:e2e/{self.name}"
        if isinstance(self.engine, Docker):
            return f"docker:{self.name[:12]}"
        return f"podman:{self.name[:12]}" if isinstance(self.engine, Podman) else ""

    def find_pid(self) -> int:
        """Return the container's first process."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if path.read_bytes() == b"/bin/sleep\x00300\x00":
                    return int(path.parent.name)
            except OSError:
                continue
        raise AssertionError("the container does not run")

    def explain(self, *words: str) -> machine.CommandResult:
        """Run `explain` as root, in the machine's own namespaces."""
        return machine.run_command([str(self.program), "explain", *words, "--config", str(self.config)])

    def explain_as_data(self, *words: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.explain(*words, "-o", "json").check().stdout)
        return document


@pytest.fixture(scope="module")
def running(engine: Engine, runtime: InstalledRuntime, simulated: SimulatedHost) -> Iterator[Running]:
    made = Running(engine, runtime, simulated)
    yield made
    engine.remove(made.name)


def test_a_running_container_has_all_of_its_plan(running: Running) -> None:
    """The plan is the one of its start, and the root file system is seen even where only the engine has it mounted."""
    words = [running.reference]
    if isinstance(running.engine, BareRuntime):
        words = ["--bundle", str(running.engine._bundles[running.name])]
    answer = running.explain(*words).check()
    assert "\ninjected (already in config.json)\n" in answer.stdout, answer.text
    assert "the container gets the driver and 1 of 2 GPUs\n" in answer.stdout
    assert "\n  links\n" in answer.stdout and "leftover" not in answer.stdout and "-> " in answer.stdout
    document = running.explain_as_data(*words)
    assert document["running"] is bool(running.reference)
    assert document["found"]["complete"] and not document["found"]["missing_sources"], document["found"]
    assert document["warnings"] == []


def test_a_process_names_its_container(running: Running) -> None:
    pid = running.find_pid()
    if not running.reference:
        answer = running.explain("--pid", str(pid))
        assert answer.status == 1 and "no container of this process was found" in answer.stderr
        return
    by_pid, by_name = running.explain_as_data("--pid", str(pid)), running.explain_as_data(running.reference)
    assert by_pid["bundle"] == by_name["bundle"] and by_pid["edits"] == by_name["edits"]


def test_a_name_of_the_engines_own_choice_is_found(running: Running) -> None:
    if not isinstance(running.engine, (Docker, Podman)):
        return  # this engine gives no names
    kind = "docker" if isinstance(running.engine, Docker) else "podman"
    words = ("inspect", "--format", "{{.Name}}", running.name)
    ask = running.engine.command if isinstance(running.engine, Docker) else running.engine._podman
    name = ask(*words).check().stdout.strip().removeprefix("/")
    assert name in running.explain(f"{kind}:{name}").check().stdout.splitlines()[0]


def test_an_unknown_name_lists_the_running_ones(running: Running) -> None:
    if not running.reference:
        return  # this engine gives no names
    answer = running.explain(f"{running.reference.partition(':')[0]}:none-of-this-name")
    assert answer.status == 1 and "Running: " in answer.stderr, answer.text
