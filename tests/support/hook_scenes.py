"""A bundle with the edits of a CDI file, and the hook as a process."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from gpu_oci_hook.formats import ldcache
from support import cdi_edits
from support.bundles import container_spec, make_bundle, read_spec, write_spec
from support.cdi_edits import VERSION, call_hook, write_hook_launcher

EGL_PROFILE = "etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"
LD_CACHE, DROP_IN = "etc/ld.so.cache", "etc/ld.so.conf.d/00-gpu-oci-hook.conf"
COMPAT_DIR = "usr/local/cuda/compat"


# For `shared_host`: two GPUs of the data-centre class, which may use CUDA forward compatibility.
DATACENTRE_HOST: dict[str, Any] = {"gpus": 2, "driver": VERSION, "model": "NVIDIA A100-SXM4-40GB"}


class HookScene:
    """A bundle with the edits of a file of ours, and the hook."""

    def __init__(self, directory: Path, host: Path, *env: str, source: Path | None = None, **more: Any) -> None:
        self.host = host
        self.program = write_hook_launcher(directory / "gpu-oci-hook", source=source)
        self.state_dir = directory / "hook-state"
        self.bundle = make_bundle(directory / "bundle", container_spec(*env, **more))
        self.root = self.bundle / "rootfs"
        self.hook_arguments = cdi_edits.build_hook_arguments(host)
        self.nodes: dict[str, tuple[int, int]] = {}

    def finish_bundle(self) -> None:
        """Put the edits into config.json and create the mount points, as engine and runtime do."""
        config = read_spec(self.bundle)
        if "hooks" not in config:
            cdi_edits.add_devices(config, self.nodes)
            cdi_edits.add_our_edits(config, self.host, self.program, self.hook_arguments)
            write_spec(self.bundle, config)
        cdi_edits.make_mount_points(self.bundle, config)

    def run(self, **more: Any) -> subprocess.CompletedProcess[str]:
        """Call the hook; check that it prints nothing on stdout."""
        self.finish_bundle()
        words = ["hook", "create-container", *self.hook_arguments.to_command_line()]
        done = call_hook(self.program, words, json.dumps({"bundle": str(self.bundle)}), **more)
        assert done.stdout == ""
        assert "Traceback" not in done.stderr
        return done

    def run_successfully(self) -> str:
        """Call the hook; check that it succeeds, and return what it prints."""
        done = self.run()
        assert done.returncode == 0, done.stderr
        return done.stderr

    def run_refused(self) -> str:
        """Call the hook; check that it fails with one sentence, and return that."""
        done = self.run()
        assert done.returncode == 1
        assert done.stderr.startswith("gpu-oci-hook: ") and done.stderr.count("\n") == 1
        return done.stderr

    def read_ld_cache(self) -> dict[str, str]:
        """Return the 64-bit libraries of the image's loader cache: name to path."""
        return read_cache_entries(self.root)


def read_cache_entries(root: Path) -> dict[str, str]:
    found = ldcache.parse_ld_cache((root / LD_CACHE).read_bytes())
    return {entry.name: entry.path for entry in found.entries if entry.flags == 0x303}


class NvidiaHookScene(HookScene):
    """A bundle with the edits of a file of NVIDIA's generator, and our program under NVIDIA's name."""

    def __init__(self, directory: Path, host: Path, *env: str, **more: Any) -> None:
        super().__init__(directory, host, *env, **more)
        self.cdi_hook = directory / "nvidia-cdi-hook"
        self.cdi_hook.symlink_to("gpu-oci-hook")

    def finish_bundle(self) -> None:
        config = read_spec(self.bundle)
        if "hooks" not in config:
            cdi_edits.add_devices(config, self.nodes)
            cdi_edits.add_nvidia_edits(config, self.host, self.cdi_hook)
            write_spec(self.bundle, config)
        cdi_edits.make_mount_points(self.bundle, config)

    def run_nvidia_hook(self, *words: str, said: str | None = None) -> subprocess.CompletedProcess[str]:
        self.finish_bundle()
        done = call_hook(self.cdi_hook, list(words), json.dumps({"bundle": str(self.bundle)}) if said is None else said)
        assert "Traceback" not in done.stderr
        return done

    def run_nvidia_hooks(self) -> str:
        text = ""
        for words in cdi_edits.list_nvidia_hooks():
            done = self.run_nvidia_hook(*words)
            assert (done.returncode, done.stdout) == (0, ""), done.stderr
            text += done.stderr
        return text
