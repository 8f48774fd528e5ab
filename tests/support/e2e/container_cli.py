"""nvidia-container-cli in the hands of those who call it: mount and user namespaces as they set them up."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from support.e2e import images, machine
from support.e2e.engines import ROOTLESS_ID, SUBORDINATE
from support.e2e.host import InstalledRuntime, SimulatedHost
from support.e2e.machine import CommandResult, find_program
from support.e2e.probe import ProbeResult, build_probe_command, parse_probe_output

CLI_NAME = "nvidia-container-cli"
LDCONFIG = f"--ldconfig=@{find_program('ldconfig')}"

# What the callers mount below the root, which is $R; $HOST is the simulated host.
OWN_MOUNTS = "mount -t proc proc $R/proc\nmount -t tmpfs -o mode=755 tmpfs $R/dev\nmount -t tmpfs tmpfs $R/run\n"
HOST_MOUNTS = "mount --rbind /proc $R/proc\nmount --rbind $HOST/dev $R/dev\nmount -t tmpfs tmpfs $R/run\n"
NO_MOUNTS = ""


class Caller:
    """A program that calls nvidia-container-cli, and the namespaces in which it does.

    Arguments:
        name: of the program.
        global_words, words: the options before and after `configure`, without the root.
        users: "root" of the host, "mapped" (a user namespace with a range of users) or "single" (a user namespace with
            the caller's own number alone, and the capabilities of its root).
        mounts: shell commands that mount in $R.
    """

    def __init__(
        self, name: str, global_words: Sequence[str], words: Sequence[str], users: str, mounts: str = OWN_MOUNTS
    ) -> None:
        self.name, self.global_words, self.words, self.users, self.mounts = name, global_words, words, users, mounts

    @property
    def owner(self) -> int:
        """The user that owns the container's root file system."""
        return {"root": 0, "mapped": SUBORDINATE[0], "single": ROOTLESS_ID}[self.users]


# As these call it: LXC's hook /usr/share/lxc/hooks/nvidia, Incus through that hook, enroot's hook 98-nvidia.sh, and
# Apptainer's --nvccli.
LXC_WORDS = ["--no-cgroups", LDCONFIG, "--device=0", "--compute", "--utility"]
CALLERS = [
    Caller("lxc", ["--user"], LXC_WORDS, "mapped"),
    Caller("incus", ["--user"], ["--no-cgroups", LDCONFIG, "--compute", "--utility"], "mapped"),
    Caller("enroot", ["--user"], LXC_WORDS, "single", HOST_MOUNTS),
    Caller("enroot --root", ["--user"], LXC_WORDS, "mapped", HOST_MOUNTS),
    Caller("apptainer", [], ["--no-cgroups", "--device=0", "--compute", "--utility", LDCONFIG], "root", HOST_MOUNTS),
    Caller(
        "apptainer --userns",
        ["--user"],
        ["--no-cgroups", "--device=0", "--compute", "--utility", LDCONFIG],
        "single",
        HOST_MOUNTS,
    ),
    Caller("by hand", ["-k", "-d", "/dev/stderr"], ["-cuv", "-d0", "--no-cgroups", "--no-cntlibs"], "root"),
]


class UserNamespace:
    """A user namespace in which SUBORDINATE's range of users is mapped to 0 and up."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([find_program("unshare"), "--user", find_program("sleep"), "1000"])
        own = Path("/proc/self/ns/user").readlink()
        namespace = Path(f"/proc/{self.process.pid}/ns/user")
        machine.wait_for(lambda: namespace.readlink() != own, "a user namespace")
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{self.process.pid}/{name}").write_text(f"0 {SUBORDINATE[0]} {SUBORDINATE[1]}\n")

    @property
    def enter(self) -> list[str]:
        """The arguments to put before a command."""
        return [find_program("nsenter"), f"--target={self.process.pid}", "--user", "--setuid=0", "--setgid=0"]

    def stop(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


class CliScene:
    """A simulated host, nvidia-container-cli, and a root file system.

    Attributes:
        program: nvidia-container-cli without a configuration.
        command: the program with the option that names the configuration.
        root: the container's root file system.
    """

    def __init__(self, directory: Path, image: Path, runtime: InstalledRuntime, simulated: SimulatedHost) -> None:
        self.directory, self.simulated = directory, simulated
        self.program = directory / CLI_NAME
        self.program.symlink_to(runtime.shim.parent / "gpu-oci-hook")
        self.config = directory / "cli.toml"
        self.config.write_text(f'[host]\nroot = "{simulated.root}"\nload-modules = false\n')
        self.command = f"{self.program} --config={self.config}"
        self.root = images.copy_image(image, directory / "root")
        self.target = directory / "mounted"
        self.target.mkdir()
        self._owner = 0

    def run(self, caller: Caller, script: str, *, env: dict[str, str] | None = None) -> CommandResult:
        """Run a shell script as the caller would, with its mounts: $R is the root, $CLI the program, $HOST the host."""
        self.give_root_to(caller)
        head = (
            f"set -e\nR={self.target} HOST={self.simulated.root} CLI={shlex.quote(self.command)}\n"
            f"mount --bind {self.root} $R\nmount --make-rprivate $R\n{caller.mounts}"
        )
        unshare = [find_program("unshare"), "--mount", "--propagation=slave"]
        namespace = UserNamespace() if caller.users == "mapped" else None
        prefix: list[str] = []
        if namespace is not None:
            prefix, unshare = namespace.enter, [*unshare, "--pid", "--fork"]
        elif caller.users == "single":
            prefix = [find_program("setpriv"), f"--reuid={ROOTLESS_ID}", f"--regid={ROOTLESS_ID}", "--clear-groups"]
            unshare = [*unshare, "--user", "--map-current-user", "--keep-caps"]
        variables = {"PATH": machine.DIRECTORIES, "LANG": "C.UTF-8", **(env or {})}
        try:
            return machine.run_command([*prefix, *unshare, "/bin/sh", "-c", head + script], env=variables)
        finally:
            if namespace is not None:
                namespace.stop()

    def give_root_to(self, caller: Caller) -> None:
        """Give the root file system to the caller's user, unless it has it already."""
        if caller.owner != self._owner:
            words = [find_program("chown"), "-hR", f"{caller.owner}:{caller.owner}", str(self.root)]
            machine.run_command(words).check()
            self._owner = caller.owner

    def configure_words(self, caller: Caller) -> str:
        """The call of a caller, as a line of a shell script."""
        return f"$CLI {shlex.join([*caller.global_words, 'configure', *caller.words])} $R"

    def look(self) -> str:
        """Lines of a shell script in which the probe looks, ldconfig lists, runs again, and the probe looks again."""
        probe = shlex.join(build_probe_command(self.simulated))
        looks = f"{probe}; echo @@; ldconfig -p; echo @@; ldconfig; ldconfig -p; echo @@; {probe}"
        return f"chroot $R /bin/sh -c {shlex.quote(looks)}"


def parse_looks(text: str) -> ProbeResult:
    """Parse what the script of `CliScene.look` prints."""
    first, listed, later, second = text.split("@@\n")
    seen = parse_probe_output(first)
    return ProbeResult(seen.nodes, seen.made, seen.libraries, listed, later, parse_probe_output(second).libraries)
