"""Resolve the driver's device nodes: major and minor from the kernel, mode and owner from the host's node.

The majors come from /proc/devices (`read_device_majors`). 195 is assigned to NVIDIA for good. The kernel assigns
the major of nvidia-uvm, of nvidia-caps and of other modules when the module is loaded, so it differs between boots.
A node that the host does not have yet (/dev/nvidia-uvm after boot) is described all the same. Its mode and owner
are then the kernel module's parameters.

Import budget: GPU container.
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.proc import parse_key_value_lines, parse_proc_devices
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.model.machine import DeviceNode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_oci_hook.model.plan_input import AbsentControlNode

_READ_LIMIT = 1 << 20
NVIDIA_MAJOR = 195  # Documentation/admin-guide/devices.txt of the kernel: assigned to NVIDIA for good
_NVIDIA_NAMES = ("nvidia", "nvidia-frontend", "nvidiactl")  # 550.40 renamed "nvidia-frontend"
_STALE_NODE_HINT = "Remove the stale node, so that nvidia-modprobe creates it again"

# Path, module, minor, the capability it serves ("" = always). In the order in which the driver's own tools create them.
CONTROL_NODES = (
    ("/dev/nvidiactl", "nvidia", 255, ""),
    ("/dev/nvidia-uvm", "nvidia-uvm", 0, "compute"),
    ("/dev/nvidia-uvm-tools", "nvidia-uvm", 1, "compute"),
    ("/dev/nvidia-modeset", "nvidia-modeset", 254, "display"),
)


class DeviceMajors:
    """The major numbers that the kernel has assigned to the driver's modules.

    Arguments:
        majors_by_name: every character device of /proc/devices, name to major.
        modeset: nvidia-modeset is loaded although /proc/devices does not list it.

    Attributes:
        nvidia: major of /dev/nvidia0 and /dev/nvidiactl. It is 195 also when /proc/devices does not list it.
        uvm: major of nvidia-uvm, assigned when the module is loaded, or None when it is not loaded.
        caps: major of nvidia-caps (MIG), or None when absent.
        modeset: major of /dev/nvidia-modeset, or None when the module is not loaded.
        nvidia_loaded: the nvidia module is loaded.
    """

    __slots__ = ("caps", "majors_by_name", "modeset", "nvidia", "nvidia_loaded", "uvm")

    def __init__(self, majors_by_name: dict[str, int], *, modeset: bool = False) -> None:
        self.majors_by_name = majors_by_name
        nvidia_majors = [majors_by_name[name] for name in _NVIDIA_NAMES if name in majors_by_name]
        self.nvidia_loaded = bool(nvidia_majors)
        self.nvidia = nvidia_majors[0] if nvidia_majors else NVIDIA_MAJOR
        self.uvm = majors_by_name.get("nvidia-uvm")
        self.caps = majors_by_name.get("nvidia-caps")
        self.modeset = majors_by_name.get("nvidia-modeset", self.nvidia if modeset else None)

    def major_of_module(self, module: str) -> int | None:
        """Return the major of nvidia, nvidia-uvm, nvidia-modeset or nvidia-caps, or None when it is not loaded."""
        if module == "nvidia":
            return self.nvidia
        return {"nvidia-uvm": self.uvm, "nvidia-modeset": self.modeset, "nvidia-caps": self.caps}.get(module)

    def owner_of_major(self, major: int) -> str:
        """Return the name of the device that has this major, or "" when the major is free."""
        return next((name for name, number in self.majors_by_name.items() if number == major), "")


class ModuleParameters:
    """Mode and owner that the kernel module nvidia wants for its nodes, from /proc/driver/nvidia/params.

    Attributes:
        mode: permission bits, which the file has in decimal (438 = 0666).
        uid, gid: owner.
        modify_device_files: the driver's user-space parts may create and change nodes (`ModifyDeviceFiles`).
    """

    __slots__ = ("gid", "mode", "modify_device_files", "uid")

    def __init__(self, *, mode: int = 0o666, uid: int = 0, gid: int = 0, modify_device_files: bool = True) -> None:
        self.mode = mode
        self.uid = uid
        self.gid = gid
        self.modify_device_files = modify_device_files


def read_device_majors(host: Host) -> DeviceMajors:
    """Read the majors from /proc/devices. When it is unreadable, no module counts as loaded.

    Drivers up to 545 serve modeset through "nvidia-frontend", so /proc/devices does not name it. There
    /sys/module/nvidia_modeset shows whether it is loaded.
    """
    names = parse_proc_devices(_read_or_empty(host, "/proc/devices"))
    modeset = "nvidia-modeset" not in names and host.stat_path("/sys/module/nvidia_modeset") is not None
    return DeviceMajors(names, modeset=modeset)


def read_module_parameters(host: Host) -> ModuleParameters:
    """Read the module's parameters. A missing or invalid one has the module's default (root, 0666)."""
    table = parse_key_value_lines(_read_or_empty(host, "/proc/driver/nvidia/params"))
    mode = _parse_uint32(table.get("DeviceFileMode"), 0o666)
    return ModuleParameters(
        mode=mode & 0o777,
        uid=_parse_uint32(table.get("DeviceFileUID"), 0),
        gid=_parse_uint32(table.get("DeviceFileGID"), 0),
        modify_device_files=table.get("ModifyDeviceFiles", "1") != "0",
    )


def find_unusable_nodes(host: Host, nodes: list[tuple[str, int, int]], *, mig: bool = False) -> dict[str, str]:
    """Find the device nodes that cannot be given to a container here, with the reasons.

    This is the one rule for which GPUs and MIG devices there are: shim, `list`, `explain` and `cdi generate` use it. A
    node can be given if it is there, has the kernel's numbers, and may be opened: in a container, the driver's files
    below /proc show every GPU of the machine, but only some have nodes, and the device cgroup may deny those.
    A plain file counts as a node without numbers. The driver's tools create the nodes of all GPUs when the first one is
    used: without any of them the machine has just started, and all can be given whose numbers the device cgroup
    allows. They create the node of a MIG capability when that one is used, so there each missing node is asked about.

    Arguments:
        nodes: (path, major, minor) of all GPUs, or of capabilities.
        mig: they are nodes of MIG capabilities, which programs open for reading only.

    Returns:
        The reason by path, as a part of a sentence; usable nodes are not in it.
    """
    for path, major, minor in nodes:
        status = host.stat_path(path, follow=False)
        if status is None or not _has_numbers(status, major, minor) or not host.can_open_node(path, write=not mig):
            from gpu_oci_hook.host.node_access import explain_unusable_nodes

            return explain_unusable_nodes(host, nodes, mig=mig)
    return {}


def explain_optional_node_access(host: Host, path: str, major: int, minor: int) -> str:
    """Return why a container that gets this node here could not open it, "" if it could; see `find_unusable_nodes`."""
    return find_unusable_nodes(host, [(path, major, minor)], mig=True).get(path, "")


def _has_numbers(status: os.stat_result, major: int, minor: int) -> bool:
    """Tell whether a file is the character device of these numbers, or a plain file in its place."""
    if stat.S_ISCHR(status.st_mode):
        return status.st_rdev == os.makedev(major, minor)
    return stat.S_ISREG(status.st_mode)


def resolve_device_node(
    host: Host,
    path: str,
    major: int,
    minor: int,
    defaults: ModuleParameters,
    problems: list[str],
    *,
    hint: str = _STALE_NODE_HINT,
) -> DeviceNode:
    """Return the node at `path` with the kernel's numbers.

    Mode and owner come from the host's node if its numbers match, else from `defaults`. A node with other numbers
    is stale, left from an earlier boot or driver: the kernel's numbers are used.

    Arguments:
        problems: receives a sentence about a stale node, or about another file at that path.
        hint: the advice at the end of the sentence about a stale node.
    """
    status = host.stat_path(path, follow=False)
    source = host.full_path(path)
    if status is not None:
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(major, minor):
            return make_existing_node(path, source, status)
        if stat.S_ISCHR(status.st_mode):
            stale_numbers = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
            problems.append(
                f"{source} is {stale_numbers}, but the kernel's number is {major}:{minor}, which is used. {hint}"
            )
        else:
            problems.append(
                f"{source} is not a character device. The kernel's number {major}:{minor} is used. Remove the file"
            )
    return DeviceNode(
        path=path,
        major=major,
        minor=minor,
        mode=defaults.mode,
        uid=defaults.uid,
        gid=defaults.gid,
        exists=False,
        source=source,
    )


def resolve_gpu_node(
    host: Host, majors: DeviceMajors, minor: int, defaults: ModuleParameters, problems: list[str]
) -> DeviceNode:
    """Return the node /dev/nvidia<minor> like `resolve_device_node`."""
    return resolve_device_node(host, f"/dev/nvidia{minor}", majors.nvidia, minor, defaults, problems)


def resolve_control_nodes(
    host: Host, majors: DeviceMajors, defaults: ModuleParameters, problems: list[str]
) -> tuple[list[tuple[str, DeviceNode]], list[AbsentControlNode]]:
    """Return the control nodes, and those whose module is not loaded or that may not be opened here.

    Returns:
        ([(capability that the node serves, node)], [(capability, path, module, reason)]); capability "" = always.
    """
    nodes: list[tuple[str, DeviceNode]] = []
    absent: list[AbsentControlNode] = []
    for path, module, minor, capability in CONTROL_NODES:
        major = majors.major_of_module(module)
        if major is None:
            absent.append((capability, path, module, ""))
            continue
        node = resolve_device_node(host, path, major, minor, defaults, problems)
        # One node is asked about by itself: a missing one can be made if the device cgroup allows its number.
        reason = (
            ""
            if node.exists and host.can_open_node(path)
            else find_unusable_nodes(host, [(path, major, minor)]).get(path, "")
        )
        if reason:
            absent.append((capability, path, module, reason))
        else:
            nodes.append((capability, node))
    return nodes, absent


def find_uncreated_nodes(
    host: Host, majors: DeviceMajors, first_minor: int | None, capabilities: Iterable[str]
) -> dict[str, tuple[str, ...]]:
    """Find the nodes that loaded modules lack here: missing ones, and those with the numbers of an earlier boot.

    The driver's tools create the nodes of all GPUs when the first one is used, so one GPU stands for all.

    Arguments:
        first_minor: minor number of a GPU that can be given to containers; None without one.
        capabilities: driver capabilities; nodes that serve none of them do not count.

    Returns:
        The paths of the nodes by module.
    """
    wanted = set(capabilities)
    serving = {"": True, "compute": wanted & {"compute", "video"}, "display": wanted & {"display", "graphics"}}
    nodes = [(path, module, minor) for path, module, minor, capability in CONTROL_NODES if serving[capability]]
    if first_minor is not None:
        nodes.append((f"/dev/nvidia{first_minor}", "nvidia", first_minor))
    found: dict[str, tuple[str, ...]] = {}
    for path, module, minor in nodes:
        major = majors.major_of_module(module)
        if major is None or (module == "nvidia" and not majors.nvidia_loaded):
            continue
        status = host.stat_path(path, follow=False)
        if status is None or (stat.S_ISCHR(status.st_mode) and status.st_rdev != os.makedev(major, minor)):
            found[module] = (*found.get(module, ()), path)
    return found


def read_device_node(host: Host, path: str) -> DeviceNode | None:
    """Return the character device at `path` with the host's numbers, or None when the host has none there."""
    status = host.stat_path(path)
    if status is None or not stat.S_ISCHR(status.st_mode):
        return None
    return make_existing_node(path, host.full_path(host.resolve_path(path) or path), status)


def is_null_device(path: str) -> bool:
    """Tell whether a path in this process leads to the device of /dev/null."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return False
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(1, 3)


def make_existing_node(path: str, source: str, status: os.stat_result) -> DeviceNode:
    """Build the description of a node that the host has, from its status and its path in this process."""
    return DeviceNode(
        path=path,
        major=os.major(status.st_rdev),
        minor=os.minor(status.st_rdev),
        mode=stat.S_IMODE(status.st_mode) & 0o777,
        uid=status.st_uid,
        gid=status.st_gid,
        exists=True,
        source=source,
    )


def _parse_uint32(text: str | None, default: int) -> int:
    if text and text.isascii() and text.isdigit() and len(text) <= 10:
        number = int(text)
        if number < 1 << 32:
            return number
    return default


def _read_or_empty(host: Host, path: str) -> bytes:
    try:
        data = host.read_file(path, _READ_LIMIT)
    except Fault:
        return b""
    return data or b""
