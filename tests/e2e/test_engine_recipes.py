"""The recipes of docs/engines.md and docs/install.md, with the engines' real configuration files and paths.

In a private mount namespace /etc, /usr/local, /opt and /run are overlays; the product is installed as the page says.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.e2e import images, machine
from support.e2e.host import SimulatedHost
from support.e2e.installed_machine import InstalledMachine
from support.e2e.machine import find_program
from support.e2e.probe import build_probe_command, parse_probe_output

PROJECT = Path(__file__).parents[2]
PACKAGING = PROJECT / "packaging"


def test_containerds_own_configuration_and_the_snippet_have_both_runtimes_and_the_cri_plugin(
    installed: InstalledMachine,
) -> None:
    """Debian's config.toml names no runtime; a snippet that names ours alone would take runc away."""
    own = Path("/etc/containerd/config.toml").read_text()
    assert "version = 2" in own and "runtimes" not in own, "this is not the file of Debian's package"
    config = "/etc/containerd/config.toml"
    installed.write(config, own.rstrip() + "\n\n" + (PACKAGING / "containerd/config-v2.toml").read_text())
    directory = installed.directory
    words = ["--root", f"{directory}/c-root", "--state", f"{directory}/c-state", "--address", f"{directory}/c.sock"]
    daemon = installed.start_daemon("containerd", find_program("containerd"), "--config", config, *words)
    try:
        ctr = (find_program("ctr"), "--address", f"{directory}/c.sock")
        machine.wait_for(lambda: installed.run(*ctr, "version").status == 0, "containerd")
        plugins = installed.run(*ctr, "plugins", "ls").check().stdout
        states = [line.split()[-1] for line in plugins.splitlines() if "cri" in line.split()]
        assert states and set(states) == {"ok"}, plugins
        dump = installed.run(find_program("containerd"), "--config", config, "config", "dump").check().stdout
    finally:
        machine.stop_daemon(daemon)
    for name in ("runc", "gpu-oci"):
        assert f"containerd.runtimes.{name}]" in dump
    assert 'BinaryName = "/usr/local/bin/gpu-oci-runtime"' in dump.replace("'", '"')


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("daemon-default.json", []),
        ("daemon-default.json", ["--gpus", "device=0"]),
        ("daemon-nvidia.json", []),
        ("daemon-nvidia.json", ["--runtime", "nvidia"]),
        ("daemon-nvidia.json", ["--gpus", "device=0"]),
        ("daemon.json", ["--runtime", "gpu-oci"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_dockers_recipes_give_the_gpu(
    file: str, words: list[str], installed: InstalledMachine, image: Path, simulated: SimulatedHost
) -> None:
    installed.write("/etc/docker/daemon.json", (PACKAGING / "docker" / file).read_text())
    directory = installed.directory
    daemon = installed.start_daemon(
        "dockerd",
        *(find_program("dockerd"), "--host", f"unix://{directory}/d.sock", "--pidfile", f"{directory}/d.pid"),
        *("--data-root", f"{directory}/d-data", "--exec-root", f"{directory}/d-exec"),
        *("--iptables=false", "--ip6tables=false", "--bridge=none"),
    )
    docker = (find_program("docker"), "--host", f"unix://{directory}/d.sock")
    try:
        machine.wait_for(lambda: installed.run(*docker, "version").status == 0, "dockerd")
        archive = images.write_archive(image, directory / "image.tar")
        imported = installed.run(*docker, "import", str(archive)).check().stdout.strip()
        options = words if "--gpus" in words else [*words, "--env", "NVIDIA_VISIBLE_DEVICES=0"]
        done = installed.run(
            *docker, "run", "--rm", "--network", "none", *options, imported, *build_probe_command(simulated)
        )
        without = installed.run(*docker, "run", "--rm", "--network", "none", imported, *build_probe_command(simulated))
    finally:
        machine.stop_daemon(daemon)
    seen = parse_probe_output(done.check().stdout)
    assert {card.index: seen.nodes[card.node] for card in simulated.cards} == {0: "ENXIO", 1: "ENOENT"}
    assert set(seen.libraries.values()) == {"ok"}
    assert set(parse_probe_output(without.check().stdout).nodes.values()) == {"ENOENT"}


def test_podmans_recipe_gives_the_gpu(installed: InstalledMachine, image: Path, simulated: SimulatedHost) -> None:
    installed.write("/etc/containers/containers.conf.d/gpu-oci.conf", (PACKAGING / "podman/gpu-oci.conf").read_text())
    directory = installed.directory
    flags = ["--root", f"{directory}/p", "--runroot", f"{directory}/pr", "--tmpdir", f"{directory}/pt"]
    flags += ["--cgroup-manager", "cgroupfs", "--events-backend", "file", "--runtime", "gpu-oci"]
    podman = (find_program("podman"), *flags)
    archive = images.write_archive(image, directory / "image.tar")
    imported = installed.run(*podman, "import", "--quiet", str(archive)).check().stdout.strip()
    words = ["--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
    asked = ["--env", "NVIDIA_VISIBLE_DEVICES=1"]
    done = installed.run(*podman, "run", "--rm", *words, *asked, imported, *build_probe_command(simulated)).check()
    seen = parse_probe_output(done.stdout)
    assert {card.index: seen.nodes[card.node] for card in simulated.cards} == {0: "ENOENT", 1: "ENXIO"}


def test_removing_leaves_nothing_that_calls_us(installed: InstalledMachine) -> None:
    """The commands of docs/install.md, after everything that the pages say was installed."""
    for top in ("etc/cdi", "etc/containers/oci/hooks.d", "etc/udev/rules.d", "etc/systemd/system", "opt/gpu-oci-hook"):
        installed.run("/bin/mkdir", "-p", f"/{top}").check()
    hook = "/usr/local/bin/gpu-oci-hook"
    installed.run(hook, "cdi", "generate", "--output", "/etc/cdi/nvidia.yaml", "--target", "podman-4.3").check()
    installed.run(hook, "cdi", "refresh", "--target", "podman-4.3").check()
    others = {"/etc/cdi/other.json": "{}", "/usr/local/bin/another-nvidia-cdi-hook": "x"}
    for path, text in others.items():
        installed.write(path, text)
    for source, target in (
        ("hooks.d", "containers/oci/hooks.d"),
        ("udev", "udev/rules.d"),
        ("systemd", "systemd/system"),
    ):
        installed.run("/bin/sh", "-ec", f"cp {PACKAGING}/{source}/* /etc/{target}/").check()
    section = (PROJECT / "docs/install.md").read_text().split("## Remove")[1]
    commands = section.split("```sh\n")[1].split("```")[0].replace("systemctl disable", ": systemctl disable")
    installed.run("/bin/sh", "-ec", commands).check()
    left = installed.run(
        "/bin/sh", "-c", "grep -rlsE 'gpu-oci|gpu_oci' /etc /usr/local/bin /var/run/cdi; ls /opt /run"
    ).stdout
    assert "gpu-oci" not in left, left
    assert "/etc/cdi/nvidia" not in left
    dangling = installed.run("/usr/bin/find", "/usr/local/bin", "-xtype", "l").stdout
    assert "nvidia" not in dangling, dangling
    for path in others:
        installed.run("/usr/bin/test", "-e", path).check()


def test_the_nvidia_recipe_has_what_the_devcontainer_cli_looks_for() -> None:
    """It looks for a runtime named nvidia whose description has `nvidia-container-runtime`."""
    runtimes = json.loads((PACKAGING / "docker/daemon-nvidia.json").read_text())["runtimes"]
    assert "nvidia-container-runtime" in json.dumps(runtimes["nvidia"])
