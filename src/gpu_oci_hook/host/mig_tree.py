"""The driver's files about MIG: which instances there are, and the numbers of their capabilities.

Cost rule: imported only where a container or a GPU has to do with MIG; lists one directory for each GPU instance.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host.gpus import CAPABILITIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.inventory import Gpu
    from gpu_oci_hook.host.root import Host

    # (gi, ci, mtime in ns, inode) of each device of a GPU: other numbers, other devices.
    Signature = tuple[tuple[int, int, int, int], ...]

# One "name minor" a line, for many more GPUs and instances than there are; its names lack the tree's "mig".
MINORS = "/proc/driver/nvidia-caps/mig-minors"
NODES = "/dev/nvidia-caps"

_TEXT = 1 << 20


def root(host: Host, gpu: Gpu | None) -> Host:
    """The directory of a GPU's instances, or of the machine's own capabilities."""
    return host.below(f"{CAPABILITIES}/gpu{gpu.minor}/mig" if gpu else f"{CAPABILITIES}/mig")


def pairs(host: Host, gpu: Gpu) -> list[tuple[int, int]]:
    """The (gi, ci) of a GPU's MIG devices, in order."""
    return [(gi, ci) for gi, ci, *_ in signature(host, gpu)]


def signature(host: Host, gpu: Gpu) -> Signature:
    """The GPU's devices, with what changes when one is removed and made again under the same numbers.

    A driver that hides its tree (from a container that has containers of its own) still has the table and the nodes.
    """
    tree = root(host, gpu)
    found = []
    for gi in numbered(tree, "/", "gi"):
        for ci in numbered(tree, f"/gi{gi}", "ci"):
            status = tree.status(f"/gi{gi}/ci{ci}")
            found.append((gi, ci, status.st_mtime_ns if status else 0, status.st_ino if status else 0))
    if not found and not host.names(CAPABILITIES):
        there = frozenset(host.names(NODES))
        for line in text(host, MINORS).split("\n") if len(there) > 2 else ():  # config and monitor are always there
            name, _, minor = line.strip().partition(" ")
            parts = name.split("/")
            if len(parts) == 4 and parts[0] == f"gpu{gpu.minor}" and f"nvidia-cap{minor}" in there:
                gi, ci = number(parts[1][2:]), number(parts[2][2:])
                if gi >= 0 and ci >= 0:
                    found.append((gi, ci, 0, 0))
        found.sort()
    return tuple(found)


def numbered(host: Host, path: str, word: str) -> list[int]:
    """The numbers N of the entries "<word>N" of a directory, in their order."""
    found = [number(name[len(word) :]) for name in host.names(path) if name.startswith(word)]
    return sorted(number for number in found if number >= 0)


def called(gpu: Gpu | None, steps: str) -> str:
    """What the table calls a capability."""
    return f"gpu{gpu.minor}/{steps}/access" if gpu else steps


def minors(host: Host) -> dict[str, int]:
    """The driver's table: what a capability is called there, and its number."""
    found = {}
    for line in text(host, MINORS).split("\n"):
        name, _, minor = line.strip().partition(" ")
        found[name] = number(minor.strip())
    return found


def number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 7 else -1


def text(host: Host, path: str) -> str:
    """The whole lines of a small file: one that breaks off may have lost digits, and name another capability."""
    try:
        data = host.read(path, _TEXT)
    except Fault:
        return ""
    return (data or b"").rpartition(b"\n")[0].decode("utf-8", "replace")
