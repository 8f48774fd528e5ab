"""Further rows for newer engines: CDI devices, user namespaces, updates of running containers, the CRI, restarts.

tests/e2e/newer-engines runs this file in a Debian root of its own, which the tests change as they like: the product is
installed in /usr/local, /etc/gpu-oci-hook and /etc/cdi have its files, and the nodes of a simulated host are in /dev
(rootless engines bind the machine's own nodes). Rows are independent, and the table at the end shows all of them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import gpu_oci_hook
from support.e2e import cri, engines, host, images, machine
from support.e2e.engines import ContainerRequest, Docker, Engine, EngineHome, Podman, RootlessPodman
from support.e2e.machine import CommandResult, find_program
from support.e2e.matrix import MATRIX
from support.e2e.requirements import require_programs

HOST = Path("/srv/gpu-host")
RUNTIME = Path("/usr/local/bin/gpu-oci-runtime")
CONFIG = Path("/etc/gpu-oci-hook/config.toml")
CDI_FILE = Path("/etc/cdi/nvidia.yaml")
CONTAINERD_CONFIG = Path("/etc/containerd/config.toml")
PACKAGING = Path(__file__).parents[2] / "packaging"
SLEEP = ("/bin/sleep", "1000")
ROOTFUL_USERNS = ("--uidmap", "0:1200000:65536", "--gidmap", "0:1200000:65536")


@pytest.fixture(autouse=True)
def recorded(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Note each test as a row of the table. What a test adds to the list stands there instead of "ok"."""
    function, _, case = request.node.name.partition("[")
    engine = str(request.node.callspec.params.get("engine", "")) if case else ""
    case = case.rstrip("]").replace(engine, "").strip("-")
    row = " ".join((function.removeprefix("test_").replace("_", " "), case if engine else "")).strip()
    column = engine or case or "-"
    MATRIX.note(row, column, "FAILED")
    before = request.session.testsfailed
    words: list[str] = []
    yield words
    # The test's own failure is counted before its fixtures end.
    if request.session.testsfailed == before:
        MATRIX.note(row, column, ", ".join(words) or "ok")


@pytest.fixture(scope="session")
def installed(workspace: Path) -> host.SimulatedHost:
    """The product, installed as docs/install.md says, for a simulated host with two GPUs whose nodes are in /dev."""
    if os.environ.get("GPU_OCI_HOOK_TEST_ROOT") != "1":
        pytest.fail("these rows change the machine: run tests/e2e/newer-engines", pytrace=False)
    shutil.rmtree(HOST, ignore_errors=True)
    simulated = host.build_host(HOST)
    machine.run_command(["cp", "-a", "--no-clobber", f"{HOST}/dev/.", "/dev/"]).check()
    CONFIG.parent.mkdir(exist_ok=True)
    CONFIG.write_text(f'[host]\nroot = "{HOST}"\n')
    # The code is copied, because users cannot read root's home.
    code = Path("/opt/gpu-oci-hook")
    shutil.rmtree(code, ignore_errors=True)
    shutil.copytree(Path(gpu_oci_hook.__file__).parent, code / "gpu_oci_hook")
    script = f"import sys; sys.path.insert(0, {str(code)!r}); from gpu_oci_hook.cli import main; main()"
    machine.run_command([sys.executable, "-c", script, "install", "--aliases"], cwd=code).check()
    CDI_FILE.parent.mkdir(exist_ok=True)
    machine.run_command(["/usr/local/bin/gpu-oci-hook", "cdi", "generate", "--output", str(CDI_FILE)]).check()
    return simulated


def runtime_above(low_level: str) -> Path:
    """Write a runtime that is ours above this low-level runtime."""
    path = Path(f"/usr/local/bin/gpu-above-{low_level}")
    config = CONFIG.with_name(f"{low_level}.toml")
    config.write_text(f'{CONFIG.read_text()}[runtime]\nlow-level = ["{low_level}"]\n')
    path.write_text(f'#!/bin/sh\nexport GPU_OCI_HOOK_CONFIG={config}\nexec {RUNTIME} "$@"\n')
    path.chmod(0o755)
    return path


def probe(simulated: host.SimulatedHost) -> list[str]:
    """Build the words that look at every node and at libcuda."""
    nodes = ["/dev/nvidiactl", *(card.node for card in simulated.cards)]
    return ["/probe", *(word for node in nodes for word in ("--node", node)), "--library", "libcuda.so.1"]


def check_gpu(done: CommandResult, simulated: host.SimulatedHost, index: int) -> None:
    """Check that the probe found exactly this GPU, may open it, and found the libraries."""
    answer = json.loads(done.check().stdout.strip().splitlines()[-1])
    expected = {"/dev/nvidiactl": "ENXIO"}
    expected |= {card.node: "ENXIO" if card.index == index else "ENOENT" for card in simulated.cards}
    assert answer["nodes"] == expected
    assert answer["libraries"] == {"libcuda.so.1": "ok"}


@pytest.fixture(scope="session")
def start(
    installed: host.SimulatedHost, workspace: Path, image: Path
) -> Iterator[Callable[[str, Callable[[], Engine], str], Engine]]:
    """Start engines, each once: a name, what makes it, and the low-level runtime's name or our runtime's path."""
    started: dict[str, tuple[Engine, Path]] = {}

    def start_engine(name: str, make: Callable[[], Engine], runtime: str) -> Engine:
        if name not in started:
            engine = make()
            require_programs(*engine.programs)
            directory = Path(tempfile.mkdtemp(prefix="n-", dir=workspace))
            directory.chmod(0o755)
            path = runtime_above(runtime.removeprefix("ours/")) if "/" in runtime else Path(find_program(runtime))
            started[name] = engine, directory
            engine.start(EngineHome(directory, image, lambda _: path))
        return started[name][0]

    yield start_engine
    for engine, directory in started.values():
        try:
            engine.stop()
        finally:
            machine.remove_tree(directory)


Start = Callable[[str, Callable[[], Engine], str], Engine]

PODMANS: dict[str, tuple[Callable[[], Engine], str]] = {
    f"{kind.name} {runtime}": (kind, runtime)
    for kind in (Podman, RootlessPodman)
    for runtime in ("runc", "crun", "ours/runc", "ours/crun")
}
DOCKERS: dict[str, tuple[Callable[[], Engine], str]] = {
    "docker runc": (lambda: Docker(settings={"features": {"cdi": True}}, runtime="runc"), "runc"),
    "docker ours": (lambda: Docker(settings={"features": {"cdi": True}}), "ours/runc"),
    "docker userns-remap runc": (
        lambda: Docker(remap=True, settings={"features": {"cdi": True}}, runtime="runc"),
        "runc",
    ),
    "docker userns-remap ours": (lambda: Docker(remap=True, settings={"features": {"cdi": True}}), "ours/runc"),
}
ENGINES = {**PODMANS, **DOCKERS}
OURS = [name for name in ENGINES if "ours" in name]


@pytest.fixture
def engine(request: pytest.FixtureRequest, start: Start) -> Engine:
    """The engine of this row's column."""
    make, runtime = ENGINES[request.param]
    return start(request.param, make, runtime)


def columns(names: Sequence[str]) -> pytest.MarkDecorator:
    """Run a row with these engines."""
    return pytest.mark.parametrize("engine", list(names), indirect=True)


@columns(list(ENGINES))
def test_a_cdi_device_by_option(engine: Engine, installed: host.SimulatedHost) -> None:
    done = engine.run(ContainerRequest(probe(installed), devices=["nvidia.com/gpu=1"]))
    check_gpu(done, installed, 1)


@columns(OURS)
def test_a_gpu_by_variable(engine: Engine, installed: host.SimulatedHost) -> None:
    done = engine.run(ContainerRequest(probe(installed), ["NVIDIA_VISIBLE_DEVICES=1"]))
    check_gpu(done, installed, 1)


def check_cdi_device(
    engine: Engine, options: Sequence[str], simulated: host.SimulatedHost, recorded: list[str]
) -> None:
    """Check a CDI device in a container with a user namespace of its own.

    crun 1.21 calls no hook there, not even /usr/bin/true: it cannot enter the bundle. The table then says so.
    """
    done = engine.run(ContainerRequest(probe(simulated), devices=["nvidia.com/gpu=1"], options=options))
    if done.status != 0:
        edits = {"hooks": [{"hookName": "createContainer", "path": "/usr/bin/true", "args": ["true"], "env": ["A=1"]}]}
        spec = {"cdiVersion": "0.5.0", "kind": "test.example/hook", "devices": [{"name": "a", "containerEdits": edits}]}
        CDI_FILE.with_name("harmless.json").write_text(json.dumps(spec))
        harmless = engine.run(ContainerRequest(["/bin/true"], devices=["test.example/hook=a"], options=options))
        if "error executing hook `/usr/bin/true`" in harmless.text:
            recorded.append("calls no hook")
            return
    check_gpu(done, simulated, 1)


@columns([name for name in ENGINES if name.startswith("podman run")])
def test_a_cdi_device_with_uidmap(engine: Engine, installed: host.SimulatedHost, recorded: list[str]) -> None:
    check_cdi_device(engine, ROOTFUL_USERNS, installed, recorded)


@columns([name for name in OURS if name.startswith("podman run")])
def test_a_gpu_by_variable_with_uidmap(engine: Engine, installed: host.SimulatedHost) -> None:
    done = engine.run(ContainerRequest(probe(installed), ["NVIDIA_VISIBLE_DEVICES=1"], options=ROOTFUL_USERNS))
    check_gpu(done, installed, 1)


@columns([name for name in ENGINES if name.startswith("podman rootless")])
@pytest.mark.parametrize("userns", ["keep-id", "nomap", "auto:size=1000"])
def test_a_cdi_device_rootless_with_userns(
    engine: Engine, userns: str, installed: host.SimulatedHost, recorded: list[str]
) -> None:
    check_cdi_device(engine, [f"--userns={userns}"], installed, recorded)


@columns([name for name in OURS if name.startswith("podman rootless")])
@pytest.mark.parametrize("userns", ["keep-id", "nomap", "auto:size=1000"])
def test_a_gpu_by_variable_rootless_with_userns(engine: Engine, userns: str, installed: host.SimulatedHost) -> None:
    request = ContainerRequest(probe(installed), ["NVIDIA_VISIBLE_DEVICES=1"], options=[f"--userns={userns}"])
    check_gpu(engine.run(request), installed, 1)


@pytest.mark.parametrize(
    "words", [["--memory", "256m"], ["--pids-limit", "100"], ["--restart", "on-failure"]], ids=" ".join
)
@columns(["podman run runc", *(name for name in OURS if name.startswith("podman run"))])
def test_podman_update(engine: Podman, words: list[str], installed: host.SimulatedHost) -> None:
    name = engine.background(gpu_request(engine, SLEEP))
    try:
        check_gpu(engine.exec(name, probe(installed)), installed, 1)
        engine.command("update", *words, name).check()
        check_gpu(engine.exec(name, probe(installed)), installed, 1)
    finally:
        engine.remove(name)


def gpu_request(engine: Engine, args: Sequence[str], *options: str) -> ContainerRequest:
    """Ask for GPU 1: by variable where the runtime is ours, else as a CDI device."""
    if Path(engine.place.runtime("")).name.startswith("gpu-above-"):
        return ContainerRequest(args, ["NVIDIA_VISIBLE_DEVICES=1"], options=options)
    return ContainerRequest(args, devices=["nvidia.com/gpu=1"], options=options)


@pytest.mark.parametrize(
    "words",
    [
        ["--memory", "256m", "--memory-swap", "512m"],
        ["--pids-limit", "100"],
        ["--cpus", "1"],
        ["--restart", "on-failure"],
    ],
    ids=" ".join,
)
@columns(list(DOCKERS))
def test_docker_update(engine: Docker, words: list[str], installed: host.SimulatedHost) -> None:
    name = engine.background(gpu_request(engine, SLEEP))
    try:
        engine.command("update", *words, name).check()
        check_gpu(engine.exec(name, probe(installed)), installed, 1)
    finally:
        engine.remove(name)


@columns(list(ENGINES))
def test_restart(engine: Engine, installed: host.SimulatedHost) -> None:
    name = engine.background(gpu_request(engine, SLEEP))
    try:
        check_gpu(engine.exec(name, probe(installed)), installed, 1)
        assert isinstance(engine, Docker | Podman)
        engine.command("restart", "--time", "0", name).check()
        check_gpu(engine.exec(name, probe(installed)), installed, 1)
    finally:
        engine.remove(name)


@pytest.mark.parametrize(
    ("options", "index"),
    [
        (["--gpus", "device=1"], 1),
        (["--gpus", "1"], 0),
        (["--gpus", "0"], None),
        (["--gpus", "device=1", "--device", "nvidia.com/gpu=1"], 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@columns(["docker ours", "docker userns-remap ours"])
def test_docker_gpus(engine: Docker, options: list[str], index: int | None, installed: host.SimulatedHost) -> None:
    """With the drop-in names on dockerd's PATH."""
    done = engine.run(ContainerRequest(probe(installed), options=options))
    if index is None:
        answer = json.loads(done.check().stdout)
        assert {answer["nodes"][card.node] for card in installed.cards} == {"ENOENT"}
    else:
        check_gpu(done, installed, index)


@columns(["podman run runc", "podman run crun", "podman run ours/crun"])
def test_podman_gpus_is_an_index(engine: Podman, installed: host.SimulatedHost) -> None:
    """podman 5 takes `--gpus 1` as the CDI name nvidia.com/gpu=1."""
    check_gpu(engine.run(ContainerRequest(probe(installed), options=["--gpus", "1"])), installed, 1)


# --- the CRI ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def containerd(installed: host.SimulatedHost, workspace: Path, image: Path) -> Iterator[cri.CriContainerd]:
    """containerd with Debian's own configuration file and what docs/engines.md adds to it."""
    directory = Path(tempfile.mkdtemp(prefix="cri-", dir=workspace))
    config = directory / "config.toml"
    config.write_text(build_cri_config())
    daemon = cri.CriContainerd(directory, config)
    try:
        daemon.import_image(image, cri.IMAGE, directory)
        dump = (
            machine.run_command([find_program("containerd"), "--config", str(config), "config", "dump"]).check().stdout
        )
        pause = next(word for word in dump.replace("'", '"').split('"') if "/pause:" in word)
        daemon.import_image(build_pause_image(directory / "pause"), pause, directory)
        yield daemon
    finally:
        daemon.stop()
        machine.remove_tree(directory)


def build_cri_config() -> str:
    """Debian's file, a limit of this machine, and the page's snippets."""
    text = CONTAINERD_CONFIG.read_text()
    cri_table = '[plugins."io.containerd.grpc.v1.cri"]'
    assert cri_table in text, "Debian's configuration file has changed"
    # CAP_SYS_RESOURCE may be missing.
    text = text.replace(cri_table, f"{cri_table}\n    restrict_oom_score_adj = true\n    enable_cdi = true", 1)
    return text + (PACKAGING / "containerd/config-v2.toml").read_text()


def build_pause_image(root: Path) -> Path:
    """An image whose one program sleeps."""
    images.build_glibc_image(root)
    return root


CRI_REQUESTS: dict[str, dict[str, object]] = {
    "variable": {"env": ["NVIDIA_VISIBLE_DEVICES=1"]},
    "device mount": {
        "env": ["NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices"],
        "mounts": [("/dev/null", "/var/run/nvidia-container-devices/1")],
    },
    "CDI device": {"devices": ["nvidia.com/gpu=1"]},
    "CDI annotation": {"annotations": {"cdi.k8s.io/plugin_1": "nvidia.com/gpu=1"}},
}
HANDLERS = {"runc": ["CDI device", "CDI annotation"], "gpu-oci": list(CRI_REQUESTS)}


@pytest.mark.parametrize(
    ("handler", "asked"),
    [pytest.param(handler, asked, id=f"{handler} {asked}") for handler in HANDLERS for asked in HANDLERS[handler]],
)
def test_cri(containerd: cri.CriContainerd, handler: str, asked: str, installed: host.SimulatedHost) -> None:
    """Start, exec, UpdateContainerResources, and a second start in the same pod, as after a crash."""
    pod = containerd.run_pod(handler)
    request = CRI_REQUESTS[asked]
    container = containerd.start_container(pod, **request)  # type: ignore[arg-type]
    check_gpu(containerd.exec(container, probe(installed)), installed, 1)
    containerd.update_memory(container, 256 << 20)
    check_gpu(containerd.exec(container, probe(installed)), installed, 1)
    containerd.call("StopContainer", {1: container, 2: 0})
    again = containerd.start_container(pod, **request)  # type: ignore[arg-type]
    check_gpu(containerd.exec(again, probe(installed)), installed, 1)


def test_cri_without_a_request(containerd: cri.CriContainerd, installed: host.SimulatedHost) -> None:
    pod = containerd.run_pod("gpu-oci")
    answer = json.loads(containerd.exec(containerd.start_container(pod), probe(installed)).check().stdout)
    assert set(answer["nodes"].values()) == {"ENOENT"}


# --- checkpoint and restore -------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("criu", path=machine.DIRECTORIES) is None, reason="this suite has no criu")
@pytest.mark.parametrize("gpu", [False, True], ids=["plain", "GPU"])
def test_checkpoint_and_restore(gpu: bool, installed: host.SimulatedHost, image: Path, tmp_path: Path) -> None:
    engine = engines.BareRuntime("runc", "v1", "create")
    engine.start(EngineHome(tmp_path, image, lambda _: RUNTIME))
    # busybox's sleep ends when a restore interrupts it.
    forever = ["/bin/sh", "-c", "while :; do sleep 1; done"]
    request = ContainerRequest(forever, ["NVIDIA_VISIBLE_DEVICES=1"] if gpu else [])
    bundle = engine.bundle(request)
    name = engine.fresh_name()
    # criu cannot dump files of another mount namespace, so the container's output goes to /dev/null.
    silent: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
        "timeout": 60,
    }
    places = ["--image-path", str(tmp_path / "checkpoint"), "--work-path", str(tmp_path)]
    try:
        created = subprocess.run(engine.command("create", "--bundle", str(bundle), name), **silent)
        assert created.returncode == 0
        machine.run_command(engine.command("start", name)).check()
        dumped = machine.run_command(engine.command("checkpoint", *places, name))
        assert dumped.status == 0, read_tail(tmp_path / "dump.log")
        restored = subprocess.run(
            engine.command("restore", "--detach", *places, "--bundle", str(bundle), name), **silent
        )
        assert restored.returncode == 0, read_tail(tmp_path / "restore.log")
        time.sleep(1)
        state = json.loads(machine.run_command(engine.command("state", name)).check().stdout)["status"]
        assert state == "running", read_tail(tmp_path / "restore.log")
        if gpu:
            check_gpu(engine.exec(name, probe(installed)), installed, 1)
    finally:
        machine.run_command(engine.command("delete", "--force", name))
        engine.stop()


def read_tail(path: Path) -> str:
    """Read the last lines of a log."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-30:]) if path.exists() else ""
