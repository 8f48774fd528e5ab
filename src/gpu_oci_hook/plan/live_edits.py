"""Decide how each edit of a plan is made in a container that exists, where config.json has no effect any more. No I/O.

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.model.edits import AddDeviceRule, AddGroup, AddHook, AddMount, DropHook, SetEnvVariable
from gpu_oci_hook.model.file_edits import AddHostLink
from gpu_oci_hook.plan.driver_params import DRIVER_PARAMS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    from gpu_oci_hook.model.edits import Edit

    LivePlace = Literal["container", "cgroup", "host", ""]

RUNTIME_HINT = "Start the container with gpu-oci-runtime instead of this hook"

_PARAMS_MOUNT_OPTIONS = ("ro", "nosuid", "nodev", "noexec")
# What only has a meaning in config.json: what was to be removed there has had its effect already, or has none.
_SPEC_KINDS = ("drop-hook", "drop-mount", "drop-earlier", "order")
# What the low-level runtime alone can do for a container.
_RUNTIME_KINDS = {
    "net-device": "move a network interface into the container",
    "rdt": "set the container's Intel RDT class",
}


class LiveEdit:
    """How an edit is made in a container that exists.

    Attributes:
        edit: what is made. A planned hook is replaced by the mount that it would make.
        place: where: in the container's mount namespace, in its device cgroup, or on the host; "" if nothing is done.
        obstacle: why it cannot be made; "" if it can.
    """

    __slots__ = ("edit", "obstacle", "place")

    def __init__(self, edit: Edit, place: LivePlace, obstacle: str = "") -> None:
        self.edit = edit
        self.place = place
        self.obstacle = obstacle


def plan_live_edit(edit: Edit) -> LiveEdit:
    """Decide how an edit is made in a container that exists.

    Raises:
        Fault: it is a hook that only the low-level runtime can run.
    """
    if isinstance(edit, AddHook):
        return LiveEdit(_replace_hook(edit), "container")
    if isinstance(edit, SetEnvVariable):
        return LiveEdit(edit, "", f"a hook cannot set the container's variable {edit.name}={edit.value}")
    if isinstance(edit, AddGroup):
        return LiveEdit(edit, "", f"a hook cannot give the container's process the group {edit.gid}")
    if edit.kind in _RUNTIME_KINDS:
        return LiveEdit(edit, "", f"a hook cannot {_RUNTIME_KINDS[edit.kind]}: {edit.describe()}")
    if isinstance(edit, AddDeviceRule):
        return LiveEdit(edit, "cgroup")
    if isinstance(edit, AddHostLink):
        return LiveEdit(edit, "host")
    return LiveEdit(edit, "" if edit.kind in _SPEC_KINDS else "container")


def list_comparable_edits(edits: Iterable[Edit]) -> list[Edit]:
    """Return the edits that a config.json has if gpu-oci-runtime has injected into it.

    The hook itself may still be there, under a name that gpu-oci-runtime removes.
    """
    return [edit for edit in edits if not isinstance(edit, DropHook)]


def _replace_hook(edit: AddHook) -> AddMount:
    """Return the mount that a planned hook makes: that of the driver's parameters.

    Raises:
        Fault: it is another hook.
    """
    if not edit.args[-1].endswith(DRIVER_PARAMS):
        raise Fault(f"a hook cannot add the hook {edit.path}", hint=RUNTIME_HINT)
    return AddMount(edit.args[-2], DRIVER_PARAMS, _PARAMS_MOUNT_OPTIONS, edit.reason, clear_mount_point=False)
