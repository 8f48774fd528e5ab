"""A running container whose processes attack the commands that change it, and what must not change outside it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.bundles import snapshot_tree
from support.e2e import images, machine
from support.e2e.attach_engines import AttachScene, DefaultRootRuntime
from support.e2e.attacks import WATCHED
from support.e2e.engines import ContainerRequest, EngineHome
from support.e2e.host import InstalledRuntime, SimulatedHost
from support.e2e.host_watch import fingerprint_host
from support.e2e.machine import find_program

EditSpec = Callable[[dict[str, Any]], None]
RECORDS = Path("/run/gpu-oci-hook/attached")
_SOURCE = Path(__file__).parent / "live_attacker.c"


class EditedRuntime(DefaultRootRuntime):
    """A runtime with which a test edits the config.json of its bundles.

    Attributes:
        edit: called with each config.json.
    """

    edit: EditSpec | None = None

    def bundle(self, request: ContainerRequest) -> Path:
        directory = super().bundle(request)
        images.copy_static_program(directory / "rootfs/busybox")
        attacker = self.place.image.with_name("live-attacker")
        if not attacker.exists():
            machine.run_command([find_program("gcc"), "-static", "-O1", "-o", str(attacker), str(_SOURCE)]).check()
        (directory / "rootfs/attacker").write_bytes(attacker.read_bytes())
        (directory / "rootfs/attacker").chmod(0o755)
        if self.edit is not None:
            path = directory / "config.json"
            spec = json.loads(path.read_text())
            self.edit(spec)
            path.write_text(json.dumps(spec))
        return directory


class HostileScene(AttachScene):
    """A container that sleeps, beside a watched directory and another container that must stay as it is.

    Arguments:
        directory: of this scene alone.
        cgroup: see `BareRuntime`.
        edit: see `EditedRuntime`.
    """

    def __init__(
        self,
        directory: Path,
        image: Path,
        runtime: InstalledRuntime,
        host: SimulatedHost,
        *,
        cgroup: str = "v1",
        edit: EditSpec | None = None,
    ) -> None:
        self.directory = directory
        self.watched = directory / "watched"
        self.watched.mkdir()
        for name, text in WATCHED.items():
            (self.watched / name).write_text(text)
        self.runtime = EditedRuntime("runc", cgroup)
        self.runtime.start(EngineHome(directory, image, lambda name: Path(find_program(name))))
        try:
            self.neighbour = self.runtime.background(ContainerRequest(["/busybox", "sleep", "600"]))
            self.runtime.edit = edit
            super().__init__(self.runtime, runtime, host, ContainerRequest(["/busybox", "sleep", "600"]))
        except BaseException:
            self.runtime.stop()
            raise
        self.tidy()
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def bundle(self) -> Path:
        return self.runtime._bundles[self.name]

    @property
    def root(self) -> Path:
        """The container's root file system, as the host has it."""
        return self.bundle / "rootfs"

    def find_pid(self, name: str = "") -> int:
        """Return a container's first process."""
        done = machine.run_command(self.runtime.command("state", name or self.name)).check()
        return int(json.loads(done.stdout)["pid"])

    def run_privileged(self, script: str) -> None:
        """Run a shell script in the container's mounts with every capability, as a process with CAP_SYS_ADMIN."""
        enter = [find_program("nsenter"), f"--target={self.find_pid()}", "--mount", "--pid"]
        machine.run_command([*enter, "/busybox", "sh", "-ec", script]).check()

    def start_attacker(self, *words: str, privileged: bool = False) -> None:
        """Start a process in the container that does one thing for ever; the container's end ends it."""
        enter = [find_program("nsenter"), f"--target={self.find_pid()}", "--mount"]
        command = enter if privileged else self.runtime.command("exec", self.name)
        process = subprocess.Popen([*command, "/attacker", *words], stdout=subprocess.PIPE, start_new_session=True)
        self._processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"racing\n"

    def fingerprint(self) -> dict[str, object]:
        """Everything outside the container that must not change: files, mounts, devices, the other container."""
        neighbour = self.find_pid(self.neighbour)
        return {
            **fingerprint_host(self.watched, self.host),
            "neighbour": snapshot_tree(self.runtime._bundles[self.neighbour]),
            "neighbour's mounts": Path(f"/proc/{neighbour}/mountinfo").read_text(),
            "neighbour's devices": sorted(os.listdir(f"/proc/{neighbour}/root/dev")),
            "neighbour's rules": read_device_rules(neighbour) if self.runtime.cgroup == "v1" else "",
            "host's devices": sorted(name for name in os.listdir("/dev") if "nvidia" in name),
            "host's mounts": list_our_mounts(self.directory),
            "temporary files": list_scratch_files(),
        }

    def call_in_time(self, verb: str, *words: str) -> tuple[machine.CommandResult, float]:
        """Run one of our commands; return its result, which is no traceback, and the seconds that it took."""
        begin = time.monotonic()
        done = machine.run_command(self.command(verb, self.reference, *words), timeout=200)
        took = time.monotonic() - begin
        assert "Traceback" not in done.text, done
        assert done.status in (0, 1), done
        if done.status == 1:
            assert done.stderr.startswith("gpu-oci-hook: "), done
            assert done.stderr.count("gpu-oci-hook: ") == 1, done
        assert all(char.isprintable() or char == "\n" for char in done.text), done
        return done, took

    def describe_container(self) -> dict[str, object]:
        """What attach and detach may not leave behind: files, nodes, mounts and rules of the container."""
        pid = self.find_pid()
        mounts = [line.split()[4] for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
        return {
            "files": {path: facts[:4] for path, facts in snapshot_tree(self.root).items()},
            "devices": sorted(os.listdir(f"/proc/{pid}/root/dev")),
            "mounts": sorted(mounts),
            "rules": read_device_rules(pid) if self.runtime.cgroup == "v1" else "",
        }

    def open_other_gpu(self) -> str:
        """Let a process with the container's device rules make and open the node of a GPU that it was not given.

        The process has the host's files: some attacks leave a container in which the runtime can start none.

        Returns:
            What the shell says, which has the kernel's answer (version 1).
        """
        group = f"/sys/fs/cgroup/devices{find_device_group(self.find_pid())}/cgroup.procs"
        node, numbers = self.directory / "other-gpu", self.host.cards[1].numbers.replace(":", " ")
        script = f"echo $$ > {group} && mknod {node} c {numbers} && exec 3<{node}"
        try:
            return machine.run_command([find_program("busybox"), "sh", "-c", script]).text
        finally:
            node.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the container, and then the record of it as the next command does."""
        if self.name in self.runtime._bundles:
            super().close()
        self.tidy()

    def tidy(self) -> None:
        """Run a command for the other container: it removes what commands for ended containers have left."""
        age_temporary_files(RECORDS)
        machine.run_command(self.command("repair", f"runc:{self.neighbour}")).check()

    def close(self) -> None:
        if self.name in self.runtime._bundles:
            super().close()
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self.runtime.stop()


def find_device_group(pid: int) -> str:
    """Return the cgroup of a process that has its device rules (version 1)."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "devices" in controllers.split(","):
            return path
    raise AssertionError(f"process {pid} is in no cgroup with device rules")


def read_device_rules(pid: int) -> str:
    """Return the device rules of a process's cgroup (version 1)."""
    return Path(f"/sys/fs/cgroup/devices{find_device_group(pid)}/devices.list").read_text()


def age_temporary_files(*directories: Path) -> None:
    """Make the temporary files of killed commands a minute older: a younger one may be one of a command that runs."""
    for directory in directories:
        for path in directory.glob(".gpu-oci-hook-*"):
            os.utime(path, (time.time() - 61, time.time() - 61), follow_symlinks=False)


def list_our_mounts(directory: Path) -> list[str]:
    """List this machine's mounts below a test's directory, and those with a name of ours."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if f" {directory}" in line or "gpu-oci-hook" in line or "/nvidia" in line]


def list_scratch_files() -> list[str]:
    """List what our commands can leave where they keep records and temporary files."""
    found = [str(path) for top in ("/run", "/tmp", "/dev/shm") for path in Path(top).glob("*gpu-oci-hook*scratch*")]
    return sorted(found + [str(path) for path in RECORDS.glob("*")])
