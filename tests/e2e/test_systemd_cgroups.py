"""Cgroups that systemd manages: it must know every injected node, or takes it away at `systemctl daemon-reload`.

A stand-in for systemd's bus notes what runc tells it. tests/e2e/booted-systemd has systemd itself, and crun.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_oci_hook.formats.oci import get_list, get_member
from support.e2e import host, machine, systemd_bus
from support.e2e.engines import ContainerRequest, edit_spec
from support.e2e.images import copy_image
from support.e2e.real_root import build_real_root
from support.e2e.requirements import require_programs


class Scene:
    """This machine with simulated GPUs, systemd's bus, and a runtime above `low_level`."""

    def __init__(
        self, directory: Path, image: Path, runtime: host.InstalledRuntime, simulated: host.SimulatedHost
    ) -> None:
        self.directory, self.image, self.runtime = directory, image, runtime
        self.log = directory / "bus.log"
        self.config = directory / "config.toml"
        self.config.write_text(
            f'[host]\ndriver-root = "{simulated.root}"\nload-modules = false\n[runtime]\nlow-level = ["runc"]\n'
        )
        self.namespace = build_real_root(simulated.root)
        self.namespace.start()
        argv = [*self.namespace.enter, sys.executable, systemd_bus.__file__, "/run/systemd/private", str(self.log)]
        self.bus = subprocess.Popen(argv, start_new_session=True)
        socket = Path(f"/proc/{self.namespace.process.pid}/root/run/systemd/private")  # type: ignore[union-attr]
        machine.wait_for(socket.exists, "the stand-in for systemd's bus")

    def stop(self) -> None:
        """End the bus and the namespace."""
        machine.stop_daemon(self.bus, patience=0.1)
        self.namespace.stop()

    def start_container(self, name: str, *env: str, hook: bool = False) -> dict[str, object]:
        """Run a container whose cgroup systemd manages; return its config.json as runc got it.

        Arguments:
            hook: the container has our prestart hook, and its runtime is runc.
        """
        bundle = self.directory / name
        bundle.mkdir()
        copy_image(self.image, bundle / "rootfs")
        machine.run_command([machine.find_program("runc"), "spec", "--bundle", str(bundle)]).check()
        config = json.loads((bundle / "config.json").read_text())
        edit_spec(config, ContainerRequest(["/bin/true"], env), cgroup=f"system.slice:gpu:{name}-{os.getpid()}")
        (bundle / "config.json").write_text(json.dumps(config))
        self.log.write_text("")
        program = str(self.runtime.shim)
        if hook:
            program = machine.find_program("runc")
            self.add_hook(bundle / "config.json")
        argv = [*self.namespace.enter, "env", f"GPU_OCI_HOOK_CONFIG={self.config}", program]
        argv += ["--root", str(self.directory / "state"), "--systemd-cgroup", "run", "--bundle", str(bundle), name]
        done = machine.run_command(argv).check()
        assert "skipping device" not in done.text
        made: dict[str, object] = json.loads((bundle / "config.json").read_text())
        return made

    def add_hook(self, config_json: Path) -> None:
        """Add our prestart hook, which logs what a person should know."""
        spec = json.loads(config_json.read_text())
        variables = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", f"GPU_OCI_HOOK_CONFIG={self.config}"]
        program = str(self.runtime.shim.with_name("gpu-oci-hook"))
        spec["hooks"] = {"prestart": [{"path": program, "args": [program, "prestart"], "env": variables}]}
        config_json.write_text(json.dumps(spec))

    def told_devices(self) -> set[tuple[str, str]]:
        """The (device, access) that systemd was told to allow."""
        allowed = set()
        for line in self.log.read_text().splitlines():
            member, body = json.loads(line)
            if member in ("StartTransientUnit", "SetUnitProperties"):
                for name, (_, value) in body[2]:
                    if name == "DeviceAllow":
                        allowed |= {(device, access) for device, access in value}
        return allowed


@pytest.fixture(scope="module")
def scene(
    workspace: Path, image: Path, runtime: host.InstalledRuntime, simulated: host.SimulatedHost
) -> Iterator[Scene]:
    directory = workspace / "systemd"
    directory.mkdir()
    made = Scene(directory, image, runtime, simulated)
    yield made
    made.stop()


def test_systemd_is_told_to_allow_every_injected_node(scene: Scene, simulated: host.SimulatedHost) -> None:
    require_programs("runc", "unshare", "nsenter")
    made = scene.start_container("all", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")
    injected = set()
    for rule in get_list(made, "linux", "resources", "devices"):
        if get_member(rule, "allow") and get_member(rule, "major"):
            device = f"/dev/char/{get_member(rule, 'major')}:{get_member(rule, 'minor')}"
            injected.add((device, get_member(rule, "access")))
    nodes = ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
    assert {f"/dev/char/{simulated.numbers(node)}" for node in nodes} <= {device for device, _ in injected}
    assert injected <= scene.told_devices()


def test_systemd_is_told_what_the_prestart_hook_allows(scene: Scene, simulated: host.SimulatedHost) -> None:
    require_programs("runc", "unshare", "nsenter")
    scene.start_container("hooked", "NVIDIA_VISIBLE_DEVICES=all", hook=True)
    nodes = ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
    given = {(f"/dev/char/{simulated.numbers(node)}", "rw") for node in nodes}
    calls = [json.loads(line) for line in scene.log.read_text().splitlines()]
    ours = [body for member, body in calls if member == "SetUnitProperties" and given <= entries_of(body)]
    assert len(ours) == 1
    assert ours[0][0] == f"gpu-hooked-{os.getpid()}.scope"


def entries_of(body: list[Any]) -> set[tuple[str, str]]:
    """The entries that a call adds to DeviceAllow."""
    return {(device, access) for name, (_, value) in body[2] if name == "DeviceAllow" for device, access in value}


def test_explain_shows_the_links_that_a_start_will_make(scene: Scene) -> None:
    scene.start_container("explained", "NVIDIA_VISIBLE_DEVICES=all")
    hook = scene.runtime.shim.with_name("gpu-oci-hook")
    argv = [*scene.namespace.enter, "env", f"GPU_OCI_HOOK_CONFIG={scene.config}", str(hook)]
    bundle = str(scene.directory / "explained")
    assert "links on the host" not in machine.run_command([*argv, "explain", "--bundle", bundle]).check().stdout
    machine.run_command([*scene.namespace.enter, "rm", "-r", "/dev/char"]).check()
    text = machine.run_command([*argv, "explain", "--bundle", bundle]).check().stdout
    assert "  links on the host\n    runc 1.1.3 to 1.1.6 tells systemd only about devices with such a link:\n" in text
    assert "      /dev/char/195:255 -> ../nvidiactl on the host\n" in text


def test_a_refresh_makes_the_links_for_containers_that_engines_start_with_its_cdi_file(
    scene: Scene, simulated: host.SimulatedHost
) -> None:
    path = scene.directory / "nvidia.yaml"
    hook = scene.runtime.shim.with_name("gpu-oci-hook")
    machine.run_command([*scene.namespace.enter, "rm", "-rf", "/dev/char"]).check()
    argv = [*scene.namespace.enter, "env", f"GPU_OCI_HOOK_CONFIG={scene.config}", str(hook)]
    machine.run_command([*argv, "cdi", "refresh", "--output", str(path)]).check()
    listed = machine.run_command([*scene.namespace.enter, "ls", "/dev/char"]).check().stdout.split()
    nodes = ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
    assert {simulated.numbers(node) for node in nodes} <= set(listed)
