"""scripts/gpu-check on simulated GPUs: every row that does not need a real driver, up to ENXIO."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gpu_oci_hook.simulate import host_tree

PROJECT = Path(__file__).resolve().parents[2]
UUIDS = ("GPU-44b97862-417b-5351-9f9b-fc184b5f19e7", "GPU-91ddbd5a-4075-551a-afaf-06970505f5d0")
NVIDIA_SMI = """#!/bin/sh
cat <<'XML'
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <driver_version>550.163.01</driver_version>
  <gpu id="00000000:07:00.0"><product_name>NVIDIA A100-SXM4-40GB</product_name>
    <uuid>{}</uuid><minor_number>1</minor_number></gpu>
  <gpu id="00000000:0F:00.0"><product_name>NVIDIA A100-SXM4-40GB</product_name>
    <uuid>{}</uuid><minor_number>0</minor_number></gpu>
</nvidia_smi_log>
XML
"""


@pytest.fixture(scope="module")
def gpu_check() -> ModuleType:
    """The script's module."""
    spec = importlib.util.spec_from_file_location("gpu_check", PROJECT / "scripts/gpu_check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module
    spec.loader.exec_module(module)
    return module


def run_check(tmp_path: Path, settings: str = "", *arguments: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """Run the script on two simulated GPUs. Return its exit status, and (result, detail) by check."""
    host_tree.build_host(tmp_path / "host", gpus=2)
    config = tmp_path / "config.toml"
    config.write_text(f'[host]\nroot = "{tmp_path}/host"\nload-modules = false\n{settings}')
    command = [str(PROJECT / "scripts/gpu-check"), "--config", str(config), "--rounds", "1", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    width = done.stdout.index("ok")
    rows = {line[:width].strip(): line[width:].partition("  ") for line in done.stdout.splitlines()}
    return done.returncode, {check: (result.strip(), detail.strip()) for check, (result, _, detail) in rows.items()}


def test_a_simulated_host_passes_up_to_the_driver(tmp_path: Path) -> None:
    status, rows = run_check(tmp_path, "", "--collect", str(tmp_path / "collected"))
    assert status == 0
    assert {check for check, (result, _) in rows.items() if result == "WRONG"} == set()
    assert rows["explain: nodes of GPU 0 alone"] == ("ok", "['/dev/nvidia1']")
    assert rows["container: GPU nodes"] == ("ok", "['/dev/nvidia1']")
    assert rows["container: result of opening its nodes"] == ("ok", "['ENXIO']")
    assert rows["container: another GPU is denied"] == ("ok", "['EPERM']")
    assert rows["cdi validate"][0] == "ok"
    assert rows["container: CUDA"][0] == "not run"
    assert "ratio" in rows["time of a run, median of 1"][1]
    collected = (tmp_path / "collected/driver/nvidia/gpus/0000:07:00.0/information").read_text()
    assert "GPU-00000000-0000-4000-8000-00000000000" in collected
    assert not [uuid for uuid in UUIDS if uuid in collected]


def test_a_container_without_its_gpu_is_wrong(tmp_path: Path) -> None:
    status, rows = run_check(tmp_path, '[request]\nenv = "never"\n')
    assert status == 1
    assert rows["explain: nodes of GPU 0 alone"][0] == "WRONG"
    assert rows["container: GPU nodes"] == ("WRONG", "ours [], theirs ['/dev/nvidia1']")


def test_without_runc_the_container_rows_are_not_run(tmp_path: Path) -> None:
    status, rows = run_check(tmp_path, "", "--runc", "no-such-runc")
    assert status == 0
    assert rows["container"] == ("not run", "no no-such-runc on this machine; name one with --runc PATH")


@pytest.mark.parametrize(
    ("minor", "result"), [(0, "ok"), (5, "WRONG")], ids=["the same minors", "another minor of the second GPU"]
)
def test_list_is_compared_with_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu_check: ModuleType, minor: int, result: str
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(NVIDIA_SMI.format(*UUIDS))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    model = "NVIDIA A100-SXM4-40GB"
    gpus = [
        {"uuid": UUIDS[0], "pci": "0000:07:00.0", "minor": 1, "model": model},
        {"uuid": UUIDS[1], "pci": "0000:0f:00.0", "minor": minor, "model": model},
    ]
    rows = list(gpu_check.check_nvidia_smi(gpus, "550.163.01"))
    assert [row.result for row in rows] == ["ok", result]
