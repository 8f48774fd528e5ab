"""The driver's device nodes: numbers from the kernel, owner from the host's node or the module's parameters.

A host node that does not exist yet (/dev/nvidia-uvm after boot) costs nothing: its numbers are known as
soon as the module is loaded. Cost rule: on the way of every GPU container; two small reads and one lstat
per node.
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.proc import parse_key_value_lines, parse_proc_devices
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.model.machine import DeviceNode

_READ_LIMIT = 1 << 20
_NVIDIA_MAJOR = 195  # Documentation/admin-guide/devices.txt of the kernel: given to NVIDIA for good
_NVIDIA_NAMES = ("nvidia", "nvidia-frontend", "nvidiactl")  # 550.40 renamed "nvidia-frontend"
_STALE_NODE_HINT = "Remove the stale node: nvidia-modprobe makes it anew"

# Path, module, minor, the capability it serves ("" = always). Order as the driver's own tools create them.
CONTROL_NODES = (
    ("/dev/nvidiactl", "nvidia", 255, ""),
    ("/dev/nvidia-uvm", "nvidia-uvm", 0, "compute"),
    ("/dev/nvidia-uvm-tools", "nvidia-uvm", 1, "compute"),
    ("/dev/nvidia-modeset", "nvidia-modeset", 254, "display"),
)


class DeviceMajors:
    """The major numbers that the kernel gave to the driver's modules.

    Attributes:
        majors_by_name: every character device of /proc/devices, name to major.
        nvidia: of /dev/nvidia0 and /dev/nvidiactl; 195 also when /proc/devices does not say it.
        uvm: of nvidia-uvm, given at load time; None when the module is not loaded.
        caps: of nvidia-caps (MIG); None when absent.
        modeset: of /dev/nvidia-modeset; None when the module is not loaded.
        nvidia_loaded: the nvidia module is loaded.
    """

    __slots__ = ("caps", "majors_by_name", "modeset", "nvidia", "nvidia_loaded", "uvm")

    def __init__(self, majors_by_name: dict[str, int], *, modeset: bool = False) -> None:
        self.majors_by_name = majors_by_name
        found = [majors_by_name[name] for name in _NVIDIA_NAMES if name in majors_by_name]
        self.nvidia_loaded = bool(found)
        self.nvidia = found[0] if found else _NVIDIA_MAJOR
        self.uvm = majors_by_name.get("nvidia-uvm")
        self.caps = majors_by_name.get("nvidia-caps")
        self.modeset = majors_by_name.get("nvidia-modeset", self.nvidia if modeset else None)

    def major_of_module(self, module: str) -> int | None:
        """The major of nvidia, nvidia-uvm, nvidia-modeset or nvidia-caps; None when it is not loaded."""
        if module == "nvidia":
            return self.nvidia
        return {"nvidia-uvm": self.uvm, "nvidia-modeset": self.modeset, "nvidia-caps": self.caps}.get(module)

    def owner_of_major(self, major: int) -> str:
        """The name of the device that has this major; "" when nobody has it."""
        return next((name for name, number in self.majors_by_name.items() if number == major), "")


class ModuleParameters:
    """How the module wants its nodes made, from /proc/driver/nvidia/params.

    Attributes:
        mode: permission bits; the file has them in decimal (438 = 0666).
        uid, gid: owner.
        modify_device_files: the driver's user-space parts may make and change nodes (`ModifyDeviceFiles`).
    """

    __slots__ = ("gid", "mode", "modify_device_files", "uid")

    def __init__(self, *, mode: int = 0o666, uid: int = 0, gid: int = 0, modify_device_files: bool = True) -> None:
        self.mode = mode
        self.uid = uid
        self.gid = gid
        self.modify_device_files = modify_device_files


def read_device_majors(host: Host) -> DeviceMajors:
    """The majors of this host; without a readable /proc/devices nothing counts as loaded.

    Drivers up to 545 serve modeset through "nvidia-frontend", so that /proc/devices does not name it; there
    /sys/module tells whether it is loaded.
    """
    names = parse_proc_devices(_read_or_empty(host, "/proc/devices"))
    modeset = "nvidia-modeset" not in names and host.stat_path("/sys/module/nvidia_modeset") is not None
    return DeviceMajors(names, modeset=modeset)


def read_module_parameters(host: Host) -> ModuleParameters:
    """The module's parameters; its built-in defaults (root, 0666) where it says nothing readable."""
    table = parse_key_value_lines(_read_or_empty(host, "/proc/driver/nvidia/params"))
    mode = _parse_uint32(table.get("DeviceFileMode"), 0o666)
    return ModuleParameters(
        mode=mode & 0o777,
        uid=_parse_uint32(table.get("DeviceFileUID"), 0),
        gid=_parse_uint32(table.get("DeviceFileGID"), 0),
        modify_device_files=table.get("ModifyDeviceFiles", "1") != "0",
    )


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
    """The node at `path` with the kernel's numbers.

    Mode and owner come from the host's node where it is the right one, else from `defaults`. A node with
    other numbers
    is left over from an earlier boot or driver: the kernel's numbers win, and `problems` takes a sentence.
    """
    status = host.stat_path(path, follow=False)
    source = host.full_path(path)
    if status is not None:
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(major, minor):
            return DeviceNode(
                path=path,
                major=major,
                minor=minor,
                mode=stat.S_IMODE(status.st_mode) & 0o777,
                uid=status.st_uid,
                gid=status.st_gid,
                exists=True,
                source=source,
            )
        if stat.S_ISCHR(status.st_mode):
            has = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
            problems.append(
                f"{source} is {has}, but the kernel says {major}:{minor}; the kernel's number is used. {hint}"
            )
        else:
            problems.append(
                f"{source} is no character device; the kernel's number {major}:{minor} is used. Remove what is there"
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
    """/dev/nvidia<minor>."""
    return resolve_device_node(host, f"/dev/nvidia{minor}", majors.nvidia, minor, defaults, problems)


def resolve_control_nodes(
    host: Host, majors: DeviceMajors, defaults: ModuleParameters, problems: list[str]
) -> tuple[list[tuple[str, DeviceNode]], list[tuple[str, str, str]]]:
    """The control nodes that can be given, and those that cannot because their module is not loaded.

    Returns:
        ([(capability that the node serves, node)], [(capability, path, module)]); capability "" = always.
    """
    found: list[tuple[str, DeviceNode]] = []
    missing: list[tuple[str, str, str]] = []
    for path, module, minor, capability in CONTROL_NODES:
        major = majors.major_of_module(module)
        if major is None:
            missing.append((capability, path, module))
        else:
            found.append((capability, resolve_device_node(host, path, major, minor, defaults, problems)))
    return found, missing


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


def read_device_node(host: Host, path: str) -> DeviceNode | None:
    """The character device that the host has at `path`, as it is there; None when there is none."""
    status = host.stat_path(path)
    if status is None or not stat.S_ISCHR(status.st_mode):
        return None
    return DeviceNode(
        path=path,
        major=os.major(status.st_rdev),
        minor=os.minor(status.st_rdev),
        mode=stat.S_IMODE(status.st_mode) & 0o777,
        uid=status.st_uid,
        gid=status.st_gid,
        exists=True,
        source=host.full_path(host.resolve_path(path) or path),
    )
