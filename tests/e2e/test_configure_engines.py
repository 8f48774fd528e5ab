"""`configure` with real engines: set up, start, a container with a GPU, undo, and the file is as it was."""

from __future__ import annotations

import json
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.e2e import images, machine
from support.e2e.host import SimulatedHost
from support.e2e.installed_machine import InstalledMachine
from support.e2e.machine import CommandResult, find_program
from support.e2e.probe import build_probe_command, parse_probe_output

HOOK = "/usr/local/bin/gpu-oci-hook"
DAEMON_JSON = "/etc/docker/daemon.json"
CONFIG_TOML = "/etc/containerd/config.toml"
# Written by hand: a list on one line, a map of its own, no newline at the end.
FILES = {
    "no file": None,
    "an empty object": "{}",
    "settings": '{\n\t"dns": ["10.0.0.1", "10.0.0.2"],\n\t"features": {"buildkit": true},\n\t"labels": ["a=b"]\n}',
    "CRLF": '{\r\n  "labels": ["a=b"],\r\n  "runtimes": {"other": {"path": "/usr/sbin/runc"}}\r\n}\r\n',
    "the incumbent": '{"default-runtime": "runc", "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}',
}


@contextmanager
def start_docker(installed: InstalledMachine) -> Iterator[tuple[tuple[str, ...], subprocess.Popen[bytes]]]:
    """dockerd with its own configuration file; the words of a docker command for it."""
    directory = installed.directory
    daemon = installed.start_daemon(
        "dockerd",
        *(find_program("dockerd"), "--host", f"unix://{directory}/d.sock", "--pidfile", f"{directory}/d.pid"),
        *("--data-root", f"{directory}/d-data", "--exec-root", f"{directory}/d-exec"),
        *("--iptables=false", "--ip6tables=false", "--bridge=none"),
    )
    docker = (find_program("docker"), "--host", f"unix://{directory}/d.sock")
    try:
        machine.wait_for(lambda: installed.run(*docker, "version").status == 0, f"dockerd ({directory}/dockerd.log)")
        yield docker, daemon
    finally:
        machine.stop_daemon(daemon)


def ask_docker(installed: InstalledMachine, docker: tuple[str, ...]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(installed.run(*docker, "info", "--format", "{{json .}}").check().stdout)
    return answer


def configure(installed: InstalledMachine, *words: str) -> CommandResult:
    return installed.run(HOOK, "configure", *words)


def read_file(installed: InstalledMachine, path: str) -> str | None:
    """The bytes of a file as hex digits, with its owner and mode; None if it does not exist."""
    result = installed.run("/bin/sh", "-c", f"test -e {path} && stat -Lc %u:%g:%a {path} && od -An -v -tx1 {path}")
    return result.stdout if result.status == 0 else None


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_docker_set_up_gives_the_gpu_and_undo_leaves_the_file_byte_for_byte(
    text: str | None, installed: InstalledMachine, image: Path, simulated: SimulatedHost
) -> None:
    if text is None:
        installed.run("/bin/rm", "-rf", "/etc/docker").check()
    else:
        installed.write(DAEMON_JSON, "")
        source = installed.directory / "daemon.json"
        source.write_bytes(text.encode())
        installed.run("/bin/cp", str(source), DAEMON_JSON).check()
    before = read_file(installed, DAEMON_JSON)
    assert configure(installed, "docker", "--check").status == 3
    with start_docker(installed) as (docker, daemon):
        assert "gpu-oci" not in ask_docker(installed, docker)["Runtimes"]
        configure(installed, "docker", "--set-default").check()
        daemon.send_signal(signal.SIGHUP)  # what `systemctl reload docker` does
        machine.wait_for(lambda: ask_docker(installed, docker)["DefaultRuntime"] == "gpu-oci", "reload")
        archive = images.write_archive(image, installed.directory / "image.tar")
        imported = installed.run(*docker, "import", str(archive)).check().stdout.strip()
        words = ("run", "--rm", "--network", "none", "--env", "NVIDIA_VISIBLE_DEVICES=0", imported)
        seen = parse_probe_output(installed.run(*docker, *words, *build_probe_command(simulated)).check().stdout)
        assert {card.index: seen.nodes[card.node] for card in simulated.cards} == {0: "ENXIO", 1: "ENOENT"}
        assert configure(installed, "docker", "--check").status == 0
    with start_docker(installed) as (docker, _):
        assert ask_docker(installed, docker)["DefaultRuntime"] == "gpu-oci"
    undone = configure(installed, "docker", "--undo").check()
    assert read_file(installed, DAEMON_JSON) == before, undone.text
    assert installed.run("/usr/bin/test", "-e", "/var/lib/gpu-oci-hook").status == 1
    with start_docker(installed) as (docker, _):
        info = ask_docker(installed, docker)
        assert info["DefaultRuntime"] == "runc" and "gpu-oci" not in info["Runtimes"]
    assert configure(installed, "docker", "--check").status == 3


KUBEADM = """version = 2 # the node's
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
\tSystemdCgroup = true
"""
VERSION_1 = "[plugins.cri]\n  sandbox_image = 'localhost/pause'\n"


@pytest.mark.parametrize("words", [(), ("--set-default",)], ids=["plain", "default"])
@pytest.mark.parametrize("text", ["Debian's", None, KUBEADM, VERSION_1], ids=["Debian's", "no file", "kubeadm", "v1"])
def test_containerd_set_up_keeps_the_plugin_and_undo_leaves_the_file_byte_for_byte(
    text: str | None, words: tuple[str, ...], installed: InstalledMachine, image: Path, simulated: SimulatedHost
) -> None:
    if text is None:
        installed.run("/bin/rm", "-f", CONFIG_TOML).check()
    elif text != "Debian's":
        installed.write(CONFIG_TOML, text)
    before = read_file(installed, CONFIG_TOML)
    assert configure(installed, "containerd", "--check").status == 3
    shown = configure(installed, "containerd", "--dry-run", *words).check().stdout
    assert '+    BinaryName = "/usr/local/bin/gpu-oci-runtime"' in shown
    assert read_file(installed, CONFIG_TOML) == before
    configure(installed, "containerd", *words).check()
    assert configure(installed, "containerd", "--check").status == 0
    directory = installed.directory
    socket = f"{directory}/c.sock"
    daemon = installed.start_daemon(
        "containerd",
        *(find_program("containerd"), "--config", CONFIG_TOML, "--address", socket),
        *("--root", f"{directory}/c-root", "--state", f"{directory}/c-state"),
    )
    try:
        ctr = (find_program("ctr"), "--address", socket)
        machine.wait_for(lambda: installed.run(*ctr, "version").status == 0, "containerd")
        plugins = installed.run(*ctr, "plugins", "ls").check().stdout
        states = [line.split()[-1] for line in plugins.splitlines() if "cri" in line.split()]
        assert states and set(states) == {"ok"}, plugins
        # The CRI plugin hands the handler's BinaryName to the same shim, which ctr starts here.
        run = ["run", "--rm", "--rootfs", "--runc-root", f"{directory}/runc", "--cgroup", "/gpu-oci-e2e/configure"]
        run += ["--runc-binary", read_handler_program(installed), "--env", "NVIDIA_VISIBLE_DEVICES=0"]
        run += [str(copy_image(image, directory)), "configured", *build_probe_command(simulated)]
        done = installed.run(*ctr, *run)
        seen = parse_probe_output(done.check().stdout)
        assert {card.index: seen.nodes[card.node] for card in simulated.cards} == {0: "ENXIO", 1: "ENOENT"}
    finally:
        machine.stop_daemon(daemon)
    dump = installed.run(find_program("containerd"), "--config", CONFIG_TOML, "config", "dump").check().stdout
    for name in ("runc", "gpu-oci"):
        assert f"containerd.runtimes.{name}]" in dump
    assert f'default_runtime_name = "{"gpu-oci" if words else "runc"}"' in dump
    assert dump.count("SystemdCgroup = true") == (2 if text == KUBEADM else 0)
    undone = configure(installed, "containerd", "--undo").check()
    assert read_file(installed, CONFIG_TOML) == before, undone.text
    assert configure(installed, "containerd", "--check").status == 3


def read_handler_program(installed: InstalledMachine) -> str:
    """The program of the runtime gpu-oci, as containerd reads it from its file."""
    dump = installed.run(find_program("containerd"), "--config", CONFIG_TOML, "config", "dump").check().stdout
    runtimes = tomllib.loads(dump)["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]
    program: str = runtimes["gpu-oci"]["options"]["BinaryName"]
    return program


def copy_image(image: Path, directory: Path) -> Path:
    """A root file system of the container's own."""
    root = directory / "root"
    machine.run_command(["cp", "-a", str(image), str(root)]).check()
    return root
