"""Make the links /dev/char/MAJOR:MINOR of injected nodes, so that systemd keeps them after `systemctl daemon-reload`.

runc 1.1.3 to 1.1.6 leaves out of the scope's DeviceAllow every device that has neither such a link nor an entry below
/sys/dev, and the NVIDIA driver's nodes have neither (facts: runc-device-links). The container can open the node until
systemd applies the rules that it knows: after `systemctl daemon-reload`, or when another property of the scope changes.
udev makes these links for the devices of other drivers.

This costs one `stat` for each node. Nothing is done on a host that systemd has not booted, or for a container whose
cgroup systemd does not manage.

Import budget: GPU container.
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook.errors import describe_os_error
from gpu_oci_hook.formats.oci import get_member, has_user_namespace
from gpu_oci_hook.model.edits import AddDeviceNode, AddDeviceRule, AddMount
from gpu_oci_hook.model.file_edits import AddHostLink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_oci_hook.model.edits import Edit, Plan

    # Type ("c" or "b"), major, minor, and the path of the node on the host.
    DeviceNumbers = tuple[str, int, int, str]

DEVICE_DIR = "/dev"
SYSTEMD_BOOTED_PATH = "/run/systemd/system"  # sd_booted(3); runc and crun look at it too
LINK_REASON = "runc 1.1.3 to 1.1.6 tells systemd only about devices with such a link"
_LOSS_TEXT = "With runc 1.1.3 to 1.1.6 the container loses the device at the next systemctl daemon-reload"


def plan_device_links(spec: object, edits: list[Edit]) -> tuple[list[Edit], list[str]]:
    """Plan the missing links of the nodes that the edits inject. The host is this machine.

    Returns:
        The edits, and a sentence for each node that cannot get a link.
    """
    if not _may_use_systemd_cgroup(spec):
        return [], []
    if os.geteuid() != 0 and has_user_namespace(spec):
        return [], []  # a rootless container: systemd enforces no device rules for it
    return find_missing_links(_list_injected_devices(edits))


def _may_use_systemd_cgroup(spec: object) -> bool:
    """Tell whether systemd may manage the container's cgroup.

    Engines then name it SLICE:PREFIX:NAME. Without a name the command line of the low-level runtime decides.
    """
    path = get_member(spec, "linux", "cgroupsPath")
    return not path or (isinstance(path, str) and path.count(":") == 2)


def find_missing_links(devices: Iterable[DeviceNumbers]) -> tuple[list[Edit], list[str]]:
    """Find the devices without a link, on a host that systemd has booted.

    Returns:
        An edit for each link to make, and a sentence for each device whose node the host lacks.
    """
    if not os.path.isdir(SYSTEMD_BOOTED_PATH):
        return [], []
    links: list[Edit] = []
    problems: list[str] = []
    for node_type, major, minor, path in dict.fromkeys(devices):
        name = f"{'block' if node_type == 'b' else 'char'}/{major}:{minor}"
        link = f"{DEVICE_DIR}/{name}"
        if os.path.exists(link):
            continue
        if _is_device(path, node_type, major, minor):
            target = f"../{path[len(DEVICE_DIR) + 1 :]}" if path.startswith(f"{DEVICE_DIR}/") else path
            links.append(AddHostLink(link, target, LINK_REASON))
        elif not os.path.exists(f"/sys/dev/{name}"):
            problems.append(f"{link} cannot be made, as the host has no {path}. {_LOSS_TEXT}")
    return links, problems


def make_device_links(plan: Plan) -> list[str]:
    """Make the links of a plan; one that cannot be made adds a warning to the plan.

    Returns:
        A line for each link that was made.
    """
    changes: list[str] = []
    for edit in plan.edits:
        if not isinstance(edit, AddHostLink):
            continue
        try:
            _make_link(edit.path, edit.target)
        except OSError as error:
            reason = describe_os_error(error, writing=True)
            plan.warnings.append(f"{edit.path} cannot be made: {reason}. {_LOSS_TEXT}")
        else:
            changes.append(f"linked {edit.path} to {edit.target}")
    return changes


def _make_link(path: str, target: str) -> None:
    try:
        os.symlink(target, path)
    except FileExistsError:
        if os.path.exists(path):
            return  # another start has made it
        os.unlink(path)  # it leads to a node that is gone
        os.symlink(target, path)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        os.symlink(target, path)


def _list_injected_devices(edits: list[Edit]) -> list[DeviceNumbers]:
    """List the devices that device rules allow. The edit before a rule brings the node."""
    devices: list[DeviceNumbers] = []
    previous: Edit | None = None
    for edit in edits:
        if isinstance(edit, AddDeviceRule):
            if isinstance(previous, AddDeviceNode):
                devices.append((edit.type, edit.major, edit.minor, previous.path))
            elif isinstance(previous, AddMount):
                devices.append((edit.type, edit.major, edit.minor, previous.source))
        previous = edit
    return devices


def _is_device(path: str, node_type: str, major: int, minor: int) -> bool:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return False
    is_type = stat.S_ISBLK(status.st_mode) if node_type == "b" else stat.S_ISCHR(status.st_mode)
    return is_type and status.st_rdev == os.makedev(major, minor)
