"""nvidia-container-cli, called exactly as LXC's, Incus', enroot's and Apptainer's code does and as NVIDIA's hook."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.e2e import images, machine
from support.e2e.attacks import ATTACKS, LIBRARY, RUNC_FALLS_FOR, WATCHED
from support.e2e.container_cli import (
    CALLERS,
    CLI_NAME,
    LDCONFIG,
    LXC_WORDS,
    NO_MOUNTS,
    OWN_MOUNTS,
    Caller,
    CliScene,
    parse_looks,
)
from support.e2e.engines import ContainerRequest, EngineHome
from support.e2e.hook_engines import HookedRuntime
from support.e2e.host import InstalledRuntime, SimulatedHost
from support.e2e.host_watch import PATIENCE, RACER, fingerprint_host
from support.e2e.probe import CONTROL_NODES, LIBRARIES, build_probe_command, parse_probe_output
from support.e2e.requirements import require_programs

ROUNDS = int(os.environ.get("GPU_OCI_HOOK_RACE_ROUNDS", "20"))
AS_ROOT = Caller("root", [], LXC_WORDS, "root")
MAPPED = Caller("mapped", ["--user"], LXC_WORDS, "mapped")
SCRATCH = "gpu-oci-hook-scratch-*"


@pytest.fixture
def scene(workspace: Path, image: Path, runtime: InstalledRuntime, simulated: SimulatedHost) -> Iterator[CliScene]:
    require_programs("unshare", "nsenter", "setpriv", "busybox")
    directory = Path(tempfile.mkdtemp(prefix="c-", dir=workspace))
    directory.chmod(0o755)
    yield CliScene(directory, image, runtime, simulated)
    machine.remove_tree(directory)


def list_own_mounts(scene: CliScene) -> list[str]:
    """The mounts on this machine that the program can have made: others come and go meanwhile."""
    marks = (str(scene.directory), str(scene.simulated.root), " gpu-oci-hook ", "gpu-oci-hook-scratch")
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if any(mark in line for mark in marks)]


def list_scratch() -> list[Path]:
    """Directories that the program makes and removes."""
    return [*Path("/run").glob(SCRATCH), *Path("/tmp").glob(SCRATCH)]


# --- callers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("caller", CALLERS, ids=lambda caller: caller.name.replace(" ", "-"))
def test_a_container_of_each_caller_gets_the_gpu_and_its_libraries(scene: CliScene, caller: Caller) -> None:
    done = scene.run(caller, f"{scene.configure_words(caller)}\n{scene.look()}").check()
    seen = parse_looks(done.stdout)
    first, second = scene.simulated.cards
    has_gpu = caller.name != "incus"  # which gives the GPU's node itself
    sees_host = "$HOST/dev" in caller.mounts
    assert {node: seen.nodes[node] for node in CONTROL_NODES} == dict.fromkeys(CONTROL_NODES, "ENXIO")
    assert seen.nodes[first.node] == ("ENXIO" if has_gpu else "ENOENT")
    assert seen.nodes[second.node] == ("ENXIO" if sees_host else "ENOENT")
    assert seen.libraries == dict.fromkeys(LIBRARIES, "ok")
    assert "libcuda.so.1 (" in seen.listed and "libc.so.6 (" in seen.listed
    assert "libcuda.so.1 (" in seen.listed_later
    assert seen.libraries_later == dict.fromkeys(LIBRARIES, "ok")
    assert list_scratch() == []


def test_nothing_but_the_containers_mount_namespace_and_its_root_is_changed(scene: CliScene) -> None:
    assert scene.run(AS_ROOT, scene.configure_words(AS_ROOT)).check().text == ""
    assert list_own_mounts(scene) == []
    changed = {str(path.relative_to(scene.root)) for path in (scene.root / "usr/local").rglob("*")}
    assert "usr/local/nvidia/lib64" in changed
    assert not [path for path in scene.root.rglob("*") if path.is_file() and "libcuda.so.550" in path.name]


def test_the_mounts_are_read_only_and_libraries_may_be_executed(scene: CliScene) -> None:
    script = f"{scene.configure_words(AS_ROOT)}\ngrep $R/usr/local/nvidia /proc/self/mountinfo"
    lines = scene.run(AS_ROOT, script).check().stdout.splitlines()
    assert len(lines) > 10
    for line in lines:
        options = line.split(" ")[5].split(",")
        assert {"ro", "nosuid", "nodev"} <= set(options)
        assert line.split(" ")[6] == "-"  # no propagation
        assert ("noexec" in options) == line.split(" ")[4].endswith("/lib64")


@pytest.mark.parametrize("caller", [AS_ROOT, MAPPED], ids=lambda caller: caller.name)
def test_options_leave_out_nodes_firmware_and_sockets(scene: CliScene, caller: Caller) -> None:
    def list_mounted(*words: str) -> set[str]:
        call = Caller(caller.name, caller.global_words, [*caller.words, *words], caller.users)
        script = f"{scene.configure_words(call)}\nls $R/dev\ngrep -o ' '$R'[^ ]*' /proc/self/mountinfo"
        lines = scene.run(call, script).check().stdout.split()
        return {line.removeprefix(str(scene.target)) for line in lines}

    node = scene.simulated.cards[0].node.rpartition("/")[2]
    everything = list_mounted()
    firmware = {path for path in everything if "/firmware/" in path}
    assert {node, "nvidiactl"} <= everything and len(firmware) == 2
    assert "/run/nvidia-persistenced/socket" in everything
    assert everything - list_mounted("--no-gsp-firmware") == firmware
    assert everything - list_mounted("--no-persistenced") == {"/run/nvidia-persistenced/socket"}
    assert everything == list_mounted("--no-fabricmanager")
    without_nodes = list_mounted("--no-devbind")
    assert not [path for path in without_nodes if "nvidia0" in path or "nvidiactl" in path or "uvm" in path]
    assert "/usr/bin/nvidia-smi" in without_nodes


def test_without_a_capability_only_nodes_are_given(scene: CliScene) -> None:
    call = Caller("bare", [], ["--no-cgroups", "--device=0", "--no-gsp-firmware"], "root")
    script = f"{scene.configure_words(call)}\nls $R/dev\ngrep -c ' '$R /proc/self/mountinfo"
    *nodes, count = scene.run(call, script).check().stdout.split()
    assert nodes == sorted(["nvidiactl", scene.simulated.cards[0].node.rpartition("/")[2]])
    assert int(count) == 4  # the root and the caller's own


def test_cuda_compat_libraries_of_the_image_are_used_unless_an_option_says_no(scene: CliScene) -> None:
    compat = scene.root / "usr/local/cuda/compat"
    compat.mkdir(parents=True)
    library = next((scene.simulated.root / "usr/lib/x86_64-linux-gnu").glob("libcuda.so.5*"))
    (compat / "libcuda.so.560.28.03").write_bytes(library.read_bytes())
    (compat / "libcuda.so.1").symlink_to("libcuda.so.560.28.03")

    def find_libcuda(*words: str) -> str:
        call = Caller("compat", [], [*LXC_WORDS, *words], "root")
        script = f"{scene.configure_words(call)}\nchroot $R /usr/sbin/ldconfig -p"
        listed = scene.run(call, script).check().stdout
        return next(line.split(" => ")[1] for line in listed.splitlines() if line.strip().startswith("libcuda.so.1 "))

    assert find_libcuda().startswith("/usr/local/cuda/compat/")
    assert find_libcuda("--cuda-compat-mode=mount").startswith("/usr/local/cuda/compat/")
    for words in (["--no-cntlibs"], ["--cuda-compat-mode=disabled"]):
        assert find_libcuda(*words).startswith("/usr/local/nvidia/")


def test_nothing_of_the_environment_reaches_the_program(scene: CliScene) -> None:
    """LXC and enroot put the image's variables into the environment of their hooks."""
    evil = scene.root / "evil"
    evil.mkdir()
    marker = scene.directory / "marker"
    (evil / "sitecustomize.py").write_text(f"open({str(marker)!r}, 'w')\n")
    (evil / "config.toml").write_text(
        f'[host]\nroot = "{scene.simulated.root}"\n[[inject.extra]]\npath = "/etc/hostname"\ncontainer = "/stolen"\n'
    )
    env = {
        "GPU_OCI_HOOK_CONFIG": str(evil / "config.toml"), "XDG_RUNTIME_DIR": str(evil), "PYTHONPATH": str(evil),
        "CUDA_MPS_PIPE_DIRECTORY": "/etc", "NVIDIA_VISIBLE_DEVICES": "all", "HOME": str(evil), "TMPDIR": str(evil),
    }  # fmt: skip
    for caller in (MAPPED, AS_ROOT):
        scene.command = f"{scene.program} --config={scene.config}"
        script = f"{scene.configure_words(caller)}\nls $R/stolen || echo nothing; ls $R/evil; ls $R/dev"
        done = scene.run(caller, script, env=env).check()
        names = done.stdout.split()
        assert names[:3] == ["nothing", "config.toml", "sitecustomize.py"], done
        assert scene.simulated.cards[1].node.rpartition("/")[2] not in names
        # The machine has no GPU: without --config it is its own configuration that counts, and not the variable.
        scene.command = str(scene.program)
        done = scene.run(caller, scene.configure_words(caller), env=env)
        assert done.status == 1
        assert "initialization error: nvml error: driver not loaded" in done.stderr
    assert not marker.exists()


# --- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "phase"),
    [
        (["--device=9"], "device error: --device=9: unknown device"),
        (["--device=vendor.com/nic=0"], "device error: --device=vendor.com/nic=0: unknown device"),
        (["--device=0", "--require=cuda>=99.0"], "requirement error: "),
        (["--device=0", "--require=brand=voodoo"], "requirement error: "),
        (["--device=0", "--imex-channel=3"], "mount error: --imex-channel=3: this host has no IMEX channel 3"),
        (["--imex-channel=x"], "imex error: --imex-channel=x: "),
        (["--pid=4194303"], "container error: "),
    ],
)
def test_a_failure_names_its_phase_and_leaves_the_container_as_it_was(
    scene: CliScene, words: list[str], phase: str
) -> None:
    caller = Caller("failing", [], ["--no-cgroups", "--compute", "--utility", *words], "root")
    count = "grep -c $R /proc/self/mountinfo; ls $R/dev"
    done = scene.run(caller, f"{count}\n{scene.configure_words(caller)} || echo status $?\n{count}")
    before, *rest = done.stdout.splitlines()
    assert rest == ["status 1", before], done
    assert done.stderr.startswith(f"{CLI_NAME}: {phase}"), done
    assert done.stderr.count("\n") == 1
    assert list_scratch() == []


def test_requirements_that_hold_are_no_obstacle(scene: CliScene) -> None:
    words = [*LXC_WORDS, "--require=cuda>=12.0 brand=tesla,driver>=999", "--require=arch>=7.0"]
    caller = Caller("requiring", ["--user"], words, "mapped")
    scene.run(caller, scene.configure_words(caller)).check()


def test_a_root_that_shares_its_mounts_with_the_host_is_refused(scene: CliScene) -> None:
    done = scene.run(AS_ROOT, f"mount --make-shared $R\n{scene.configure_words(AS_ROOT)}")
    assert done.status == 1
    assert "container error: " in done.stderr and "shares its mounts with the host" in done.stderr


def test_a_directory_of_the_host_that_is_no_mount_of_its_own_gets_nothing_on_the_host(scene: CliScene) -> None:
    words = ["configure", "--no-cgroups", "--device=0", "--utility"]
    for path in (str(scene.root), "/usr/..", f"{scene.root}/../../../../.."):
        done = machine.run_command([str(scene.program), f"--config={scene.config}", *words, path])
        if done.status == 0:  # where this machine's root is not shared
            for point in reversed(machine.list_mounts_below(scene.directory)):
                machine.run_command([machine.find_program("umount"), point]).check()
            assert path == str(scene.root)
        else:
            assert "error: " in done.stderr
    assert list_own_mounts(scene) == []


def test_a_second_call_is_refused_and_changes_nothing(scene: CliScene) -> None:
    call = scene.configure_words(MAPPED)
    script = f"{call}\ngrep -c $R /proc/self/mountinfo\n{call} || echo status $?\ngrep -c $R /proc/self/mountinfo"
    done = scene.run(MAPPED, script)
    first, status, second = done.stdout.splitlines()
    assert (status, first) == ("status 1", second)
    assert "container error: " in done.stderr and "configured already" in done.stderr


def test_the_log_of_debug_says_what_was_done_and_why_it_failed(scene: CliScene) -> None:
    log = scene.directory / "nvidia.log"
    caller = Caller("logging", [f"--debug={log}"], LXC_WORDS, "root")
    scene.run(caller, scene.configure_words(caller)).check()
    text = log.read_text()
    assert "mount /usr/bin/nvidia-smi <- " in text and "file /etc/ld.so.cache" in text
    failing = Caller("logging", [f"--debug={log}"], ["--device=9"], "root")
    scene.run(failing, scene.configure_words(failing))
    assert "device error: --device=9" in log.read_text().splitlines()[-1]
    unwritable = Caller("logging", ["--debug=/proc/nowhere/log"], LXC_WORDS, "root")
    scene.run(unwritable, scene.configure_words(unwritable)).check()


# --- a container of a runtime, as NVIDIA's hook calls it --------------------------------------------------------------

SUPERVISED_HOOK = """#!/bin/sh
state=$(cat)
pid=$(echo "$state" | sed -n 's/.*"pid": *\\([0-9]*\\).*/\\1/p' | head -1)
exec {cli} --load-kmods configure {ldconfig} --device=0 --compute --utility --pid=$pid {bundle}/rootfs >{log} 2>&1
"""


class SupervisedRuntime(HookedRuntime):
    """runc or crun, whose bundles have a hook that calls nvidia-container-cli with the process of the container."""

    scene: CliScene

    def bundle(self, request: ContainerRequest) -> Path:
        directory = super().bundle(request)
        hook = directory / "hook"
        log = directory / "log"
        hook.write_text(SUPERVISED_HOOK.format(cli=self.scene.command, ldconfig=LDCONFIG, bundle=directory, log=log))
        hook.chmod(0o755)
        path = directory / "config.json"
        spec = json.loads(path.read_text())
        spec["hooks"] = {"prestart": [{"path": str(hook), "args": ["hook"], "env": [f"PATH={machine.DIRECTORIES}"]}]}
        path.write_text(json.dumps(spec))
        return directory


@pytest.mark.parametrize("cgroup", ["v1", "v2"])
@pytest.mark.parametrize("low_level", ["runc", "crun"])
def test_a_container_of_a_runtime_gets_device_rules_too(scene: CliScene, low_level: str, cgroup: str) -> None:
    require_programs(low_level)
    engine = SupervisedRuntime(low_level, cgroup)
    engine.scene = scene
    engine.start(EngineHome(scene.directory, scene.root, lambda name: Path(machine.find_program(name))))
    try:
        done = engine.run(ContainerRequest(build_probe_command(scene.simulated)))
    finally:
        engine.stop()
    logs = "".join(path.read_text() for path in scene.directory.glob("bundle-*/log"))
    assert done.status == 0, (done, logs)
    seen = parse_probe_output(done.stdout)
    first, second = scene.simulated.cards
    wanted = (*CONTROL_NODES, first.node)
    assert {node: seen.nodes[node] for node in wanted} == dict.fromkeys(wanted, "ENXIO")
    assert seen.nodes[second.node] == "ENOENT"
    assert seen.made == {second.numbers: "EPERM"}
    assert seen.libraries == dict.fromkeys(LIBRARIES, "ok")


# --- hostile roots --------------------------------------------------------------------------------------------------


class Watch:
    """A directory beside the container that must stay as it is."""

    def __init__(self, scene: CliScene) -> None:
        self.scene = scene
        self.directory = scene.directory / "watched"
        self.directory.mkdir()
        for name, text in WATCHED.items():
            (self.directory / name).write_text(text)
        self.before = fingerprint_host(self.directory, scene.simulated)

    def check(self) -> None:
        assert fingerprint_host(self.directory, self.scene.simulated) == self.before
        assert list_own_mounts(self.scene) == []
        assert list_scratch() == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("users", ["root", "mapped"])
@pytest.mark.parametrize(
    "attack", [name for name in ATTACKS if name not in RUNC_FALLS_FOR], ids=lambda name: name.replace(" ", "-")
)
def test_a_hostile_root_reaches_nothing_of_the_host(scene: CliScene, attack: str, users: str) -> None:
    watch = Watch(scene)
    images.copy_static_program(scene.root / "busybox")
    ATTACKS[attack](scene.root, watch.directory, scene.simulated.version)
    words = ["--no-cgroups", "--device=all", "--compute", "--utility", "--graphics", "--video", "--compat32"]
    caller = Caller("attacked", [], words, users, NO_MOUNTS)
    scene.give_root_to(caller)  # with the host's files that it has hard links to
    watch.before = fingerprint_host(watch.directory, scene.simulated)
    begin = time.monotonic()
    done = scene.run(caller, f"{scene.configure_words(caller)} || exit 7\nchroot $R /busybox echo alive")
    assert time.monotonic() - begin < PATIENCE
    watch.check()
    assert "Traceback" not in done.text and "internal error" not in done.text, done
    if done.status == 0:
        assert done.stdout == "alive\n", done
    else:
        assert done.status == 7, done
        lines = [line for line in done.stderr.splitlines() if not line.startswith(f"{CLI_NAME}: warning: ")]
        assert len(lines) == 1 and lines[0].startswith(f"{CLI_NAME}: ") and " error: " in lines[0], done


@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", [LIBRARY, "usr/local", "etc", "dev"])
def test_a_second_process_that_exchanges_directories_reaches_nothing_of_the_host(scene: CliScene, place: str) -> None:
    watch = Watch(scene)
    (scene.root / place).mkdir(parents=True, exist_ok=True)
    (scene.root / "decoy").symlink_to(watch.directory)
    racer = subprocess.Popen(
        [sys.executable, "-c", RACER, str(scene.root / place), str(scene.root / "decoy")], stdout=subprocess.PIPE
    )
    caller = Caller("raced", [], ["--no-cgroups", "--device=all", "--compute", "--utility"], "root", NO_MOUNTS)
    statuses = set()
    try:
        assert racer.stdout is not None
        assert racer.stdout.readline() == b"racing\n"
        for _ in range(ROUNDS):
            done = scene.run(caller, scene.configure_words(caller))
            assert "Traceback" not in done.text and "internal error" not in done.text, done
            statuses.add(done.status)
    finally:
        racer.kill()
        racer.wait()
        assert racer.stdout is not None
        racer.stdout.close()
    assert statuses
    watch.check()


def test_a_file_system_that_never_answers_ends_the_call(scene: CliScene) -> None:
    """A FIFO in place of a file that is read, which blocks whoever opens it."""
    (scene.root / "etc/ld.so.cache").unlink()
    os.mkfifo(scene.root / "etc/ld.so.cache")
    begin = time.monotonic()
    scene.run(AS_ROOT, f"{scene.configure_words(AS_ROOT)} || true").check()
    assert time.monotonic() - begin < PATIENCE


@pytest.mark.timeout(300)
def test_a_killed_call_leaves_nothing_on_the_host(scene: CliScene) -> None:
    watch = Watch(scene)
    caller = Caller("killed", [], LXC_WORDS, "root", OWN_MOUNTS)
    finished = killed = 0
    for number in range(1, 60):
        call = f"timeout --signal KILL {number * 0.01:.2f} {scene.configure_words(caller)}"
        done = scene.run(caller, f"{call} || echo status $?; sleep 0.2")
        finished, killed = finished + ("137" not in done.stdout), killed + ("137" in done.stdout)
        assert list_own_mounts(scene) == []
        if finished > 2:
            break
    assert finished and killed, (finished, killed)
    for path in list_scratch():
        path.rmdir()  # empty, and removed by a later call
    watch.check()
