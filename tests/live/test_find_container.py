"""Find the bundle of a running container in the process table and in the engines' files, without their daemons."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.live import engine_containers, find_container, monitors, runtime_states, user_claims

DOCKER_ID = "d0c4e5" + "0" * 58
POD_ID, MEMBER_ID = "aaaa" + "0" * 60, "bbbb" + "0" * 60
PODMAN_ID = "b0d0a1" + "0" * 58
INIT = {"docker": 101, "member": 202, "podman": 302, "plain": 400}


class Machine:
    """A process table and the directories of engines, below a directory of the test."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.moby, self.k8s = (top / "state" / name for name in ("moby", "k8s.io"))
        self.userdata = top / "storage/overlay-containers" / PODMAN_ID / "userdata"

    def add_process(self, pid: int, parent: int, words: list[str], cwd: Path, mounts: str) -> None:
        directory = self.top / "proc" / str(pid)
        (directory / "ns").mkdir(parents=True)
        (directory / "cmdline").write_bytes(b"".join(os.fsencode(word) + b"\0" for word in words))
        (directory / "stat").write_text(f"{pid} (a) b) S {parent} 1 1 0" + " 7" * 20)
        (directory / "comm").write_text(f"{words[0].rpartition('/')[2][:15] if words else ''}\n")
        (directory / "cwd").symlink_to(cwd)
        (directory / "exe").symlink_to(Path("/usr/bin", words[0] if words else "true"))
        (directory / "ns/mnt").symlink_to(f"mnt:[{mounts}]")

    def add_bundle(self, directory: Path, init: int = 0, mounts: list[str] | None = None) -> Path:
        directory.mkdir(parents=True)
        if init:
            (directory / "init.pid").write_text(str(init))
        spec = {"mounts": [{"source": source, "destination": "/etc/hosts"} for source in mounts or []]}
        (directory / "config.json").write_text(json.dumps(spec))
        return directory


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A docker container, a pod of containerd with one more container, one of podman, and one that runc runs alone."""
    made = Machine(tmp_path)
    containers = tmp_path / "docker/containers"
    for container_id, name in ((DOCKER_ID, "/web"), ("e" * 64, "/stopped")):
        (containers / container_id).mkdir(parents=True)
        (containers / container_id / "config.v2.json").write_text(json.dumps({"Name": name, "ID": container_id}))
    made.add_bundle(made.moby / DOCKER_ID, INIT["docker"], [f"{containers}/{DOCKER_ID}/hosts"])
    made.add_bundle(made.k8s / POD_ID, 201)
    made.add_bundle(made.k8s / MEMBER_ID, INIT["member"])
    made.add_bundle(made.userdata)
    made.add_bundle(tmp_path / "plain")
    state = tmp_path / "run/runc/alone"
    state.mkdir(parents=True)
    (state / "state.json").write_text(
        json.dumps({"init_process_pid": INIT["plain"], "config": {"labels": ["x=y", f"bundle={tmp_path}/plain"]}})
    )
    shim = ["/usr/bin/containerd-shim-runc-v2", "-namespace"]
    made.add_process(1, 0, ["init"], tmp_path, "1")
    made.add_process(100, 1, [*shim, "moby", "-id", DOCKER_ID, "-address", "s"], made.moby / DOCKER_ID, "1")
    made.add_process(INIT["docker"], 100, ["sleep"], Path("/"), "11")
    made.add_process(102, 100, ["sh"], Path("/"), "11")  # docker exec
    made.add_process(200, 1, [*shim, "k8s.io", "-id", POD_ID], made.k8s / POD_ID, "1")
    made.add_process(201, 200, ["pause"], Path("/"), "21")
    made.add_process(INIT["member"], 200, ["app"], Path("/"), "22")
    made.add_process(203, INIT["member"], ["child"], Path("/"), "22")
    words = ["conmon", "-c", PODMAN_ID, "-n", "job", "-b", str(made.userdata)]
    made.add_process(300, 1, words, Path("/"), "1")
    made.add_process(301, 1, ["conmon", "-c", PODMAN_ID, "-b", f"{made.userdata}/session", "--exec"], Path("/"), "1")
    made.add_process(INIT["podman"], 300, ["sleep"], Path("/"), "31")
    made.add_process(INIT["plain"], 1, ["sleep"], Path("/"), "41")
    made.add_process(500, 1, ["bash"], Path("/"), "1")
    made.add_process(501, 1, ["service with mounts of its own"], Path("/"), "51")
    monkeypatch.setattr(monitors, "PROC", str(tmp_path / "proc"))
    monkeypatch.setattr(engine_containers, "CONTAINERD_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(engine_containers, "DOCKER_CONTAINERS", str(containers))
    monkeypatch.setattr(engine_containers, "PODMAN_STORAGE", str(tmp_path / "storage"))
    monkeypatch.setattr(runtime_states, "RUNTIME_ROOTS", (f"{tmp_path}/run/runc", f"{tmp_path}/user/*/runc"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))  # no engine's command answers
    monkeypatch.setenv("HOME", str(tmp_path))
    return made


@pytest.mark.parametrize(
    ("reference", "bundle", "title"),
    [
        ("docker:web", f"state/moby/{DOCKER_ID}", "docker container web (d0c4e5000000), running"),
        ("docker:d0c4", f"state/moby/{DOCKER_ID}", "docker container web (d0c4e5000000), running"),
        (f"containerd:k8s.io/{MEMBER_ID}", f"state/k8s.io/{MEMBER_ID}", f"k8s.io/{MEMBER_ID}, running"),
        ("containerd:bbbb", f"state/k8s.io/{MEMBER_ID}", f"k8s.io/{MEMBER_ID}, running"),
        (f"containerd:moby/{DOCKER_ID}", f"state/moby/{DOCKER_ID}", "moby/"),
        ("podman:job", f"storage/overlay-containers/{PODMAN_ID}/userdata", "podman container job (b0d0a1000000)"),
        ("podman:b0d0", f"storage/overlay-containers/{PODMAN_ID}/userdata", "podman container job (b0d0a1000000)"),
    ],
)
def test_a_name_leads_to_the_bundle(machine: Machine, reference: str, bundle: str, title: str) -> None:
    found = find_container.find_container(reference)
    assert found.bundle == str(machine.top / bundle) and title in found.title
    assert found.monitor_pid in (100, 200, 300)


@pytest.mark.parametrize(
    ("pid", "bundle"),
    [
        (INIT["docker"], f"state/moby/{DOCKER_ID}"),
        (102, f"state/moby/{DOCKER_ID}"),
        (201, f"state/k8s.io/{POD_ID}"),
        (INIT["member"], f"state/k8s.io/{MEMBER_ID}"),
        (203, f"state/k8s.io/{MEMBER_ID}"),
        (INIT["podman"], f"storage/overlay-containers/{PODMAN_ID}/userdata"),
        (INIT["plain"], "plain"),
    ],
)
def test_a_process_leads_to_the_bundle_of_its_own_container(machine: Machine, pid: int, bundle: str) -> None:
    assert find_container.find_container_of_process(pid).bundle == str(machine.top / bundle)


@pytest.mark.parametrize(
    ("reference", "texts"),
    [
        ("docker:none", ("docker:none: docker runs no such container", "Running: web")),
        ("docker:stopped", ("docker's container stopped is not running", "explain --env")),
        ("docker:", ("names no container", "docker:NAME")),
        ("podman:none", ("podman has no such container", "Running: job")),
        ("containerd:default/x", ("containerd runs no such container", "NAMESPACE/ID")),
        ("containerd:", ("names no container", "containerd:NAMESPACE/ID")),
        ("containerd:x", ("containerd runs no such container", "k8s.io/")),
    ],
)
def test_a_name_that_leads_nowhere_says_where_was_looked(
    machine: Machine, reference: str, texts: tuple[str, ...]
) -> None:
    with pytest.raises(Fault) as failure:
        find_container.find_container(reference)
    for text in texts:
        assert text in str(failure.value)


ON_THE_HOST = "Give the number that a process of the container has on the host, not in the container"


@pytest.mark.parametrize(
    ("pid", "text"),
    [
        (1, f"the process is in no container: it has the machine's own mounts. {ON_THE_HOST}"),
        (500, f"the process is in no container: it has the machine's own mounts. {ON_THE_HOST}"),
        (501, "no container of this process was found: none of its ancestors"),
        (9999, "there is no such process"),
    ],
)
def test_a_process_outside_of_containers_is_a_sentence(machine: Machine, pid: int, text: str) -> None:
    with pytest.raises(Fault) as failure:
        find_container.find_container_of_process(pid)
    assert str(failure.value).startswith(f"--pid {pid}: {text}")


@pytest.mark.parametrize(
    ("pid", "user", "text"),
    [
        (1, 0, f"process 1 is the machine's first process, and in no container. {ON_THE_HOST}"),
        (1, 1000, f"process 1 is the machine's first process, and in no container. {ON_THE_HOST}"),
        (500, 1000, "this user may not look at the process. Run this as root"),
        (500, 0, "the kernel refuses the look at this process even to this root user. Run this outside of containers"),
        (501, 0, "the process has ended"),
    ],
)
def test_a_process_that_cannot_be_looked_at_has_a_hint_that_fits_the_user(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, pid: int, user: int, text: str
) -> None:
    (machine.top / "proc" / str(pid) / "ns/mnt").unlink()
    (machine.top / "proc/501/stat").write_text("501 (a) Z 1 1 1 0" + " 0" * 20)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(Fault) as failure:
        find_container.find_container_of_process(pid)
    assert str(failure.value).startswith(f"--pid {pid}: {text}")


def test_a_container_of_podman_that_does_not_run_has_its_bundle_in_the_storage(machine: Machine) -> None:
    other = "c" * 64
    bundle = machine.add_bundle(machine.userdata.parents[1] / other / "userdata")
    (machine.userdata.parents[1] / "containers.json").write_text(json.dumps([{"id": other, "names": ["idle"]}]))
    for reference in ("podman:idle", "podman:cccc"):
        found = find_container.find_container(reference)
        assert (found.bundle, found.monitor_pid) == (str(bundle), 0) and "not running" in found.title


def test_of_two_containers_with_one_name_none_is_guessed(machine: Machine) -> None:
    other = machine.add_bundle(machine.top / "other/userdata")
    machine.add_process(600, 1, ["conmon", "-c", "f" * 64, "-n", "job", "-b", str(other)], Path("/"), "1")
    with pytest.raises(Fault, match=r"2 containers match.*--pid 300.*--pid 600"):
        find_container.find_container("podman:job")


def test_a_name_that_files_do_not_show_is_asked_of_the_engine(machine: Machine) -> None:
    bundle = machine.userdata
    answers = {"docker": f"echo {DOCKER_ID}", "podman": f"echo {bundle}"}
    (machine.top / "bin").mkdir()
    for engine, answer in answers.items():
        program = machine.top / "bin" / engine
        program.write_text(f'#!/bin/sh\necho "$@" >{machine.top}/{engine}.asked\n{answer}\n')
        program.chmod(0o755)
    assert find_container.find_container("docker:alias").bundle == str(machine.moby / DOCKER_ID)
    assert (machine.top / "docker.asked").read_text() == "inspect --type container --format {{.Id}} -- alias\n"
    assert find_container.find_container("podman:alias").bundle == str(bundle)


def test_another_program_named_like_a_monitor_without_its_flags_counts_for_nothing(machine: Machine) -> None:
    machine.add_process(700, 1, ["/usr/bin/conmon"], Path("/"), "1")
    machine.add_process(701, 1, ["containerd-shim-runc-v2", "-namespace"], Path("/"), "1")
    machine.add_process(702, 1, [], Path("/"), "1")
    assert [monitor.pid for monitor in monitors.list_monitors()] == [100, 200, 300]


def test_a_bundle_that_only_the_monitor_sees_is_found_through_its_root(machine: Machine) -> None:
    """Rootless docker has a /run of its own."""
    hidden = "a1" + "0" * 62
    root = machine.top / "proc/800/root"
    machine.add_process(os.getpid(), 1, ["explain"], Path("/"), "1")
    machine.add_process(
        800, 1, ["containerd-shim-runc-v2", "-namespace", "moby", "-id", hidden], Path(f"/own/moby/{hidden}"), "8"
    )
    machine.add_bundle(root / "own/moby" / hidden, 801, [f"/data/containers/{hidden}/hosts"])
    (root / "data/containers" / hidden).mkdir(parents=True)
    (root / "data/containers" / hidden / "config.v2.json").write_text('{"Name": "/hidden"}')
    machine.add_process(801, 800, ["sleep"], Path("/"), "81")
    for reference in ("docker:hidden", f"containerd:moby/{hidden}"):
        found = find_container.find_container(reference)
        assert (found.bundle, found.monitor_pid) == (f"/own/moby/{hidden}", 800)
    assert find_container.find_container_of_process(801).title == "docker container hidden (a10000000000), running"


@pytest.mark.parametrize(
    ("name", "reference", "init"),
    [
        ("web", "docker:web", INIT["docker"]),
        ("d0c4", "docker:web", INIT["docker"]),
        (MEMBER_ID, f"containerd:k8s.io/{MEMBER_ID}", INIT["member"]),
        ("job", "podman:job", INIT["podman"]),
        ("alone", "runc:alone", INIT["plain"]),
        ("runc:alone", "runc:alone", INIT["plain"]),
        (f"podman:{PODMAN_ID}", "podman:job", INIT["podman"]),
    ],
)
def test_a_running_container_is_found_by_its_name_alone(machine: Machine, name: str, reference: str, init: int) -> None:
    pid_file = machine.userdata / "pidfile"
    pid_file.write_text(str(INIT["podman"]))
    words = ["conmon", "-c", PODMAN_ID, "-n", "job", "-b", str(machine.userdata), "-p", str(pid_file)]
    (machine.top / "proc/300/cmdline").write_bytes(b"".join(os.fsencode(word) + b"\0" for word in words))
    is_reference = find_container.is_container_reference(name)
    found = find_container.find_container(name) if is_reference else find_container.find_container_by_bare_name(name)
    assert (found.reference, found.init_pid) == (reference, init)
    assert [each.reference for each in find_container.list_running_containers()].count(reference) == 1


def test_a_bare_name_that_none_or_two_have_is_a_sentence_with_the_running_ones(machine: Machine) -> None:
    with pytest.raises(Fault, match=r"no running container has this name.*docker:web"):
        find_container.find_container_by_bare_name("none")
    other = machine.add_bundle(machine.top / "other")
    state = machine.top / "run/runc/web"
    state.mkdir()
    (state / "state.json").write_text(json.dumps({"init_process_pid": 500, "config": {"labels": [f"bundle={other}"]}}))
    with pytest.raises(Fault, match=r"2 running containers match.*docker:web, runc:web"):
        find_container.find_container_by_bare_name("web")


def test_a_container_of_crio_is_told_from_one_of_podman(machine: Machine) -> None:
    bundle = machine.add_bundle(machine.top / "crio/userdata")
    words = ["conmon", "-c", "cc" * 32, "-n", "k8s_app", "-b", str(bundle), "--exit-dir", "/var/run/crio/exits"]
    machine.add_process(800, 1, words, Path("/"), "1")
    found = find_container.find_container("crio:cccc")
    assert (found.bundle, found.reference) == (str(bundle), "crio:ccccccccccccc")
    with pytest.raises(Fault, match="podman has no such container"):
        find_container.find_container("podman:k8s_app")
    with pytest.raises(Fault, match=r"CRI-O runs no such container.*ccccccccccccc"):
        find_container.find_container("crio:dddd")


def test_a_first_process_that_is_not_the_monitors_counts_for_nothing(machine: Machine) -> None:
    """The number was given to another process meanwhile, or a user has made it up."""
    (machine.moby / DOCKER_ID / "init.pid").write_text("500")
    assert find_container.find_container("docker:web").init_pid == 0
    assert "docker:web" not in [found.reference for found in find_container.list_running_containers()]


def test_the_state_of_a_runtime_counts_only_with_the_start_time_of_its_process(machine: Machine) -> None:
    state = machine.top / "run/runc/alone/state.json"
    content = json.loads(state.read_text())
    for start_time, is_found in ((8, False), (7, True), (0, True)):
        state.write_text(json.dumps({**content, "init_process_start": start_time}))
        assert ("runc:alone" in [found.reference for found in find_container.list_running_containers()]) is is_found


USER = 1234


def give_to_user(path: Path) -> None:
    for entry in (path, *path.rglob("*")):
        os.chown(entry, USER, USER, follow_symlinks=False)


def write_state(directory: Path, pid: int, bundle: str) -> None:
    directory.mkdir(parents=True)
    state = {"init_process_pid": pid, "config": {"labels": [f"bundle={bundle}"]}}
    (directory / "state.json").write_text(json.dumps(state))


@pytest.mark.skipif(os.geteuid() != 0, reason="other users' files are made by root")
class TestOtherUsers:
    """What a user writes and starts says nothing about containers that are not his."""

    def test_a_users_state_directory_that_leads_to_one_of_roots_is_not_roots(self, machine: Machine) -> None:
        """Everybody can write into /tmp, which is root's."""
        write_state(machine.top / "tmp", 102, "/home/user")
        (machine.top / "user/1234/runc").mkdir(parents=True)
        (machine.top / "user/1234/runc/evil").symlink_to(machine.top / "tmp")
        give_to_user(machine.top / "user/1234")
        listed = find_container.list_running_containers()
        assert [container.reference for container in listed if container.bundle == "/home/user"] == []

    def test_a_users_state_file_names_no_process_of_root(self, machine: Machine) -> None:
        for owned in (False, True):
            write_state(machine.top / f"user/1234/runc/evil-{owned}", 102, "/home/user")
            if owned:
                give_to_user(machine.top / "user/1234")
            else:
                os.chown(machine.top / "user/1234", USER, USER)  # what is in it can be a link that root has made
        assert [container.names for container in runtime_states.list_runtime_containers()] == [("alone",)]

    def test_a_program_of_root_that_a_user_calls_a_monitor_is_none(self, machine: Machine) -> None:
        """su and sudo wait for a password with any words on their command line."""
        machine.add_process(600, 1, ["conmon", "--", "root", "-c", "f" * 64, "-b", "/home/user"], Path("/"), "1")
        exe = machine.top / "proc/600/exe"
        exe.unlink()
        exe.symlink_to("/usr/bin/su")
        assert 600 not in [monitor.pid for monitor in monitors.list_monitors()]
        exe.unlink()
        exe.symlink_to("/usr/libexec/podman/conmon (deleted)")  # podman was upgraded
        assert 600 in [monitor.pid for monitor in monitors.list_monitors()]

    def test_a_users_container_hides_none_of_root(self, machine: Machine) -> None:
        """It has root's name, a name like the beginning of root's id, or a bundle at the same path elsewhere."""
        bundle = machine.add_bundle(machine.top / "home/userdata", 51)
        for pid, name in ((50, "job"), (52, "b0d0")):
            machine.add_process(pid, 1, ["conmon", "-c", "f" * 64, "-n", name, "-b", str(bundle)], Path("/"), "1")
        words = ["containerd-shim-runc-v2", "-namespace", "k8s.io", "-id", MEMBER_ID]
        machine.add_process(os.getpid(), 1, ["explain"], Path("/"), "1")
        machine.add_process(53, 1, words, machine.k8s / MEMBER_ID, "9")
        machine.add_bundle(Path(f"{machine.top}/proc/53/root{machine.k8s}/{MEMBER_ID}"), 51)
        machine.add_process(51, 53, ["sleep"], Path("/"), "31")
        for pid in (50, 51, 52, 53):
            give_to_user(machine.top / "proc" / str(pid))
        references = ("podman:job", "podman:b0d0", "job", f"containerd:k8s.io/{MEMBER_ID}", "containerd:bbbb")
        found = {name: find_container.find_container(name) for name in references if ":" in name}
        found["job"] = find_container.find_container_by_bare_name("job")
        assert {name: (container.monitor_pid, container.owner) for name, container in found.items()} == {
            name: (200 if "containerd" in name else 300, 0) for name in references
        }

    def test_what_a_user_shows_is_looked_at_for_a_few_seconds_at_most(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(user_claims, "DEADLINE", 0.5)
        directory = machine.top / "user/1234/runc"
        directory.mkdir(parents=True)
        large = directory / "large.json"
        large.write_text(f"[{','.join(['[]'] * 5_000_000)}]")
        for number in range(40):
            (directory / str(number)).mkdir()
            os.link(large, directory / str(number) / "state.json")
        give_to_user(machine.top / "user/1234")
        begin = time.monotonic()
        assert [container.names for container in runtime_states.list_runtime_containers()] == [("alone",)]
        assert time.monotonic() - begin < 10


def test_each_bundle_is_read_once_however_many_shims_there_are(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    original = engine_containers.read_pid_file
    monkeypatch.setattr(engine_containers, "read_pid_file", lambda path: read.append(path) or original(path))
    for number in range(40):
        container_id = f"{number:064x}"
        bundle = machine.add_bundle(machine.moby / container_id, 2000 + number)
        shim = ["containerd-shim-runc-v2", "-namespace", "moby", "-id", container_id]
        machine.add_process(1000 + number, 1, shim, bundle, "1")
        machine.add_process(2000 + number, 1000 + number, ["sleep"], Path("/"), "5")
    found = find_container.list_running_containers()
    assert len({container.init_pid for container in found}) == 45
    assert len(read) <= 2 * 50
