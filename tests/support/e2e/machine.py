"""The machine of the end-to-end tests: its programs, bounded commands, private mount namespaces, cleaning up.

Nothing here changes the machine: engines live in temporary directories, and whatever needs another
/etc/subuid or another cgroup tree gets it in a private mount namespace (`MountNamespace`).
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Where Debian puts programs; /usr/local comes last, so that a machine's wrapper of the same name does not
# shadow an engine.
DIRECTORIES = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin"

# Program -> Debian package that has it.
PACKAGES = {
    "runc": "runc",
    "crun": "crun",
    "containerd": "containerd",
    "ctr": "containerd",
    "dockerd": "docker.io",
    "docker": "docker.io",
    "podman": "podman",
    "busybox": "busybox-static",
    "newuidmap": "uidmap",
    "fuse-overlayfs": "fuse-overlayfs",
    "gcc": "gcc",
    "musl-gcc": "musl-tools",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "ldconfig": "libc-bin",
}


# A low-level runtime that keeps the config.json of the bundle at {target}, and fails: nothing has to start.
KEEPING_RUNTIME = """#!/bin/sh
for word in "$@"; do
    [ "$before" = --bundle ] && cp "$word/config.json" {target}
    before=$word
done
exit 1
"""


def find_program(name: str) -> str:
    """Return the absolute path of a program of this machine, or the bare name if it is missing."""
    return shutil.which(name, path=DIRECTORIES) or name


def describe_missing(programs: Iterable[str]) -> str:
    """Describe what this machine lacks to run these programs as root; empty if nothing is missing."""
    if os.geteuid() != 0:
        return "needs root"
    missing = sorted({PACKAGES[name] for name in programs if shutil.which(name, path=DIRECTORIES) is None})
    return f"needs the Debian packages {' '.join(missing)}" if missing else ""


@dataclass(frozen=True)
class CommandResult:
    """A finished command; `status` is 124 after a timeout."""

    argv: Sequence[str]
    status: int
    stdout: str
    stderr: str

    @property
    def text(self) -> str:
        """Everything that a person at the terminal would see."""
        return self.stdout + self.stderr

    def check(self) -> CommandResult:
        """Return this result, or raise an AssertionError that quotes everything."""
        assert self.status == 0, f"{' '.join(self.argv)}\nstatus {self.status}\n{self.stdout}\n{self.stderr}"
        return self


def run_command(
    argv: Sequence[str],
    *,
    timeout: float = 60,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: bytes = b"",
) -> CommandResult:
    """Run a command in its own process group; kill the group after a timeout.

    Output goes through files, not pipes: a container left behind would hold a pipe open for ever.
    """
    environment = dict(env) if env is not None else {"PATH": DIRECTORIES, "HOME": "/root", "LANG": "C.UTF-8"}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as source:
        source.write(stdin)
        source.seek(0)
        process = subprocess.Popen(
            argv, stdin=source, stdout=out, stderr=err, env=environment, cwd=cwd, start_new_session=True
        )
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            status = 124
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return CommandResult(tuple(argv), status, texts[0], texts[1])


def wait_for(condition: Callable[[], bool], what: str, *, timeout: float = 30) -> None:
    """Wait until the condition holds; after the timeout raise an AssertionError that names `what`."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {timeout} s"
        time.sleep(0.05)


def private_cdi_script(directory: Path, specs: Path) -> str:
    """Return shell commands that give a private mount namespace CDI files of its own and hide the machine's.

    Arguments:
        directory: where the namespace's changes of /etc are kept; may exist.
        specs: the directory that becomes /etc/cdi.
    """
    # Creating a directory to mount on would be a change of the machine, hence the overlay.
    layer = directory / "etc-layer"
    return (
        f"mkdir -p {layer}\nmount -t tmpfs tmpfs {layer}\nmkdir {layer}/upper {layer}/work\n"
        f"mount -t overlay overlay -o lowerdir=/etc,upperdir={layer}/upper,workdir={layer}/work /etc\n"
        f"mkdir -p /etc/cdi\nmount --bind {specs} /etc/cdi\n"
        "test ! -d /run/cdi || mount -t tmpfs tmpfs /run/cdi\n"
    )


def stop_daemon(process: subprocess.Popen[bytes], *, patience: float = 15) -> None:
    """Terminate a daemon that we started, wait, then kill its whole session."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            pass
    for pid in list_session(process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()


def list_session(leader: int) -> list[int]:
    """Return the processes of a session that we started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(stat[3]) == leader:
                found.append(int(entry.name))
    return found


def list_processes_of(directory: Path) -> list[int]:
    """Return the processes whose command line names a directory of ours."""
    word = str(directory)
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in (1, os.getpid(), os.getppid()):
            continue
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in words:
            found.append(int(entry.name))
    return found


def find_process(*words: str) -> int:
    """Return the process id of a process with exactly this command line, as this process sees it."""
    command_line = b"".join(os.fsencode(word) + b"\0" for word in words)
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == command_line:
                return int(path.parent.name)
        except OSError:
            continue
    raise AssertionError(f"no process runs {' '.join(words)}")


def may_raise_memlock() -> bool:
    """Tell whether root may raise its limit on locked memory here: a sandbox takes CAP_SYS_RESOURCE away."""
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] == resource.RLIM_INFINITY:
        return True
    status = Path("/proc/self/status").read_text()
    effective = next(line for line in status.splitlines() if line.startswith("CapEff:")).split()[1]
    return bool(int(effective, 16) >> 24 & 1)


def remove_cgroups(name: str) -> None:
    """Remove the empty cgroups below a top-level cgroup of ours, in every hierarchy."""
    for top in [*Path("/sys/fs/cgroup").glob(f"*/{name}"), *Path("/sys/fs/cgroup").glob(name)]:
        for directory, _, _ in sorted(os.walk(top), reverse=True):
            try:
                Path(directory).rmdir()
            except OSError:
                pass


def remove_tree(directory: Path) -> None:
    """Kill what still runs from a directory, unmount everything below it, and remove it."""
    for pid in list_processes_of(directory):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    for _ in range(50):
        below = list_mounts_below(directory)
        if not below:
            break
        for point in reversed(below):
            subprocess.run([find_program("umount"), "--lazy", point], stderr=subprocess.DEVNULL, timeout=20)
    # One file system only: should a mount have survived, its content is not ours to delete.
    subprocess.run([find_program("rm"), "-rf", "--one-file-system", str(directory)], timeout=120)


def list_mounts_below(directory: Path) -> list[str]:
    """Return the mount points below a directory, outermost first."""
    points = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        point = line.split()[1].replace("\\040", " ")
        if point.startswith(f"{directory}/"):
            points.append(point)
    return points


@dataclass
class MountNamespace:
    """A private mount namespace; commands after `enter` run in it.

    Arguments:
        script: shell commands that prepare the namespace, run once.
    """

    script: str = ":"
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        """Create the namespace and prepare it."""
        self.process = subprocess.Popen(
            [
                find_program("unshare"),
                "--mount",
                "--propagation=private",
                "/bin/sh",
                "-ec",
                f"{self.script}\necho ready\nexec sleep 100000",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == b"ready\n", f"a private mount namespace could not be furnished: {self.script}"

    @property
    def enter(self) -> list[str]:
        """The arguments to put before a command."""
        assert self.process is not None
        return [find_program("nsenter"), f"--target={self.process.pid}", "--mount"]

    def stop(self) -> None:
        """End the namespace; the kernel removes its mounts with the last process in it."""
        if self.process is not None:
            stop_daemon(self.process, patience=0.1)
            if self.process.stdout is not None:
                self.process.stdout.close()
