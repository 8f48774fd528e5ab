"""Engines whose containers start without a GPU, below plain low-level runtimes, and get one while they run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from support.e2e import machine
from support.e2e.engines import (
    BareRuntime,
    Containerd,
    ContainerRequest,
    Docker,
    Engine,
    EngineHome,
    MappedPodman,
    Podman,
    RootlessPodman,
)
from support.e2e.host import InstalledRuntime, SimulatedHost
from support.e2e.probe import ProbeResult, build_probe_command, parse_probe_output

# A machine with cgroup v2 alone: the kernel's device filter is real there.
V2 = "umount -R /sys/fs/cgroup\nmount -t cgroup2 none /sys/fs/cgroup"


# A cgroup v2 tree beside one of v1 lacks controllers that are in use there, so only the device rules are kept.
_RUNTIME_WITHOUT_LIMITS = """#!/usr/bin/python3 -I
import json, os, sys
if "create" in sys.argv:
    path = sys.argv[sys.argv.index("--bundle") + 1] + "/config.json"
    with open(path) as file:
        spec = json.load(file)
    resources = spec["linux"].get("resources", {{}})
    spec["linux"]["resources"] = {{key: resources[key] for key in ("devices",) if key in resources}}
    with open(path, "w") as file:
        json.dump(spec, file)
os.execv({runtime!r}, [{runtime!r}, *sys.argv[1:]])
"""


class DefaultRootRuntime(BareRuntime):
    """runc or crun with its state where it is by default, so that `runc:ID` finds it."""

    def __init__(self, low_level: str, cgroup: str) -> None:
        super().__init__(low_level, cgroup, "create")
        self.name = f"{low_level} {cgroup}"

    def command(self, *words: str) -> list[str]:
        command = super().command(*words)
        at = command.index("--root")
        return command[:at] + command[at + 2 :]


def list_attach_engines() -> list[Engine]:
    """Return the engines of the matrix of attach, one for each row."""
    engines: list[Engine] = [
        *(DefaultRootRuntime(low_level, cgroup) for low_level in ("runc", "crun") for cgroup in ("v1", "v2")),
        Docker(runtime=""),
        Docker(runtime="", furnish=V2),
        Docker(runtime="", remap=True),
        Containerd(),
        Containerd(furnish=V2),
        Podman(),
        Podman(furnish=V2),
        MappedPodman(),
        RootlessPodman(),
    ]
    for engine in engines:
        if getattr(engine, "_furnish", "") == V2:
            engine.name += " v2"
    return engines


class AttachScene:
    """A running container of an engine, and our commands for it.

    Arguments:
        engine: has been started.
        host: the simulated host.
        config: a config file that names it.
        request: of the container; without one it sleeps and asks for nothing.
    """

    def __init__(
        self, engine: Engine, runtime: InstalledRuntime, host: SimulatedHost, request: ContainerRequest | None = None
    ) -> None:
        self.engine, self.host = engine, host
        self.program = runtime.shim.with_name("gpu-oci-hook")
        self.config = runtime.wrapper("runc", host.root).with_suffix(".toml")
        self.name = engine.background(request or ContainerRequest(["/bin/sleep", "600"]))

    @property
    def reference(self) -> str:
        """The container's name on our command line."""
        if isinstance(self.engine, BareRuntime):
            return f"{self.engine.low_level}:{self.name}"
        if isinstance(self.engine, Containerd):
            return f"containerd:e2e/{self.name}"
        return f"{'docker' if isinstance(self.engine, Docker) else 'podman'}:{self.name[:12]}"

    def command(self, *words: str, config: Path | None = None) -> list[str]:
        """Build one of our commands, in the mount namespace that has the engine's cgroups."""
        holder = getattr(self.engine, "_holder", None)
        enter = holder.enter if holder is not None else []
        return [*enter, str(self.program), *words, "--config", str(config or self.config)]

    def call(self, verb: str, *words: str) -> machine.CommandResult:
        """Run one of our commands for the container."""
        return machine.run_command(self.command(verb, self.reference, *words))

    def call_for_data(self, verb: str, *words: str) -> dict[str, object]:
        """Run it and return the container's part of its JSON document."""
        container: dict[str, object] = json.loads(self.call(verb, *words, "-o", "json").check().stdout)["containers"][0]
        return container

    def probe(self) -> ProbeResult:
        """Open every node and load every library in a new process of the container."""
        return parse_probe_output(self.exec(build_probe_command(self.host)).check().stdout)

    def exec(self, args: Sequence[str]) -> machine.CommandResult:
        """Run a command in the container."""
        return self.engine.exec(self.name, args)

    def close(self) -> None:
        """Remove the container."""
        self.engine.remove(self.name)


def start_engine(engine: Engine, place: Path, image: Path) -> None:
    """Start an engine with plain low-level runtimes."""

    def find_runtime(name: str) -> Path:
        program = machine.find_program(name)
        if not isinstance(engine, (Containerd, Podman)) or getattr(engine, "_furnish", "") != V2:
            return Path(program)
        path = place / f"{name}-without-limits"
        path.write_text(_RUNTIME_WITHOUT_LIMITS.format(runtime=program))
        path.chmod(0o755)
        return path

    engine.start(EngineHome(place, image, find_runtime))
