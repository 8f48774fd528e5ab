"""kill -9 of attach, of detach and of the prestart hook at each system call that changes something: the next command
repairs what is left or takes it back, and the host has nothing left.
"""

from __future__ import annotations

import collections
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.e2e import engines, machine
from support.e2e.engines import ContainerRequest
from support.e2e.hook_engines import HookedRuntime, write_hook
from support.e2e.host import InstalledRuntime, SimulatedHost
from support.e2e.live_scene import RECORDS, HostileScene, age_temporary_files, list_our_mounts, list_scratch_files

# After each of them something else is left behind. strace counts the calls of each process for itself.
CALLS = (
    *("mkdir", "mkdirat", "mknod", "mknodat", "symlink", "symlinkat", "link", "linkat", "rename", "renameat"),
    *("renameat2", "unlink", "unlinkat", "rmdir", "chmod", "fchmod", "fchmodat", "fchown", "fchownat", "ftruncate"),
    *("open_tree", "move_mount", "mount_setattr", "mount", "umount2", "setns", "unshare", "chroot", "bpf"),
    *("fsync", "flock", "write", "fork", "vfork", "clone", "clone3", "wait4", "kill"),
)
# Every how manyth of these calls is tried: 1 tries all, which takes some minutes for each test.
STRIDE = int(os.environ.get("GPU_OCI_HOOK_KILL_STRIDE", "17"))
_LINE = re.compile(r"(\d+) +(\w+)\(")


@pytest.fixture
def directory(workspace: Path) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="kill-", dir=workspace))
    made.chmod(0o755)
    yield made
    machine.remove_tree(made)


@pytest.fixture(params=["v1", "v2"])
def scene(
    request: pytest.FixtureRequest, directory: Path, image: Path, runtime: InstalledRuntime, simulated: SimulatedHost
) -> Iterator[HostileScene]:
    made = HostileScene(directory, image, runtime, simulated, cgroup=request.param)
    yield made
    made.close()


def trace(*words: str) -> list[str]:
    return [machine.find_program("strace"), "-f", "-qq", *words]


def list_steps(trace_file: Path) -> list[tuple[str, int]]:
    """Return each call of a run with its number in the process that has made most of its kind."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for line in trace_file.read_text().splitlines():
        if match := _LINE.match(line):
            counts[match[2]][match[1]] += 1
    return [(name, number) for name, most in sorted(counts.items()) for number in range(1, max(most.values()) + 1)]


def count_steps(scene: HostileScene, verb: str, *words: str) -> list[tuple[str, int]]:
    file = scene.directory / "trace"
    calls = f"trace={','.join('?' + name for name in CALLS)}"
    machine.run_command([*trace("-e", calls, "-o", str(file)), *scene.command(verb, scene.reference, *words)]).check()
    steps = list_steps(file)
    assert len(steps) > 30, steps
    return steps[::STRIDE]


def kill_at(scene: HostileScene, step: tuple[str, int], verb: str, *words: str) -> machine.CommandResult:
    """Run a command of which the first process that makes this call for the nth time is killed."""
    name, number = step
    inject = f"inject={name}:signal=KILL:when={number}"
    # A trace to nowhere: strace injects only into what it traces.
    command = scene.command(verb, scene.reference, *words)
    return machine.run_command([*trace("-e", f"trace={name}", "-e", inject, "-o", os.devnull), *command])


def recover(scene: HostileScene, number: int) -> None:
    """Do what an operator does after a command that was killed: attach or repair, and in the end detach."""
    age_temporary_files(RECORDS, *(path for path in scene.root.rglob("*") if path.is_dir() and not path.is_symlink()))
    if number % 3 == 0:
        scene.call("repair").check()
    elif number % 3 == 1:
        scene.call("attach", "--gpus", "0").check()
        assert scene.probe().nodes[scene.host.cards[0].node] == "ENXIO"
    scene.call("detach").check()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("verb", ["attach", "detach"])
def test_a_killed_command_is_taken_back_or_repaired(scene: HostileScene, verb: str) -> None:
    words = ["--gpus", "0"] if verb == "attach" else []
    at_start, host_at_start = scene.describe_container(), scene.fingerprint()
    first = scene.host.cards[0].node
    closed = scene.probe().nodes[first]
    if verb == "detach":
        scene.call("attach", "--gpus", "0").check()
    steps = count_steps(scene, verb, *words)
    scene.call("detach").check()
    killed = 0
    for number, step in enumerate(steps):
        if verb == "detach":
            scene.call("attach", "--gpus", "0").check()
        done = kill_at(scene, step, verb, *words)
        killed += done.status != 0
        assert "Traceback" not in done.text, (step, done)
        recover(scene, number)
        assert scene.describe_container() == at_start, (step, done)
        assert scene.fingerprint() == host_at_start, (step, done)
        assert scene.probe().nodes[first] == closed
    assert killed > len(steps) // 2, killed


@pytest.mark.timeout(3600)
def test_a_container_can_be_removed_after_a_killed_command(
    directory: Path, image: Path, runtime: InstalledRuntime, simulated: SimulatedHost
) -> None:
    """Nobody repairs: the container goes, and the next command for any container removes the record of it."""
    steps: list[tuple[str, int]] = []
    number = 0
    while number == 0 or number < len(steps):
        place = directory / f"scene-{number}"
        place.mkdir()
        scene = HostileScene(place, image, runtime, simulated)
        try:
            before = scene.fingerprint()
            if not steps:
                steps = count_steps(scene, "attach", "--gpus", "0")[::3]
                scene.call("detach").check()
            kill_at(scene, steps[number], "attach", "--gpus", "0")
            scene.remove()
            assert list(RECORDS.iterdir()) == [], steps[number]
            assert scene.fingerprint() == before, steps[number]
        finally:
            scene.close()
        number += 1


@pytest.mark.timeout(3600)
def test_a_hook_that_is_killed_at_each_step_leaves_nothing_on_the_host(
    directory: Path, image: Path, runtime: InstalledRuntime, simulated: SimulatedHost
) -> None:
    engine = HookedRuntime("runc", "v1")
    engine.hook = write_hook(directory / "hook", runtime.shim, simulated.root)
    engine.start(engines.EngineHome(directory, image, lambda name: Path(machine.find_program(name))))
    bundle = engine.bundle(ContainerRequest(["/bin/true"], ["NVIDIA_VISIBLE_DEVICES=all"]))
    path = bundle / "config.json"
    spec = json.loads(path.read_text())

    def start(*words: str) -> machine.CommandResult:
        """Run the bundle with the hook below strace."""
        program = directory / "traced-hook"
        program.write_text(f"#!/bin/sh\nexec {' '.join(trace(*words))} {engine.hook} prestart\n")
        program.chmod(0o755)
        hook = {**spec["hooks"]["prestart"][0], "path": str(program)}
        path.write_text(json.dumps({**spec, "hooks": {"prestart": [hook]}}))
        return engine.start_bundle(bundle)

    file = directory / "trace"
    start("-e", f"trace={','.join('?' + name for name in CALLS)}", "-o", str(file)).check()
    steps = list_steps(file)
    assert len(steps) > 30
    before = (list_our_mounts(directory), list_scratch_files())
    killed = 0
    try:
        for name, number in steps[::STRIDE]:
            done = start("-e", f"trace={name}", "-e", f"inject={name}:signal=KILL:when={number}", "-o", os.devnull)
            killed += done.status != 0
            assert (list_our_mounts(directory), list_scratch_files()) == before, (name, number, done)
        assert killed
        assert start("-o", os.devnull).status == 0  # the bundle still starts
    finally:
        engine.stop()
