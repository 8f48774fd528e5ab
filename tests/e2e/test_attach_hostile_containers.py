"""attach and detach against containers whose processes are hostile: the host stays as it is, and the command ends in
time with its work done or with one sentence.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.e2e import machine
from support.e2e.attacks import ATTACKS, LIBRARY
from support.e2e.host import InstalledRuntime, SimulatedHost
from support.e2e.host_watch import PATIENCE
from support.e2e.live_scene import RECORDS, HostileScene

ROUNDS = int(os.environ.get("GPU_OCI_HOOK_RACE_ROUNDS", "5"))
CLOSED = ("EPERM", "ENOENT")
# A file system that does not answer costs the deadline of the change and that of taking it back.
HANG_PATIENCE = 90.0

MakeScene = Callable[..., HostileScene]


@pytest.fixture
def make_scene(
    workspace: Path, image: Path, runtime: InstalledRuntime, simulated: SimulatedHost
) -> Iterator[MakeScene]:
    made: list[HostileScene] = []
    top = Path(tempfile.mkdtemp(prefix="live-", dir=workspace))
    top.chmod(0o755)

    def make(**words: Any) -> HostileScene:
        directory = top / f"scene-{len(made)}"
        directory.mkdir()
        made.append(HostileScene(directory, image, runtime, simulated, **words))
        return made[-1]

    yield make
    for scene in made:
        scene.close()
    machine.remove_tree(top)


@pytest.fixture
def scene(make_scene: MakeScene) -> HostileScene:
    return make_scene()


def attack_and_detach(scene: HostileScene, *, patience: float = PATIENCE) -> machine.CommandResult:
    """Attach and detach, and check everything that no attack may change; return what attach said."""
    before = scene.fingerprint()
    attached, took = scene.call_in_time("attach", "--gpus", "0")
    assert took < patience, attached
    if scene.runtime.cgroup == "v1":
        assert "Operation not permitted" in scene.open_other_gpu()
    detached, took = scene.call_in_time("detach")
    assert took < patience, detached
    after = scene.fingerprint()
    assert after == before, (attached.text, detached.text)
    return attached


# --- images that change below a running container --------------------------------------------------------------------


# With GPU_OCI_HOOK_RACE_ROUNDS all of them, else every third: the prestart hook's tests always make all.
IMAGE_ATTACKS = list(ATTACKS)[:: 1 if "GPU_OCI_HOOK_RACE_ROUNDS" in os.environ else 3]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("attack", IMAGE_ATTACKS, ids=lambda name: name.replace(" ", "-"))
def test_a_running_container_spoils_its_root(scene: HostileScene, attack: str) -> None:
    """The attacks of hostile images, made after the start."""
    ATTACKS[attack](scene.root, scene.watched, scene.host.version)
    attack_and_detach(scene)


# --- processes with CAP_SYS_ADMIN, mounts and nodes ------------------------------------------------------------------

FULL = "dd if=/dev/zero of={0}/fill bs=4096 count=16 2>/dev/null || true"
# GPU 0 of the simulated host is /dev/nvidia1, and the other one is /dev/nvidia0 with the numbers 195:0.
SCRIPTS = {
    "tmpfs over etc": "mount -t tmpfs attack /etc",
    "tmpfs over dev": "mount -t tmpfs attack /dev",
    "tmpfs over usr": "mount -t tmpfs attack /usr",
    "tmpfs over the libraries": f"mount -t tmpfs attack /{LIBRARY}",
    "full tmpfs over usr local": "mount -t tmpfs -o size=4k attack /usr/local; " + FULL.format("/usr/local"),
    "full dev": "mount -o remount,size=4k /dev || mount -t tmpfs -o size=4k attack /dev; " + FULL.format("/dev"),
    "tmpfs without inodes over usr local": "mount -t tmpfs -o nr_inodes=1 attack /usr/local",
    "read-only dev": "mount -o remount,ro /dev",
    "read-only root": "mount -o bind,remount,ro / || mount -o remount,ro /",
    "proc over our directory": "mkdir -p /usr/local/nvidia; mount --bind /proc /usr/local/nvidia",
    "proc over etc": "mount --bind /proc /etc",
    "proc over dev": "mount --bind /proc /dev",
    "sysfs over usr local": "mount --rbind /sys /usr/local",
    "a process's root over usr local": "mount --bind /proc/1/root /usr/local",
    "descriptors over etc": "mount --bind /proc/1/fd /etc",
    "root below itself": "mkdir -p /usr/local/nvidia; mount --rbind / /usr/local/nvidia",
    "hundreds of mounts on one": "i=0; while [ $i -lt 300 ]; do mount -t tmpfs attack /usr/local; i=$((i+1)); done",
    "no proc": "umount -l /proc",
    "tmpfs over proc": "mount -t tmpfs attack /proc",
    "proc of lies": "mount -t tmpfs attack /proc; mkdir -p /proc/self/fd; ln -s /etc /proc/self/fd/3; ln -s / /proc/1",
    "dev is a link": "umount -l /dev; mv /dev /old; ln -s /proc/1/root/etc /dev",
    "dev is a file": "umount -l /dev; rmdir /dev || mv /dev /old; : > /dev",
    "our node is /dev/zero": "/busybox mknod /dev/nvidia1 c 1 5; /busybox mknod /dev/nvidiactl c 1 5",
    "our node is the other GPU": "/busybox mknod /dev/nvidia1 c 195 0",
    "our node is a disk": "/busybox mknod /dev/nvidia1 b 1 0",
    "our node is a FIFO": "/busybox mkfifo /dev/nvidia1",
    "our node is a link": "ln -s /etc/passwd /dev/nvidia1",
    "our node is a directory": "mkdir -p /dev/nvidia1/full",
    "our node is a mount point": ": > /dev/nvidia1; mount --bind /etc/passwd /dev/nvidia1",
    "dev holds many names": "i=0; while [ $i -lt 20000 ]; do : > /dev/n$i; i=$((i+1)); done",
    "names with control characters": "mkdir -p \"/usr/local/$(printf 'a\\nb\\033[31m')\"; "
    "mv /usr/local \"/usr/$(printf 'lo\\ncal\\033[2J')\"; ln -s \"$(printf 'lo\\ncal\\033[2J')\" /usr/local",
    "shared mounts inside": "mount --make-rshared /",
    "overlay over etc": "mkdir -p /o/u /o/w; mount -t tmpfs o /o; mkdir /o/u /o/w; "
    "mount -t overlay -o lowerdir=/etc,upperdir=/o/u,workdir=/o/w attack /etc",
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("attack", SCRIPTS, ids=lambda name: name.replace(" ", "-").replace("/", ""))
def test_a_container_mounts_and_makes_nodes(scene: HostileScene, attack: str) -> None:
    scene.run_privileged(SCRIPTS[attack])
    attack_and_detach(scene)


@pytest.mark.timeout(120)
def test_immutable_directories_are_no_reason_for_a_traceback(scene: HostileScene) -> None:
    places = [str(scene.root / place) for place in ("etc", "etc/ld.so.cache", "usr/local")]
    chattr = machine.find_program("chattr")
    machine.run_command([chattr, "+i", *places]).check()
    try:
        attack_and_detach(scene)
    finally:
        machine.run_command([chattr, "-i", *places]).check()


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "place", ["/etc", "/usr/local", "/dev"][: 3 if "GPU_OCI_HOOK_RACE_ROUNDS" in os.environ else 1]
)
def test_a_file_system_that_never_answers_costs_the_deadline(scene: HostileScene, place: str) -> None:
    device = scene.root / "fuse"
    os.mknod(device, 0o020666, os.makedev(10, 229))
    scene.start_attacker("hang", place, "/fuse", privileged=True)
    answer = attack_and_detach(scene, patience=HANG_PATIENCE)
    if place != "/etc":  # what is mounted on /etc is not touched
        assert answer.status == 1 and "did not answer" in answer.stderr, answer


# --- races -----------------------------------------------------------------------------------------------------------

RACES = {
    "libraries and a link": ("exchange", f"/{LIBRARY}", "/decoy"),
    "the drop-in directory and a link": ("exchange", "/etc/ld.so.conf.d", "/decoy"),
    "etc and a link": ("exchange", "/etc", "/decoy"),
    "usr local and a link": ("exchange", "/usr/local", "/decoy"),
    "our directory and a link": ("exchange", "/usr/local/nvidia", "/decoy"),
    "the cache and a link": ("exchange", "/etc/ld.so.cache", "/decoy-cache"),
    "dev's directory and a link": ("exchange", "/dev/nvidia-caps", "/dev/decoy"),
    "our node": ("node", "/dev/nvidia1", "5"),
    "tmpfs over our directory": ("mount", "/usr/local", "tmpfs"),
    "tmpfs over dev": ("mount", "/dev", "tmpfs"),
    "proc over etc": ("mount", "/etc", "/proc"),
    "proc over our directory": ("mount", "/usr/local/nvidia", "/proc"),
    "our mounts made writable": ("mount", "/usr/local/nvidia/lib64", "writable"),
}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("race", RACES, ids=lambda name: name.replace(" ", "-"))
def test_a_process_of_the_container_races(scene: HostileScene, race: str) -> None:
    """GPU_OCI_HOOK_RACE_ROUNDS sets how often each is tried."""
    scene.run_privileged("mkdir -p /usr/local/nvidia /dev/nvidia-caps")
    scene.run_privileged(f"ln -s {scene.watched} /decoy; ln -s {scene.watched}/ld.so.cache /decoy-cache")
    scene.run_privileged(f"ln -s {scene.watched} /dev/decoy")
    scene.start_attacker(*RACES[race], privileged=RACES[race][0] == "mount")
    for _ in range(ROUNDS):
        attack_and_detach(scene)


@pytest.mark.timeout(600)
def test_a_container_ends_during_attach(make_scene: MakeScene) -> None:
    """Its first process is killed after ever more time."""
    outcomes = set()
    for number in range(8):
        scene = make_scene()
        before = scene.fingerprint()
        process = subprocess.Popen(
            scene.command("attach", scene.reference, "--gpus", "0"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        time.sleep(0.05 + number * 0.05)
        os.kill(scene.find_pid(), signal.SIGKILL)
        out, err = process.communicate(timeout=60)
        text = (out + err).decode()
        outcomes.add(process.returncode)
        assert "Traceback" not in text and process.returncode in (0, 1), text
        if process.returncode == 1:
            assert scene.fingerprint() == before, text  # nor is there a record of it
        scene.remove()
        assert scene.fingerprint() == before
        scene.close()
    assert 1 in outcomes


# --- processes and records that are not what they seem ---------------------------------------------------------------


def start_time_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


LYING_RECORD = {
    "title": "web",
    "attached": ["GPU-1"],
    "detached": [],
    "capabilities": [],
    "devices": [[195, 1]],
    "changes": [["file", "/etc/passwd", [0, 0], "", "", 0], ["directory", "/usr/local/lib", [0, 0], "", "", 0]],
    "pending": [["node", "/dev/null", [1, 3], "", "", 0]],
    "pending_devices": [[1, 3]],
}


def test_a_record_of_an_earlier_process_with_the_same_number_is_not_believed(scene: HostileScene) -> None:
    pid = scene.find_pid()
    RECORDS.mkdir(parents=True, exist_ok=True)
    stale = RECORDS / f"{pid}-{start_time_of(pid) - 1}.json"
    stale.write_text(json.dumps(LYING_RECORD))
    scene.call("attach", "--gpus", "0").check()
    scene.call("detach").check()
    assert not stale.exists()
    assert scene.exec(["/busybox", "test", "-c", "/dev/null"]).status == 0


def test_a_record_that_another_user_wrote_is_refused(scene: HostileScene) -> None:
    pid = scene.find_pid()
    RECORDS.mkdir(parents=True, exist_ok=True)
    forged = RECORDS / f"{pid}-{start_time_of(pid)}.json"
    forged.write_text(json.dumps(LYING_RECORD))
    os.chown(forged, 4242, 4242)
    try:
        answer = attack_and_detach(scene)
        assert answer.status == 1 and "another user could have written it" in answer.stderr
        assert scene.exec(["/busybox", "test", "-c", "/dev/null"]).status == 0
    finally:
        forged.unlink()


def remove_namespace(kind: str) -> Callable[[dict[str, Any]], None]:
    def edit(spec: dict[str, Any]) -> None:
        spec["linux"]["namespaces"] = [entry for entry in spec["linux"]["namespaces"] if entry["type"] != kind]

    return edit


def test_a_process_in_the_hosts_mount_namespace_is_refused(scene: HostileScene) -> None:
    """--pid names the container of a process: one that was moved into a container's cgroup has the host's mounts."""
    before = scene.fingerprint()
    process = subprocess.Popen([machine.find_program("sleep"), "100"])
    try:
        done = machine.run_command(scene.command("attach", "--pid", str(process.pid), "--gpus", "0"))
        assert done.status == 1 and "Traceback" not in done.text, done
    finally:
        process.kill()
        process.wait()
    assert scene.fingerprint() == before


def share_root(spec: dict[str, Any]) -> None:
    spec["linux"]["rootfsPropagation"] = "shared"


def test_nothing_propagates_from_a_shared_root(make_scene: MakeScene) -> None:
    scene = make_scene(edit=share_root)
    mounts = Path("/proc/self/mountinfo").read_text()
    attack_and_detach(scene)
    assert Path("/proc/self/mountinfo").read_text() == mounts


def map_users(spec: dict[str, Any]) -> None:
    spec["linux"]["namespaces"].append({"type": "user"})
    mapping = [{"containerID": 0, "hostID": 100000, "size": 65536}]
    spec["linux"]["uidMappings"] = spec["linux"]["gidMappings"] = mapping


def test_a_user_namespace_does_not_lend_roots_rights(make_scene: MakeScene) -> None:
    """The image belongs to the host's root, whom the namespace does not have: nothing may be changed in it."""
    scene = make_scene(edit=map_users)
    at_start = scene.describe_container()
    answer = attack_and_detach(scene)
    assert answer.status == 1 and "user namespace" in answer.stderr, answer
    assert scene.describe_container() == at_start


@pytest.mark.parametrize("cgroup", ["v1", "v2"])
def test_a_frozen_container_gets_a_gpu(make_scene: MakeScene, cgroup: str) -> None:
    scene = make_scene(cgroup=cgroup)
    at_start = scene.describe_container()
    machine.run_command(scene.runtime.command("pause", scene.name)).check()
    assert attack_and_detach(scene).status == 0
    machine.run_command(scene.runtime.command("resume", scene.name)).check()
    assert scene.describe_container() == at_start


def test_a_process_that_changed_its_root_hides_nothing(scene: HostileScene) -> None:
    """A process in a chroot of its own shows another root; the namespace's own counts."""
    script = "mkdir -p /jail/busybox-dir; cp /busybox /jail/busybox; exec chroot /jail /busybox sleep 500"
    process = subprocess.Popen(scene.runtime.command("exec", scene.name, "/busybox", "sh", "-c", script))
    try:
        machine.wait_for((scene.root / "jail/busybox").exists, "the jail")
        assert attack_and_detach(scene).status == 0
        assert not (scene.root / "jail/dev").exists()
    finally:
        process.kill()
        process.wait()


def test_nothing_of_the_container_is_executed_or_imported(scene: HostileScene, runtime: InstalledRuntime) -> None:
    """The paths of our code, of Python's library and of every program exist in the container, each with a trap."""
    trap = f"open({str(scene.watched / 'written')!r}, 'w').close(); open('/trapped', 'w').close()\n"
    code = Path(str(runtime.code))
    standard = Path(os.__file__).parent
    for top in (code, standard):
        for source in top.rglob("*.py"):
            if "site-packages" not in source.parts or top == code:
                target = scene.root / str(source).lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(trap)
    for program in ("sbin/ldconfig", "bin/python3", "bin/nvidia-smi", "bin/mount"):
        path = scene.root / "usr" / program
        path.unlink(missing_ok=True)
        path.write_text("#!/bin/sh\n: > /trapped\n")
        path.chmod(0o755)
    trace = scene.directory / "trace"
    before = scene.fingerprint()
    command = scene.command("attach", scene.reference, "--gpus", "0")
    strace = [machine.find_program("strace"), "-f", "-e", "trace=execve,execveat", "-o", str(trace)]
    machine.run_command([*strace, *command]).check()
    machine.run_command([*strace, "-A", *scene.command("detach", scene.reference)]).check()
    assert not (scene.root / "trapped").exists() and not Path("/trapped").exists()
    assert scene.fingerprint() == before
    calls = [line for line in trace.read_text().splitlines() if "execve" in line and "= 0" in line]
    assert calls and all("/rootfs/" not in line for line in calls)


def test_the_scene_is_one_in_which_attach_works(make_scene: MakeScene) -> None:
    """Without an attack a GPU comes and goes, so that the checks above mean something."""
    scene = make_scene()
    at_start = scene.describe_container()
    assert scene.call("attach", "--gpus", "0").check().status == 0
    answer = scene.probe()
    assert answer.nodes[scene.host.cards[0].node] == "ENXIO"
    assert answer.made[scene.host.cards[1].numbers] == "EPERM"
    scene.call("detach").check()
    assert scene.describe_container() == at_start
