"""Hostile images through the shim and the real runc: the host stays untouched, and the container starts or
fails with a sentence.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.e2e import engines, images, machine
from support.e2e.attacks import ATTACKS, LIBRARY, MUST_START, RUNC_FALLS_FOR, WATCHED
from support.e2e.engines import BareRuntime, ContainerRequest
from support.e2e.host import InstalledRuntime, SimulatedHost
from support.e2e.host_watch import PATIENCE, RACER, fingerprint_host


class Scene:
    """A watched directory beside a bundle maker."""

    def __init__(self, directory: Path, image: Path, runtime: Path, simulated: SimulatedHost) -> None:
        self.directory, self.image, self.simulated = directory, image, simulated
        self.watched = directory / "watched"
        self.watched.mkdir()
        for name, text in WATCHED.items():
            (self.watched / name).write_text(text)
        self.hand = BareRuntime("runc", "v1", "run")
        self.hand.start(engines.EngineHome(directory, image, lambda _: runtime))

    def spoilt(self, name: str) -> tuple[Path, list[str]]:
        """A copy of the image that suffered the attack, and the environment entries that belong to it."""
        root = images.copy_image(self.image, self.directory / "spoilt")
        # A program that starts in whatever is left: static, and in a place that no attack touches.
        images.copy_static_program(root / "busybox")
        env = ATTACKS[name](root, self.watched, self.simulated.version)
        return root, list(env or ())


@pytest.fixture
def scene(tmp_path: Path, image: Path, runtime: InstalledRuntime, simulated: SimulatedHost) -> Scene:
    """A scene with the real runc."""
    return Scene(tmp_path, image, runtime.wrapper("runc", simulated.root), simulated)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda name: name.replace(" ", "-"))
def test_the_host_stays_untouched(scene: Scene, attack: str, runtime: InstalledRuntime) -> None:
    if attack in RUNC_FALLS_FOR:
        alone = runtime.wrapper("/bin/true", scene.simulated.root, name="true")
        scene.hand.place.runtime = lambda _: alone
    root, env = scene.spoilt(attack)
    before = fingerprint_host(scene.watched, scene.simulated)
    begin = time.monotonic()
    request = ContainerRequest(["/busybox", "echo", "alive"], ["NVIDIA_VISIBLE_DEVICES=all", *env], root=root)
    done = scene.hand.run(request)
    took = time.monotonic() - begin
    assert fingerprint_host(scene.watched, scene.simulated) == before
    assert took < PATIENCE, done
    assert "Traceback" not in done.text, done
    if done.status == 0:
        assert done.stdout == ("" if attack in RUNC_FALLS_FOR else "alive\n"), done
    else:
        assert attack not in MUST_START, done
        assert 1 <= len(done.stderr.splitlines()) <= 2, done
        assert done.stderr.isascii(), done


def test_the_working_directory_and_python_variables_of_the_engine_are_not_trusted(scene: Scene) -> None:
    """An engine's cwd is a bundle now and then, and its environment may name Python's."""
    bundle = scene.hand.bundle(ContainerRequest(["/bin/true"], ["NVIDIA_VISIBLE_DEVICES=all"]))
    evil = f"open({str(scene.watched / 'written')!r}, 'w').close()\n"
    names = ("gpu_oci_hook", "os", "marshal", "sitecustomize", "usercustomize", "json", "tomllib", "click")
    for name in names:
        (bundle / f"{name}.py").write_text(evil)
    before = fingerprint_host(scene.watched, scene.simulated)
    env = {
        "PATH": machine.DIRECTORIES,
        "PYTHONPATH": str(bundle),
        "PYTHONSTARTUP": f"{bundle}/os.py",
        "PYTHONUSERBASE": str(bundle),
        "PYTHONHOME": str(bundle),
    }
    shim = scene.hand.command("run", "evil-cwd")
    machine.run_command(shim, env=env, cwd=bundle).check()
    assert fingerprint_host(scene.watched, scene.simulated) == before


@pytest.mark.timeout(240)
@pytest.mark.parametrize("place", [LIBRARY, "etc", "etc/ld.so.conf.d", "usr/bin", "usr"])
def test_a_second_process_exchanges_directories_and_links(
    tmp_path: Path, image: Path, runtime: InstalledRuntime, simulated: SimulatedHost, place: str
) -> None:
    """The low-level runtime is `true`: the race is with us alone."""
    wrapper = runtime.wrapper("/bin/true", simulated.root, name="true")
    scene = Scene(tmp_path, image, wrapper, simulated)
    bundle = scene.hand.bundle(ContainerRequest(["/bin/true"], ["NVIDIA_VISIBLE_DEVICES=all"]))
    config = (bundle / "config.json").read_bytes()
    root = bundle / "rootfs"
    (root / "decoy").symlink_to(scene.watched)
    before = fingerprint_host(scene.watched, simulated)
    racer = subprocess.Popen(
        [sys.executable, "-c", RACER, str(root / place), str(root / "decoy")], stdout=subprocess.PIPE
    )
    try:
        assert racer.stdout is not None
        assert racer.stdout.readline() == b"racing\n"
        end = time.monotonic() + 6
        tries = 0
        while time.monotonic() < end:
            (bundle / "config.json").write_bytes(config)
            done = machine.run_command([str(wrapper), "create", "--bundle", str(bundle), "raced"])
            assert "Traceback" not in done.text, done
            tries += 1
    finally:
        racer.kill()
        racer.wait()
        racer.stdout.close()  # type: ignore[union-attr]
    assert tries > 5
    assert fingerprint_host(scene.watched, simulated) == before
