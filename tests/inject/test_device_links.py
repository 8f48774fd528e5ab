"""/dev/char links of injected nodes, from which systemd cgroup drivers know them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_oci_hook.inject import device_links
from gpu_oci_hook.inject.device_links import make_device_links, plan_device_links
from gpu_oci_hook.model.cdi_edits import AddCdiDeviceNode, AddCdiDeviceRule
from gpu_oci_hook.model.edits import AddDeviceNode, AddDeviceRule, AddMount, Edit, Plan

SYSTEMD = {"linux": {"cgroupsPath": "system.slice:docker:abc"}}
NULL = os.stat("/dev/null").st_rdev
NULL_NAME = f"char/{os.major(NULL)}:{os.minor(NULL)}"


@pytest.fixture(autouse=True)
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /dev of the test's own, on a host that systemd has booted."""
    monkeypatch.setattr(device_links, "DEVICE_DIR", str(tmp_path / "dev"))
    monkeypatch.setattr(device_links, "SYSTEMD_BOOTED_PATH", str(tmp_path))
    return tmp_path / "dev"


def node(path: str = "/dev/null", major: int = os.major(NULL), minor: int = os.minor(NULL)) -> list[Edit]:
    return [AddDeviceNode(path, major, minor, 0o666, 0, 0, "x"), AddDeviceRule(major, minor, "rw", "x")]


def carry_out(edits: list[Edit], spec: object = SYSTEMD) -> tuple[list[str], list[str]]:
    """The changes and the warnings of planning and making the links."""
    plan = Plan()
    links, plan.warnings = plan_device_links(spec, edits)
    plan.edits = [*edits, *links]
    return make_device_links(plan), plan.warnings


def test_a_missing_link_is_planned_and_made_with_its_directory(dev: Path) -> None:
    changes, warnings = carry_out(node())
    assert changes == [f"linked {dev}/{NULL_NAME} to /dev/null"] and not warnings
    assert os.stat(dev / NULL_NAME).st_rdev == NULL
    assert carry_out(node()) == ([], []), "a second start finds it"


def test_a_link_below_dev_is_relative_as_those_of_udev_are(dev: Path) -> None:
    dev.mkdir()
    (dev / "nvidia0").symlink_to("/dev/null")  # making a node needs root
    changes, _ = carry_out(node(f"{dev}/nvidia0"))
    assert changes == [f"linked {dev}/{NULL_NAME} to ../nvidia0"]
    assert os.stat(dev / NULL_NAME).st_rdev == NULL


def test_a_link_that_leads_nowhere_is_replaced(dev: Path) -> None:
    (dev / "char").mkdir(parents=True)
    (dev / NULL_NAME).symlink_to("../gone")
    assert carry_out(node())[0] and os.stat(dev / NULL_NAME).st_rdev == NULL


def test_bound_nodes_and_those_of_cdi_files_get_links_too(dev: Path) -> None:
    numbers = (os.major(NULL), os.minor(NULL))
    rule = AddDeviceRule(*numbers, "rw", "x")
    for edits in (
        [AddMount("/dev/null", "/dev/nvidia0", ("bind",), "x"), rule],
        [
            AddCdiDeviceNode("/dev/null", "c", numbers, None, (None, None), "x"),
            AddCdiDeviceRule("c", numbers, "rwm", "x"),
        ],
    ):
        links, problems = plan_device_links(SYSTEMD, edits)
        assert [link.describe() for link in links] == [f"{dev}/{NULL_NAME} -> /dev/null on the host"]
        assert not problems


def test_a_node_that_the_host_lacks_cannot_have_a_link_and_the_warning_says_what_follows(dev: Path) -> None:
    changes, warnings = carry_out(node("/dev/nvidia-uvm", 4000, 0))
    assert not changes
    loss = "With runc 1.1.3 to 1.1.6 the container loses the device at the next systemctl daemon-reload"
    assert warnings == [f"{dev}/char/4000:0 cannot be made, as the host has no /dev/nvidia-uvm. {loss}"]


def test_a_link_that_cannot_be_made_is_a_warning(dev: Path) -> None:
    dev.write_text("not a directory")
    changes, (warning,) = carry_out(node())
    assert not changes and warning.startswith(f"{dev}/{NULL_NAME} cannot be made: ")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, True),  # the command line decides
        ({"linux": {"cgroupsPath": "kubepods-pod1.slice:cri-containerd:abc"}}, True),
        ({"linux": {"cgroupsPath": "/docker/abc"}}, False),
        ({"linux": {"cgroupsPath": "/a:b/abc"}}, False),
    ],
)
def test_only_cgroups_that_systemd_may_manage_need_links(spec: object, expected: bool) -> None:
    assert bool(plan_device_links(spec, node())[0]) is expected


def test_a_host_that_systemd_has_not_booted_needs_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_links, "SYSTEMD_BOOTED_PATH", str(tmp_path / "none"))
    assert plan_device_links(SYSTEMD, node()) == ([], [])


def test_a_rootless_container_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {"linux": {**SYSTEMD["linux"], "namespaces": [{"type": "user"}]}}
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert plan_device_links(spec, node()) == ([], [])
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert plan_device_links(spec, node())[0], "with userns-remap root's runc writes the rules"
