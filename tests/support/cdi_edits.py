"""Bundles with the edits of a CDI file, as an engine puts them in: of our files, and of files of NVIDIA's generator.

The edits are written here by hand, after the generators' documentation; the generators have tests of their own.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import gpu_oci_hook
from gpu_oci_hook.cli.launchers import find_import_paths, find_interpreter
from gpu_oci_hook.hook.arguments import HookArguments

Spec = dict[str, Any]

OUR_LIBRARY_DIR = "/usr/local/nvidia/lib64"
NVIDIA_LIBRARY_DIR = "/usr/lib/x86_64-linux-gnu"
VERSION = "550.163.01"
READ_ONLY = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
HOOK_ENV = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
# As much of a driver as the tests need: SONAME to file name, with {} for the version.
LIBRARIES = {
    "libcuda.so.1": "libcuda.so.{}",
    "libnvidia-ml.so.1": "libnvidia-ml.so.{}",
    "libnvidia-ptxjitcompiler.so.1": "libnvidia-ptxjitcompiler.so.{}",
    "libnvidia-glcore.so.{}": "libnvidia-glcore.so.{}",
}
LAUNCHER = """#!{python} -ISXutf8
import sys
sys.path += {paths!r}
from gpu_oci_hook.files import state_dir
state_dir.DIRECTORY = {state!r}
{prelude}
from gpu_oci_hook.cli import main
main()
"""


def write_hook_launcher(path: Path, prelude: str = "", source: Path | None = None) -> Path:
    """Write a program that starts the hook as the installed launcher does, with a state directory of its own.

    Arguments:
        prelude: Python to run first. source: the directory with our package; default: this checkout's.
    """
    code = source or Path(gpu_oci_hook.__file__).resolve().parents[1]
    paths = find_import_paths(code / "gpu_oci_hook")
    state = str(path.parent / "hook-state")
    path.write_text(LAUNCHER.format(python=find_interpreter(), paths=paths, state=state, prelude=prelude))
    path.chmod(0o755)
    return path


def call_hook(
    program: Path | str, words: list[str], state: bytes | str, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Call a hook as a runtime does, with a state on stdin."""
    data = state.encode() if isinstance(state, str) else state
    more = {"env": {"PATH": "/usr/bin:/bin"}, "timeout": 60, **more}
    done = subprocess.run([str(program), *words], input=data, capture_output=True, **more)
    text = {"stdout": done.stdout.decode(), "stderr": done.stderr.decode()}
    return subprocess.CompletedProcess(done.args, done.returncode, **text)


def add_devices(spec: Spec, nodes: dict[str, tuple[int, int]]) -> None:
    """Add device nodes with their rules to a spec."""
    linux = spec.setdefault("linux", {})
    for path, (major, minor) in nodes.items():
        linux.setdefault("devices", []).append({"path": path, "type": "c", "major": major, "minor": minor})
        rule = {"allow": True, "type": "c", "major": major, "minor": minor, "access": "rwm"}
        linux.setdefault("resources", {}).setdefault("devices", []).append(rule)


def add_driver_mounts(spec: Spec, host: Path, folder: str, version: str = VERSION) -> None:
    """Add the driver's libraries, one bind mount each, and nvidia-smi."""
    for name in LIBRARIES.values():
        file = name.format(version)
        source = f"{host}{NVIDIA_LIBRARY_DIR}/{file}"
        assert Path(source).is_file(), source
        spec.setdefault("mounts", []).append(build_mount(source, f"{folder}/{file}"))
    spec["mounts"].append(build_mount(f"{host}/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi"))


def build_mount(source: str, destination: str) -> Spec:
    return {"destination": destination, "source": source, "type": "bind", "options": READ_ONLY}


def build_hook_arguments(host: Path, version: str = VERSION) -> HookArguments:
    """Build the arguments that our file passes to our hook for these libraries."""
    made = HookArguments()
    for soname, name in LIBRARIES.items():
        if soname != name:
            made.links.append((name.format(version), f"{OUR_LIBRARY_DIR}/{soname}"))
    made.links.append(("libcuda.so.1", f"{OUR_LIBRARY_DIR}/libcuda.so"))
    made.links.append(("libnvidia-ml.so.1", f"{OUR_LIBRARY_DIR}/libnvidia-ml.so"))
    made.folders, made.driver_version, made.root = [OUR_LIBRARY_DIR], version, str(host)
    return made


def build_hook(program: Path | str, words: list[str], env: list[str] | None = None) -> Spec:
    """Build a createContainer hook."""
    name = os.path.basename(program)
    return {"path": str(program), "args": [name, *words], "env": HOOK_ENV if env is None else env}


def add_our_edits(
    spec: Spec, host: Path, program: Path | str, said: HookArguments | None = None, version: str = VERSION
) -> Spec:
    """Add the edits of a file of ours to a spec, and return it."""
    add_driver_mounts(spec, host, OUR_LIBRARY_DIR, version)
    said = said or build_hook_arguments(host, version)
    spec.setdefault("hooks", {}).setdefault("createContainer", []).append(
        build_hook(program, ["hook", "create-container", *said.to_command_line()])
    )
    spec["process"]["env"].append("NVIDIA_VISIBLE_DEVICES=void")
    return spec


def add_nvidia_edits(spec: Spec, host: Path, program: Path | str, version: str = VERSION) -> Spec:
    """Add the edits of a file of NVIDIA's generator to a spec, and return it.

    Arguments:
        program: called in place of nvidia-cdi-hook.
    """
    add_driver_mounts(spec, host, NVIDIA_LIBRARY_DIR, version)
    for words in list_nvidia_hooks(version):
        spec.setdefault("hooks", {}).setdefault("createContainer", []).append(
            build_hook(program, words, ["NVIDIA_CTK_DEBUG=false"])
        )
    spec["process"]["env"].append("NVIDIA_VISIBLE_DEVICES=void")
    return spec


def list_nvidia_hooks(version: str = VERSION) -> list[list[str]]:
    """Return the hooks of NVIDIA's generator, in its order."""
    return [
        ["create-symlinks", "--link", f"libcuda.so.1::{NVIDIA_LIBRARY_DIR}/libcuda.so"],
        ["enable-cuda-compat", f"--host-driver-version={version}"],
        ["update-ldcache", "--folder", NVIDIA_LIBRARY_DIR, "--folder", f"{NVIDIA_LIBRARY_DIR}/vdpau"],
        ["disable-device-node-modification"],
        ["update-application-profile"],
    ]


def make_mount_points(made: Path, spec: Spec) -> None:
    """Create the mount points that a runtime creates before hooks run, one for each bind mount."""
    for item in spec["mounts"]:
        path = made / "rootfs" / item["destination"].lstrip("/")
        if item.get("type") == "bind" and not os.path.lexists(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()


EDITS_OF = {"ours": add_our_edits, "theirs": add_nvidia_edits}
