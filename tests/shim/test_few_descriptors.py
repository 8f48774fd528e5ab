"""A start with few descriptors goes on, or fails with a sentence that the engine gets."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from support.bundles import Shim, container_spec, make_bundle
from support.fixtures import SharedHost

# Mounts in as many directories: the path to each is looked up, and held open as long as descriptors last.
MOUNTS = [
    {"destination": f"/data{number}/a/b/c", "type": "bind", "source": "/tmp", "options": ["rbind"]}
    for number in range(80)
]
ALL = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all")


def create(shim: Shim, made: Path, limit: int, *words: str) -> subprocess.CompletedProcess[str]:
    script = f'ulimit -n {limit}; exec "$@"'
    return subprocess.run(
        ["sh", "-c", script, "sh", shim.path, *words, "create", "--bundle", made, "id"],
        env=shim.env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.fixture
def made(tmp_path: Path) -> Path:
    bundle = make_bundle(tmp_path / "bundle", container_spec(*ALL, mounts=MOUNTS))
    for number in range(80):
        (bundle / f"rootfs/data{number}/a/b/c").mkdir(parents=True)
    return bundle


@pytest.mark.parametrize("limit", [64, 32, 20])
def test_a_start_does_with_few_descriptors(limit: int, made: Path, tmp_path: Path, shared_host: SharedHost) -> None:
    shim = Shim(tmp_path / "shim", shared_host(gpus=2))
    done = create(shim, made, limit)
    assert (done.returncode, done.stderr) == (0, "")
    assert shim.spec()["linux"]["devices"]


@pytest.mark.parametrize("limit", range(4, 14))
def test_too_few_descriptors_are_told_in_the_engines_log(
    limit: int, made: Path, tmp_path: Path, shared_host: SharedHost
) -> None:
    shim = Shim(tmp_path / "shim", shared_host(gpus=2))
    config = (made / "config.json").read_bytes()
    log = tmp_path / "log.json"
    done = create(shim, made, limit, "--log", str(log), "--log-format", "json")
    assert "Traceback" not in done.stderr and "internal error" not in done.stderr, done
    if done.stderr.startswith("/bin/sh: "):  # the stand-in for runc was started, and dash wants ten descriptors
        assert (made / "config.json").read_bytes() != config
        return
    if done.returncode:
        (line,) = done.stderr.splitlines()
        assert json.loads(log.read_text())["msg"] == line
        assert (made / "config.json").read_bytes() == config
