"""Whatever a request comes to, the container starts: below our runtime, and with our prestart hook below plain runc.

Each outcome of `[request]` is combined with each way to ask, a variable, a device mount, docker's `--gpus` hook, and a
hook of hooks.d with "always": true.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import cdi_edits
from support.e2e import machine
from support.e2e.engines import BareRuntime, ContainerRequest, Docker, EngineHome
from support.e2e.host import InstalledRuntime, SimulatedHost, build_host
from support.e2e.requirements import require_programs

ALIAS = "nvidia-container-runtime-hook"
DEVICES = "/run/nvidia-container-devices"

# Outcome: (lines of config.toml, the value asked for).
OUTCOMES: dict[str, tuple[str, str | None]] = {
    "granted": ("", "0"),
    "env is privileged": ('[request]\nenv = "privileged"\nvolume-mounts = false\n', "0"),
    "env is never": ('[request]\nenv = "never"\nvolume-mounts = false\n', "0"),
    "no GPU": ('[request]\nmissing-gpu = "warn"\n', "0"),
    "void": ("", "void"),
    "empty": ("", ""),
    "nothing asked": ("", None),
    "driver only": ("", "none"),
}
WAYS = ("variable", "device mount", "docker --gpus", "hooks.d")
GETS_DRIVER = ("granted", "driver only")


class Scene:
    """Bundles of one outcome, below our runtime or below plain runc."""

    def __init__(self, directory: Path, runtime: InstalledRuntime, host: SimulatedHost, outcome: str) -> None:
        extra, self.value = OUTCOMES[outcome]
        name = outcome.replace(" ", "-")
        self.wrapper = runtime.wrapper("runc", host.root, extra=extra, name=name)
        self.config = self.wrapper.with_suffix(".toml")
        self.alias = cdi_edits.write_hook_launcher(directory / ALIAS, source=runtime.code)

    def add_request(self, spec: dict[str, Any], way: str) -> None:
        """Ask for the outcome's value in one of the ways."""
        if self.value is not None and way == "device mount" and self.value not in ("void", ""):
            mount = {"destination": f"{DEVICES}/{self.value}", "source": "/dev/null", "type": "bind"}
            spec["mounts"].append({**mount, "options": ["bind"]})
        elif self.value is not None:
            spec["process"]["env"].append(f"NVIDIA_VISIBLE_DEVICES={self.value}")
        if way in ("docker --gpus", "hooks.d"):
            args = [str(self.alias), "prestart"] if way == "docker --gpus" else [ALIAS, "prestart"]
            environment = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", f"GPU_OCI_HOOK_CONFIG={self.config}"]
            spec.setdefault("hooks", {}).setdefault("prestart", []).append(
                {"path": str(self.alias), "args": args, "env": environment}
            )


@pytest.fixture(scope="module")
def empty_host(workspace: Path) -> SimulatedHost:
    return build_host(workspace / "host-without-gpus", gpus=0)


@pytest.fixture(scope="module")
def start(workspace: Path, image: Path) -> Iterator[Callable[[Path], BareRuntime]]:
    """Program of a runtime -> runc's command line with that program in its place."""
    started: list[BareRuntime] = []

    def make(program: Path) -> BareRuntime:
        engine = BareRuntime("runc", "v1", "run")
        directory = workspace / f"ways-{len(started)}"
        directory.mkdir()
        engine.start(EngineHome(directory, image, lambda _: program))
        started.append(engine)
        return engine

    yield make
    for engine in started:
        engine.stop()


def run(engine: BareRuntime, scene: Scene, way: str) -> machine.CommandResult:
    bundle = engine.bundle(ContainerRequest(["/bin/sh", "-c", "ls /dev /usr/local/nvidia/lib64 2>/dev/null; true"]))
    spec = json.loads((bundle / "config.json").read_text())
    scene.add_request(spec, way)
    (bundle / "config.json").write_text(json.dumps(spec))
    return engine.start_bundle(bundle)


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_below_our_runtime_every_outcome_starts_and_no_gpu_hook_runs(
    outcome: str, tmp_path: Path, runtime: InstalledRuntime, simulated: SimulatedHost, empty_host: SimulatedHost,
    start: Callable[[Path], BareRuntime],
) -> None:  # fmt: skip
    scene = Scene(tmp_path, runtime, empty_host if outcome == "no GPU" else simulated, outcome)
    scene.alias.write_text("#!/bin/sh\nexit 7\n")  # a hook that were called would stop the container
    engine = start(scene.wrapper)
    for way in WAYS:
        done = run(engine, scene, way)
        assert done.status == 0, (way, done.text)
        assert (simulated.cards[0].node.rpartition("/")[2] in done.stdout.split()) == (outcome == "granted"), way
        assert ("libcuda.so.1" in done.stdout) == (outcome in GETS_DRIVER), way


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_below_plain_runc_every_outcome_starts_and_our_hook_injects_what_is_granted(
    outcome: str, tmp_path: Path, runtime: InstalledRuntime, simulated: SimulatedHost, empty_host: SimulatedHost,
    start: Callable[[Path], BareRuntime],
) -> None:  # fmt: skip
    scene = Scene(tmp_path, runtime, empty_host if outcome == "no GPU" else simulated, outcome)
    engine = start(Path(machine.find_program("runc")))
    for way in WAYS:
        done = run(engine, scene, way)
        assert done.status == 0, (way, done.text)
        has_hook = way in ("docker --gpus", "hooks.d")
        gpu = simulated.cards[0].node.rpartition("/")[2]
        assert (gpu in done.stdout.split()) == (has_hook and outcome == "granted"), way
        assert ("libcuda.so.1" in done.stdout) == (has_hook and outcome in GETS_DRIVER), way


@pytest.mark.parametrize("outcome", ["granted", "env is privileged", "no GPU"])
def test_real_docker_starts_a_container_with_gpus_whatever_the_request_comes_to(
    outcome: str, workspace: Path, image: Path, tmp_path: Path, runtime: InstalledRuntime, simulated: SimulatedHost,
    empty_host: SimulatedHost,
) -> None:  # fmt: skip
    scene = Scene(tmp_path, runtime, empty_host if outcome == "no GPU" else simulated, outcome)
    scene.alias.write_text("#!/bin/sh\nexit 7\n")
    engine = Docker()
    require_programs(*engine.programs)
    engine.path = f"{scene.alias.parent}:{engine.path}"
    directory = Path(tempfile.mkdtemp(prefix="w-", dir=workspace))  # dockerd wants short names
    directory.chmod(0o755)
    engine.start(EngineHome(directory, image, lambda _: scene.wrapper))
    try:
        for options in (["--gpus", "all"], ["--gpus", "0"], []):
            done = engine.run(ContainerRequest(["/bin/sh", "-c", "ls /dev"], options=options))
            assert done.status == 0, (options, done.text)
            given = simulated.cards[0].node.rpartition("/")[2] in done.stdout.split()
            assert given == (outcome == "granted" and options == ["--gpus", "all"])
    finally:
        engine.stop()
        machine.remove_tree(directory)
