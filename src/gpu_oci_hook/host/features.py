"""Nodes and files of what is switched on beside GPUs: GPUDirect Storage, RDMA, GDRCopy, NVSwitch, IMEX channels.

A node counts only when its number belongs to the module that it is named after: a stale one could be any other
device by now. Cost rule: imported only for a request that has such a thing; one listing and one lstat per node.
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host.inventory import DriverFile, Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.extra import Extra
    from gpu_oci_hook.host.nodes import Majors
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.request.extras import Channels, Feature

CHANNEL_DIRECTORY = "/dev/nvidia-caps-imex-channels"
CHANNEL_MODULE = "nvidia-caps-imex-channels"
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


class Found:
    """What a host has of one feature.

    Attributes:
        key: its name in [inject]. nodes, files: what is there.
        absent: (path or pattern, why) of what is not there or does not count.
        cure: what brings it onto a machine.
    """

    __slots__ = ("absent", "cure", "files", "key", "nodes")

    def __init__(self, key: str, cure: str) -> None:
        self.key = key
        self.cure = cure
        self.nodes: list[Node] = []
        self.files: list[DriverFile] = []
        self.absent: list[tuple[str, str]] = []


def find(host: Host, driver: Host, numbers: Majors, key: str) -> Found:
    """What this host has of a feature.

    Arguments:
        host: the machine. driver: the root with the driver's files; files are looked for in both.
    """
    _, nodes, files, cure = next(row for row in FEATURES if row[0] == key)
    found = Found(key, cure)
    for directory, begin, numbered, module in nodes:
        hits = seen = 0
        for name in sorted(host.names(directory), key=_rank):
            rest = name[len(begin) :]
            if not name.startswith(begin) or (not rest.isdigit() if numbered else bool(rest)):
                continue
            path = f"{directory}/{name}"
            seen += 1
            node, why = existing(host, numbers, path, module)
            if node is None:
                found.absent.append((path, why))
            else:
                hits += 1
                found.nodes.append(node)
        lacks = numbers.names and module not in numbers.names
        if not hits and (lacks or not seen):
            why = f"no {module} in /proc/devices, so its kernel module is not loaded" if lacks else "the host has none"
            found.absent.append((f"{directory}/{begin}{'*' if numbered else ''}", why))
    for kind, path in files:
        for root in (host, driver):
            file = _file(root, kind, path)
            if file is not None:
                found.files.append(file)
                break
        else:
            found.absent.append((path, "the host has none"))
    return found


def existing(host: Host, numbers: Majors, path: str, *modules: str) -> tuple[Node | None, str]:
    """The host's node at a path as it is; or None and the reason why it does not count.

    Arguments:
        modules: names in /proc/devices of which one must own the node's major number.
    """
    status = host.status(path, follow=False)
    if status is None or not stat.S_ISCHR(status.st_mode):
        return None, "it is no character device" if status is not None else "the host has none"
    major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
    owner = numbers.owner(major)
    # The kernel names the verbs' second range of numbers like the first, and we know but one number for a name.
    if numbers.names and owner not in modules and (owner or "infiniband_verbs" not in modules):
        return None, f"its number {major}:{minor} belongs to {owner or 'no module'}, so it is left from an earlier boot"
    shared = _misc(host).get(minor, "") if owner == _MISC else ""
    if owner == _MISC and shared != path.rpartition("/")[2]:
        return None, f"its number {major}:{minor} belongs to {shared or 'nobody'}, so it is left from an earlier boot"
    node = Node(
        path=path,
        major=major,
        minor=minor,
        mode=stat.S_IMODE(status.st_mode) & 0o777,
        uid=status.st_uid,
        gid=status.st_gid,
        exists=True,
        source=host.path(path),
    )
    return node, ""


def _misc(host: Host) -> dict[int, str]:
    """The devices that share one major number, by the minor that each got when it was loaded; from /proc/misc."""
    try:
        text = (host.read("/proc/misc", 65536) or b"").decode("utf-8", "replace")
    except Fault:
        return {}
    rows = [line.split(None, 1) for line in text.split("\n")]
    return {int(row[0]): row[1].strip() for row in rows if len(row) == 2 and row[0].isdecimal() and len(row[0]) < 8}


def add(
    extra: Extra,
    host: Host,
    driver: Host,
    numbers: Majors,
    features: tuple[Feature, ...],
    channels: tuple[Channels, ...],
) -> None:
    """Puts the features and channels of a request among the extras.

    Raises:
        Fault: the container asks for one that the host does not have; says what the host has.
    """
    for feature in features:
        found = find(host, driver, numbers, feature.key)
        if not found.nodes:
            what = "; ".join(f"{path}: {why}" for path, why in found.absent if path.startswith("/dev/"))
            verb, pronoun = ("are", "them") if feature.title.endswith("devices") else ("is", "it")
            if feature.required:
                raise Fault(
                    f"{feature.title} {verb} asked for, and this host cannot give {pronoun}: {what}",
                    where=feature.origin,
                    cure=f"{found.cure}. {_others(host, driver, numbers)}",
                )
            extra.withheld.append(("request", feature.title, f"{feature.origin}, but {what}"))
            extra.warnings.append(f"{feature.title} {verb} not given: {what}")
            continue
        reason = f"{feature.title}: {feature.origin}"
        extra.nodes += [(node, reason) for node in found.nodes]
        extra.files += [(file, reason) for file in found.files]
        extra.withheld += [("file", path, f"{why} ({feature.title})") for path, why in found.absent]
    if channels:
        _add_channels(extra, host, numbers, channels)


def channels_of(host: Host, numbers: Majors) -> tuple[dict[int, Node], list[tuple[str, str]]]:
    """The IMEX channels that exist, by number, and (path, why) of nodes that do not count."""
    found: dict[int, Node] = {}
    absent: list[tuple[str, str]] = []
    for name in host.names(CHANNEL_DIRECTORY):
        number = name.removeprefix("channel")
        if number == name or not (number.isascii() and number.isdigit()) or len(number) > 7:
            continue
        path = f"{CHANNEL_DIRECTORY}/{name}"
        node, why = existing(host, numbers, path, CHANNEL_MODULE)
        if node is None:
            absent.append((path, why))
        elif node.minor != int(number):
            absent.append((path, f"its number is {node.major}:{node.minor}, so it is another channel"))
        else:
            found[int(number)] = node
    return dict(sorted(found.items())), absent


def _add_channels(extra: Extra, host: Host, numbers: Majors, asked: tuple[Channels, ...]) -> None:
    """Channels are given only where the host has their nodes: making one is how a machine is granted a channel."""
    there, absent = channels_of(host, numbers)
    given: set[int] = set()
    for span in asked:
        hits = [number for number in there if span.first <= number <= span.last]
        complete = bool(hits) if span.every else len(hits) == span.last - span.first + 1
        if not complete and span.required:
            stale = "".join(f"; {path}: {why}" for path, why in absent[:4])
            if span.every:
                what = "this host has no IMEX channel"
            elif span.first == span.last:
                what = f"this host has no IMEX channel {span.first}"
            else:
                count = span.last - span.first + 1 - len(hits)
                what = f"this host lacks {count} of the IMEX channels {span.first} to {span.last}"
            if numbers.names and CHANNEL_MODULE not in numbers.names:
                what += f" (no {CHANNEL_MODULE} in /proc/devices: this driver has no IMEX)"
            exists = f"Channels that exist: {ranges(list(there))}" if there else f"{CHANNEL_DIRECTORY} has none"
            raise Fault(
                what + stale,
                where=span.origin,
                cure=f"{exists}. Another one is made by root: nvidia-modprobe -i N, or by the IMEX daemon's set-up",
            )
        if not complete:
            extra.withheld.append(("request", "IMEX channels", f"{span.origin}, but this host has none"))
        for number in hits if len(given) < len(there) else ():
            if number not in given:
                given.add(number)
                extra.nodes.append((there[number], f"IMEX channel {number}: {span.origin}"))


def ranges(numbers: list[int]) -> str:
    """Sorted numbers in words: "0-3, 7"; at most sixteen parts."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    shown = [f"{first}" if first == last else f"{first}-{last}" for first, last in parts[:16]]
    return ", ".join(shown) + (f" and {len(parts) - 16} more ranges" if len(parts) > 16 else "")


def _others(host: Host, driver: Host, numbers: Majors) -> str:
    """What there is of all features, in one sentence."""
    found = [find(host, driver, numbers, row[0]) for row in FEATURES]
    there = [f"{one.key} ({', '.join(node.path for node in one.nodes[:4])})" for one in found if one.nodes]
    return f"This host has {', '.join(there)}" if there else "This host has none of gds, mofed, gdrcopy and nvswitch"


def _file(host: Host, kind: str, path: str) -> DriverFile | None:
    real = host.resolve(path)
    status = host.status(real) if real is not None else None
    if real is None or status is None:
        return None
    right = stat.S_ISDIR(status.st_mode) if kind == "tree" else stat.S_ISREG(status.st_mode)
    if not right:
        return None
    name = path.rpartition("/")[2]
    return DriverFile(
        kind=kind, capability="", path=real, source=host.path(real), name=name, container=path, found=path
    )


def _rank(name: str) -> tuple[str, int]:
    """Sorts nvidia-fs2 before nvidia-fs10."""
    letters = name.rstrip("0123456789")
    digits = name[len(letters) :]
    return letters, int(digits) if digits and len(digits) < 10 else -1
