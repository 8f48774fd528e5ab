"""Real clients of docker and podman: compose, the devcontainer CLI, docker's SDK, testcontainers, podman-compose.

tests/e2e/real-clients runs this file in a Debian root of its own, which it changes as it likes. Each client asks for
GPU 1 of two in its own words; the container must have exactly that one.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.e2e import host, images, machine
from support.e2e.machine import CommandResult, find_program
from support.e2e.matrix import MATRIX

HOST = Path("/srv/gpu-host")
PACKAGING = Path(__file__).parents[2] / "packaging"
CLIENTS = Path(os.environ.get("GPU_OCI_HOOK_TEST_CLIENTS", "/opt/clients"))
IMAGE = "probe:latest"
DAEMONS = {"default gpu-oci": "daemon-default.json", "default nvidia": "daemon-nvidia.json"}
PROBE = ["/probe", "--node", "/dev/nvidia0", "--node", "/dev/nvidia1", "--library", "libcuda.so.1"]
ENVIRONMENT = {
    "PATH": f"{machine.DIRECTORIES}:{CLIENTS}/bin:{CLIENTS}/node_modules/.bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "TESTCONTAINERS_RYUK_DISABLED": "true",  # its helper container comes from a registry
}
DEVICE_REQUEST = {"driver": "nvidia", "device_ids": ["1"], "capabilities": ["gpu"]}


@pytest.fixture(autouse=True)
def recorded(request: pytest.FixtureRequest) -> Iterator[None]:
    """Note each test as a row of the table."""
    function = request.node.originalname.removeprefix("test_").replace("_", " ")
    values = dict(request.node.callspec.params) if hasattr(request.node, "callspec") else {}
    column = values.pop("docker", "podman")
    row = ": ".join((function, *values.values()))
    MATRIX.note(row, column, "FAILED")
    before = request.session.testsfailed
    yield
    if request.session.testsfailed == before:
        MATRIX.note(row, column, "ok")


@pytest.fixture(scope="session")
def simulated() -> host.SimulatedHost:
    """The simulated host with two GPUs. The product is installed for it; minor numbers are not indices."""
    if os.environ.get("GPU_OCI_HOOK_TEST_ROOT") != "1":
        pytest.fail("these rows change the machine: run tests/e2e/real-clients", pytrace=False)
    if HOST.exists():
        return host.read_host(HOST, "550.163.01")
    found = host.build_host(HOST)
    config = Path("/etc/gpu-oci-hook/config.toml")
    config.parent.mkdir(exist_ok=True)
    config.write_text(f'[host]\nroot = "{HOST}"\n')
    machine.run_command(["cp", "-a", "--no-clobber", f"{HOST}/dev/.", "/dev/"]).check()
    Path("/etc/cdi").mkdir(exist_ok=True)
    machine.run_command(["/usr/local/bin/gpu-oci-hook", "cdi", "generate", "--output", "/etc/cdi/nvidia.yaml"]).check()
    return found


@pytest.fixture(scope="session")
def root(workspace: Path) -> Path:
    """The image's root file system, with all of busybox: the devcontainer CLI runs scripts in it."""
    found = images.build_glibc_image(workspace / "client-image")
    listed = machine.run_command([find_program("busybox"), "--list"]).check().stdout.split()
    for name in listed:
        if name not in ("ldconfig", "busybox") and not (found / "usr/bin" / name).is_symlink():
            (found / "usr/bin" / name).symlink_to("busybox")
    return found


@pytest.fixture(scope="session", params=list(DAEMONS))
def docker(request: pytest.FixtureRequest, simulated: host.SimulatedHost, root: Path, workspace: Path) -> Iterator[str]:
    """dockerd with one of our configuration files; its name."""
    settings = json.loads((PACKAGING / "docker" / DAEMONS[request.param]).read_text())
    settings["features"] = {"cdi": True}
    Path("/etc/docker").mkdir(exist_ok=True)
    Path("/etc/docker/daemon.json").write_text(json.dumps(settings))
    with (workspace / "dockerd.log").open("wb") as log:
        daemon = subprocess.Popen(
            [find_program("dockerd"), "--iptables=false", "--ip6tables=false", "--bridge=none"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=ENVIRONMENT,
        )
    try:
        machine.wait_for(lambda: call("docker", "version").status == 0, f"dockerd ({workspace}/dockerd.log)")
        archive = images.write_archive(root, workspace / "client-image.tar")
        call("docker", "import", str(archive), IMAGE).check()
        yield request.param
    finally:
        machine.stop_daemon(daemon)
        Path("/var/run/docker.pid").unlink(missing_ok=True)


def call(*words: str, cwd: Path | None = None) -> CommandResult:
    """Run a client."""
    program = shutil.which(words[0], path=ENVIRONMENT["PATH"]) or words[0]
    return machine.run_command([program, *words[1:]], env=ENVIRONMENT, cwd=cwd, timeout=120)


def check_gpus(text: str, simulated: host.SimulatedHost, *indices: int) -> None:
    """Check the probe's line in a client's output: these GPUs and no other."""
    line = next((line for line in text.splitlines() if '"nodes"' in line), None)
    assert line is not None, text
    answer = json.loads(line[line.index("{") :])
    expected = {card.node: "ENXIO" if card.index in indices else "ENOENT" for card in simulated.cards}
    assert answer["nodes"] == expected, text
    assert answer["libraries"]["libcuda.so.1"] == "ok" or not indices, text


# --- docker compose, podman-compose -----------------------------------------------------------------------------------

COMPOSE: dict[str, dict[str, object]] = {
    "deploy device_ids": {"deploy": {"resources": {"reservations": {"devices": [DEVICE_REQUEST]}}}},
    "deploy cdi": {
        "deploy": {
            "resources": {
                "reservations": {
                    "devices": [{"driver": "cdi", "device_ids": ["nvidia.com/gpu=1"], "capabilities": ["gpu"]}]
                }
            }
        }
    },
    "environment": {"environment": ["NVIDIA_VISIBLE_DEVICES=1"]},
    "runtime nvidia": {"environment": ["NVIDIA_VISIBLE_DEVICES=1"], "runtime": "nvidia"},
}


def write_compose_file(directory: Path, service: dict[str, object]) -> Path:
    """Write a compose file; JSON is YAML."""
    path = directory / "compose.yaml"
    common = {"image": IMAGE, "command": PROBE, "network_mode": "none"}
    path.write_text(json.dumps({"name": "gpu", "services": {"gpu": {**common, **service}}}))
    return path


@pytest.mark.parametrize("way", COMPOSE)
def test_compose(way: str, docker: str, simulated: host.SimulatedHost, tmp_path: Path) -> None:
    if way == "runtime nvidia" and docker != "default nvidia":
        expect = "unknown or invalid runtime name"
    else:
        expect = ""
    path = write_compose_file(tmp_path, COMPOSE[way])
    done = call("docker", "compose", "-f", str(path), "up", "--no-log-prefix", cwd=tmp_path)
    call("docker", "compose", "-f", str(path), "down", cwd=tmp_path)
    if expect:
        assert expect in done.text
    else:
        check_gpus(done.text, simulated, 1)


def test_compose_without_a_request(docker: str, simulated: host.SimulatedHost, tmp_path: Path) -> None:
    path = write_compose_file(tmp_path, {})
    done = call("docker", "compose", "-f", str(path), "up", "--no-log-prefix", cwd=tmp_path)
    call("docker", "compose", "-f", str(path), "down", cwd=tmp_path)
    check_gpus(done.text, simulated)


# --- docker's SDK, testcontainers -------------------------------------------------------------------------------------

SDK: dict[str, dict[str, Any]] = {
    "device_ids": {"requests": {"driver": "nvidia", "device_ids": ["1"], "capabilities": [["gpu"]]}},
    "capabilities only": {"requests": {"device_ids": ["1"], "capabilities": [["gpu"], ["compute", "utility"]][:1]}},
    "cdi": {"requests": {"driver": "cdi", "device_ids": ["nvidia.com/gpu=1"]}},
    "environment": {"environment": {"NVIDIA_VISIBLE_DEVICES": "1"}},
}


def build_sdk_options(way: str) -> dict[str, Any]:
    """Build the SDK's arguments of this way."""
    types = importlib.import_module("docker.types")
    options = dict(SDK[way])
    if "requests" in options:
        options["device_requests"] = [types.DeviceRequest(**options.pop("requests"))]
    return {"network_mode": "none", **options}


@pytest.mark.parametrize("way", SDK)
def test_docker_sdk(way: str, docker: str, simulated: host.SimulatedHost) -> None:
    client = importlib.import_module("docker").from_env()
    output = client.containers.run(IMAGE, PROBE, remove=True, **build_sdk_options(way))
    check_gpus(output.decode(), simulated, 1)


@pytest.mark.parametrize("way", SDK)
def test_testcontainers(way: str, docker: str, simulated: host.SimulatedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
    container = importlib.import_module("testcontainers.core.container").DockerContainer(IMAGE)
    options = build_sdk_options(way)
    for name, value in options.pop("environment", {}).items():
        container.with_env(name, value)
    with container.with_kwargs(**options).with_command(["/bin/sh", "-c", f"{' '.join(PROBE)}; sleep 100"]) as started:
        for _ in range(50):
            stdout, stderr = started.get_logs()
            if b'"nodes"' in stdout:
                break
            time.sleep(0.1)
    check_gpus(f"{stdout.decode()}{stderr.decode()}", simulated, 1)


# --- the devcontainer CLI ---------------------------------------------------------------------------------------------

# The configuration, and the GPUs with each daemon. The CLI adds `--gpus all` for hostRequirements only where it finds a
# runtime named nvidia whose path has nvidia-container-runtime. Otherwise it prints "No GPU support found" and goes on.
DEVCONTAINERS: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "runArgs --gpus": ({"runArgs": ["--gpus", "device=1"]}, {"default gpu-oci": (1,), "default nvidia": (1,)}),
    "runArgs --device": (
        {"runArgs": ["--device", "nvidia.com/gpu=1"]},
        {"default gpu-oci": (1,), "default nvidia": (1,)},
    ),
    "containerEnv": (
        {"containerEnv": {"NVIDIA_VISIBLE_DEVICES": "1"}},
        {"default gpu-oci": (1,), "default nvidia": (1,)},
    ),
    "hostRequirements optional": (
        {"hostRequirements": {"gpu": "optional"}},
        {"default gpu-oci": (), "default nvidia": (0, 1)},
    ),
    "hostRequirements true": (
        {"hostRequirements": {"gpu": True}},
        {"default gpu-oci": (), "default nvidia": (0, 1)},
    ),
}


@pytest.mark.parametrize("way", DEVCONTAINERS)
def test_devcontainer(way: str, docker: str, simulated: host.SimulatedHost, tmp_path: Path) -> None:
    settings, expected = DEVCONTAINERS[way]
    settings = {**settings, "image": IMAGE, "updateRemoteUserUID": False}
    settings["runArgs"] = ["--network=none", *settings.get("runArgs", [])]
    (tmp_path / ".devcontainer").mkdir()
    (tmp_path / ".devcontainer/devcontainer.json").write_text(json.dumps(settings))
    folder = ("--workspace-folder", str(tmp_path))
    started = call("devcontainer", "up", *folder)
    try:
        done = call("devcontainer", "exec", *folder, *PROBE)
        check_gpus(f"{done.stdout}\n{started.stderr[-2000:]}", simulated, *expected[docker])
    finally:
        for name in call("docker", "ps", "--all", "--quiet").stdout.split():
            call("docker", "rm", "--force", name)


# --- docker build without BuildKit ------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["all", "void"])
def test_legacy_build(asked: str, docker: str, simulated: host.SimulatedHost, tmp_path: Path) -> None:
    """Each RUN is a container of the default runtime, so the image's variable counts."""
    (tmp_path / "Dockerfile").write_text(f"FROM {IMAGE}\nENV NVIDIA_VISIBLE_DEVICES={asked}\nRUN {json.dumps(PROBE)}\n")
    program = find_program("docker")
    words = ["build", "--network", "none", "--no-cache", str(tmp_path)]
    done = machine.run_command([program, *words], env={**ENVIRONMENT, "DOCKER_BUILDKIT": "0"}, timeout=120)
    check_gpus(done.text, simulated, *((0, 1) if asked == "all" else ()))


# --- podman-compose ---------------------------------------------------------------------------------------------------

PODMAN_COMPOSE: dict[str, dict[str, object]] = {
    "environment": {"environment": ["NVIDIA_VISIBLE_DEVICES=1"]},
    "devices": {"devices": ["nvidia.com/gpu=1"]},
    "deploy device_ids": {"deploy": {"resources": {"reservations": {"devices": [DEVICE_REQUEST]}}}},
}


@pytest.fixture(scope="session")
def podman(simulated: host.SimulatedHost, root: Path, workspace: Path) -> None:
    """podman with our runtime as the default."""
    directory = Path("/etc/containers/containers.conf.d")
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(PACKAGING / "podman/gpu-oci.conf", directory)
    (directory / "zz-test.conf").write_text(
        '[engine]\nruntime = "gpu-oci"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'
    )
    archive = images.write_archive(root, workspace / "podman-image.tar")
    call("podman", "import", "--quiet", str(archive), f"localhost/{IMAGE}").check()


@pytest.mark.usefixtures("podman")
@pytest.mark.parametrize("way", PODMAN_COMPOSE)
def test_podman_compose(way: str, simulated: host.SimulatedHost, tmp_path: Path) -> None:
    path = write_compose_file(tmp_path, {**PODMAN_COMPOSE[way], "image": f"localhost/{IMAGE}"})
    program = [sys.executable, "-m", "podman_compose", "-f", str(path)]
    done = machine.run_command([*program, "up"], env=ENVIRONMENT, cwd=tmp_path)
    machine.run_command([*program, "down"], env=ENVIRONMENT, cwd=tmp_path)
    check_gpus(done.text, simulated, 1)
