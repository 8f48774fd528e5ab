"""The driver's files about MIG: which instances there are, and the numbers of their capabilities.

Cost rule: imported only where a container or a GPU has to do with MIG; lists one directory for each GPU instance.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.machine import Gpu

    # (gi, ci, mtime in ns, inode) of each device of a GPU: other numbers, other devices.
    MigSignature = tuple[tuple[int, int, int, int], ...]

# One "name minor" a line, for many more GPUs and instances than there are; its names lack the tree's "mig".
MIG_MINORS = "/proc/driver/nvidia-caps/mig-minors"
CAPS_DIRECTORY = "/dev/nvidia-caps"

_SIZE_LIMIT = 1 << 20


def open_mig_tree(host: Host, gpu: Gpu | None) -> Host:
    """The directory of a GPU's instances, or of the machine's own capabilities."""
    return host.sub_host(f"{CAPABILITIES_DIR}/gpu{gpu.minor}/mig" if gpu else f"{CAPABILITIES_DIR}/mig")


def list_mig_instance_ids(host: Host, gpu: Gpu) -> list[tuple[int, int]]:
    """The (gi, ci) of a GPU's MIG devices, in order."""
    return [(gi, ci) for gi, ci, *_ in read_mig_signature(host, gpu)]


def read_mig_signature(host: Host, gpu: Gpu) -> MigSignature:
    """The GPU's devices, with what changes when one is removed and made again under the same numbers.

    A driver that hides its tree (from a container that has containers of its own) still has the table and the nodes.
    """
    tree = open_mig_tree(host, gpu)
    found = []
    for gi in list_numbered_entries(tree, "/", "gi"):
        for ci in list_numbered_entries(tree, f"/gi{gi}", "ci"):
            status = tree.stat_path(f"/gi{gi}/ci{ci}")
            found.append((gi, ci, status.st_mtime_ns if status else 0, status.st_ino if status else 0))
    if not found and not host.list_names(CAPABILITIES_DIR):
        there = frozenset(host.list_names(CAPS_DIRECTORY))
        for line in (
            read_whole_lines(host, MIG_MINORS).split("\n") if len(there) > 2 else ()
        ):  # config and monitor are always there
            name, _, minor = line.strip().partition(" ")
            parts = name.split("/")
            if len(parts) == 4 and parts[0] == f"gpu{gpu.minor}" and f"nvidia-cap{minor}" in there:
                gi, ci = parse_small_number(parts[1][2:]), parse_small_number(parts[2][2:])
                if gi >= 0 and ci >= 0:
                    found.append((gi, ci, 0, 0))
        found.sort()
    return tuple(found)


def list_numbered_entries(host: Host, path: str, prefix: str) -> list[int]:
    """The numbers N of the entries "<word>N" of a directory, in their order."""
    found = [parse_small_number(name[len(prefix) :]) for name in host.list_names(path) if name.startswith(prefix)]
    return sorted(number for number in found if number >= 0)


def format_capability_name(gpu: Gpu | None, capability: str) -> str:
    """What the table calls a capability."""
    return f"gpu{gpu.minor}/{capability}/access" if gpu else capability


def read_capability_minors(host: Host) -> dict[str, int]:
    """The driver's table: what a capability is called there, and its number."""
    found = {}
    for line in read_whole_lines(host, MIG_MINORS).split("\n"):
        name, _, minor = line.strip().partition(" ")
        found[name] = parse_small_number(minor.strip())
    return found


def parse_small_number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 7 else -1


def read_whole_lines(host: Host, path: str) -> str:
    """The whole lines of a small file: one that breaks off may have lost digits, and name another capability."""
    try:
        data = host.read_file(path, _SIZE_LIMIT)
    except Fault:
        return ""
    return (data or b"").rpartition(b"\n")[0].decode("utf-8", "replace")


CAPABILITIES_DIR = "/proc/driver/nvidia/capabilities"


def read_mig_enabled_gpus(host: Host, gpus: list[Gpu]) -> frozenset[int]:
    """The indices of the GPUs that are divided into MIG instances.

    The driver has a directory for each instance. One that is in MIG mode without any cannot be told from
    others: there is nothing in it to hand out.
    """
    if not gpus:
        return frozenset()
    there = host.list_names(CAPABILITIES_DIR)
    if not there:  # hidden from us, as from a container that has containers of its own: the nodes tell
        if len(host.list_names("/dev/nvidia-caps")) <= 2:  # of configuring and monitoring
            return frozenset()

        return frozenset(gpu.index for gpu in gpus if list_mig_instance_ids(host, gpu))
    return frozenset(
        gpu.index
        for gpu in gpus
        if f"gpu{gpu.minor}" in there
        and any(name.startswith("gi") for name in host.list_names(f"{CAPABILITIES_DIR}/gpu{gpu.minor}/mig"))
    )
