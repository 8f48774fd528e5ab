"""Find the nodes and files of optional features: GPUDirect Storage, RDMA, GDRCopy, NVSwitch, IMEX channels.

A node is used only if its number belongs to the module that it is named after. A stale node could be any other device.

Import budget: GPU container.
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.proc import parse_small_number
from gpu_oci_hook.host.device_nodes import explain_optional_node_access, make_existing_node
from gpu_oci_hook.model.machine import DriverFile
from gpu_oci_hook.request.selectors import format_ranges

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.device_nodes import DeviceMajors
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.machine import DeviceNode
    from gpu_oci_hook.model.optional_devices import OptionalItems
    from gpu_oci_hook.model.request import FeatureRequest, ImexChannelRange

IMEX_CHANNEL_DIRECTORY = "/dev/nvidia-caps-imex-channels"
IMEX_CHANNEL_MODULE = "nvidia-caps-imex-channels"
NOT_A_CHARACTER_DEVICE = "it is not a character device"
_MISSING = "the host has none"
_MISC = "misc"

# Key in [inject]; its nodes: (directory, name prefix, whether a number follows, name in /proc/devices); its files:
# (kind, path); hint. The modules register these names (facts: optional-feature-nodes).
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
    """The nodes and files that a host has for one feature.

    Attributes:
        key: its name in [inject].
        nodes, files: those that exist.
        absent: (path or pattern, reason) of those that do not exist or are not used.
        hint: how to get the feature's nodes.
    """

    __slots__ = ("absent", "files", "hint", "key", "nodes")

    def __init__(self, key: str, hint: str) -> None:
        self.key = key
        self.hint = hint
        self.nodes: list[DeviceNode] = []
        self.files: list[DriverFile] = []
        self.absent: list[tuple[str, str]] = []


def find_feature(host: Host, driver: Host, majors: DeviceMajors, key: str) -> HostFeature:
    """Find the nodes and files that this host has for a feature.

    Arguments:
        host: the machine. driver: the root with the driver's files. Files are searched in both.
    """
    _, node_patterns, files, hint = next(row for row in FEATURES if row[0] == key)
    feature = HostFeature(key, hint)
    for pattern in node_patterns:
        _find_feature_nodes(feature, host, majors, *pattern)
    for kind, path in files:
        for root in (host, driver):
            file = _find_feature_file(root, kind, path)
            if file is not None:
                feature.files.append(file)
                break
        else:
            feature.absent.append((path, _MISSING))
    return feature


def _find_feature_nodes(
    feature: HostFeature, host: Host, majors: DeviceMajors, directory: str, prefix: str, numbered: bool, module: str
) -> None:
    """Add the nodes of one pattern of FEATURES, or the reasons why there are none."""
    count = used_count = 0
    for name in sorted(host.list_names(directory), key=_natural_sort_key):
        suffix = name[len(prefix) :]
        if not name.startswith(prefix) or (not suffix.isdigit() if numbered else bool(suffix)):
            continue
        path = f"{directory}/{name}"
        count += 1
        node, reason = inspect_device_node(host, majors, path, module)
        if node is None:
            feature.absent.append((path, reason))
        else:
            used_count += 1
            feature.nodes.append(node)
    not_loaded = majors.majors_by_name and module not in majors.majors_by_name
    if not used_count and (not_loaded or not count):
        reason = f"no {module} in /proc/devices, so its kernel module is not loaded" if not_loaded else _MISSING
        feature.absent.append((f"{directory}/{prefix}{'*' if numbered else ''}", reason))


def inspect_device_node(host: Host, majors: DeviceMajors, path: str, *modules: str) -> tuple[DeviceNode | None, str]:
    """Return the host's node at a path and "", or None and the reason why it is not used.

    Arguments:
        modules: names in /proc/devices. One of them must own the node's major number.
    """
    status = host.stat_path(path, follow=False)
    if status is None:
        return None, _MISSING
    if not stat.S_ISCHR(status.st_mode):
        return None, NOT_A_CHARACTER_DEVICE
    major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
    owner = majors.owner_of_major(major)
    # The verbs have a second major under the same name, which `majors_by_name` lacks (facts: uverbs-second-range).
    if majors.majors_by_name and owner not in modules and (owner or "infiniband_verbs" not in modules):
        return None, f"its number {major}:{minor} belongs to {owner or 'no module'}, so it is left from an earlier boot"
    access = explain_optional_node_access(host, path, major, minor)
    if access:
        return None, access
    misc_owner = _read_misc_minors(host).get(minor, "") if owner == _MISC else ""
    if owner == _MISC and misc_owner != path.rpartition("/")[2]:
        misc_owner = misc_owner or "no device"
        return None, f"its number {major}:{minor} belongs to {misc_owner}, so it is left from an earlier boot"
    return make_existing_node(path, host.full_path(path), status), ""


def _read_misc_minors(host: Host) -> dict[int, str]:
    """Read the devices that share the major number of "misc", by minor, from /proc/misc."""
    try:
        text = (host.read_file("/proc/misc", 65536) or b"").decode("utf-8", "replace")
    except Fault:
        return {}
    rows = [line.split(None, 1) for line in text.split("\n")]
    return {parse_small_number(row[0]): row[1].strip() for row in rows if len(row) == 2}


def add_features(
    items: OptionalItems,
    host: Host,
    driver: Host,
    majors: DeviceMajors,
    features: tuple[FeatureRequest, ...],
    channels: tuple[ImexChannelRange, ...],
) -> None:
    """Add the features and IMEX channels of a request.

    Raises:
        Fault: the container requests one that the host does not have. The hint lists those that it has.
    """
    for request in features:
        feature = find_feature(host, driver, majors, request.key)
        if feature.nodes:
            reason = f"{request.title}: {request.origin}"
            items.nodes += [(node, reason) for node in feature.nodes]
            items.files += [(file, reason) for file in feature.files]
            items.withheld += [("file", path, f"{why} ({request.title})") for path, why in feature.absent]
            continue
        missing = "; ".join(f"{path}: {why}" for path, why in feature.absent if path.startswith("/dev/"))
        verb, pronoun = ("are", "them") if request.title.endswith("devices") else ("is", "it")
        if request.required:
            raise Fault(
                f"{request.title} {verb} requested, but this host does not have {pronoun}: {missing}",
                where=request.origin,
                hint=f"{feature.hint}. {_describe_host_features(host, driver, majors)}",
            )
        items.withheld.append(("request", request.title, f"{request.origin}, but {missing}"))
        items.warnings.append(f"{request.title} {verb} not injected: {missing}")
    if channels:
        _add_imex_channels(items, host, majors, channels)


def find_imex_channels(host: Host, majors: DeviceMajors) -> tuple[dict[int, DeviceNode], list[tuple[str, str]]]:
    """Return the nodes of the IMEX channels that exist, by number, and (path, reason) of nodes that are not used."""
    channels: dict[int, DeviceNode] = {}
    absent: list[tuple[str, str]] = []
    for name in host.list_names(IMEX_CHANNEL_DIRECTORY):
        number = parse_small_number(name[len("channel") :]) if name.startswith("channel") else -1
        if number < 0:
            continue
        path = f"{IMEX_CHANNEL_DIRECTORY}/{name}"
        node, reason = inspect_device_node(host, majors, path, IMEX_CHANNEL_MODULE)
        if node is None:
            absent.append((path, reason))
        elif node.minor != number:
            absent.append((path, f"its number is {node.major}:{node.minor}, so it is another channel"))
        else:
            channels[number] = node
    return dict(sorted(channels.items())), absent


def _add_imex_channels(
    items: OptionalItems, host: Host, majors: DeviceMajors, ranges: tuple[ImexChannelRange, ...]
) -> None:
    """Add IMEX channels whose nodes the host has.

    No channel is created, because its node is what grants it (facts: imex-channel-nodes).

    Raises:
        Fault: a channel that the container requests does not exist.
    """
    channels, absent = find_imex_channels(host, majors)
    added: set[int] = set()
    for requested in ranges:
        numbers = [number for number in channels if requested.first <= number <= requested.last]
        if requested.is_all and not numbers:
            items.withheld.append(("request", "IMEX channels", f"{requested.origin}, but this host has none"))
            if requested.required:  # all of none is none
                items.warnings.append(f"IMEX channels are not injected: {requested.origin}, but this host has none")
        elif not requested.is_all and len(numbers) < requested.last - requested.first + 1:
            raise _make_missing_channel_fault(requested, len(numbers), majors, list(channels), absent)
        for number in numbers if len(added) < len(channels) else ():
            if number not in added:
                added.add(number)
                items.nodes.append((channels[number], f"IMEX channel {number}: {requested.origin}"))


def _make_missing_channel_fault(
    requested: ImexChannelRange,
    present_count: int,
    majors: DeviceMajors,
    channels: list[int],
    absent: list[tuple[str, str]],
) -> Fault:
    """Return the error for a range with channels that the host lacks.

    Arguments:
        present_count: number of channels in the range that exist.
        channels: all channels that exist. absent: (path, reason) of nodes that are not used.
    """
    if requested.first == requested.last:
        what = f"this host has no IMEX channel {requested.first}"
    else:
        missing_count = requested.last - requested.first + 1 - present_count
        what = f"this host lacks {missing_count} of the IMEX channels {requested.first} to {requested.last}"
    if majors.majors_by_name and IMEX_CHANNEL_MODULE not in majors.majors_by_name:
        what += f" (no {IMEX_CHANNEL_MODULE} in /proc/devices: this driver has no IMEX)"
    what += "".join(f"; {path}: {reason}" for path, reason in absent[:4])
    existing = f"Channels that exist: {format_ranges(channels)}"
    return Fault(
        what,
        where=requested.origin,
        hint=f"{existing if channels else f'{IMEX_CHANNEL_DIRECTORY} has none'}. Create another channel as root with "
        "nvidia-modprobe -i N, or by the IMEX daemon's set-up",
    )


def _describe_host_features(host: Host, driver: Host, majors: DeviceMajors) -> str:
    """Return a sentence with the features that this host has."""
    features = [find_feature(host, driver, majors, row[0]) for row in FEATURES]
    present = [
        f"{feature.key} ({', '.join(node.path for node in feature.nodes[:4])})" for feature in features if feature.nodes
    ]
    if not present:
        return "This host has none of the optional devices gds, mofed, gdrcopy and nvswitch"
    return f"This host has {', '.join(present)}"


def _find_feature_file(host: Host, kind: str, path: str) -> DriverFile | None:
    """Return a file or directory (kind "tree") of a feature, None if there is none of this kind."""
    resolved = host.resolve_path(path)
    status = host.stat_path(resolved) if resolved is not None else None
    if resolved is None or status is None:
        return None
    if not (stat.S_ISDIR(status.st_mode) if kind == "tree" else stat.S_ISREG(status.st_mode)):
        return None
    return DriverFile(
        kind=kind,
        capability="",
        path=resolved,
        source=host.full_path(resolved),
        name=path.rpartition("/")[2],
        container_path=path,
        found_in=path,
    )


def _natural_sort_key(name: str) -> tuple[str, int]:
    """Return a key that sorts nvidia-fs2 before nvidia-fs10."""
    letters = name.rstrip("0123456789")
    digits = name[len(letters) :]
    return letters, int(digits) if digits and len(digits) < 10 else -1
