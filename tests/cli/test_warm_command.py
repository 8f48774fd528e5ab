"""`warm`: the next GPU container finds everything in the caches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_oci_hook.config.load import load_config
from gpu_oci_hook.container.rootfs_edits import prepare_shared_directories
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.inject import pipeline
from gpu_oci_hook.shim import low_level_runtime, main
from support.bundles import snapshot_tree
from support.command_line import Command
from support.fixtures import SharedHost


class RecordingCache(state_dir.StateCache):
    """The state cache, with the names that are written."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def put(self, name: str, data: bytes) -> None:
        self.written.append(name)


@pytest.mark.parametrize("capabilities", ["compute,utility", "all"])
def test_after_it_a_gpu_container_searches_nothing(
    command: Command,
    shared_host: SharedHost,
    isolated_state: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capabilities: str,
) -> None:
    host = shared_host(gpus=2)
    low = tmp_path / "runc"
    low.write_text("#!/bin/sh\n")
    low.chmod(0o755)
    config = Path(os.environ["GPU_OCI_HOOK_CONFIG"])
    config.write_text(f"[host]\nroot = '{host}'\n[runtime]\nlow-level = ['{low}']\n")
    answer = command("warm")
    assert answer.status == 0 and answer.err == ""
    lines = answer.out.splitlines()
    assert lines[0] == f"low-level runtime {low}"
    assert [line.split(":")[0] for line in lines[1:]] == ["compute,utility", "all"]
    assert all(": 2 GPUs, " in line for line in lines[1:])

    monkeypatch.setattr(low_level_runtime, "resolve_runtime", None)  # the cached one counts
    assert main.load_runtime()[1] == str(low)
    before = snapshot_tree(isolated_state)
    cache = RecordingCache()
    (tmp_path / "rootfs/etc").mkdir(parents=True)
    (tmp_path / "rootfs/usr/lib").mkdir(parents=True)
    spec = {
        "process": {"env": ["NVIDIA_VISIBLE_DEVICES=1", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}"]},
        "root": {"path": str(tmp_path / "rootfs")},
        "linux": {"resources": {"devices": [{"allow": False, "access": "rwm"}]}},
    }
    outcome = pipeline.prepare_injection(spec, load_config(""), str(tmp_path), cache)
    assert outcome.plan.state == "inject"
    prepare_shared_directories(outcome.plan.edits, f"{tmp_path}/generated")
    assert cache.written == []
    assert snapshot_tree(isolated_state) == before


def test_on_a_host_without_a_driver_there_is_nothing_to_remember(
    command: Command, isolated_state: Path, tmp_path: Path
) -> None:
    (tmp_path / "host/proc").mkdir(parents=True)
    low = tmp_path / "runc"
    low.write_text("#!/bin/sh\n")
    low.chmod(0o755)
    config = Path(os.environ["GPU_OCI_HOOK_CONFIG"])
    config.write_text(f"[host]\nroot = '{tmp_path}/host'\n[runtime]\nlow-level = ['{low}']\n")
    answer = command("warm")
    assert (answer.status, answer.err) == (0, "")
    assert answer.out.startswith(f"low-level runtime {low}\nnothing to remember: ")


def test_a_faulty_configuration_is_named(command: Command, isolated_state: Path) -> None:
    Path(os.environ["GPU_OCI_HOOK_CONFIG"]).write_text("[runtime\n")
    answer = command("warm")
    assert answer.status == 1 and "config.toml" in answer.err and answer.out == ""
