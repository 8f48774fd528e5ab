"""The driver's device nodes: numbers from the kernel, owner from the host's node or the module's parameters.

A host node that does not exist yet (/dev/nvidia-uvm after boot) costs nothing: its numbers are known as
soon as the module is loaded. Cost rule: on the way of every GPU container; two small reads and one lstat
per node.
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats import proc
from gpu_oci_hook.host.inventory import Node
from gpu_oci_hook.host.root import Host

_LIMIT = 1 << 20
_NVIDIA_MAJOR = 195  # Documentation/admin-guide/devices.txt of the kernel: given to NVIDIA for good
_NVIDIA_NAMES = ("nvidia", "nvidia-frontend", "nvidiactl")  # 550.40 renamed "nvidia-frontend"
_CURE = "Remove the stale node: nvidia-modprobe makes it anew"

# Path, module, minor, the capability it serves ("" = always). Order as the driver's own tools create them.
CONTROL = (
    ("/dev/nvidiactl", "nvidia", 255, ""),
    ("/dev/nvidia-uvm", "nvidia-uvm", 0, "compute"),
    ("/dev/nvidia-uvm-tools", "nvidia-uvm", 1, "compute"),
    ("/dev/nvidia-modeset", "nvidia-modeset", 254, "display"),
)


class Majors:
    """The major numbers that the kernel gave to the driver's modules.

    Attributes:
        names: every character device of /proc/devices, name to major.
        nvidia: of /dev/nvidia0 and /dev/nvidiactl; 195 also when /proc/devices does not say it.
        uvm: of nvidia-uvm, given at load time; None when the module is not loaded.
        caps: of nvidia-caps (MIG); None when absent.
        modeset: of /dev/nvidia-modeset; None when the module is not loaded.
        loaded: the nvidia module is loaded.
    """

    __slots__ = ("caps", "loaded", "modeset", "names", "nvidia", "uvm")

    def __init__(self, names: dict[str, int], *, modeset: bool = False) -> None:
        self.names = names
        found = [names[name] for name in _NVIDIA_NAMES if name in names]
        self.loaded = bool(found)
        self.nvidia = found[0] if found else _NVIDIA_MAJOR
        self.uvm = names.get("nvidia-uvm")
        self.caps = names.get("nvidia-caps")
        self.modeset = names.get("nvidia-modeset", self.nvidia if modeset else None)

    def of(self, module: str) -> int | None:
        """The major of nvidia, nvidia-uvm, nvidia-modeset or nvidia-caps; None when it is not loaded."""
        if module == "nvidia":
            return self.nvidia
        return {"nvidia-uvm": self.uvm, "nvidia-modeset": self.modeset, "nvidia-caps": self.caps}.get(module)

    def owner(self, major: int) -> str:
        """The name of the device that has this major; "" when nobody has it."""
        return next((name for name, number in self.names.items() if number == major), "")


class Params:
    """How the module wants its nodes made, from /proc/driver/nvidia/params.

    Attributes:
        mode: permission bits; the file has them in decimal (438 = 0666).
        uid, gid: owner.
        modify: the driver's user-space parts may make and change nodes (`ModifyDeviceFiles`).
    """

    __slots__ = ("gid", "mode", "modify", "uid")

    def __init__(self, *, mode: int = 0o666, uid: int = 0, gid: int = 0, modify: bool = True) -> None:
        self.mode = mode
        self.uid = uid
        self.gid = gid
        self.modify = modify


def majors(host: Host) -> Majors:
    """The majors of this host; without a readable /proc/devices nothing counts as loaded.

    Drivers up to 545 serve modeset through "nvidia-frontend", so that /proc/devices does not name it; there
    /sys/module tells whether it is loaded.
    """
    names = proc.devices(_bytes(host, "/proc/devices"))
    modeset = "nvidia-modeset" not in names and host.status("/sys/module/nvidia_modeset") is not None
    return Majors(names, modeset=modeset)


def params(host: Host) -> Params:
    """The module's parameters; its built-in defaults (root, 0666) where it says nothing readable."""
    table = proc.params(_bytes(host, "/proc/driver/nvidia/params"))
    mode = _number(table.get("DeviceFileMode"), 0o666)
    return Params(
        mode=mode & 0o777,
        uid=_number(table.get("DeviceFileUID"), 0),
        gid=_number(table.get("DeviceFileGID"), 0),
        modify=table.get("ModifyDeviceFiles", "1") != "0",
    )


def node(
    host: Host, path: str, major: int, minor: int, defaults: Params, problems: list[str], *, cure: str = _CURE
) -> Node:
    """The node at `path` with the kernel's numbers.

    Mode and owner come from the host's node where it is the right one, else from `defaults`. A node with
    other numbers
    is left over from an earlier boot or driver: the kernel's numbers win, and `problems` takes a sentence.
    """
    status = host.status(path, follow=False)
    source = host.path(path)
    if status is not None:
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(major, minor):
            return Node(
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
                f"{source} is {has}, but the kernel says {major}:{minor}; the kernel's number is used. "
                f"{cure}"
            )
        else:
            problems.append(
                f"{source} is no character device; the kernel's number {major}:{minor} is used. Remove what is there"
            )
    return Node(
        path=path,
        major=major,
        minor=minor,
        mode=defaults.mode,
        uid=defaults.uid,
        gid=defaults.gid,
        exists=False,
        source=source,
    )


def gpu_node(host: Host, numbers: Majors, minor: int, defaults: Params, problems: list[str]) -> Node:
    """/dev/nvidia<minor>."""
    return node(host, f"/dev/nvidia{minor}", numbers.nvidia, minor, defaults, problems)


def control_nodes(
    host: Host, numbers: Majors, defaults: Params, problems: list[str]
) -> tuple[list[tuple[str, Node]], list[tuple[str, str, str]]]:
    """The control nodes that can be given, and those that cannot because their module is not loaded.

    Returns:
        ([(capability that the node serves, node)], [(capability, path, module)]); capability "" = always.
    """
    found: list[tuple[str, Node]] = []
    missing: list[tuple[str, str, str]] = []
    for path, module, minor, capability in CONTROL:
        major = numbers.of(module)
        if major is None:
            missing.append((capability, path, module))
        else:
            found.append((capability, node(host, path, major, minor, defaults, problems)))
    return found, missing


def _number(text: str | None, default: int) -> int:
    if text and text.isascii() and text.isdigit() and len(text) <= 10:
        number = int(text)
        if number < 1 << 32:
            return number
    return default


def _bytes(host: Host, path: str) -> bytes:
    try:
        data = host.read(path, _LIMIT)
    except Fault:
        return b""
    return data or b""


def present(host: Host, path: str) -> Node | None:
    """The character device that the host has at `path`, as it is there; None when there is none."""
    status = host.status(path)
    if status is None or not stat.S_ISCHR(status.st_mode):
        return None
    return Node(
        path=path,
        major=os.major(status.st_rdev),
        minor=os.minor(status.st_rdev),
        mode=stat.S_IMODE(status.st_mode) & 0o777,
        uid=status.st_uid,
        gid=status.st_gid,
        exists=True,
        source=host.path(host.resolve(path) or path),
    )
