"""How each kind of edit is made in a container that exists."""

from __future__ import annotations

import pytest

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.model import cdi_edits, earlier_edits, edits, file_edits
from gpu_oci_hook.model.edits import AddHook, AddMount, Edit
from gpu_oci_hook.plan.driver_params import DRIVER_PARAMS
from gpu_oci_hook.plan.live_edits import plan_live_edit

WHY = "the reason"
MOUNT = ("mount", "--bind", "/b/params", f"/b/rootfs{DRIVER_PARAMS}")
PARAMS_HOOK = AddHook("createContainer", "/usr/bin/mount", MOUNT, ("PATH=/x",), WHY)
PLACES: list[tuple[Edit, str]] = [
    (edits.AddDeviceNode("/dev/nvidia0", 195, 0, 0o666, 0, 0, WHY), "container"),
    (edits.AddMount("/usr/lib/x", "/usr/lib/x", ("ro",), WHY), "container"),
    (file_edits.AddLink("/usr/lib/libcuda.so", "libcuda.so.1", WHY), "container"),
    (PARAMS_HOOK, "container"),
    (edits.AddDeviceRule(195, 0, "rw", WHY), "cgroup"),
    (file_edits.AddHostLink("/dev/char/195:0", "../nvidia0", WHY), "host"),
    (edits.DropHook("prestart", "/usr/bin/nvidia-container-runtime-hook", WHY), ""),
    (edits.DropMount("/a", "/b", WHY), ""),
    (cdi_edits.SortMounts(WHY), ""),
]


@pytest.mark.parametrize(("edit", "place"), PLACES, ids=lambda value: getattr(value, "kind", None))
def test_what_can_be_made_has_a_place_and_no_obstacle(edit: Edit, place: str) -> None:
    live = plan_live_edit(edit)
    assert (live.place, live.obstacle, live.edit.reason) == (place, "", WHY)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (edits.SetEnvVariable("LD_LIBRARY_PATH", "/x", WHY), "the container's variable LD_LIBRARY_PATH=/x"),
        (edits.AddGroup(44, WHY), "the group 44"),
        (cdi_edits.AddNetDevice("eth0", "nic", WHY), "a network interface"),
    ],
)
def test_what_only_the_runtime_can_do_is_said(edit: Edit, words: str) -> None:
    live = plan_live_edit(edit)
    assert live.place == ""
    assert words in live.obstacle


def test_the_hook_for_the_drivers_parameters_becomes_its_mount() -> None:
    mount = plan_live_edit(PARAMS_HOOK).edit
    assert isinstance(mount, AddMount)
    assert (mount.source, mount.destination, mount.clear_mount_point) == ("/b/params", DRIVER_PARAMS, False)
    assert "ro" in mount.options


def test_any_other_hook_is_refused() -> None:
    with pytest.raises(Fault, match="a hook cannot add the hook /usr/bin/x"):
        plan_live_edit(AddHook("createContainer", "/usr/bin/x", ("x", "y"), ("PATH=/x",), WHY))


def test_every_kind_of_edit_is_either_made_or_known_to_have_no_effect() -> None:
    """A new kind of edit would be made below the container's root alone, silently."""
    modules = (edits, file_edits, cdi_edits, earlier_edits)
    classes = [one for module in modules for one in vars(module).values() if isinstance(one, type)]
    kinds = {one.kind for one in classes if issubclass(one, Edit) and one is not Edit}
    others = {"env", "group", "net-device", "rdt", "drop-earlier", "file", "directory"}
    assert kinds == {edit.kind for edit, _ in PLACES} | others
