"""Device requests by mounts that a client has changed on the way: the device decides, and nothing is lost silently."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.host.device_nodes import is_null_device
from gpu_oci_hook.model.request import Request
from gpu_oci_hook.request.read import read_request
from support.bundles import skip_or_fail

ROOT = "/var/run/nvidia-container-devices"


def read(*, mounts: tuple[object, ...] = (), devices: tuple[object, ...] = ()) -> Request:
    """Read the request of a container with these mounts and devices."""
    return read_request({"mounts": list(mounts), "linux": {"devices": list(devices)}}, Config(), is_null_device)


def selectors(request: Request) -> list[str]:
    return [item.selector for item in request.device_requests]


def test_a_mount_that_has_become_a_device_requests_by_its_numbers() -> None:
    """Podman kube play makes a device of a hostPath volume of type CharDevice."""
    node = {"path": f"{ROOT}/0", "type": "c", "major": 1, "minor": 3, "fileMode": 8630, "uid": 0, "gid": 0}
    request = read(devices=(node,))
    assert selectors(request) == ["0"]
    assert request.device_requests[0].origin == f"device {ROOT}/0 (linux.devices[0])"


def test_another_device_in_that_place_is_withheld_with_the_reason() -> None:
    request = read(devices=({"path": f"{ROOT}/0", "type": "c", "major": 1, "minor": 5},))
    assert not request.needs_driver
    reason = "it is the device 1:5 and not /dev/null"
    assert request.withheld == [(f"device {ROOT}/0 (linux.devices[0])", reason)]
    assert reason in request.warnings[0]


def test_a_copy_of_the_null_device_is_as_good_as_its_source(tmp_path: Path) -> None:
    """Buildah binds the source of a volume to a place of its own first."""
    copy = tmp_path / "buildah-bind-target-10"
    try:
        os.mknod(copy, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        skip_or_fail("mknod needs root outside of a user namespace")
    assert selectors(read(mounts=({"source": str(copy), "destination": f"{ROOT}/GPU-1"},))) == ["GPU-1"]


@pytest.mark.parametrize("source", ["/dev/zero", "/nonexistent", "/etc/passwd", "tmpfs"])
def test_a_mount_of_anything_else_is_withheld_with_the_reason(source: str) -> None:
    request = read(mounts=({"source": source, "destination": f"{ROOT}/0"},))
    assert not request.needs_driver
    reason = f"its source {source} is not /dev/null"
    assert request.withheld == [(f"mount {ROOT}/0 (mounts[0])", reason)]
    assert reason in request.warnings[0]


def test_other_devices_and_mounts_say_nothing() -> None:
    request = read(
        mounts=({"source": "/x", "destination": "/var/run/nvidia-container-devicesX/0"}, {"destination": 7}),
        devices=({"path": "/dev/null", "type": "c", "major": 1, "minor": 3}, {"path": None}, 7),
    )
    assert not request.needs_driver and not request.withheld and not request.warnings
