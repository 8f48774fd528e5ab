"""Device nodes: the kernel's numbers win, the host's node gives mode and owner."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpu_oci_hook.host import device_nodes
from gpu_oci_hook.host.device_nodes import DeviceMajors, ModuleParameters
from gpu_oci_hook.host.root import Host

NEW = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n195 nvidia-modeset\n509 nvidia-uvm\n510 nvidia-caps\n"
OLD = "Character devices:\n195 nvidia-frontend\n\nBlock devices:\n509 nvidia-uvm\n"


def host_with(root: Path, devices: str, params: str = "") -> Host:
    """A tree with /proc/devices and, if given, the module's parameters."""
    (root / "proc/driver/nvidia").mkdir(parents=True)
    (root / "dev").mkdir()
    (root / "proc/devices").write_text(devices)
    if params:
        (root / "proc/driver/nvidia/params").write_text(params)
    return Host(str(root))


def mknod(path: Path, major: int, minor: int, mode: int) -> None:
    """A real node, or a skip where the kernel refuses it."""
    try:
        os.mknod(path, stat.S_IFCHR | mode, os.makedev(major, minor))
    except PermissionError:
        pytest.skip("mknod needs root outside of a user namespace")
    path.chmod(mode)


def test_majors_are_matched_by_whole_names(tmp_path: Path) -> None:
    found = device_nodes.read_device_majors(host_with(tmp_path, NEW))
    assert (found.nvidia, found.uvm, found.caps, found.modeset) == (195, 509, 510, 195)
    assert found.nvidia_loaded
    assert found.owner_of_major(510) == "nvidia-caps"
    assert found.owner_of_major(42) == ""


def test_lookalikes_are_not_the_driver() -> None:
    found = DeviceMajors({"nvidia-caps-imex-channels": 234, "nvidia-uvm-tools": 233, "nvidiafoo": 232})
    assert (found.nvidia, found.uvm, found.caps, found.modeset, found.nvidia_loaded) == (
        195,
        None,
        None,
        None,
        False,
    )


def test_old_drivers_call_themselves_frontend(tmp_path: Path) -> None:
    host = host_with(tmp_path, OLD)
    found = device_nodes.read_device_majors(host)
    assert (found.nvidia, found.uvm, found.modeset, found.nvidia_loaded) == (195, None, None, True)
    (tmp_path / "sys/module/nvidia_modeset").mkdir(parents=True)
    assert device_nodes.read_device_majors(host).modeset == 195


def test_without_proc_devices_nothing_counts_as_loaded(tmp_path: Path) -> None:
    found = device_nodes.read_device_majors(Host(str(tmp_path)))
    assert not found.nvidia_loaded
    assert found.nvidia == 195


def test_a_node_that_does_not_exist_takes_the_module_parameters(tmp_path: Path) -> None:
    text = "ModifyDeviceFiles: 1\nDeviceFileUID: 7\nDeviceFileGID: 44\nDeviceFileMode: 432\n"
    host = host_with(tmp_path, NEW, text)
    problems: list[str] = []
    found, missing = device_nodes.resolve_control_nodes(
        host, device_nodes.read_device_majors(host), device_nodes.read_module_parameters(host), problems
    )
    assert [(c, n.path, n.major, n.minor) for c, n in found] == [
        ("", "/dev/nvidiactl", 195, 255),
        ("compute", "/dev/nvidia-uvm", 509, 0),
        ("compute", "/dev/nvidia-uvm-tools", 509, 1),
        ("display", "/dev/nvidia-modeset", 195, 254),
    ]
    assert all((n.mode, n.uid, n.gid, n.exists) == (0o660, 7, 44, False) for _, n in found)
    assert found[0][1].source == f"{tmp_path}/dev/nvidiactl"
    assert missing == []
    assert problems == []


def test_a_module_that_is_not_loaded_is_named(tmp_path: Path) -> None:
    host = host_with(tmp_path, OLD)
    found, missing = device_nodes.resolve_control_nodes(
        host, device_nodes.read_device_majors(host), device_nodes.read_module_parameters(host), []
    )
    assert [n.path for _, n in found] == ["/dev/nvidiactl"]
    assert missing == [
        ("compute", "/dev/nvidia-uvm", "nvidia-uvm", ""),
        ("compute", "/dev/nvidia-uvm-tools", "nvidia-uvm", ""),
        ("display", "/dev/nvidia-modeset", "nvidia-modeset", ""),
    ]


def test_an_existing_node_gives_mode_and_owner(tmp_path: Path) -> None:
    host = host_with(tmp_path, NEW)
    mknod(tmp_path / "dev/nvidia3", 195, 3, 0o660)
    os.chown(tmp_path / "dev/nvidia3", 0, 44)
    problems: list[str] = []
    node = device_nodes.resolve_gpu_node(host, device_nodes.read_device_majors(host), 3, ModuleParameters(), problems)
    assert (node.path, node.major, node.minor, node.mode, node.uid, node.gid) == (
        "/dev/nvidia3",
        195,
        3,
        0o660,
        0,
        44,
    )
    assert node.exists
    assert problems == []


def test_a_stale_node_loses_against_the_kernel(tmp_path: Path) -> None:
    host = host_with(tmp_path, NEW)
    mknod(tmp_path / "dev/nvidia-uvm", 510, 0, 0o600)
    problems: list[str] = []
    found, _ = device_nodes.resolve_control_nodes(
        host, device_nodes.read_device_majors(host), ModuleParameters(), problems
    )
    uvm = found[1][1]
    assert (uvm.major, uvm.minor, uvm.mode, uvm.exists) == (509, 0, 0o666, False)
    assert len(problems) == 1
    assert "510:0" in problems[0] and "509:0" in problems[0]


@pytest.mark.parametrize("kind", ["file", "link", "directory", "fifo"])
def test_something_else_in_the_place_of_a_node_is_reported(tmp_path: Path, kind: str) -> None:
    host = host_with(tmp_path, NEW)
    place = tmp_path / "dev/nvidia0"
    if kind == "file":
        place.write_text("")
    elif kind == "link":
        place.symlink_to("/dev/null")
    elif kind == "directory":
        place.mkdir()
    else:
        os.mkfifo(place)
    problems: list[str] = []
    node = device_nodes.resolve_gpu_node(host, device_nodes.read_device_majors(host), 0, ModuleParameters(), problems)
    assert (node.major, node.minor, node.exists) == (195, 0, False)
    assert "not a character device" in problems[0]


@pytest.mark.parametrize(
    ("text", "mode", "modify"),
    [
        ("", 0o666, True),
        ("DeviceFileMode: 438\nModifyDeviceFiles: 0\n", 0o666, False),
        ("DeviceFileMode: a lot\nDeviceFileUID: -1\nDeviceFileGID: 99999999999\n", 0o666, True),
        ("DeviceFileMode: 4294967295\n", 0o777, True),
    ],
)
def test_odd_parameters_fall_back_to_the_defaults(tmp_path: Path, text: str, mode: int, *, modify: bool) -> None:
    found = device_nodes.read_module_parameters(host_with(tmp_path, NEW, text))
    assert (found.mode, found.uid, found.gid, found.modify_device_files) == (mode, 0, 0, modify)
