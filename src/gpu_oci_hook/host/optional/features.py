"""Nodes and files of what is switched on beside GPUs: GPUDirect Storage, RDMA, GDRCopy, NVSwitch, IMEX channels.

A node counts only when its number belongs to the module that it is named after: a stale one could be any other
device by now. Cost rule: imported only for a request that has such a thing; one listing and one lstat per node.
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host.device_nodes import make_existing_node
from gpu_oci_hook.model.machine import DeviceNode, DriverFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.device_nodes import DeviceMajors
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.optional_devices import OptionalItems
    from gpu_oci_hook.model.request import FeatureRequest, ImexChannelRange

IMEX_CHANNEL_DIRECTORY = "/dev/nvidia-caps-imex-channels"
IMEX_CHANNEL_MODULE = "nvidia-caps-imex-channels"
_MISC = "misc"

# Key in [inject]; (directory, what names begin with, whether a number follows, name in /proc/devices) of its nodes;
# (kind, path) of its files; what brings it onto a machine. Toolkit facts 3.13. The names are those that the modules
# register: nvidia-fs, gdrdrv and nvidia-nvswitch their own, verbs "infiniband_verbs", rdma_cm a misc device.
FEATURES = (
    (
        "gds",
        (("/dev", "nvidia-fs", True, "nvidia-fs"),),
        (("config", "/etc/cufile.json"), ("tree", "/run/udev")),
        "Load the kernel module: modprobe nvidia-fs",
    ),
    (
        "mofed",
        (
            ("/dev/infiniband", "uverbs", True, "infiniband_verbs"),
            ("/dev/infiniband", "rdma_cm", False, _MISC),
        ),
        (),
        "Load the kernel modules: modprobe ib_uverbs, modprobe rdma_ucm",
    ),
    ("gdrcopy", (("/dev", "gdrdrv", False, "gdrdrv"),), (), "Load the kernel module: modprobe gdrdrv"),
    (
        "nvswitch",
        (
            ("/dev", "nvidia-nvswitchctl", False, "nvidia-nvswitch"),
            ("/dev", "nvidia-nvswitch", True, "nvidia-nvswitch"),
        ),
        (),
        "Start the fabric manager; a machine without NVSwitch has no such devices",
    ),
)


class HostFeature:
    """What a host has of one feature.

    Attributes:
        key: its name in [inject]. nodes, files: what is there.
        absent: (path or pattern, why) of what is not there or does not count.
        hint: what brings it onto a machine.
    """

    __slots__ = ("absent", "files", "hint", "key", "nodes")

    def __init__(self, key: str, hint: str) -> None:
        self.key = key
        self.hint = hint
        self.nodes: list[DeviceNode] = []
        self.files: list[DriverFile] = []
        self.absent: list[tuple[str, str]] = []


def find_feature(host: Host, driver: Host, majors: DeviceMajors, key: str) -> HostFeature:
    """What this host has of a feature.

    Arguments:
        host: the machine. driver: the root with the driver's files; files are looked for in both.
    """
    _, nodes, files, cure = next(row for row in FEATURES if row[0] == key)
    found = HostFeature(key, cure)
    for directory, begin, numbered, module in nodes:
        hits = seen = 0
        for name in sorted(host.list_names(directory), key=_natural_sort_key):
            rest = name[len(begin) :]
            if not name.startswith(begin) or (not rest.isdigit() if numbered else bool(rest)):
                continue
            path = f"{directory}/{name}"
            seen += 1
            node, why = inspect_device_node(host, majors, path, module)
            if node is None:
                found.absent.append((path, why))
            else:
                hits += 1
                found.nodes.append(node)
        lacks = majors.majors_by_name and module not in majors.majors_by_name
        if not hits and (lacks or not seen):
            why = f"no {module} in /proc/devices, so its kernel module is not loaded" if lacks else "the host has none"
            found.absent.append((f"{directory}/{begin}{'*' if numbered else ''}", why))
    for kind, path in files:
        for root in (host, driver):
            file = _find_feature_file(root, kind, path)
            if file is not None:
                found.files.append(file)
                break
        else:
            found.absent.append((path, "the host has none"))
    return found


def inspect_device_node(host: Host, majors: DeviceMajors, path: str, *modules: str) -> tuple[DeviceNode | None, str]:
    """The host's node at a path as it is; or None and the reason why it does not count.

    Arguments:
        modules: names in /proc/devices of which one must own the node's major number.
    """
    status = host.stat_path(path, follow=False)
    if status is None or not stat.S_ISCHR(status.st_mode):
        return None, "it is no character device" if status is not None else "the host has none"
    major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
    owner = majors.owner_of_major(major)
    # The kernel names the verbs' second range of numbers like the first, and we know but one number for a name.
    if majors.majors_by_name and owner not in modules and (owner or "infiniband_verbs" not in modules):
        return None, f"its number {major}:{minor} belongs to {owner or 'no module'}, so it is left from an earlier boot"
    shared = _read_misc_minors(host).get(minor, "") if owner == _MISC else ""
    if owner == _MISC and shared != path.rpartition("/")[2]:
        return None, f"its number {major}:{minor} belongs to {shared or 'nobody'}, so it is left from an earlier boot"
    return make_existing_node(path, host.full_path(path), status), ""


def _read_misc_minors(host: Host) -> dict[int, str]:
    """The devices that share one major number, by the minor that each got when it was loaded; from /proc/misc."""
    try:
        text = (host.read_file("/proc/misc", 65536) or b"").decode("utf-8", "replace")
    except Fault:
        return {}
    rows = [line.split(None, 1) for line in text.split("\n")]
    return {int(row[0]): row[1].strip() for row in rows if len(row) == 2 and row[0].isdecimal() and len(row[0]) < 8}


def add_features(
    items: OptionalItems,
    host: Host,
    driver: Host,
    majors: DeviceMajors,
    features: tuple[FeatureRequest, ...],
    channels: tuple[ImexChannelRange, ...],
) -> None:
    """Puts the features and channels of a request among the extras.

    Raises:
        Fault: the container asks for one that the host does not have; says what the host has.
    """
    for feature in features:
        found = find_feature(host, driver, majors, feature.key)
        if not found.nodes:
            what = "; ".join(f"{path}: {why}" for path, why in found.absent if path.startswith("/dev/"))
            verb, pronoun = ("are", "them") if feature.title.endswith("devices") else ("is", "it")
            if feature.required:
                raise Fault(
                    f"{feature.title} {verb} asked for, and this host cannot give {pronoun}: {what}",
                    where=feature.origin,
                    hint=f"{found.hint}. {_describe_host_features(host, driver, majors)}",
                )
            items.withheld.append(("request", feature.title, f"{feature.origin}, but {what}"))
            items.warnings.append(f"{feature.title} {verb} not given: {what}")
            continue
        reason = f"{feature.title}: {feature.origin}"
        items.nodes += [(node, reason) for node in found.nodes]
        items.files += [(file, reason) for file in found.files]
        items.withheld += [("file", path, f"{why} ({feature.title})") for path, why in found.absent]
    if channels:
        _add_imex_channels(items, host, majors, channels)


def find_imex_channels(host: Host, majors: DeviceMajors) -> tuple[dict[int, DeviceNode], list[tuple[str, str]]]:
    """The IMEX channels that exist, by number, and (path, why) of nodes that do not count."""
    found: dict[int, DeviceNode] = {}
    absent: list[tuple[str, str]] = []
    for name in host.list_names(IMEX_CHANNEL_DIRECTORY):
        number = name.removeprefix("channel")
        if number == name or not (number.isascii() and number.isdigit()) or len(number) > 7:
            continue
        path = f"{IMEX_CHANNEL_DIRECTORY}/{name}"
        node, why = inspect_device_node(host, majors, path, IMEX_CHANNEL_MODULE)
        if node is None:
            absent.append((path, why))
        elif node.minor != int(number):
            absent.append((path, f"its number is {node.major}:{node.minor}, so it is another channel"))
        else:
            found[int(number)] = node
    return dict(sorted(found.items())), absent


def _add_imex_channels(
    items: OptionalItems, host: Host, majors: DeviceMajors, channels: tuple[ImexChannelRange, ...]
) -> None:
    """Channels are given only where the host has their nodes: making one is how a machine is granted a channel."""
    there, absent = find_imex_channels(host, majors)
    given: set[int] = set()
    for span in channels:
        hits = [number for number in there if span.first <= number <= span.last]
        complete = bool(hits) if span.is_all else len(hits) == span.last - span.first + 1
        if not complete and span.required:
            stale = "".join(f"; {path}: {why}" for path, why in absent[:4])
            if span.is_all:
                what = "this host has no IMEX channel"
            elif span.first == span.last:
                what = f"this host has no IMEX channel {span.first}"
            else:
                count = span.last - span.first + 1 - len(hits)
                what = f"this host lacks {count} of the IMEX channels {span.first} to {span.last}"
            if majors.majors_by_name and IMEX_CHANNEL_MODULE not in majors.majors_by_name:
                what += f" (no {IMEX_CHANNEL_MODULE} in /proc/devices: this driver has no IMEX)"
            exists = (
                f"Channels that exist: {format_number_ranges(list(there))}"
                if there
                else f"{IMEX_CHANNEL_DIRECTORY} has none"
            )
            raise Fault(
                what + stale,
                where=span.origin,
                hint=f"{exists}. Another one is made by root: nvidia-modprobe -i N, or by the IMEX daemon's set-up",
            )
        if not complete:
            items.withheld.append(("request", "IMEX channels", f"{span.origin}, but this host has none"))
        for number in hits if len(given) < len(there) else ():
            if number not in given:
                given.add(number)
                items.nodes.append((there[number], f"IMEX channel {number}: {span.origin}"))


def format_number_ranges(numbers: list[int]) -> str:
    """Sorted numbers in words: "0-3, 7"; at most sixteen parts."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    shown = [f"{first}" if first == last else f"{first}-{last}" for first, last in parts[:16]]
    return ", ".join(shown) + (f" and {len(parts) - 16} more ranges" if len(parts) > 16 else "")


def _describe_host_features(host: Host, driver: Host, majors: DeviceMajors) -> str:
    """What there is of all features, in one sentence."""
    found = [find_feature(host, driver, majors, row[0]) for row in FEATURES]
    there = [f"{one.key} ({', '.join(node.path for node in one.nodes[:4])})" for one in found if one.nodes]
    return f"This host has {', '.join(there)}" if there else "This host has none of gds, mofed, gdrcopy and nvswitch"


def _find_feature_file(host: Host, kind: str, path: str) -> DriverFile | None:
    real = host.resolve_path(path)
    status = host.stat_path(real) if real is not None else None
    if real is None or status is None:
        return None
    right = stat.S_ISDIR(status.st_mode) if kind == "tree" else stat.S_ISREG(status.st_mode)
    if not right:
        return None
    name = path.rpartition("/")[2]
    return DriverFile(
        kind=kind, capability="", path=real, source=host.full_path(real), name=name, container_path=path, found_in=path
    )


def _natural_sort_key(name: str) -> tuple[str, int]:
    """Sorts nvidia-fs2 before nvidia-fs10."""
    letters = name.rstrip("0123456789")
    digits = name[len(letters) :]
    return letters, int(digits) if digits and len(digits) < 10 else -1
