"""The simulated GPU host of the end-to-end tests, read without the product's code, and the installed runtime."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

import gpu_oci_hook
from gpu_oci_hook.simulate import host_tree
from support.e2e import machine


@dataclass(frozen=True)
class Card:
    """A GPU of the simulated host."""

    index: int
    uuid: str
    node: str
    numbers: str


@dataclass(frozen=True)
class SimulatedHost:
    """A host made of files.

    Arguments:
        root: its root directory.
        version: the driver's version.
        cards: its GPUs in the order of their index.
    """

    root: Path
    version: str
    cards: tuple[Card, ...]

    def numbers(self, node: str) -> str:
        """Return "major:minor" of a node of this host."""
        status = os.stat(f"{self.root}{node}")
        assert stat.S_ISCHR(status.st_mode), f"{self.root}{node} is no device node"
        return f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"


def build_host(root: Path, *, gpus: int = 2, layout: str = "debian", version: str = "550.163.01") -> SimulatedHost:
    """Build a simulated host."""
    host_tree.build_host(root, gpus=gpus, driver=version, layout=layout)
    (root / ".gpu-oci-hook-simulate").unlink()  # whether its nodes may be opened counts as on a real host
    return read_host(root, version)


def read_host(root: Path, version: str) -> SimulatedHost:
    """Read a simulated host's GPUs from its /proc: the index is the rank of the PCI address, the minor another
    number.
    """
    cards = []
    for index, directory in enumerate(sorted((root / "proc/driver/nvidia/gpus").iterdir())):
        facts = {}
        for line in (directory / "information").read_text().splitlines():
            key, _, value = line.partition(":")
            facts[key.strip()] = value.strip()
        minor = facts["Device Minor"]
        cards.append(Card(index, facts["GPU UUID"], f"/dev/nvidia{minor}", f"195:{minor}"))
    return SimulatedHost(root, version, tuple(cards))


class InstalledRuntime:
    """The runtime under test, installed where an unprivileged user can reach it.

    `gpu-oci-hook install` writes launchers that name their interpreter and our code; a checkout below /root
    is out of a rootless engine's reach, so the code and the libraries of its command line are copied first.

    Arguments:
        directory: where it is installed, mode 0755.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.code = directory / "code"
        source = Path(gpu_oci_hook.__file__).parent
        shutil.copytree(source, self.code / "gpu_oci_hook", ignore=shutil.ignore_patterns("__pycache__"))
        copy_dependencies(self.code)
        self.shim = install_launchers(self.code, directory / "prefix")
        machine.run_command([sys.executable, "-m", "compileall", "-q", str(self.code)], timeout=120).check()

    def wrapper(self, low_level: str, host_root: Path, *, extra: str = "", name: str = "") -> Path:
        """Write a runtime for an engine: engines pass no environment on, so a script names the configuration.

        Arguments:
            low_level: the runtime below.
            host_root: the simulated host.
            extra: more lines of config.toml.
            name: tells apart wrappers that differ in `extra` only.
        """
        path = self.directory / f"gpu-{Path(low_level).name}{name}-{host_root.name}"
        if not path.exists():
            config = path.with_suffix(".toml")
            config.write_text(f'[host]\nroot = "{host_root}"\n[runtime]\nlow-level = ["{low_level}"]\n{extra}')
            path.write_text(f'#!/bin/sh\nexport GPU_OCI_HOOK_CONFIG={config}\nexec {self.shim} "$@"\n')
            path.chmod(0o755)
        return path


def copy_dependencies(target: Path) -> None:
    """Copy the packages that the command line needs, with their metadata, from the directories of this Python."""
    pending, seen = ["gpu-oci-hook"], set()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        distribution = metadata.distribution(name)
        for requirement in map(Requirement, distribution.requires or []):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                pending.append(requirement.name)
        for file in distribution.files or [] if name != "gpu-oci-hook" else []:
            if ".." not in file.parts and file.suffix != ".pyc":
                copy = target / file
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(file.locate()), copy)


def install_launchers(code: Path, prefix: Path) -> Path:
    """Install the launchers from a copy of our code; return the shim's."""
    words: Sequence[str] = ("install", "--prefix", str(prefix))
    script = f"import sys; sys.path.insert(0, {str(code)!r}); from gpu_oci_hook.cli import main; main()"
    machine.run_command([sys.executable, "-c", script, *words], cwd=code).check()
    return prefix / "bin/gpu-oci-runtime"
