"""`explain` of running containers by the names that their engines give them, without asking a daemon."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.e2e import machine
from support.e2e.engines import (
    ROOTLESS_ID,
    BareRuntime,
    Containerd,
    ContainerRequest,
    Docker,
    Engine,
    EngineHome,
    Podman,
    RootlessPodman,
)
from support.e2e.host import InstalledRuntime, SimulatedHost
from support.e2e.machine import find_program
from support.e2e.probe import build_probe_command, parse_probe_output
from support.e2e.requirements import require_programs


class Running:
    """A container that runs and has requested GPU 0, and `explain` for it."""

    def __init__(self, engine: Engine, runtime: InstalledRuntime, host: SimulatedHost) -> None:
        self.engine = engine
        self.program = runtime.shim.with_name("gpu-oci-hook")
        low_level = engine.low_level if isinstance(engine, BareRuntime) else "runc"
        self.config = runtime.wrapper(low_level, host.root).with_suffix(".toml")
        self.name = engine.background(ContainerRequest(["/bin/sleep", "300"], ["NVIDIA_VISIBLE_DEVICES=0"]))

    @property
    def reference(self) -> str:
        """The container's name for `explain`; "" for a bare runtime, which gives its bundle's name to nobody."""
        if isinstance(self.engine, Containerd):
            return f"containerd:e2e/{self.name}"
        if isinstance(self.engine, Docker):
            return f"docker:{self.name[:12]}"
        return f"podman:{self.name[:12]}" if isinstance(self.engine, Podman) else ""

    def find_pid(self) -> int:
        """Return the container's first process."""
        return machine.find_process("/bin/sleep", "300")

    def explain(self, *words: str) -> machine.CommandResult:
        """Run `explain` as root, in the machine's own namespaces."""
        return machine.run_command([str(self.program), "explain", *words, "--config", str(self.config)])

    def explain_as_data(self, *words: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.explain(*words, "-o", "json").check().stdout)
        return document


@pytest.fixture(scope="module")
def running(engine: Engine, runtime: InstalledRuntime, simulated: SimulatedHost) -> Iterator[Running]:
    made = Running(engine, runtime, simulated)
    yield made
    engine.remove(made.name)


def test_a_running_container_has_all_of_its_plan(running: Running) -> None:
    """The plan is the one of its start, and the root file system is seen even where only the engine has it mounted."""
    words = [running.reference]
    if isinstance(running.engine, BareRuntime):
        words = ["--bundle", str(running.engine._bundles[running.name])]
    answer = running.explain(*words).check()
    assert "\ninjected (already in config.json)\n" in answer.stdout, answer.text
    assert "the container gets the driver and 1 of 2 GPUs\n" in answer.stdout
    assert "\n  links\n" in answer.stdout and "leftover" not in answer.stdout and "-> " in answer.stdout
    document = running.explain_as_data(*words)
    assert document["running"] is bool(running.reference)
    assert document["found"]["complete"] and not document["found"]["missing_sources"], document["found"]
    assert document["warnings"] == []


def test_a_process_names_its_container(running: Running) -> None:
    pid = running.find_pid()
    if not running.reference:
        answer = running.explain("--pid", str(pid))
        assert answer.status == 1 and "no container of this process was found" in answer.stderr
        return
    by_pid, by_name = running.explain_as_data("--pid", str(pid)), running.explain_as_data(running.reference)
    assert by_pid["bundle"] == by_name["bundle"] and by_pid["edits"] == by_name["edits"]


def test_a_name_of_the_engines_own_choice_is_found(running: Running) -> None:
    if not isinstance(running.engine, (Docker, Podman)):
        return  # this engine gives no names
    kind = "docker" if isinstance(running.engine, Docker) else "podman"
    words = ("inspect", "--format", "{{.Name}}", running.name)
    name = running.engine.command(*words).check().stdout.strip().removeprefix("/")
    assert name in running.explain(f"{kind}:{name}").check().stdout.splitlines()[0]


def test_a_user_explains_his_own_container(running: Running) -> None:
    if not isinstance(running.engine, RootlessPodman):
        return  # the others belong to root
    engine, home = running.engine, running.engine.place.directory
    assert engine._holder is not None
    user = [find_program("setpriv"), f"--reuid={ROOTLESS_ID}", f"--regid={ROOTLESS_ID}", "--clear-groups"]
    words = [str(running.program), "explain", running.reference, "--config", str(running.config)]
    env = {"PATH": machine.DIRECTORIES, "HOME": str(home / "home"), "XDG_RUNTIME_DIR": str(home / "xdg")}
    answer = machine.run_command([*engine._holder.enter, *user, *words], env=env).check()
    assert answer.stdout == running.explain(running.reference).stdout
    assert "\ninjected (already in config.json)\n" in answer.stdout
    stranger = [find_program("setpriv"), "--reuid=65533", "--regid=65533", "--clear-groups"]
    answer = machine.run_command([*engine._holder.enter, *stranger, *words], env={"PATH": machine.DIRECTORIES})
    assert answer.status == 1 and answer.stderr.count("\n") == 1, answer.text


def test_an_unknown_name_lists_the_running_ones(running: Running) -> None:
    if not running.reference:
        return  # this engine gives no names
    answer = running.explain(f"{running.reference.partition(':')[0]}:none-of-this-name")
    assert answer.status == 1 and "Running: " in answer.stderr, answer.text


def test_a_container_of_podman_that_has_ended_keeps_its_bundle(running: Running, simulated: SimulatedHost) -> None:
    if type(running.engine) is not Podman:
        return  # the others delete it, or hide it in a namespace that ends with the container
    engine = running.engine
    name = engine.background(ContainerRequest(["/bin/true"], ["NVIDIA_VISIBLE_DEVICES=0"]))
    try:
        machine.wait_for(
            lambda: "exited" in engine.command("inspect", "--format", "{{.State.Status}}", name).stdout, name
        )
        # The storage is a private one, which no name leads to.
        (bundle,) = engine.place.directory.glob(f"data/*-containers/{name}/userdata")
        text = running.explain("--bundle", str(bundle)).check().stdout
    finally:
        engine.remove(name)
    assert "the root file system is not mounted while the container does not run" in text
    assert f"GPU 0 ({simulated.cards[0].uuid})" in text and "\ninjected (already in config.json)\n" in text


@pytest.fixture
def docker(
    workspace: Path, image: Path, runtime: InstalledRuntime, simulated: SimulatedHost, tmp_path: Path
) -> Iterator[Docker]:
    """docker with one container at a time, by whatever runtime."""
    made = Docker()
    require_programs(*made.programs)
    directory = Path(tempfile.mkdtemp(prefix="d-", dir=workspace))
    directory.chmod(0o755)
    made.start(EngineHome(directory, image, lambda low_level: runtime.wrapper(low_level, simulated.root)))
    yield made
    made.stop()
    machine.remove_tree(directory)


def test_a_running_container_that_another_runtime_started_has_none_of_it(
    docker: Docker, runtime: InstalledRuntime, simulated: SimulatedHost
) -> None:
    request = ContainerRequest(["/bin/sleep", "300"], ["NVIDIA_VISIBLE_DEVICES=0"])
    words = ["runc" if word == "gpu" else word for word in docker._run_words(request, "--detach", "--name", "plain")]
    docker.command(*words).check()
    program, config = runtime.shim.with_name("gpu-oci-hook"), runtime.wrapper("runc", simulated.root)
    done = machine.run_command([str(program), "explain", "docker:plain", "--config", str(config.with_suffix(".toml"))])
    text = done.check().stdout
    assert text.startswith("container     docker container plain (")
    assert "\nconfig.json has none of this: it was not started by gpu-oci-runtime\n" in text
    assert "already in config.json" not in text


def test_the_variables_of_an_image_of_docker_are_explained(
    docker: Docker, runtime: InstalledRuntime, simulated: SimulatedHost
) -> None:
    request = ContainerRequest(["/bin/true"])
    docker.command("create", "--name", "base", docker._image(request), "/bin/true").check()
    docker.command("commit", "--change", "ENV NVIDIA_VISIBLE_DEVICES=1", "base", "site/gpu:1").check()
    program, config = runtime.shim.with_name("gpu-oci-hook"), runtime.wrapper("runc", simulated.root)
    words = [str(program), "explain", "--image", "site/gpu:1", "--config", str(config.with_suffix(".toml"))]
    env = {"PATH": machine.DIRECTORIES, "HOME": "/root", "DOCKER_HOST": f"unix://{docker.socket}"}
    text = machine.run_command(words, env=env).check().stdout
    assert text.startswith("container     assumed, with the variables of site/gpu:1 and an image like Debian's\n")
    assert f"GPU 1 ({simulated.cards[1].uuid}): NVIDIA_VISIBLE_DEVICES=1" in text


@pytest.mark.parametrize("privileged", [True, False])
def test_what_explain_says_of_a_privileged_container_is_what_it_can_open(
    workspace: Path, image: Path, runtime: InstalledRuntime, simulated: SimulatedHost, *, privileged: bool
) -> None:
    """The spec of a privileged container; docker's own needs more rights than every test machine has."""
    bare, other = BareRuntime("runc", "v1", "run"), simulated.cards[1]
    directory = Path(tempfile.mkdtemp(prefix="p-", dir=workspace))
    bare.start(EngineHome(directory, image, lambda low_level: runtime.wrapper(low_level, simulated.root)))
    bundle = bare.bundle(ContainerRequest(build_probe_command(simulated), ["NVIDIA_VISIBLE_DEVICES=0"]))
    if privileged:
        spec = json.loads((bundle / "config.json").read_text())
        spec["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]
        (bundle / "config.json").write_text(json.dumps(spec))
    program, config = runtime.shim.with_name("gpu-oci-hook"), runtime.wrapper("runc", simulated.root)
    words = [str(program), "explain", str(bundle), "--config", str(config.with_suffix(".toml"))]
    text = machine.run_command(words).check().stdout
    warning = (
        f"- the container can also open GPU 1 ({other.node}), which it did not request: linux.resources.devices[0]"
    )
    assert (warning in text) is privileged
    assert (other.node in text.partition("\nwithheld\n")[2]) is not privileged
    seen = parse_probe_output(bare.start_bundle(bundle).check().stdout)
    assert seen.made[other.numbers] == ("ENXIO" if privileged else "EPERM"), "ENXIO: the device cgroup lets it pass"
    bare.stop()
