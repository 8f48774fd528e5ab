"""Many starts at once, and the same container again: restarted, and committed to an image."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.e2e import engines, host, images, machine
from support.e2e.engines import BareRuntime, ContainerRequest, Docker
from support.e2e.host import InstalledRuntime, SimulatedHost
from support.e2e.requirements import require_programs

MANY = 64
PROBE = ["/probe", "--node", "/dev/nvidiactl", "--library", "libcuda.so.1", "--library", "libcuda.so"]


class Watch(threading.Thread):
    """Notes every inventory that appears while it runs: each is a new file, renamed into place.

    Arguments:
        state: the state directory.
    """

    def __init__(self, state: Path) -> None:
        super().__init__(daemon=True)
        self.state = state
        self.before = set(self.look())
        self.seen: set[tuple[str, int, int]] = set()
        self.enough = threading.Event()

    def look(self) -> list[tuple[str, int, int]]:
        """Name, inode and time of each inventory."""
        found = []
        for path in self.state.glob("inventory*"):
            if path.suffix == "":
                try:
                    status = path.stat()
                except FileNotFoundError:
                    continue
                found.append((path.name, status.st_ino, status.st_mtime_ns))
        return found

    def run(self) -> None:
        while not self.enough.wait(0.001):
            self.seen.update(self.look())
        self.seen.update(self.look())

    def stop(self) -> set[tuple[str, int, int]]:
        """What appeared."""
        self.enough.set()
        self.join()
        return self.seen - self.before


def test_64_creates_at_once_with_nothing_cached(
    tmp_path: Path, image: Path, runtime: InstalledRuntime, request: pytest.FixtureRequest
) -> None:
    """All are right, and one of them learnt the inventory for all."""
    fresh = host.build_host(tmp_path / "never-seen")
    state = tmp_path / "gpu-oci-hook"
    state.mkdir(mode=0o755)
    # Its own state directory: what the machine's containers do meanwhile does not count.
    bare_runtime = BareRuntime(
        "runc", "v1", "run", furnish=f"mkdir -p /run/gpu-oci-hook\nmount --bind {state} /run/gpu-oci-hook"
    )
    wrapper = runtime.wrapper("runc", fresh.root, name=f"-{tmp_path.name}")
    bare_runtime.start(engines.EngineHome(tmp_path, image, lambda _: wrapper))
    request.addfinalizer(bare_runtime.stop)
    bundles = [bare_runtime.bundle(ContainerRequest(PROBE, ["NVIDIA_VISIBLE_DEVICES=all"])) for _ in range(MANY)]
    watch = Watch(state)
    watch.start()
    running = [
        subprocess.Popen(
            bare_runtime.command("run", "--bundle", str(bundle), bare_runtime.fresh_name()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for bundle in bundles
    ]
    outputs = [process.communicate(timeout=120) for process in running]
    learnt = watch.stop()
    for process, (stdout, stderr) in zip(running, outputs, strict=True):
        assert process.returncode == 0, stderr.decode()
        answer = json.loads(stdout)
        assert answer["nodes"] == {"/dev/nvidiactl": "ENXIO"}
        assert answer["libraries"] == {"libcuda.so.1": "ok", "libcuda.so": "ok"}
    assert len(learnt) == 1, learnt
    configs = set()
    for bundle in bundles:
        text = (bundle / "config.json").read_text().replace(bundle.name, "BUNDLE")
        configs.add(json.dumps(json.loads(text)["mounts"]))
    assert len(configs) == 1


@pytest.fixture(scope="module")
def docker(workspace: Path, image: Path, runtime: InstalledRuntime, simulated: SimulatedHost) -> Iterator[Docker]:
    """A private dockerd."""
    require_programs(*Docker.programs)
    directory = workspace / "docker-again"
    directory.mkdir()
    engine = Docker()
    try:
        engine.start(engines.EngineHome(directory, image, lambda name: runtime.wrapper(name, simulated.root)))
        yield engine
    finally:
        engine.stop()
        machine.remove_tree(directory)


def test_docker_restart(docker: Docker) -> None:
    """The root file system has our links already, the config.json is new."""
    name = docker.background(ContainerRequest(["/bin/sleep", "1000"], ["NVIDIA_VISIBLE_DEVICES=0"]))
    try:
        before = docker.exec(name, PROBE).check().stdout
        docker.command("restart", "--time", "0", name).check()
        assert docker.exec(name, PROBE).check().stdout == before
        assert json.loads(before)["libraries"] == {"libcuda.so.1": "ok", "libcuda.so": "ok"}
    finally:
        docker.remove(name)


def test_an_image_committed_from_a_gpu_container(
    docker: Docker, tmp_path: Path, image: Path, runtime: InstalledRuntime, workspace: Path
) -> None:
    """It runs without a GPU, and with another driver: what the first one left behind gives way."""
    name = docker.background(ContainerRequest(["/bin/sleep", "1000"], ["NVIDIA_VISIBLE_DEVICES=all"]))
    try:
        docker.command("commit", name, "committed").check()
    finally:
        docker.remove(name)
    archive = tmp_path / "committed.tar"
    container = docker.command("create", "committed", "/bin/true").check().stdout.strip()
    docker.command("export", "--output", str(archive), container).check()
    docker.remove(container)
    root = tmp_path / "committed"
    root.mkdir()
    machine.run_command(["tar", "-C", str(root), "-xf", str(archive)]).check()
    (root / "dev/console").unlink(missing_ok=True)

    other = host.build_host(tmp_path / "other-driver", version="535.261.03")
    wrapper = runtime.wrapper("runc", other.root, name=f"-{tmp_path.name}")
    bare_runtime = BareRuntime("runc", "v1", "run")
    bare_runtime.start(engines.EngineHome(tmp_path, image, lambda _: wrapper))
    plain = json.loads(bare_runtime.run(ContainerRequest(PROBE, root=root)).check().stdout)
    assert plain["nodes"] == {"/dev/nvidiactl": "ENOENT"}
    words = ["/bin/sh", "-c", f"{' '.join(PROBE)}; ldconfig -p; readlink /usr/lib/{images.TRIPLE}/libcuda.so.1"]
    done = bare_runtime.run(ContainerRequest(words, ["NVIDIA_VISIBLE_DEVICES=all"], root=root)).check()
    lines = done.stdout.splitlines()
    assert json.loads(lines[0])["libraries"] == {"libcuda.so.1": "ok", "libcuda.so": "ok"}
    assert lines[-1] == "/usr/local/nvidia/lib64/libcuda.so.1"
    # Names that carry the old version may stay in the cache: nothing asks for them.
    assert [line for line in lines if "550.163.01" in line and "550.163.01 (" not in line] == []
