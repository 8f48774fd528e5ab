"""The demo fits on one screen: what is requested and injected, what the container sees, and the other GPU denied."""

from __future__ import annotations

import os
from pathlib import Path

from support.e2e import machine
from support.e2e.requirements import require_programs

DEMO = Path(__file__).parents[2] / "scripts/demo"


def run_demo(*words: str) -> machine.CommandResult:
    require_programs("runc")
    return machine.run_command([str(DEMO), *words], timeout=200, env=dict(os.environ))


def test_the_demo_fits_on_one_screen() -> None:
    done = run_demo().check()
    lines = done.stdout.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 120, done.stdout
    assert "it requests             NVIDIA_VISIBLE_DEVICES=0" in done.stdout
    if Path("/proc/driver/nvidia/version").exists():
        return  # the rest is about the two simulated GPUs
    assert "gpu-oci-runtime injects\n  /dev/nvidia1, /dev/nvidiactl" in done.stdout
    assert "  libcuda.so.1           loaded (/usr/local/nvidia/lib64/libcuda.so.1)\n" in done.stdout
    assert "  /dev/nvidia0           not there; created with mknod: DENIED by the device cgroup\n" in done.stdout


def test_the_demo_prints_the_rest_on_request() -> None:
    done = run_demo("-v").check()
    assert "gpu-oci-hook list\n" in done.stdout and "\nwithheld\n" in done.stdout
    assert run_demo("--loud").status == 2
