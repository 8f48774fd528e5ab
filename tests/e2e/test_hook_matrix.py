"""Every promise of the matrix again, with plain runc or crun and our prestart hook in the place of our runtime."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_matrix import CHECKS, Scenes

from support.e2e import machine
from support.e2e.engines import ContainerRequest, EngineHome
from support.e2e.hook_engines import HookEngine, list_hook_engines, write_hook
from support.e2e.host import InstalledRuntime, SimulatedHost
from support.e2e.matrix import MATRIX
from support.e2e.probe import build_probe_command
from support.e2e.requirements import require_programs

HOOK_LOG = Path("/run/gpu-oci-hook/hook.log")


@pytest.fixture(scope="module", params=list_hook_engines(), ids=lambda engine: engine.name.replace(" ", "-"))
def hook_scenes(
    request: pytest.FixtureRequest, workspace: Path, image: Path, runtime: InstalledRuntime, simulated: SimulatedHost
) -> Iterator[Scenes]:
    """The containers of every engine in turn."""
    engine: HookEngine = request.param
    require_programs(*engine.programs)
    directory = Path(tempfile.mkdtemp(prefix="h-", dir=workspace))
    directory.chmod(0o755)
    engine.hook = write_hook(directory / "hook", runtime.shim, simulated.root)
    try:
        engine.start(EngineHome(directory, image, lambda name: Path(machine.find_program(name))))
        yield Scenes(engine, simulated)
    finally:
        try:
            engine.stop()
        finally:
            machine.remove_tree(directory)


def failure_is_logged(scenes: Scenes) -> None:
    """crun, and podman at the stage precreate, discard what hooks print, so the reason is in the hook log only."""
    done = scenes.engine.run(ContainerRequest(build_probe_command(scenes.host), ["NVIDIA_VISIBLE_DEVICES=9"]))
    assert done.status != 0
    assert "executing" in done.text and "hook" in done.text, done
    if "rootless" in scenes.engine.name:
        return  # podman calls the hook without XDG_RUNTIME_DIR, so this user has no hook log
    last = HOOK_LOG.read_text().splitlines()[-1]
    assert "NVIDIA_VISIBLE_DEVICES" in last
    assert "This host has GPUs 0 to 1" in last


@pytest.mark.parametrize("check", CHECKS, ids=lambda name: name.replace(" ", "-"))
def test_hook_matrix(hook_scenes: Scenes, check: str) -> None:
    engine = hook_scenes.engine
    MATRIX.note(engine.name, check, "FAILED")
    if check == "failure told" and ("crun" in engine.name or "precreate" in engine.name):
        failure_is_logged(hook_scenes)
    else:
        CHECKS[check](hook_scenes)
    MATRIX.note(engine.name, check, "ok")
