"""attach, detach and repair on containers of real engines that run: what their processes can open and load."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.bundles import snapshot_tree
from support.e2e import machine
from support.e2e.attach_engines import AttachScene, DefaultRootRuntime, list_attach_engines, start_engine
from support.e2e.engines import ContainerRequest, Docker, Engine, EngineHome, Podman
from support.e2e.hook_engines import VISIBLE_DEVICES, HookedPodman, write_hook
from support.e2e.hook_files import HookProgram
from support.e2e.host import InstalledRuntime, SimulatedHost, build_host
from support.e2e.probe import CONTROL_NODES, LIBRARIES
from support.e2e.requirements import require_programs

OK = dict.fromkeys(LIBRARIES, "ok")
CLOSED = ("EPERM", "ENOENT")


@pytest.fixture(scope="module", params=list_attach_engines(), ids=lambda engine: engine.name.replace(" ", "-"))
def plain_engine(request: pytest.FixtureRequest, workspace: Path, image: Path) -> Iterator[Engine]:
    """Every engine in turn, below which nothing of ours starts a container."""
    engine: Engine = request.param
    require_programs(*engine.programs)
    directory = Path(tempfile.mkdtemp(prefix="a-", dir=workspace))
    directory.chmod(0o755)
    try:
        start_engine(engine, directory, image)
        yield engine
    finally:
        try:
            engine.stop()
        finally:
            machine.remove_tree(directory)


@pytest.fixture
def scene(plain_engine: Engine, runtime: InstalledRuntime, simulated: SimulatedHost) -> Iterator[AttachScene]:
    made = AttachScene(plain_engine, runtime, simulated)
    yield made
    made.close()


def test_a_gpu_comes_and_goes_without_a_restart(scene: AttachScene) -> None:
    first, second = scene.host.cards
    before = scene.probe()
    assert before.nodes[first.node] in CLOSED and before.libraries["libcuda.so.1"] != "ok"
    attached = scene.call("attach", "--gpus", "0").check()
    during = scene.probe()
    assert during.nodes[first.node] == "ENXIO", (attached.text, during)
    assert all(during.nodes[node] == "ENXIO" for node in CONTROL_NODES)
    assert during.libraries == OK, attached.text
    assert during.nodes[second.node] in CLOSED
    if scene.engine.device_cgroup:
        assert during.made[second.numbers] == ("mknod EPERM" if scene.engine.user_namespace else "EPERM")
    scene.call("detach").check()
    after = scene.probe()
    assert after == before


def test_attaching_twice_and_detaching_twice_changes_nothing(scene: AttachScene) -> None:
    scene.call("attach", "--gpus", "0").check()
    again = scene.call("attach", "--gpus", scene.host.cards[0].uuid).check()
    assert "has GPU 0" in again.stdout and "already; nothing was changed" in again.stdout and again.stderr == ""
    complete = scene.call_for_data("repair")
    assert (complete["state"], complete["changes"], complete["warnings"]) == ("complete", [], [])
    scene.call("detach").check()
    assert "nothing to detach" in scene.call("detach").check().stdout
    assert scene.call_for_data("repair")["state"] == "none"


def test_gpus_come_one_after_the_other_and_one_stays(scene: AttachScene) -> None:
    first, second = scene.host.cards
    scene.call("attach", "--gpus", "0").check()
    scene.call("attach", "--gpus", "all").check()
    both = scene.probe()
    assert both.nodes[first.node] == both.nodes[second.node] == "ENXIO"
    scene.call("detach", "--gpus", "0").check()
    one = scene.probe()
    assert one.nodes[first.node] in CLOSED and one.nodes[second.node] == "ENXIO"
    assert one.libraries == OK
    scene.call("detach").check()
    none = scene.probe()
    assert none.nodes[second.node] in CLOSED and none.libraries["libcuda.so.1"] != "ok"


# --- runc and crun by hand -------------------------------------------------------------------------------------------


@pytest.fixture(params=["runc-v1", "runc-v2", "crun-v1", "crun-v2"])
def bare_engine(request: pytest.FixtureRequest, workspace: Path, image: Path) -> Iterator[DefaultRootRuntime]:
    low_level, cgroup = request.param.split("-")
    engine = DefaultRootRuntime(low_level, cgroup)
    require_programs(*engine.programs)
    directory = Path(tempfile.mkdtemp(prefix="b-", dir=workspace))
    start_engine(engine, directory, image)
    yield engine
    engine.stop()
    machine.remove_tree(directory)


@pytest.fixture
def bare(bare_engine: DefaultRootRuntime, runtime: InstalledRuntime, simulated: SimulatedHost) -> Iterator[AttachScene]:
    made = AttachScene(bare_engine, runtime, simulated)
    yield made
    made.close()


# Attaches and detaches in one process, and prints what that has left. Arguments: our code, container, config, rounds.
ROUNDS_SCRIPT = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from gpu_oci_hook.attach.operations import ContainerOperations
from gpu_oci_hook.config.load import load_config
from gpu_oci_hook.live import bpf, device_cgroup
from gpu_oci_hook.live.find_container import find_container

def measure(found):
    cgroup = device_cgroup.find_device_cgroup(found.init_pid)
    rules = []
    for path in cgroup.paths:
        if cgroup.version == 1:
            rules.append(sorted(open(path + "/devices.list").read().splitlines()))
            continue
        fd = bpf.open_cgroup(path)
        for program in bpf.list_program_ids(fd):
            program_fd = bpf.open_program(program)
            rules.append(len(bpf.dump_program(program_fd)))
            os.close(program_fd)
        os.close(fd)
    return {
        "rules": rules,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mounts": open("/proc/self/mountinfo").read(),
        "container mounts": len(open(f"/proc/{found.init_pid}/mountinfo").read().splitlines()),
    }

config, found = load_config(sys.argv[3]), find_container(sys.argv[2])
def run_round():
    with ContainerOperations(found, config) as operations:
        assert operations.attach("0", ()).state == "attached"
    with ContainerOperations(found, config) as operations:
        assert operations.detach("").state == "detached"
run_round()
before = measure(found)
for _ in range(int(sys.argv[4])):
    run_round()
print(json.dumps([before, measure(found)]))
"""


def list_tree(directory: Path) -> dict[str, object]:
    """Every path with its mode, owner and content, without inode and time: files were replaced and came back."""
    return {path: facts[:4] for path, facts in snapshot_tree(directory).items()}


@pytest.mark.timeout(600)
def test_many_rounds_leave_nothing(bare: AttachScene, runtime: InstalledRuntime) -> None:
    rounds = os.environ.get("GPU_OCI_HOOK_ATTACH_ROUNDS", "20")
    engine = bare.engine
    assert isinstance(engine, DefaultRootRuntime)
    bundle = engine._bundles[bare.name]
    at_start = list_tree(bundle)
    enter = engine._holder.enter if engine._holder is not None else []
    words = [sys.executable, "-c", ROUNDS_SCRIPT, str(runtime.code), bare.reference, str(bare.config), rounds]
    before, after = json.loads(machine.run_command([*enter, *words], timeout=580).check().stdout)
    assert after == before
    assert list(Path("/run/gpu-oci-hook/attached").iterdir()) == []
    assert list_tree(bundle) == at_start


def deny(scene: AttachScene, runtime: InstalledRuntime, *numbers: str) -> None:
    """Take rules away, as a reload of systemd does."""
    script = """
import subprocess, sys
sys.path.insert(0, sys.argv[1])
from gpu_oci_hook.live import device_cgroup
from gpu_oci_hook.live.find_container import find_container
cgroup = device_cgroup.find_device_cgroup(find_container(sys.argv[2]).init_pid)
device_cgroup.deny_devices(cgroup, [tuple(map(int, word.split(":"))) for word in sys.argv[3:]])
"""
    holder = getattr(scene.engine, "_holder", None)
    enter = holder.enter if holder is not None else []
    words = [sys.executable, "-c", script, str(runtime.code), scene.reference, *numbers]
    machine.run_command([*enter, *words]).check()


def test_repair_puts_back_what_was_lost(bare: AttachScene, runtime: InstalledRuntime) -> None:
    first = bare.host.cards[0]
    bare.call("attach", "--gpus", "0").check()
    deny(bare, runtime, first.numbers)
    assert bare.probe().nodes[first.node] == "EPERM"
    assert "Run gpu-oci-hook repair" in bare.call("attach", "--gpus", "0").check().stderr
    assert bare.call_for_data("repair")["changes"] == [f"allow c {first.numbers} rw"]
    assert bare.probe().nodes[first.node] == "ENXIO"
    bare.exec(["/bin/rm", first.node]).check()
    bare.exec(["/bin/rm", "/etc/ld.so.cache"]).check()
    present = bare.call("attach", "--gpus", "0").check()
    assert "Run gpu-oci-hook repair" in present.stderr
    pid = json.loads(machine.run_command(bare.engine.command("state", bare.name)).stdout)["pid"]  # type: ignore[attr-defined]
    enter = ["nsenter", f"--target={pid}", "--mount"]
    machine.run_command([*enter, "/bin/umount", "-l", "/usr/local/nvidia/lib64"]).check()
    assert bare.probe().libraries["libcuda.so.1"] != "ok"
    done = bare.call_for_data("repair")
    assert done["state"] == "repaired" and done["warnings"] == []
    answer = bare.probe()
    assert answer.nodes[first.node] == "ENXIO" and answer.libraries == OK
    bare.call("detach").check()
    assert bare.probe().nodes[first.node] in CLOSED


def test_a_new_driver_replaces_the_old_ones_files(bare: AttachScene, runtime: InstalledRuntime, tmp_path: Path) -> None:
    bare.call("attach", "--gpus", "0").check()
    newer = build_host(tmp_path / "newer", version="570.86.10")
    config = runtime.wrapper("runc", newer.root, name="newer").with_suffix(".toml")
    machine.run_command(bare.command("repair", bare.reference, config=config)).check()
    names = bare.exec(["/bin/ls", "/usr/local/nvidia/lib64"]).check().stdout
    assert "570.86.10" in names and "550.163.01" not in names
    assert bare.probe().libraries == OK
    machine.run_command(bare.command("detach", bare.reference, config=config)).check()
    assert bare.exec(["/bin/ls", "/usr/local/nvidia"]).status != 0


# --- containers that were started with a GPU -------------------------------------------------------------------------


def start_shim(directory: Path, image: Path, runtime: InstalledRuntime, host: SimulatedHost) -> Engine:
    engine = DefaultRootRuntime("runc", "v2")
    engine.start(EngineHome(directory, image, lambda name: runtime.wrapper(name, host.root)))
    return engine


def start_docker_shim(directory: Path, image: Path, runtime: InstalledRuntime, host: SimulatedHost) -> Engine:
    engine = Docker()
    engine.start(EngineHome(directory, image, lambda name: runtime.wrapper(name, host.root)))
    return engine


def start_podman_hook(stage: str) -> Any:
    def start(directory: Path, image: Path, runtime: InstalledRuntime, host: SimulatedHost) -> Engine:
        engine = HookedPodman(stage)
        engine.hook = write_hook(directory / "hook", runtime.shim, host.root)
        start_engine(engine, directory, image)
        return engine

    return start


STARTS = {
    "our runtime, runc": start_shim,
    "our runtime, docker": start_docker_shim,
    "prestart hook": start_podman_hook("prestart"),
    "precreate hook": start_podman_hook("precreate"),
}


@pytest.fixture(params=STARTS, ids=lambda name: name.replace(" ", "-"))
def started(
    request: pytest.FixtureRequest, workspace: Path, image: Path, runtime: InstalledRuntime, simulated: SimulatedHost
) -> Iterator[AttachScene]:
    """A container that was started with GPU 0, in each of our ways."""
    directory = Path(tempfile.mkdtemp(prefix="s-", dir=workspace))
    directory.chmod(0o755)
    engine = STARTS[request.param](directory, image, runtime, simulated)
    made = AttachScene(engine, runtime, simulated, ContainerRequest(["/bin/sleep", "600"], [f"{VISIBLE_DEVICES}0"]))
    yield made
    made.close()
    engine.stop()
    machine.remove_tree(directory)


def test_a_gpu_of_the_start_is_there_already_and_another_comes_and_goes(started: AttachScene) -> None:
    first, second = started.host.cards
    before = started.probe()
    assert before.nodes[first.node] == "ENXIO" and before.libraries == OK
    assert "has GPU 0" in started.call("attach", "--gpus", "0").check().stdout
    assert started.call_for_data("repair")["state"] == "complete"
    started.call("attach", "--gpus", "1").check()
    both = started.probe()
    assert both.nodes[first.node] == both.nodes[second.node] == "ENXIO" and both.libraries == OK
    started.call("detach").check()
    assert started.probe() == before


def test_a_detached_gpu_of_the_start_is_not_repaired_and_can_be_attached_again(started: AttachScene) -> None:
    first, second = started.host.cards
    started.call("attach", "--gpus", "1").check()
    started.call("detach", "--gpus", "0").check()
    assert started.probe().nodes[first.node] in CLOSED
    started.call("repair").check()
    after = started.probe()
    assert after.nodes[first.node] in CLOSED and after.nodes[second.node] == "ENXIO" and after.libraries == OK
    assert f"detached since its start: {first.uuid}" in started.call("explain").check().stdout
    started.call("attach", "--gpus", "0").check()
    started.call("detach", "--gpus", "1").check()
    last = started.probe()
    assert last.nodes[first.node] == "ENXIO" and last.nodes[second.node] in CLOSED and last.libraries == OK


def test_repair_of_all_finds_the_containers_with_gpus(started: AttachScene) -> None:
    first = started.host.cards[0]
    started.exec(["/bin/rm", "-f", first.node]).check()
    assert started.probe().nodes[first.node] == "ENOENT"
    done = machine.run_command(started.command("repair", "--all")).check()
    assert "repaired; it has GPU 0" in done.stdout, done
    assert started.probe().nodes[first.node] == "ENXIO"


def test_a_container_with_the_edits_of_a_cdi_file_gets_nodes_only(
    bare_engine: DefaultRootRuntime, runtime: InstalledRuntime, simulated: SimulatedHost, tmp_path: Path
) -> None:
    """Its driver files lie where the file has put them; a second copy would be of no use."""
    first, second = simulated.cards
    major, minor = (int(number) for number in first.numbers.split(":"))
    program = HookProgram(tmp_path / "program", runtime, simulated)
    engine_bundle = bare_engine.bundle

    def build_bundle(request: ContainerRequest) -> Path:
        directory = engine_bundle(request)
        spec = json.loads((directory / "config.json").read_text())
        program.edit(spec, "ours", {first.node: (major, minor)})
        (directory / "config.json").write_text(json.dumps(spec))
        return directory

    bare_engine.bundle = build_bundle  # type: ignore[method-assign]
    scene = AttachScene(bare_engine, runtime, simulated)
    before, mounts = scene.probe(), read_mounts(scene)
    assert before.nodes[first.node] == "ENXIO" and before.libraries["libcuda.so.1"] == "ok"
    assert "has GPU 0" in scene.call("attach", "--gpus", "0").check().stdout
    assert scene.call_for_data("repair")["state"] == "complete"
    scene.call("attach", "--gpus", "1").check()
    both = scene.probe()
    assert both.nodes[first.node] == both.nodes[second.node] == "ENXIO" and both.libraries == before.libraries
    assert len(read_mounts(scene)) == len(mounts)
    scene.call("detach", "--gpus", "all").check()
    after = scene.probe()
    assert after.nodes[first.node] in CLOSED and after.nodes[second.node] in CLOSED
    scene.close()


# --- what is refused, and what happens when a step fails -------------------------------------------------------------

# Calls our program in this process, with changes of ours. Arguments: our code, Python to run first, the command line.
PATCHED_SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from gpu_oci_hook.cli import main
exec(sys.argv[2])
words, sys.argv[0] = sys.argv[3:], "gpu-oci-hook"
main(words)
"""
NO_MOUNT_SETATTR = """
import errno
from gpu_oci_hook.live import mount_api
def refuse(*arguments, **named):
    raise OSError(errno.ENOSYS, "no such call")
mount_api._set_attributes = refuse
"""
NO_OPEN_TREE = NO_MOUNT_SETATTR.replace("_set_attributes", "_open_tree")
RULES_FAIL = """
from gpu_oci_hook.attach import operations
from gpu_oci_hook.errors import Fault
def refuse(*arguments):
    raise Fault("the rules cannot be changed", where="/cgroup")
operations.allow_container_devices = refuse
"""
HANGS = """
import time
from gpu_oci_hook.live import namespace_process, running_editor
namespace_process.run_with_deadline.__kwdefaults__["deadline"] = 3.0
attach = running_editor.attach_mount
def hang(*arguments):
    attach(*arguments)
    time.sleep(60)
running_editor.attach_mount = hang
"""


# Kills the command, and with it its child process, before one of the steps that change something: the one whose number
# is put in.
KILL_AT_STEP = """
import os, signal
from gpu_oci_hook.attach import operations
from gpu_oci_hook.container import rootfs_edits
from gpu_oci_hook.live import attachment_record, container_changes, container_editor, running_editor
command, step = os.getpid(), [0]
def watch(owner, name):
    function = getattr(owner, name)
    def counted(*arguments, **named):
        step[0] += 1
        if step[0] == {number}:
            os.kill(command, signal.SIGKILL)
            signal.pause()
        return function(*arguments, **named)
    setattr(owner, name, counted)
for owner, name in (
    (attachment_record.RecordStore, "save"), (operations, "allow_container_devices"),
    (operations, "deny_container_devices"), (running_editor, "attach_mount"), (container_changes, "detach_mount"),
    (container_editor.ContainerEditor, "_create_device_node"), (rootfs_edits.RootfsEditor, "make_link"),
    (rootfs_edits.RootfsEditor, "write_file"), (container_changes.ChangeReverter, "_remove_node"),
    (container_changes.ChangeReverter, "_restore_link"), (container_changes.ChangeReverter, "_restore_file"),
    (container_changes.ChangeReverter, "_remove_directory"),
):
    watch(owner, name)
"""


def call_patched(scene: AttachScene, runtime: InstalledRuntime, prelude: str, *verb: str) -> machine.CommandResult:
    holder = getattr(scene.engine, "_holder", None)
    enter = holder.enter if holder is not None else []
    command, *words = verb or ("attach", "--gpus", "0")
    words = [command, scene.reference, *words, "--config", str(scene.config)]
    return machine.run_command([*enter, sys.executable, "-c", PATCHED_SCRIPT, str(runtime.code), prelude, *words])


def find_bundle(scene: AttachScene) -> Path:
    assert isinstance(scene.engine, DefaultRootRuntime)
    return scene.engine._bundles[scene.name]


def read_mounts(scene: AttachScene) -> list[str]:
    return scene.exec(["/bin/cat", "/proc/self/mountinfo"]).check().stdout.splitlines()


def test_without_mount_setattr_the_mounts_are_read_only_from_the_beginning(
    bare: AttachScene, runtime: InstalledRuntime
) -> None:
    host_mounts = Path("/proc/self/mountinfo").read_text()
    call_patched(bare, runtime, NO_MOUNT_SETATTR).check()
    answer = bare.probe()
    assert answer.libraries == OK and answer.nodes[bare.host.cards[0].node] == "ENXIO"
    ours = [line.split()[5].split(",") for line in read_mounts(bare) if " /usr/local/nvidia/lib64" in line]
    assert len(ours) > 5 and all({"ro", "nosuid", "nodev"} <= set(options) for options in ours)
    assert Path("/proc/self/mountinfo").read_text() == host_mounts
    bare.call("detach").check()


@pytest.mark.parametrize(
    ("prelude", "text"),
    [
        (NO_OPEN_TREE, "this kernel lacks open_tree, which Linux 5.2 has"),
        (RULES_FAIL, "/cgroup: the rules cannot be changed"),
        (HANGS, "did not answer for 3 seconds"),
    ],
    ids=["no open_tree", "rules fail", "a step hangs"],
)
def test_a_failure_takes_everything_back(bare: AttachScene, runtime: InstalledRuntime, prelude: str, text: str) -> None:
    tree, mounts, before = list_tree(find_bundle(bare)), read_mounts(bare), bare.probe()
    failed = call_patched(bare, runtime, prelude)
    assert failed.status == 1 and text in failed.stderr and failed.stderr.count("\n") == 1, failed
    assert (bare.probe(), len(read_mounts(bare))) == (before, len(mounts))
    assert list_tree(find_bundle(bare)) == tree
    assert list(Path("/run/gpu-oci-hook/attached").iterdir()) == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("verb", ["attach", "detach"])
def test_a_command_that_is_killed_at_any_step_is_taken_back_or_finished_by_the_next_one(
    bare: AttachScene, runtime: InstalledRuntime, verb: str
) -> None:
    tree, mounts, before = list_tree(find_bundle(bare)), read_mounts(bare), bare.probe()
    host_mounts = Path("/proc/self/mountinfo").read_text()
    words = ["--gpus", "0"] if verb == "attach" else []
    states = []
    for number in range(1, 200, 3):
        if verb == "detach":
            bare.call("attach", "--gpus", "0").check()
        done = call_patched(bare, runtime, KILL_AT_STEP.format(number=number), verb, *words)
        assert Path("/proc/self/mountinfo").read_text() == host_mounts
        state = bare.call_for_data("repair")["state"]
        answer, count = bare.probe(), len(read_mounts(bare))
        if state == "complete":
            assert answer.libraries == OK and answer.nodes[bare.host.cards[0].node] == "ENXIO"
            bare.call("detach").check()
        else:
            assert (state, answer, count) == ("none", before, len(mounts)), (number, done)
        assert list_tree(find_bundle(bare)) == tree
        states.append(state)
        if done.status == 0:
            break
        assert done.status == -9, done
    assert len(states) > 8 and done.status == 0
    assert set(states[:-1]) == ({"none"} if verb == "attach" else {"complete", "none"})


def test_nothing_of_the_container_is_imported(bare: AttachScene, runtime: InstalledRuntime, tmp_path: Path) -> None:
    """The container has modules and programs where the host has ours."""
    marker = tmp_path / "marker"
    root = find_bundle(bare) / "rootfs"
    code = f"open({str(marker)!r}, 'w').close()\nraise SystemExit(7)\n"
    for directory in (str(runtime.code / "gpu_oci_hook"), "/usr/lib/python3.11", str(Path(os.__file__).parent)):
        for name in ("os", "json", "errno", "shutil", "plan/layout", "live/mount_api", "inject/pipeline", "encodings"):
            path = Path(f"{root}{directory}/{name}.py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(code)
    bare.call("attach", "--gpus", "0").check()
    assert bare.probe().libraries == OK
    bare.call("detach").check()
    assert not marker.exists()


def test_mounts_that_the_container_shares_with_itself_are_no_obstacle(bare: AttachScene) -> None:
    pid = json.loads(machine.run_command(bare.engine.command("state", bare.name)).stdout)["pid"]  # type: ignore[attr-defined]
    enter = ["nsenter", f"--target={pid}", "--mount"]
    machine.run_command([*enter, "/bin/mount", "--make-rshared", "/"]).check()
    bare.call("attach", "--gpus", "0").check()
    assert bare.probe().libraries == OK
    bare.call("detach").check()


def test_a_container_without_mounts_of_its_own_and_a_stopped_one_are_refused(
    bare: AttachScene, runtime: InstalledRuntime
) -> None:
    config = ["--gpus", "0", "--config", str(bare.config)]
    own = machine.run_command([str(bare.program), "attach", "--pid", str(os.getpid()), *config])
    assert own.status == 1 and "in no container" in own.stderr
    machine.run_command(bare.engine.command("kill", bare.name, "KILL")).check()  # type: ignore[attr-defined]
    machine.wait_for(lambda: bare.call("attach", "--gpus", "0").status == 1, "the end of the container")
    stopped = bare.call("attach", "--gpus", "0")
    assert "runs no such container" in stopped.stderr and stopped.stderr.count("\n") == 1


READ_ONLY_ENGINES = [DefaultRootRuntime("runc", "v2"), DefaultRootRuntime("crun", "v2"), Docker(runtime=""), Podman()]


@pytest.mark.parametrize("engine", READ_ONLY_ENGINES, ids=lambda engine: engine.name.replace(" ", "-"))
def test_a_read_only_container_gets_a_gpu_and_stays_read_only(
    engine: Engine, workspace: Path, image: Path, runtime: InstalledRuntime, simulated: SimulatedHost
) -> None:
    directory = Path(tempfile.mkdtemp(prefix="r-", dir=workspace))
    directory.chmod(0o755)
    start_engine(engine, directory, image)
    try:
        scene = AttachScene(engine, runtime, simulated, ContainerRequest(["/bin/sleep", "600"], read_only=True))
        before = scene.probe()
        scene.call("attach", "--gpus", "0").check()
        during = scene.probe()
        assert during.libraries == OK and during.nodes[scene.host.cards[0].node] == "ENXIO"
        assert scene.exec(["/bin/touch", "/etc/file"]).status != 0
        scene.call("detach").check()
        assert scene.probe() == before
        scene.close()
    finally:
        engine.stop()
        machine.remove_tree(directory)
