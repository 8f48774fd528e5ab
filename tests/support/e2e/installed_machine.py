"""The product installed as the pages say, with /etc, /usr/local, /opt, /run and /var/lib as overlays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.e2e import machine
from support.e2e.host import InstalledRuntime, SimulatedHost
from support.e2e.machine import CommandResult

CONFIG = "/etc/gpu-oci-hook/config.toml"


class InstalledMachine:
    """A private mount namespace with the product installed in /usr/local for a simulated host."""

    def __init__(self, directory: Path, runtime: InstalledRuntime, simulated: SimulatedHost) -> None:
        self.directory = directory
        layers = directory / "layers"
        script = [f"mkdir -p {layers}", f"mount -t tmpfs tmpfs {layers}"]
        for top in ("etc", "usr/local", "opt", "run", "var/lib"):
            layer = f"{layers}/{top}"
            script += [
                f"mkdir -p {layer}/upper {layer}/work",
                f"mount -t overlay overlay -o lowerdir=/{top},upperdir={layer}/upper,workdir={layer}/work /{top}",
            ]
        self.namespace = machine.MountNamespace("\n".join(script))
        self.namespace.start()
        install = f"import sys; sys.path.insert(0, {str(runtime.code)!r}); from gpu_oci_hook.cli import main; main()"
        self.run(sys.executable, "-c", install, "install", "--aliases").check()
        self.write(CONFIG, f'[host]\nroot = "{simulated.root}"\n')

    def run(self, *words: str, timeout: float = 60) -> CommandResult:
        """Run a command in the namespace."""
        return machine.run_command([*self.namespace.enter, *words], timeout=timeout)

    def write(self, path: str, text: str) -> None:
        """Write a file in the namespace."""
        source = self.directory / "text"
        source.write_text(text)
        self.run("/bin/sh", "-ec", f"mkdir -p {Path(path).parent}; cat {source} > {path}; chmod 644 {path}").check()

    def start_daemon(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """Start a daemon in the namespace; its log is in the directory."""
        with (self.directory / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [*self.namespace.enter, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={"PATH": f"{machine.DIRECTORIES}", "HOME": "/root"},
            )
