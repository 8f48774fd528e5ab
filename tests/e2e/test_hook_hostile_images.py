"""Hostile images through our prestart hook below the real runc: the host stays untouched, and the container starts or
fails with a sentence.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.e2e import engines, images, machine
from support.e2e.attacks import ATTACKS, LIBRARY, MUST_START, RUNC_FALLS_FOR, WATCHED
from support.e2e.engines import ContainerRequest
from support.e2e.hook_engines import HookedRuntime, write_hook
from support.e2e.host import InstalledRuntime, SimulatedHost
from support.e2e.host_watch import PATIENCE, RACER, fingerprint_host

# runc itself writes through the link, before it calls the hook.
HOOK_ATTACKS = [name for name in ATTACKS if name not in RUNC_FALLS_FOR]
ROUNDS = int(os.environ.get("GPU_OCI_HOOK_RACE_ROUNDS", "20"))


class HookScene:
    """A watched directory beside bundles whose config.json has the hook."""

    def __init__(self, directory: Path, image: Path, runtime: InstalledRuntime, simulated: SimulatedHost) -> None:
        self.image, self.directory, self.simulated = image, directory, simulated
        self.watched = directory / "watched"
        self.watched.mkdir()
        for name, text in WATCHED.items():
            (self.watched / name).write_text(text)
        self.engine = HookedRuntime("runc", "v1")
        self.engine.hook = write_hook(directory / "hook", runtime.shim, simulated.root)
        self.engine.start(engines.EngineHome(directory, image, lambda name: Path(machine.find_program(name))))

    def fingerprint(self) -> dict[str, object]:
        return fingerprint_host(self.watched, self.simulated)


@pytest.fixture
def scene(tmp_path: Path, image: Path, runtime: InstalledRuntime, simulated: SimulatedHost) -> Iterator[HookScene]:
    scene = HookScene(tmp_path, image, runtime, simulated)
    yield scene
    scene.engine.stop()


def list_mounts_below(directory: Path) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {directory}" in line]


@pytest.mark.parametrize("lacking", ["a node", "a directory with nodes"])
def test_a_directory_of_the_host_on_dev_that_lacks_a_node_stays_as_it_is_and_the_way_out_is_said(
    scene: HookScene, lacking: str
) -> None:
    """`docker run -v DIRECTORY:/dev`: a node that is made there would appear on the host."""
    devices = scene.watched / "dev"
    devices.mkdir()
    first = scene.simulated.cards[0].node
    if lacking == "a directory with nodes":
        first = "/dev/dri/"
        for node in (scene.simulated.root / "dev").glob("nvidia*"):
            if node.is_char_device():
                os.mknod(devices / node.name, node.stat().st_mode, node.stat().st_rdev)
    request = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"]
    bundle = scene.engine.bundle(ContainerRequest(["/bin/true"], request))
    spec = json.loads((bundle / "config.json").read_text())
    spec["mounts"] = [mount for mount in spec["mounts"] if not mount["destination"].startswith("/dev")]
    spec["mounts"].append({"destination": "/dev", "type": "bind", "source": str(devices), "options": ["rbind"]})
    (bundle / "config.json").write_text(json.dumps(spec))
    before, names = scene.fingerprint(), sorted(devices.iterdir())
    done = scene.engine.start_bundle(bundle)
    assert done.status != 0
    said = (
        "the directory that the container mounts there lacks this node, and nothing is created in a mount. Start the "
        "container without that mount, or create the node in the mounted directory first"
    )
    assert re.search(rf"gpu-oci-hook: {first}[^ ]*: {said}", done.text), done
    assert scene.fingerprint() == before
    assert sorted(devices.iterdir()) == names


@pytest.mark.timeout(120)
@pytest.mark.parametrize("attack", HOOK_ATTACKS, ids=lambda name: name.replace(" ", "-"))
def test_the_host_stays_untouched(scene: HookScene, attack: str) -> None:
    root = images.copy_image(scene.image, scene.directory / "spoilt")
    images.copy_static_program(root / "busybox")
    env = ATTACKS[attack](root, scene.watched, scene.simulated.version) or ()
    before = scene.fingerprint()
    begin = time.monotonic()
    request = ContainerRequest(["/busybox", "echo", "alive"], ["NVIDIA_VISIBLE_DEVICES=all", *env], root=root)
    done = scene.engine.run(request)
    took = time.monotonic() - begin
    assert scene.fingerprint() == before
    assert list_mounts_below(scene.directory) == []
    assert took < PATIENCE, done
    assert "Traceback" not in done.text, done
    if done.status == 0:
        assert done.stdout == "alive\n", done
    else:
        assert attack not in MUST_START, done


@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", [LIBRARY, "etc/ld.so.conf.d", "usr/local", "etc"])
def test_a_second_process_exchanges_directories_and_links(scene: HookScene, place: str) -> None:
    """While runc and the hook work, another process exchanges a directory of the root with a link to the host."""
    bundle = scene.engine.bundle(ContainerRequest(["/bin/true"], ["NVIDIA_VISIBLE_DEVICES=all"]))
    root = bundle / "rootfs"
    (root / place).mkdir(parents=True, exist_ok=True)
    (root / "decoy").symlink_to(scene.watched)
    before = scene.fingerprint()
    racer = subprocess.Popen(
        [sys.executable, "-c", RACER, str(root / place), str(root / "decoy")], stdout=subprocess.PIPE
    )
    statuses = set()
    try:
        assert racer.stdout is not None
        assert racer.stdout.readline() == b"racing\n"
        for _ in range(ROUNDS):
            done = scene.engine.start_bundle(bundle)
            assert "Traceback" not in done.text, done
            statuses.add(done.status)
    finally:
        racer.kill()
        racer.wait()
        racer.stdout.close()  # type: ignore[union-attr]
    assert statuses
    assert scene.fingerprint() == before
    assert list_mounts_below(scene.directory) == []


@pytest.mark.timeout(300)
def test_a_killed_hook_leaves_nothing_on_the_host(scene: HookScene, tmp_path: Path) -> None:
    """The hook is killed after ever more time, until it ends by itself."""
    bundle = scene.engine.bundle(ContainerRequest(["/bin/true"], ["NVIDIA_VISIBLE_DEVICES=all"]))
    path = bundle / "config.json"
    spec = json.loads(path.read_text())
    before = scene.fingerprint()
    started = killed = 0
    for number in range(1, 40):
        hook = spec["hooks"]["prestart"][0]
        program = tmp_path / f"killer-{number}"
        program.write_text(f"#!/bin/sh\nexec timeout --signal KILL {number * 0.01:.2f} {scene.engine.hook} prestart\n")
        program.chmod(0o755)
        path.write_text(json.dumps({**spec, "hooks": {"prestart": [{**hook, "path": str(program)}]}}))
        done = scene.engine.start_bundle(bundle)
        started, killed = started + (done.status == 0), killed + (done.status != 0)
        assert list_mounts_below(scene.directory) == []
        if started > 2:
            break
    assert killed and started, (started, killed)
    assert scene.fingerprint() == before
