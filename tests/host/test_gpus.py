"""GPUs from /proc: the index is the rank of the PCI address, whatever the minors are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_oci_hook.formats.driver_version import is_driver_version
from gpu_oci_hook.host.gpus import read_driver_version, read_gpus
from gpu_oci_hook.host.root import Host

GPUS = "proc/driver/nvidia/gpus"


def put(root: Path, path: str, text: str) -> None:
    """Writes a file and its directories."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def gpu(root: Path, pci: str, minor: int, *, excluded: str = "No", uuid: str = "GPU-1") -> None:
    """One information file as the driver writes it."""
    put(
        root,
        f"{GPUS}/{pci}/information",
        f"Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ:   \t\t 120\nGPU UUID: \t {uuid}\n"
        f"Video BIOS: \t 92.00.45.00.06\n"
        f"Bus Type: \t PCIe\nDMA Size: \t 47 bits\nDMA Mask: \t 0x7fffffffffff\nBus Location: \t {pci}\n"
        f"Device Minor: \t {minor}\nGPU Excluded:\t {excluded}\n",
    )


def test_the_index_is_the_rank_of_the_pci_address_and_not_the_minor(tmp_path: Path) -> None:
    for pci, minor in [("10000:01:00.0", 0), ("0000:C1:00.0", 1), ("0000:0a:00.0", 3), ("0001:01:00.0", 2)]:
        gpu(tmp_path, pci, minor)
    found, problems = read_gpus(Host(str(tmp_path)))
    assert problems == []
    assert [(g.index, g.pci, g.minor) for g in found] == [
        (0, "0000:0a:00.0", 3),
        (1, "0000:c1:00.0", 1),
        (2, "0001:01:00.0", 2),
        (3, "10000:01:00.0", 0),
    ]
    assert found[0].model == "NVIDIA A100-SXM4-40GB"
    assert found[0].uuid == "GPU-1"


def test_an_excluded_gpu_has_no_index(tmp_path: Path) -> None:
    gpu(tmp_path, "0000:01:00.0", 0, excluded="Yes")
    gpu(tmp_path, "0000:02:00.0", 1)
    found, problems = read_gpus(Host(str(tmp_path)))
    assert [(g.index, g.pci) for g in found] == [(0, "0000:02:00.0")]
    assert problems == []


def test_broken_entries_are_left_out_with_a_reason(tmp_path: Path) -> None:
    gpu(tmp_path, "0000:05:00.0", 4)
    put(tmp_path, f"{GPUS}/0000:01:00.0/information", "")
    put(tmp_path, f"{GPUS}/0000:02:00.0/information", "Model: \t x\nDevice Minor: \t twelve\n")
    (tmp_path / GPUS / "0000:03:00.0").mkdir()
    (tmp_path / GPUS / "nonsense").mkdir()
    (tmp_path / GPUS / "0000:04:00.0").mkdir()
    os.mkfifo(tmp_path / GPUS / "0000:04:00.0/information")
    found, problems = read_gpus(Host(str(tmp_path)))
    assert [(g.index, g.pci) for g in found] == [(4, "0000:05:00.0")], "the index that it has for NVML too"
    assert len(problems) == 5
    assert all(str(tmp_path) in problem for problem in problems)


def test_a_machine_without_the_module_has_no_gpus(tmp_path: Path) -> None:
    assert read_gpus(Host(str(tmp_path))) == ([], [])
    assert read_driver_version(Host(str(tmp_path))) is None


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        (
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Tue Apr 8 12:41:17 UTC 2025\nGCC:\n",
            "550.163.01",
        ),
        (
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (root@x)\n",
            "580.65.06",
        ),
        ("sys/module/nvidia/version", "535.183.01\n", "535.183.01"),
        ("sys/module/nvidia/version", "1.1\n", None),
        ("proc/driver/nvidia/version", "NVRM version: nothing of use\n", None),
        ("proc/driver/nvidia/version", "", None),
    ],
)
def test_the_version_is_read_from_every_form(tmp_path: Path, path: str, text: str, expected: str | None) -> None:
    put(tmp_path, path, text)
    assert read_driver_version(Host(str(tmp_path))) == expected


@pytest.mark.parametrize("text", ["550.163.01", "470.256", "1000.1"[0:3] + ".01"])
def test_driver_versions_look_like_driver_versions(text: str) -> None:
    assert is_driver_version(text)


@pytest.mark.parametrize(
    "text",
    ["1.1", "1", "", "1.1.1", "550", "550.", "550.x", "4.0.0", "550.1.2.3.4", "\u0665\u0665\u0660.\u0661"],
)
def test_other_numbers_do_not(text: str) -> None:
    assert not is_driver_version(text)
