"""The device cgroup of a process is found, and in version 1 its rules are changed in the real kernel."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.live import device_cgroup
from gpu_oci_hook.live.device_cgroup import DeviceCgroup, allow_devices, deny_devices, find_device_cgroup

GPU, OTHER_GPU, NULL = (195, 0), (195, 1), (1, 3)


def allow(group: Path, *rules: str) -> None:
    """Write rules as a low-level runtime does."""
    for rule in rules:
        (group / "devices.allow").write_text(rule)


@pytest.mark.root
def test_version_1_allows_and_denies_and_keeps_mknod_and_other_rules(
    group: Path, open_in: Callable[[Path], dict[tuple[int, int], int]]
) -> None:
    allow(group, "c *:* m", "c 1:3 rwm", "c 195:1 rwm")
    before = (group / "devices.list").read_text()
    cgroup = DeviceCgroup(1, [str(group)])
    assert open_in(group) == {GPU: errno.EPERM, OTHER_GPU: errno.ENXIO, NULL: 0}
    allow_devices(cgroup, [GPU])
    assert open_in(group) == {GPU: errno.ENXIO, OTHER_GPU: errno.ENXIO, NULL: 0}
    deny_devices(cgroup, [GPU, OTHER_GPU])
    assert open_in(group) == {GPU: errno.EPERM, OTHER_GPU: errno.EPERM, NULL: 0}
    assert "c *:* m" in (group / "devices.list").read_text()
    allow_devices(cgroup, [OTHER_GPU])
    assert sorted((group / "devices.list").read_text().split("\n")) == sorted(before.split("\n"))


@pytest.mark.root
def test_version_1_denies_a_device_of_a_container_that_may_open_all(
    group: Path, open_in: Callable[[Path], dict[tuple[int, int], int]]
) -> None:
    allow(group, "a")
    cgroup = DeviceCgroup(1, [str(group)])
    deny_devices(cgroup, [GPU])
    assert open_in(group) == {GPU: errno.EPERM, OTHER_GPU: errno.ENXIO, NULL: 0}
    allow_devices(cgroup, [GPU])
    assert open_in(group) == {GPU: errno.ENXIO, OTHER_GPU: errno.ENXIO, NULL: 0}


@pytest.mark.root
def test_version_1_names_the_rule_for_many_devices_from_which_it_cannot_except_one(group: Path) -> None:
    allow(group, "c 195:* rwm")
    with pytest.raises(Fault, match=r'195:0 cannot be denied: the container\'s rule "c 195:\* rwm" allows it'):
        deny_devices(DeviceCgroup(1, [str(group)]), [GPU])


@pytest.mark.root
def test_version_1_changes_the_rules_of_a_divided_container_cgroup_from_the_top(
    group: Path, open_in: Callable[[Path], dict[tuple[int, int], int]]
) -> None:
    (group / "inner").mkdir()
    cgroup = DeviceCgroup(1, [str(group / "inner"), str(group)])
    with pytest.raises(Fault, match=r"cannot allow the device \(c 195:0 rw\)"):
        allow_devices(DeviceCgroup(1, [str(group / "inner")]), [GPU])
    allow_devices(cgroup, [GPU])
    assert open_in(group / "inner")[GPU] == open_in(group)[GPU] == errno.ENXIO
    deny_devices(cgroup, [GPU])
    assert open_in(group / "inner")[GPU] == open_in(group)[GPU] == errno.EPERM


def mountinfo(*mounts: str) -> str:
    return "".join(f"30 25 0:{number} {mount}\n" for number, mount in enumerate(mounts))


V1 = "/ /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices"
V2 = "/ /sys/fs/cgroup rw - cgroup2 cgroup2 rw"


@pytest.mark.parametrize(
    ("cgroup", "own", "container", "version", "paths"),
    [
        ("0::/a/b", [V2], [], 2, ["/sys/fs/cgroup/a/b"]),
        ("0::/a/scope/container", [V2], [], 2, ["/sys/fs/cgroup/a/scope/container", "/sys/fs/cgroup/a/scope"]),
        (
            "0::/a/scope/container/init.scope",
            [V2],
            ["/a/scope/container /sys/fs/cgroup ro - cgroup2 cgroup rw"],
            2,
            [f"/sys/fs/cgroup/a/scope{rest}" for rest in ("/container/init.scope", "/container", "")],
        ),
        (
            "0::/docker/X/init.scope",
            [V2],
            ["/docker/X /sys/fs/cgroup ro - cgroup2 cgroup rw", "/docker /mnt rw - cgroup2 cgroup rw"],
            2,
            ["/sys/fs/cgroup/docker/X/init.scope", "/sys/fs/cgroup/docker/X"],
        ),
        ("0::/docker/X", [V2], ["/docker/XY /sys/fs/cgroup ro - cgroup2 c rw", V2], 2, ["/sys/fs/cgroup/docker/X"]),
        ("4:devices:/x/y\n0::/x", [V2.replace("cgroup ", "cgroup/u ", 1), V1], [], 1, ["/sys/fs/cgroup/devices/x/y"]),
        (
            "4:devices,misc:/x/y\n0::/",
            [V1],
            ["/x /sys/fs/cgroup/devices ro - cgroup cgroup rw,devices,misc"],
            1,
            ["/sys/fs/cgroup/devices/x/y", "/sys/fs/cgroup/devices/x"],
        ),
    ],
)
def test_the_cgroups_of_a_container_are_found_up_to_its_own_top(
    monkeypatch: pytest.MonkeyPatch, cgroup: str, own: list[str], container: list[str], version: int, paths: list[str]
) -> None:
    files = {
        "/proc/7/cgroup": cgroup,
        "/proc/self/mountinfo": mountinfo(*own),
        "/proc/7/mountinfo": mountinfo(*container),
    }
    monkeypatch.setattr(device_cgroup, "_read_proc", files.__getitem__)
    found = find_device_cgroup(7)
    assert found is not None
    assert (found.version, found.paths) == (version, paths)


def test_a_machine_without_device_cgroups_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"/proc/7/cgroup": "1:cpu:/x", "/proc/self/mountinfo": "", "/proc/7/mountinfo": ""}
    monkeypatch.setattr(device_cgroup, "_read_proc", files.__getitem__)
    assert find_device_cgroup(7) is None


def test_a_cgroup_outside_of_what_is_visible_here_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    own = mountinfo("/docker/me /sys/fs/cgroup rw - cgroup2 cgroup2 rw")
    files = {"/proc/7/cgroup": "0::/docker/you", "/proc/self/mountinfo": own, "/proc/7/mountinfo": ""}
    monkeypatch.setattr(device_cgroup, "_read_proc", files.__getitem__)
    with pytest.raises(Fault, match="outside of the cgroups that are visible here"):
        find_device_cgroup(7)
