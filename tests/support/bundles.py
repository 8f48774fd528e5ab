"""Bundles and images for tests of the whole injection, and what to compare of them afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

import gpu_oci_hook
from gpu_oci_hook.cli.launchers import find_import_paths, find_interpreter
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.inject import pipeline

IMAGE_LIBRARY_DIR = "/usr/lib/x86_64-linux-gnu"
PROC = {"destination": "/proc", "type": "proc", "source": "proc"}
DEV = {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]}

# Temporary files, which a killed process may leave behind.
TEMPORARY_PREFIX = ".gpu-oci-hook-"

Spec = dict[str, Any]

# Kinds of another vendor that the tests' configuration allows in NVIDIA_VISIBLE_DEVICES.
VENDOR_KINDS = ("vendor.com/nic", "vendor.com/dev", "vendor.com/gpu", "other.com/x", "v/c")


def container_spec(*env: str, **more: Any) -> Spec:
    """Build a config.json; `env` is added to the environment, `more` replaces top-level keys."""
    made: Spec = {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": ["sh"],
            "cwd": "/",
            "env": ["PATH=/bin", *env],
        },
        "root": {"path": "rootfs"},
        "mounts": [],
        "linux": {
            "namespaces": [{"type": "mount"}, {"type": "pid"}],
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
        },
    }
    made.update(more)
    return made


def make_debian_rootfs(rootfs: Path) -> Path:
    """Create an image with Debian's directories, as far as the loader needs them."""
    for name in ("usr/lib/x86_64-linux-gnu", "usr/bin", "etc/ld.so.conf.d", "proc", "dev", "run", "var", "tmp"):
        (rootfs / name).mkdir(parents=True, exist_ok=True)
    for name in ("lib", "bin"):
        (rootfs / name).symlink_to(f"usr/{name}")
    (rootfs / "var/run").symlink_to("/run")
    (rootfs / "etc/debian_version").write_text("12\n")
    (rootfs / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
    return rootfs


def make_bundle(directory: Path, config: Spec) -> Path:
    """Create a bundle with a Debian-like image, unless the directory has an image already."""
    if not (directory / "rootfs").exists():
        make_debian_rootfs(directory / "rootfs")
    write_spec(directory, config)
    return directory


def write_spec(directory: Path, config: Spec) -> None:
    """Write the config.json of a bundle."""
    (directory / "config.json").write_text(json.dumps(config))


def read_spec(directory: Path) -> Spec:
    """Read the config.json of a bundle."""
    found: Spec = json.loads((directory / "config.json").read_text())
    return found


def host_config(host: Path | str, **values: Any) -> Config:
    """Build a configuration for a simulated host; nothing of this machine is used.

    NVIDIA_VISIBLE_DEVICES may name devices of VENDOR_KINDS.
    """
    return Config(root=str(host), **{"load_modules": False, "env_kinds": VENDOR_KINDS, **values})


def inject_in_process(directory: Path, config: Config) -> Spec:
    """Inject GPUs into a bundle as the shim does, in this process; return the new config.json."""
    path = str(directory / "config.json")
    pipeline.inject_gpus(path, Path(path).read_bytes(), str(directory), config.to_data())
    return read_spec(directory)


def snapshot_tree(top: Path, *, times: bool = True, temporaries: bool = False) -> dict[str, tuple[object, ...]]:
    """Return everything that could change below a directory, by relative path.

    Arguments:
        times: False leaves out inodes and times, so that two trees can be compared.
        temporaries: include temporary files, which a killed process may leave behind.
    """
    seen: dict[str, tuple[object, ...]] = {}
    for where, directories, files in os.walk(top):
        for name in [".", *directories, *files]:
            path = os.path.join(where, name)
            if f"/{TEMPORARY_PREFIX}" in path and not temporaries:
                continue
            info = os.lstat(path)
            content: object = None
            if stat.S_ISLNK(info.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(info.st_mode):
                content = hashlib.sha256(Path(path).read_bytes()).hexdigest()
            facts: tuple[object, ...] = (oct(info.st_mode), info.st_uid, info.st_gid, content)
            if times:
                facts += (info.st_ino, info.st_mtime_ns)
            seen[os.path.relpath(path, top)] = facts
    return seen


def list_litter(made: Path) -> list[str]:
    """The temporary files left in a bundle and in its directory of generated files."""
    return [str(path) for place in (made, made / "gpu-oci-hook") for path in place.glob(f"{TEMPORARY_PREFIX}*")]


def list_mount_destinations(config: Spec) -> list[str]:
    """Return the destinations of a spec's mounts."""
    return [mount["destination"] for mount in config["mounts"]]


def list_device_numbers(config: Spec) -> dict[str, tuple[int, int]]:
    """Return the device nodes of a spec: path to numbers."""
    return {node["path"]: (node["major"], node["minor"]) for node in config["linux"].get("devices", [])}


def list_allowed_numbers(config: Spec) -> list[tuple[int, int]]:
    """Return the device numbers that a spec's rules allow, in order."""
    rules = config["linux"].get("resources", {}).get("devices", [])
    return [(rule["major"], rule["minor"]) for rule in rules if rule["allow"] and rule.get("type") == "c"]


def skip_or_fail(what: str) -> None:
    """Skip, loudly, what this machine cannot test; with GPU_OCI_HOOK_E2E=require fail instead."""
    if os.environ.get("GPU_OCI_HOOK_E2E") == "require":
        pytest.fail(f"GPU_OCI_HOOK_E2E=require, but not tested: {what}", pytrace=False)
    pytest.skip(f"NOT TESTED: {what}")


def user_namespace_param(kind: str) -> Any:
    """Make a parameter of a kind of container; one in a user namespace needs real device nodes, which only root can
    create.
    """
    lack = kind == "user namespace" and os.geteuid() != 0
    return pytest.param(kind, marks=pytest.mark.skipif(lack, reason="NOT TESTED: only root can make device nodes"))


LAUNCHER = """#!{python} -IS
import sys
sys.path += {paths!r}
from gpu_oci_hook.files import state_dir
state_dir.DIRECTORY = {state!r}
from gpu_oci_hook.shim.main import main
main()
"""

# A low-level runtime that copies the config.json of the bundle and starts nothing.
STUB = """#!/bin/sh
while [ $# -gt 0 ]; do case "$1" in --bundle) cp "$2/config.json" "$0.spec"; esac; shift; done
"""


class Shim:
    """The shim as an engine calls it, with a state directory of its own and a low-level runtime that copies the spec.

    Arguments:
        root: a directory for its files. host: the simulated host. extra: more lines of config.toml.
        source: the directory with our package; default: this checkout's.
    """

    def __init__(self, root: Path, host: Path, extra: str = "", source: Path | None = None) -> None:
        root.mkdir(parents=True, exist_ok=True)
        source = source or Path(gpu_oci_hook.__file__).resolve().parents[1]
        self.stub = root / "stub"
        self.stub.write_text(STUB)
        self.path = root / "gpu-oci-runtime"
        paths = find_import_paths(source / "gpu_oci_hook")
        self.path.write_text(LAUNCHER.format(python=find_interpreter(), paths=paths, state=str(root / "state")))
        for path in (self.stub, self.path):
            path.chmod(0o755)
        self.config = root / "config.toml"
        kinds = "" if "[request]" in extra else f"[request]\nenv-kinds = {json.dumps(VENDOR_KINDS)}\n"
        self.config.write_text(
            f'[host]\nroot = "{host}"\nload-modules = false\n[runtime]\nlow-level = ["{self.stub}"]\n{extra}{kinds}'
        )
        self.env = {"GPU_OCI_HOOK_CONFIG": str(self.config), "PATH": "/usr/bin:/bin"}

    def create(self, made: Path, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Call `create` for a bundle; `words` are flags before the command."""
        Path(f"{self.stub}.spec").unlink(missing_ok=True)
        return subprocess.run(
            [self.path, *words, "create", "--bundle", made, "id"],
            env=self.env, capture_output=True, text=True, timeout=60, **more,
        )  # fmt: skip

    def spec(self) -> Spec:
        """Read the spec that the low-level runtime got."""
        found: Spec = json.loads(Path(f"{self.stub}.spec").read_text())
        return found
