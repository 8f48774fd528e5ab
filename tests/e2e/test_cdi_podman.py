"""Real podman, no shim: containers get their GPU from the file that `cdi generate` writes, and from its one hook.

podman runs in a private mount namespace whose /etc is an overlay, so that /etc/cdi is there for it alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.e2e import host, images, machine
from support.e2e.driver_packages import (
    NO_DRIVER_LOADED,
    fetch_packages,
    install_debian_layout,
    install_runfile_layout,
    read_package_version,
)
from support.e2e.engines import ContainerRequest, EngineHome, Podman
from support.e2e.images import TRIPLE
from support.e2e.machine import CommandResult
from support.e2e.podman_pairs import podman_version
from support.e2e.probe import CONTROL_NODES, LIBRARIES, build_probe_command, parse_probe_output
from support.e2e.requirements import require_programs

TARGET = "podman-4.3"
KIND = "nvidia.com/gpu"
# What libldconfig would list of the driver, and what the image's own loader has.
LISTED = ("libcuda.so.1 (", "libnvidia-ml.so.1 (", "libc.so.6 (")


class CdiPodman(Podman):
    """podman with a directory of CDI files of its own, and one for what our hook leaves; it runs a plain runtime."""

    name = "podman with CDI files"
    cgroups = ""

    def start(self, place: EngineHome) -> None:
        self.directory = place.directory / "cdi"
        self.directory.mkdir()
        self.state = place.directory / "state"
        self.state.mkdir(mode=0o755)
        self._furnish = self.cgroups + (
            f"mkdir -p /run/gpu-oci-hook\nmount --bind {self.state} /run/gpu-oci-hook\n"
            f"{machine.private_cdi_script(place.directory, self.directory)}"
        )
        super().start(place)

    def device(self, name: str, *words: str, env: tuple[str, ...] = (), root: Path | None = None) -> CommandResult:
        """Runs a container with a device of ours."""
        return self.run(ContainerRequest(list(words), env, devices=[f"{KIND}={name}"], root=root))


@pytest.fixture(scope="session")
def podman(workspace: Path, image: Path) -> Iterator[CdiPodman]:
    """podman, started."""
    engine = CdiPodman()
    require_programs(*engine.programs)
    directory = workspace / "cdi-podman"
    directory.mkdir(mode=0o755)
    engine.start(EngineHome(directory, image, lambda low_level: Path(machine.find_program(low_level))))
    yield engine
    engine.stop()


class CrunPodman(CdiPodman):
    """podman with its own default runtime, which refuses a hybrid cgroup tree."""

    name = "podman with CDI files and crun"
    cgroups = "umount /sys/fs/cgroup/unified || true\n"


@pytest.fixture(scope="session")
def with_crun(workspace: Path, image: Path) -> Iterator[CdiPodman]:
    """podman with its own default runtime, started."""
    engine = CrunPodman()
    require_programs(*engine.programs, "crun")
    directory = workspace / "cdi-crun"
    directory.mkdir(mode=0o755)
    engine.start(EngineHome(directory, image, lambda _: Path(machine.find_program("crun"))))
    yield engine
    engine.stop()


class Writer:
    """`gpu-oci-hook cdi`, as it is installed."""

    def __init__(self, runtime: host.InstalledRuntime, directory: Path) -> None:
        self.program = runtime.directory / "prefix/bin/gpu-oci-hook"
        self.config = directory / "writer.toml"
        self.config.write_text("")

    def run(self, *words: str) -> CommandResult:
        """One of the commands of `cdi`."""
        return machine.run_command([str(self.program), "cdi", *words], env={"GPU_OCI_HOOK_CONFIG": str(self.config)})

    def generate(self, root: Path, path: Path, *words: str) -> CommandResult:
        """Writes a file about a host."""
        return self.run("generate", "--root", str(root), "--output", str(path), "--hook", str(self.program), *words)


@pytest.fixture(scope="session")
def writer(runtime: host.InstalledRuntime, workspace: Path) -> Writer:
    """The installed program."""
    return Writer(runtime, workspace)


@pytest.fixture
def file(podman: CdiPodman) -> Iterator[Path]:
    """The one CDI file that podman sees."""
    path = podman.directory / "gpu.yaml"
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def written(podman: CdiPodman, writer: Writer, simulated: host.SimulatedHost, file: Path) -> Path:
    """The file for the simulated host with two GPUs."""
    writer.generate(simulated.root, file, "--target", TARGET).check()
    return file


@pytest.mark.usefixtures("written")
def test_a_container_gets_its_gpu_and_no_other(podman: CdiPodman, simulated: host.SimulatedHost) -> None:
    seen = parse_probe_output(podman.device("0", *build_probe_command(simulated)).check().stdout)
    wanted = (*CONTROL_NODES, simulated.cards[0].node)
    assert {node: seen.nodes[node] for node in wanted} == dict.fromkeys(wanted, "ENXIO")
    assert seen.nodes[simulated.cards[1].node] == "ENOENT"
    assert seen.made[simulated.cards[1].numbers] == "EPERM"


@pytest.mark.usefixtures("written")
def test_a_gpu_by_uuid_and_all_of_them(podman: CdiPodman, simulated: host.SimulatedHost) -> None:
    seen = parse_probe_output(podman.device(simulated.cards[1].uuid, *build_probe_command(simulated)).check().stdout)
    assert seen.nodes[simulated.cards[1].node] == "ENXIO" and seen.nodes[simulated.cards[0].node] == "ENOENT"
    seen = parse_probe_output(podman.device("all", *build_probe_command(simulated)).check().stdout)
    assert [seen.nodes[card.node] for card in simulated.cards] == ["ENXIO"] * 2


@pytest.mark.usefixtures("written")
def test_none_is_the_driver_without_a_gpu(podman: CdiPodman, simulated: host.SimulatedHost) -> None:
    seen = parse_probe_output(podman.device("none", *build_probe_command(simulated)).check().stdout)
    assert seen.libraries == dict.fromkeys(LIBRARIES, "ok")
    assert [seen.nodes[card.node] for card in simulated.cards] == ["ENOENT"] * 2


@pytest.mark.usefixtures("written")
def test_the_loader_finds_the_libraries_and_ldconfig_lists_them(
    podman: CdiPodman, simulated: host.SimulatedHost
) -> None:
    words = " ".join(build_probe_command(simulated))
    done = podman.device("0", "/bin/sh", "-c", f"{words}; echo @@; ldconfig -p; ldconfig; echo @@; ldconfig -p").check()
    first, listed, later = done.stdout.split("@@\n")
    assert parse_probe_output(first).libraries == dict.fromkeys(LIBRARIES, "ok")
    for word in LISTED:
        assert word in listed and word in later
    assert done.stderr == "", "on success silence"


@pytest.mark.usefixtures("written")
def test_the_containers_environment_says_that_all_is_done(podman: CdiPodman) -> None:
    done = podman.device("0", "/bin/sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES", env=("NVIDIA_VISIBLE_DEVICES=all",))
    assert done.check().stdout == "void\n"


@pytest.mark.usefixtures("written")
def test_explain_says_who_injected_into_the_running_container(
    podman: CdiPodman, writer: Writer, simulated: host.SimulatedHost
) -> None:
    name = podman.background(ContainerRequest(["/bin/sleep", "300"], devices=[f"{KIND}=0"]))
    try:
        words = [str(writer.program), "explain", f"podman:{name[:12]}", "--root", str(simulated.root)]
        text = machine.run_command(words, env={"GPU_OCI_HOOK_CONFIG": str(writer.config)}).check().stdout
    finally:
        podman.remove(name)
    assert "the container gets nothing from gpu-oci-runtime; config.json has what was injected before" in text
    found = text.partition("\nalready in config.json\n")[2]
    assert f"by an engine, from a CDI file of gpu-oci-hook: hooks.createContainer[0] is {writer.program}\n" in found
    assert f"    device    {simulated.cards[0].node:<22} c {simulated.cards[0].numbers}\n" in found
    assert simulated.cards[1].node not in found and "does not exist" not in text


@pytest.mark.usefixtures("written")
def test_a_requirement_that_the_host_does_not_meet_keeps_the_container_from_starting(podman: CdiPodman) -> None:
    done = podman.device("0", "/bin/true", env=("NVIDIA_REQUIRE_CUDA=cuda>=99.0",))
    assert done.status != 0
    podman.device("0", "/bin/true", env=("NVIDIA_REQUIRE_CUDA=cuda>=11.0",)).check()


def test_crun_loses_what_a_hook_says_and_it_can_be_found_nevertheless(
    with_crun: CdiPodman, writer: Writer, simulated: host.SimulatedHost
) -> None:
    """In the fixed place, and with --hook-log in a file of one's own."""
    file, log, kept = with_crun.directory / "gpu.yaml", with_crun.state.parent / "own.log", with_crun.state / "hook.log"
    sentence = 'NVIDIA_REQUIRE_CUDA: the requirement \\"cuda>=99.0\\" is not met'
    unmet = ("NVIDIA_REQUIRE_CUDA=cuda>=99.0",)
    writer.generate(simulated.root, file, "--target", TARGET).check()
    with_crun.device("0", "/bin/true").check()
    done = with_crun.device("0", "/bin/true", env=unmet)
    assert done.status != 0 and "is not met" not in done.text, "then this is no longer needed"
    assert sentence in kept.read_text() and 'bundle="' in kept.read_text()
    kept.unlink()
    writer.generate(simulated.root, file, "--target", TARGET, "--hook-log", str(log)).check()
    assert with_crun.device("0", "/bin/true", env=unmet).status != 0
    assert sentence in log.read_text() and not kept.exists()


def test_numbers_that_changed_after_the_file_was_written_are_the_hosts_own(
    podman: CdiPodman, writer: Writer, file: Path, tmp_path: Path
) -> None:
    """The file has no major of nvidia-uvm, so podman looks at the host's node."""
    own = host.build_host(tmp_path / "own", gpus=1)
    writer.generate(own.root, file, "--target", TARGET).check()
    (own.root / "dev/nvidia-uvm").unlink()
    os.mknod(own.root / "dev/nvidia-uvm", 0o666 | 0o020000, os.makedev(509, 0))
    done = podman.device("0", "/bin/stat", "-c", "%t:%T", "/dev/nvidia-uvm").check()
    assert done.stdout == "1fd:0\n"


def test_a_file_with_groups_is_refused_by_podman_and_validate_says_so_beforehand(
    podman: CdiPodman, writer: Writer, simulated: host.SimulatedHost, file: Path
) -> None:
    writer.generate(simulated.root, file).check()
    assert "additionalGids" in file.read_text()
    done = podman.device("0", "/bin/true")
    if podman_version().startswith("4."):
        assert done.status != 0 and "unresolvable CDI devices" in done.text
    else:  # its library reads CDI 0.7
        done.check()
    said = writer.run("validate", "--root", str(simulated.root), str(file), "--target", TARGET)
    assert said.status == 1 and "additionalGids" in said.text and "0.7.0" in said.text
    writer.generate(simulated.root, file, "--target", TARGET).check()
    assert writer.run("validate", "--root", str(simulated.root), str(file), "--target", TARGET).status == 0
    podman.device("0", "/bin/true").check()


@pytest.mark.parametrize("layout", [install_debian_layout, install_runfile_layout], ids=["debian", "runfile"])
def test_the_real_nvidia_smi_finds_its_library(
    podman: CdiPodman, writer: Writer, file: Path, layout: object, tmp_path: Path
) -> None:
    packages = fetch_packages("bookworm") / "files"
    version = read_package_version(packages)
    simulated = host.build_host(tmp_path / "simulated", gpus=1, version=version)
    root = tmp_path / "host"
    root.mkdir()
    assert callable(layout)
    layout(packages, root)
    for name in ("proc", "dev", "sys"):
        if (simulated.root / name).exists():
            machine.run_command(["cp", "-a", str(simulated.root / name), str(root)]).check()
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/ld.so.conf").write_text(f"/usr/lib/{TRIPLE}\n")
    machine.run_command([machine.find_program("ldconfig"), "-r", str(root)]).check()
    writer.generate(root, file, "--target", TARGET).check()
    done = podman.device("all", "/usr/bin/nvidia-smi")
    assert done.status == NO_DRIVER_LOADED, done


def test_musl_has_its_libraries_too(
    podman: CdiPodman, written: Path, simulated: host.SimulatedHost, workspace: Path
) -> None:
    require_programs("musl-gcc")
    root = workspace / "cdi-musl"
    if not root.exists():
        images.build_musl_image(root)
    done = podman.device("0", "/bin/cat", f"/etc/ld-musl-{os.uname().machine}.path", root=root).check()
    assert "/usr/local/nvidia/lib64" in done.stdout.splitlines()


def test_a_mig_device_opens_its_own_nodes_and_no_others(
    podman: CdiPodman, writer: Writer, file: Path, tmp_path: Path
) -> None:
    from gpu_oci_hook.simulate import host_tree

    report = host_tree.build_host(tmp_path / "mig", gpus=1, mig=("1g,1g",))
    writer.generate(Path(report.directory), file, "--target", TARGET, "--capabilities", "compute,utility").check()
    caps = sorted(name for name in os.listdir(tmp_path / "mig/dev/nvidia-caps"))
    numbers = {name: os.stat(tmp_path / "mig/dev/nvidia-caps" / name).st_rdev for name in caps}
    done = podman.device("0:1", "/bin/ls", "/dev/nvidia-caps").check()
    given = done.stdout.split()
    assert len(given) == 2 and set(given) < set(caps)
    words = [word for name in given for word in ("--read", f"/dev/nvidia-caps/{name}")]
    for name in set(caps) - set(given):
        words += ["--make", f"{os.major(numbers[name])}:{os.minor(numbers[name])}"]
    answer = json.loads(podman.device("0:1", "/probe", *words).check().stdout)
    assert set(answer["read"].values()) == {"ENXIO"} and set(answer["made"].values()) == {"EPERM"}
