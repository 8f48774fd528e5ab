"""Engines whose low-level runtime is plain runc or crun: the GPU comes from our prestart hook."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from support.e2e.engines import BareRuntime, ContainerRequest, Docker, EngineHome, Podman, RootlessPodman
from support.e2e.machine import find_program

HOOK_NAME = "nvidia-container-runtime-hook"
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES="


def write_hook(directory: Path, shim: Path, host_root: Path) -> Path:
    """Write NVIDIA's name for the hook: a script that names the configuration and runs our hook.

    Arguments:
        shim: the installed gpu-oci-runtime, beside which gpu-oci-hook lies.
        host_root: the simulated host.
    """
    directory.mkdir(exist_ok=True)
    config = directory / "hook.toml"
    config.write_text(f'[host]\nroot = "{host_root}"\nload-modules = false\n')
    path = directory / HOOK_NAME
    path.write_text(f"#!/bin/sh\nexport GPU_OCI_HOOK_CONFIG={config}\nexec {shim.parent}/gpu-oci-hook $1\n")
    path.chmod(0o755)
    return path


class HookedRuntime(BareRuntime):
    """runc or crun, called directly on bundles whose config.json has the hook.

    Arguments:
        hook: path of the hook, set before the start.
    """

    hook = Path()

    def __init__(self, low_level: str, cgroup: str) -> None:
        super().__init__(low_level, cgroup, "run")
        self.name = f"{low_level} {cgroup} prestart hook"

    def start(self, place: EngineHome) -> None:
        super().start(EngineHome(place.directory, place.image, lambda name: Path(find_program(name))))

    def bundle(self, request: ContainerRequest) -> Path:
        directory = super().bundle(request)
        path = directory / "config.json"
        spec = json.loads(path.read_text())
        spec["hooks"] = {"prestart": [{"path": str(self.hook), "args": [HOOK_NAME, "prestart"], "env": ["PATH=/bin"]}]}
        path.write_text(json.dumps(spec))
        return directory


class HookedDocker(Docker):
    """docker's `--gpus`: dockerd finds NVIDIA's hook in its PATH and adds it to runc's bundle."""

    hook = Path()

    def __init__(self, *, remap: bool = False) -> None:
        super().__init__(remap=remap)
        self.name = "docker userns-remap --gpus" if remap else "docker --gpus"

    def start(self, place: EngineHome) -> None:
        self.path = f"{self.hook.parent}:{self.path}"
        super().start(EngineHome(place.directory, place.image, lambda name: Path(find_program(name))))

    def _run_words(self, request: ContainerRequest, *extra: str) -> list[str]:
        values = [entry.removeprefix(VISIBLE_DEVICES) for entry in request.env if entry.startswith(VISIBLE_DEVICES)]
        env = [entry for entry in request.env if not entry.startswith(VISIBLE_DEVICES)]
        gpus = [word for value in values for word in ("--gpus", "all" if value == "all" else f'"device={value}"')]
        words = super()._run_words(replace(request, env=env), *extra, *gpus)
        words[words.index("gpu")] = "runc"
        return words


def write_hook_file(directory: Path, hook: Path, stage: str) -> Path:
    """Write a hooks.d directory whose file names our hook for every container; return the directory."""
    hooks = directory / "hooks.d"
    hooks.mkdir()
    entry = {
        "version": "1.0.0",
        "hook": {"path": str(hook), "args": [HOOK_NAME, stage]},
        "when": {"always": True},
        "stages": [stage],
    }
    (hooks / "gpu.json").write_text(json.dumps(entry))
    return hooks


class WithHookFile(Podman):
    """podman with a hook file: its low-level runtime is a plain one.

    Attributes:
        low_level: runc or crun.
        stage: "prestart" or "precreate".
    """

    hook = Path()
    low_level = "runc"
    stage = "precreate"

    def start(self, place: EngineHome) -> None:
        write_hook_file(place.directory, self.hook, self.stage)
        super().start(EngineHome(place.directory, place.image, lambda _: Path(find_program(self.low_level))))

    def _global_flags(self) -> list[str]:
        return [*super()._global_flags(), "--hooks-dir", str(self.place.directory / "hooks.d")]


class HookedPodman(WithHookFile):
    """podman as root, with a hook file."""

    def __init__(self, stage: str) -> None:
        super().__init__()
        self.stage = stage
        self.name = f"podman {stage} runc"


class RootlessHookedPodman(WithHookFile, RootlessPodman):
    """podman as an unprivileged user, with a hook file for the stage precreate."""

    name = "podman rootless precreate"


HookEngine = HookedRuntime | HookedDocker | HookedPodman | RootlessHookedPodman


def list_hook_engines() -> list[HookEngine]:
    """Return the engines of the hook's matrix, one for each row."""
    return [
        *(HookedRuntime(low_level, cgroup) for low_level in ("runc", "crun") for cgroup in ("v1", "v2")),
        HookedDocker(),
        HookedDocker(remap=True),
        HookedPodman("prestart"),
        HookedPodman("precreate"),
        RootlessHookedPodman(),
    ]
