"""`explain` of a running container says what it has lost: each loss is made on purpose, with real engines."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.e2e import host, machine
from support.e2e.engines import BareRuntime, ContainerRequest, Docker, Engine, EngineHome, Podman
from support.e2e.hook_engines import write_hook
from support.e2e.host import InstalledRuntime, SimulatedHost
from support.e2e.machine import find_program
from support.e2e.requirements import require_programs

LIBRARY = "libnvidia-ptxjitcompiler.so.550.163.01"
OTHER_LIBRARY = "libnvidia-nvvm.so.550.163.01"
# Replaces every program of a cgroup by runc's for a container without a GPU.
SWAP_PROGRAM = """
import json, sys
from gpu_oci_hook.live import bpf
from gpu_oci_hook.live.device_cgroup import find_device_cgroup
new = bpf.load_program(bytes.fromhex(json.load(open(sys.argv[2]))["runc 1.1.5"]))
cgroup = bpf.open_cgroup(find_device_cgroup(int(sys.argv[1])).paths[0])
for number in bpf.list_program_ids(cgroup):
    bpf.replace_program(cgroup, bpf.open_program(number), new)
"""


class RuncAlone(BareRuntime):
    """runc with its own default state directory, where `explain` finds its containers."""

    def command(self, *words: str) -> list[str]:
        argv = super().command(*words)
        argv[argv.index("--root") + 1] = "/run/runc"
        return argv


class Scene:
    """A container with GPU 0 of a simulated host of its own."""

    def __init__(self, engine: Engine, runtime: InstalledRuntime, simulated: SimulatedHost, name: str = "") -> None:
        self.engine, self.simulated = engine, simulated
        self.program = runtime.shim.with_name("gpu-oci-hook")
        self.config = runtime.wrapper("runc", simulated.root).with_suffix(".toml")
        self.name = name or engine.background(ContainerRequest(["/bin/sleep", "300"], ["NVIDIA_VISIBLE_DEVICES=0"]))
        kind = {Docker: "docker", Podman: "podman", RuncAlone: "runc"}[type(engine)]
        self.reference = f"{kind}:{self.name}"
        self.enter = engine._holder.enter if isinstance(engine, BareRuntime) and engine._holder is not None else []
        self.pid = self._find_pid()

    def _find_pid(self) -> int:
        return machine.find_process("/bin/sleep", "300")

    def explain(self, *words: str) -> str:
        argv = [*self.enter, str(self.program), "explain", self.reference, *words, "--config", str(self.config)]
        return machine.run_command(argv).check().stdout

    def find_differences(self) -> list[tuple[str, str, str]]:
        """The differences that `explain` names, as (kind, name, text)."""
        reality: dict[str, Any] = json.loads(self.explain("-o", "json"))["reality"]
        assert reality["problems"] == []
        for kind, count in reality["counts"].items():
            lacking = sum(difference["kind"] == kind for difference in reality["differences"])
            assert count["present"] == count["expected"] - lacking
        assert reality["counts"]["mount"]["expected"] > 5 and reality["counts"]["rule"]["expected"] >= 3
        return [(item["kind"], item["name"], item["text"]) for item in reality["differences"]]


@pytest.fixture(
    scope="module",
    params=[RuncAlone("runc", "v1", "run"), RuncAlone("runc", "v2", "run"), Docker(), Podman()],
    ids=lambda engine: engine.name.replace(" ", "-"),
)
def engine(
    request: pytest.FixtureRequest, workspace: Path, image: Path, runtime: InstalledRuntime
) -> Iterator[tuple[Engine, SimulatedHost]]:
    made: Engine = request.param
    require_programs(*made.programs)
    directory = Path(tempfile.mkdtemp(prefix="r-", dir=workspace))
    directory.chmod(0o755)
    simulated = host.build_host(directory / f"host-{directory.name}")
    made.start(EngineHome(directory, image, lambda low_level: runtime.wrapper(low_level, simulated.root)))
    yield made, simulated
    made.stop()
    machine.remove_tree(directory)


@pytest.fixture
def scene(engine: tuple[Engine, SimulatedHost], runtime: InstalledRuntime) -> Iterator[Scene]:
    made = Scene(engine[0], runtime, engine[1])
    yield made
    made.engine.remove(made.name)


def test_a_container_that_lacks_nothing_has_no_differences(scene: Scene) -> None:
    assert scene.find_differences() == []
    section = scene.explain().partition("\nin the container now\n")[2]
    assert section.count("\n") == 1 and " device nodes, " in section and " mounts, " in section


def test_a_rule_that_was_taken_away_is_named(scene: Scene) -> None:
    numbers = scene.simulated.cards[0].numbers
    cgroup = Path(f"/proc/{scene.pid}/cgroup").read_text()
    if scene.engine.name.startswith("runc v2"):
        dumps = Path(__file__).parent.parent / "live/device_programs.json"
        python = (scene.program.read_text().splitlines()[0]).removeprefix("#!").split()[0]
        source = str(Path(__file__).parents[2] / "src")
        code = f"import sys; sys.path.insert(0, {source!r})\n{SWAP_PROGRAM}"
        machine.run_command([*scene.enter, python, "-c", code, str(scene.pid), str(dumps)]).check()
    else:
        (path,) = [line.split(":", 2)[2] for line in cgroup.splitlines() if "devices" in line.split(":")[1].split(",")]
        Path(f"/sys/fs/cgroup/devices{path}/devices.deny").write_text(f"c {numbers} rw")
    found = scene.find_differences()
    assert ("rule", f"{numbers} rw") in [(kind, name) for kind, name, _ in found]
    assert all(kind == "rule" and text.startswith("it is denied: ") for kind, _, text in found)
    if not scene.engine.name.startswith("runc v2"):
        assert len(found) == 1
    assert f"\n  rule      {numbers} rw: it is denied: " in scene.explain()


def test_a_node_that_is_gone_or_another_device_is_named(scene: Scene) -> None:
    node, numbers = scene.simulated.cards[0].node, scene.simulated.cards[0].numbers
    path = Path(f"/proc/{scene.pid}/root{node}")
    path.unlink()
    assert scene.find_differences() == [("device", node, "it is missing")]
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    assert scene.find_differences() == [("device", node, f"it is 1:3 and not {numbers}")]
    path.unlink()
    path.write_text("")
    assert scene.find_differences() == [("device", node, "it is not a character device")]
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert scene.find_differences() == [("device", node, "it is not a character device")]
    assert f"\n  device    {node}: it is not a character device\n" in scene.explain()


def test_a_library_that_was_deleted_or_replaced_on_the_host_is_named(scene: Scene) -> None:
    library, other = (scene.simulated.root / "usr/lib/x86_64-linux-gnu" / name for name in (LIBRARY, OTHER_LIBRARY))
    content, kept = library.read_bytes(), other.read_bytes()
    try:
        library.unlink()
        new = other.with_name("new")
        new.write_bytes(kept)
        new.rename(other)
        found = {Path(name).name: (kind, text) for kind, name, text in scene.find_differences()}
        assert set(found) == {LIBRARY, OTHER_LIBRARY}
        kind, text = found[LIBRARY]
        assert kind == "mount" and text == f"{library} was deleted on the host; the container has it until it ends"
        kind, text = found[OTHER_LIBRARY]
        assert text == f"the host has another {other} by now; the container has the one that was deleted"
    finally:
        library.write_bytes(content)
        library.chmod(0o644)


def test_a_mount_that_was_taken_away_is_named(scene: Scene) -> None:
    table = Path(f"/proc/{scene.pid}/mountinfo").read_text()
    point = next(line.split()[4] for line in table.splitlines() if line.split()[4].endswith(LIBRARY))
    machine.run_command([find_program("nsenter"), f"--target={scene.pid}", "--mount", "umount", point])
    if point in Path(f"/proc/{scene.pid}/mountinfo").read_text():
        machine.run_command(
            [
                find_program("nsenter"),
                f"--target={scene.pid}",
                f"--mount=/proc/{scene.pid}/ns/mnt",
                "/bin/busybox",
                "umount",
                point,
            ]
        ).check()
    assert [(kind, Path(name).name, text) for kind, name, text in scene.find_differences()] == [
        ("mount", LIBRARY, "nothing is mounted there")
    ]


def test_attached_and_detached_gpus_are_compared(scene: Scene) -> None:
    """attach's own nodes and mounts count, and what detach took away is said to be detached."""
    if scene.engine.name.startswith("runc v2"):
        return  # its cgroup tree is one that this machine's other processes do not see
    other = scene.simulated.cards[1]
    command = [*scene.enter, str(scene.program)]
    words = [scene.reference, "--config", str(scene.config)]
    machine.run_command([*command, "attach", *words, "--gpus", "1"]).check()
    assert scene.find_differences() == []
    Path(f"/proc/{scene.pid}/root{other.node}").unlink()
    assert scene.find_differences() == [("device", other.node, "it is missing")]
    machine.run_command([*command, "repair", *words]).check()
    assert scene.find_differences() == []
    machine.run_command([*command, "detach", *words, "--gpus", "0"]).check()
    found = scene.find_differences()
    own = scene.simulated.cards[0]
    assert {(kind, name) for kind, name, _ in found} == {("device", own.node), ("rule", f"{own.numbers} rw")}
    assert all(text.endswith(" (detached)") for _, _, text in found), scene.explain()


def test_a_container_that_another_runtime_started_is_said_to_have_nothing(
    scene: Scene, runtime: InstalledRuntime
) -> None:
    if not isinstance(scene.engine, Docker):
        return  # docker has plain runc beside ours
    scene.engine.remove(scene.name)
    request = ContainerRequest(["/bin/sleep", "301"], ["NVIDIA_VISIBLE_DEVICES=0"])
    words = scene.engine._run_words(request, "--detach", "--name", scene.name)
    scene.engine.command(*["runc" if word == "gpu" else word for word in words]).check()
    reality = json.loads(scene.explain("-o", "json"))["reality"]
    assert all(count["present"] == 0 for kind, count in reality["counts"].items() if kind != "link"), reality["counts"]
    section = scene.explain().partition("\nin the container now\n")[2]
    assert "  0 of " in section


@pytest.mark.parametrize("way", ["hook", "cdi"])
def test_what_a_hook_or_an_engine_has_put_in_is_compared_too(
    engine: tuple[Engine, SimulatedHost], runtime: InstalledRuntime, tmp_path: Path, *, way: str
) -> None:
    """runc without our runtime: its config.json has none of the plan, or the edits of a CDI file."""
    bare, simulated = engine
    if type(bare) is not RuncAlone:
        return  # the others' files for hooks and CDI are in tests/e2e/test_hook_matrix.py and test_cdi_containers.py
    plain = RuncAlone("runc", bare.cgroup, "run")
    plain.start(EngineHome(tmp_path, bare.place.image, lambda name: Path(find_program(name))))
    env = ["NVIDIA_VISIBLE_DEVICES=0"] if way == "hook" else []
    bundle = plain.bundle(ContainerRequest(["/bin/sleep", "300"], env))
    spec = json.loads((bundle / "config.json").read_text())
    if way == "hook":
        hook = write_hook(tmp_path / "hook", runtime.shim, simulated.root)
        spec["hooks"] = {"prestart": [{"path": str(hook), "args": [hook.name, "prestart"], "env": ["PATH=/bin"]}]}
    else:
        node, numbers = simulated.cards[0].node, simulated.cards[0].numbers.split(":")
        device = {"type": "c", "major": int(numbers[0]), "minor": int(numbers[1])}
        spec["linux"].setdefault("devices", []).append({"path": node, "fileMode": 0o666, **device})
        spec["linux"]["resources"]["devices"].append({"allow": True, "access": "rw", **device})
        library = simulated.root / "usr/lib/x86_64-linux-gnu" / LIBRARY
        mount = {
            "source": str(library),
            "destination": f"/usr/lib/{LIBRARY}",
            "type": "bind",
            "options": ["bind", "ro"],
        }
        spec["mounts"].append(mount)
    (bundle / "config.json").write_text(json.dumps(spec))
    plain._bundles["reality"] = bundle
    try:
        assert plain._create("reality", bundle, tmp_path / "out", tmp_path / "err") == 0, (tmp_path / "err").read_text()
        machine.run_command(plain.command("start", "reality")).check()
        made = Scene(plain, runtime, simulated, name="reality")
        reality = json.loads(made.explain("-o", "json"))["reality"]
        assert (reality["differences"], reality["problems"]) == ([], [])
        assert reality["counts"]["device"]["present"] >= 1 and reality["counts"]["mount"]["present"] >= 1
        assert reality["counts"]["rule"]["present"] >= 1
        node = simulated.cards[0].node
        Path(f"/proc/{made.pid}/root{node}").unlink()
        assert json.loads(made.explain("-o", "json"))["reality"]["differences"] == [
            {"kind": "device", "name": node, "text": "it is missing"}
        ]
    finally:
        plain.stop()
