"""What kind of machine: the evidence, the verdict, and that an ordinary machine pays two looks for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_oci_hook.formats.driver_version import is_driver_version
from gpu_oci_hook.host import gpus
from gpu_oci_hook.host.platforms import detect, platform
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.model.machine import Gpu
from gpu_oci_hook.simulate import host_tree

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can make device nodes")
RELEASE = "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic\n"
INFORMATION = "Model: \t\t {}\nGPU UUID: \t GPU-1\nDevice Minor: \t {}\n"


class Counting(Host):
    """A host that counts the looks at it."""

    __slots__ = ("looks",)

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.looks: list[str] = []

    def stat_path(self, path: str, *, follow: bool = True) -> os.stat_result | None:
        self.looks.append(path)
        return super().stat_path(path, follow=follow)


def write(root: Path, path: str, text: str = "") -> None:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


def machine(root: Path, *, modules: str = "", release: str = "", family: str = "") -> Path:
    """A tree with the marks of a machine and nothing else."""
    write(root, "/proc/devices", f"Character devices:\n 10 misc\n{modules}\nBlock devices:\n")
    if release:
        write(root, "/etc/nv_tegra_release", release)
    if family:
        write(root, "/sys/devices/soc0/family", family)
    return root


def card(root: Path, address: str, model: str, minor: int = 0) -> None:
    write(root, f"/proc/driver/nvidia/gpus/{address}/information", INFORMATION.format(model, minor))


def verdict(root: Path, wanted: str = "auto") -> tuple[str, str]:
    host = Host(str(root))
    name, evidence = detect.detect_platform(host, gpus.read_gpus(host)[0], wanted)
    return name, "; ".join(evidence)


def test_a_desktop_is_told_by_what_is_not_there(tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "h")
    assert verdict(tmp_path / "h") == (
        "desktop",
        "no /dev/dxg; the kernel module nvidia is loaded; no /etc/nv_tegra_release; no /sys/devices/soc0/family",
    )


def test_windows_is_told_by_its_node(tmp_path: Path) -> None:
    write(machine(tmp_path), "/dev/dxg")
    assert verdict(tmp_path)[0] == "wsl"
    assert verdict(tmp_path)[1].startswith("/dev/dxg exists; no nvidia in /proc/devices")


def test_a_loaded_module_counts_more_than_windows_node(tmp_path: Path) -> None:
    write(machine(tmp_path, modules="195 nvidia\n"), "/dev/dxg")
    name, evidence = verdict(tmp_path)
    assert name == "desktop"
    assert "the loaded module nvidia overrides /dev/dxg" in evidence


@pytest.mark.parametrize(("release", "family"), [(RELEASE, ""), ("", "Tegra\n"), ("", "tegra234"), (RELEASE, "Tegra")])
def test_a_board_is_told_by_its_release_or_its_chip(tmp_path: Path, release: str, family: str) -> None:
    assert verdict(machine(tmp_path, release=release, family=family))[0] == "tegra"


def test_another_makers_chip_is_no_board_of_nvidias(tmp_path: Path) -> None:
    assert verdict(machine(tmp_path, family="i.MX\n")) == (
        "desktop",
        "no /dev/dxg; no nvidia in /proc/devices; no /etc/nv_tegra_release; /sys/devices/soc0/family contains i.MX",
    )


@pytest.mark.parametrize("model", ["Orin (nvgpu)", "NVIDIA Thor", "NVIDIA Jetson AGX Orin"])
def test_a_board_whose_gpu_is_the_modules_is_a_board(tmp_path: Path, model: str) -> None:
    card(machine(tmp_path, modules="195 nvidia\n", release=RELEASE), "0000:01:00.0", model)
    name, evidence = verdict(tmp_path)
    assert name == "tegra"
    assert f"GPU 0 ({model}) is integrated" in evidence


def test_a_board_with_an_integrated_and_a_discrete_gpu_is_a_board(tmp_path: Path) -> None:
    machine(tmp_path, modules="195 nvidia\n", release=RELEASE)
    card(tmp_path, "0005:01:00.0", "NVIDIA RTX A6000")
    write(tmp_path, "/dev/nvhost-gpu")
    name, evidence = verdict(tmp_path)
    assert name == "tegra"
    assert "/dev/nvhost-gpu exists: an integrated GPU" in evidence


def test_a_board_whose_gpus_are_all_discrete_is_a_desktop_and_says_so(tmp_path: Path) -> None:
    card(machine(tmp_path, modules="195 nvidia\n", release=RELEASE), "0005:01:00.0", "NVIDIA RTX A6000")
    name, evidence = verdict(tmp_path)
    assert name == "desktop"
    assert "all GPUs are discrete" in evidence


def test_the_configuration_overrules_and_the_evidence_says_what_it_would_have_been(tmp_path: Path) -> None:
    machine(tmp_path, release=RELEASE)
    name, evidence = verdict(tmp_path, "desktop")
    assert name == "desktop"
    assert evidence.startswith('[host] platform = "desktop" in the configuration (detected: tegra); ')
    assert verdict(tmp_path, "tegra")[1].startswith('[host] platform = "tegra" in the configuration; ')


def test_an_unnamed_gpu_of_a_board_is_told_by_its_address() -> None:
    def gpu(model: str, pci: str) -> Gpu:
        return Gpu(index=0, uuid="", pci=pci, minor=0, model=model)

    assert platform.is_integrated_gpu(gpu("Unknown", "0000:01:00.0"))
    assert not platform.is_integrated_gpu(gpu("Unknown", "0005:01:00.0"))
    assert not platform.is_integrated_gpu(gpu("NVIDIA RTX A6000", "0000:01:00.0"))


def test_an_ordinary_machine_pays_two_looks(tmp_path: Path) -> None:
    host_tree.build_host(tmp_path / "h")
    host = Counting(str(tmp_path / "h"))
    assert not gpus.has_platform_marker(host, nvidia_loaded=True)
    assert host.looks == ["/etc/nv_tegra_release", "/sys/devices/soc0/family"]


@pytest.mark.parametrize("mark", ["/etc/nv_tegra_release", "/sys/devices/soc0/family", "/dev/dxg"])
def test_every_mark_is_noticed(tmp_path: Path, mark: str) -> None:
    host = Host(str(tmp_path))
    assert not gpus.has_platform_marker(host, nvidia_loaded=False)
    write(tmp_path, mark)
    assert gpus.has_platform_marker(host, nvidia_loaded=False)


@ROOT
@pytest.mark.parametrize(
    ("layout", "count", "name"), [("wsl", 1, "wsl"), ("jetson", 1, "tegra"), ("jetson", 2, "tegra")]
)
def test_simulated_boards_are_what_they_say(tmp_path: Path, layout: str, count: int, name: str) -> None:
    host_tree.build_host(tmp_path / "h", layout=layout, gpus=count)
    assert verdict(tmp_path / "h")[0] == name


def test_1_1_is_no_drivers_version() -> None:
    assert not is_driver_version("1.1")
