"""attach for the container of a user who lies: with his own namespace, a user can show any directory as its root.

The user has no rights over what he shows, and attach, which runs as root, must not lend him its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.bundles import snapshot_tree
from support.e2e import images, machine
from support.e2e.engines import ROOTLESS_ID
from support.e2e.host import InstalledRuntime, SimulatedHost
from support.e2e.machine import find_program

# conmon as far as its command line, its file with the process id, and its child show it.
MONITOR = """
#include <stdio.h>
#include <unistd.h>
int main(int count, char **words)
{
    int child = fork();
    if (child == 0)
        execl("/bin/sh", "sh", "-c", words[count - 1], (char *)0);
    FILE *file = fopen(words[count - 2], "w");
    fprintf(file, "%d", child);
    fclose(file);
    for (;;)
        pause();
}
"""
WAITING = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"


class HostileUser:
    """A user with a process that looks like podman's monitor, and one that looks like its container.

    Arguments:
        directory: a directory that the user can enter.
        image: root file system that is copied for the container, with root's ownership.
    """

    def __init__(self, directory: Path, image: Path) -> None:
        self.home, self.root = directory / "home", images.copy_image(image, directory / "root")
        self.bundle = self.home / "bundle"
        self.bundle.mkdir(parents=True)
        self.spec: dict[str, Any] = {
            "ociVersion": "1.0.2",
            "root": {"path": str(self.root)},
            "process": {"args": ["init"], "cwd": "/", "user": {"uid": 0, "gid": 0}},
            "mounts": [],
            "linux": {"namespaces": [{"type": "mount"}, {"type": "user"}]},
        }
        self.mounts = ""
        for source, target in ((MONITOR, self.home / "conmon"), (WAITING, self.root / "init")):
            file = directory / "source.c"
            file.write_text(source)
            machine.run_command([find_program("gcc"), "-static", "-o", str(target), str(file)]).check()

    @contextlib.contextmanager
    def pretend(self) -> Iterator[None]:
        """Show the root file system as a container's."""
        (self.bundle / "config.json").write_text(json.dumps(self.spec))
        for path in (self.home, *self.home.rglob("*")):
            os.chown(path, ROOTLESS_ID, ROOTLESS_ID)
        script = (
            f"mount --bind {self.root} {self.root} && cd {self.root} && {self.mounts} "
            "pivot_root . mnt && umount -l /mnt && exec /init"
        )
        user = [find_program("setpriv"), f"--reuid={ROOTLESS_ID}", f"--regid={ROOTLESS_ID}", "--clear-groups"]
        words = ["-c", "a" * 64, "-n", "web", "-b", str(self.bundle), "-p", str(self.home / "pid")]
        child = f"exec unshare --user --map-root-user --mount sh -c '{script}'"
        monitor = subprocess.Popen([*user, str(self.home / "conmon"), *words, child], start_new_session=True)
        try:
            machine.wait_for(self._is_ready, "the container that is none")
            yield
        finally:
            os.killpg(monitor.pid, 9)
            monitor.wait()

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.home / "pid").read_text())
            return Path(f"/proc/{pid}/cmdline").read_bytes() == b"/init\0"
        return False


@pytest.fixture
def user(workspace: Path, image: Path) -> Iterator[HostileUser]:
    directory = Path(tempfile.mkdtemp(prefix="hostile-", dir=workspace))
    directory.chmod(0o755)
    yield HostileUser(directory, image)
    machine.remove_tree(directory)


def attach(runtime: InstalledRuntime, simulated: SimulatedHost) -> machine.CommandResult:
    program = runtime.shim.with_name("gpu-oci-hook")
    config = runtime.wrapper("runc", simulated.root).with_suffix(".toml")
    return machine.run_command([str(program), "attach", "podman:web", "--gpus", "0", "--config", str(config)])


def give_to_user(*paths: Path) -> None:
    for path in paths:
        os.chown(path, ROOTLESS_ID, ROOTLESS_ID, follow_symlinks=False)


@pytest.mark.parametrize("owned", ["nothing", "the root directory"])
def test_attach_changes_no_directory_that_the_user_of_a_container_cannot_change(
    user: HostileUser, runtime: InstalledRuntime, simulated: SimulatedHost, owned: str
) -> None:
    if owned == "the root directory":
        give_to_user(user.root)
    before = snapshot_tree(user.root)
    with user.pretend():
        answer = attach(runtime, simulated)
    assert answer.status == 1 and "Traceback" not in answer.text and answer.stderr.count("\n") == 1, answer.text
    assert snapshot_tree(user.root) == before, answer.text


def test_attach_believes_no_config_json_that_calls_a_directory_of_the_host_a_tmpfs(
    user: HostileUser, runtime: InstalledRuntime, simulated: SimulatedHost
) -> None:
    shown = Path(tempfile.mkdtemp(prefix="gpu-oci-e2e-", dir="/dev/shm"))  # a tmpfs of the host
    shown.chmod(0o755)
    give_to_user(user.root, *user.root.rglob("*"))
    user.spec["mounts"] = [{"destination": "/run", "type": "tmpfs", "source": "tmpfs"}]
    user.mounts = f"mount --bind {shown} run &&"
    try:
        with user.pretend():
            answer = attach(runtime, simulated)
        assert "Traceback" not in answer.text
        assert list(shown.iterdir()) == [], answer.text
    finally:
        shutil.rmtree(shown)


def test_attach_gives_no_gpu_that_only_the_config_json_of_a_user_says_the_container_was_started_with(
    user: HostileUser, runtime: InstalledRuntime, simulated: SimulatedHost
) -> None:
    """Else the operator who gives one GPU would give all that the user has written into it."""
    give_to_user(user.root, *user.root.rglob("*"))
    user.spec["process"]["env"] = ["NVIDIA_VISIBLE_DEVICES=1"]
    user.spec["hooks"] = {
        "prestart": [{"path": str(runtime.shim.with_name("gpu-oci-hook")), "args": ["x", "prestart"]}]
    }
    with user.pretend():
        answer = attach(runtime, simulated).check()
        pid = (user.home / "pid").read_text()
        table = Path(f"/proc/{pid}/mountinfo").read_text()
    assert "attached GPU 0" in answer.text
    # GPU 0 has another minor number on this host, and GPU 1 too.
    nodes = [number for number in range(8) if f" /dev/nvidia{number} " in table]
    assert len(nodes) == 1 and f"/dev/nvidia{nodes[0]}" in answer.text, answer.text


def test_attach_changes_what_the_user_of_a_container_can_change(
    user: HostileUser, runtime: InstalledRuntime, simulated: SimulatedHost
) -> None:
    """The scene is one in which attach works where the user does not lie about what is his."""
    give_to_user(user.root, *user.root.rglob("*"))
    with user.pretend():
        answer = attach(runtime, simulated).check()
    assert "attached GPU 0" in answer.text
    assert (user.root / "usr/local/nvidia/lib64").is_dir()
