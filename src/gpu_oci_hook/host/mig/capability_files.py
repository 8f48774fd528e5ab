"""Read the driver's files about MIG: which instances exist, and the device minors of their capabilities.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.proc import parse_key_value_lines, parse_small_number
from gpu_oci_hook.host.device_nodes import find_unusable_nodes, read_device_majors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.machine import Gpu

    # (gi, ci, mtime in ns, inode) of each MIG device of a GPU. Other numbers mean other devices.
    MigSignature = tuple[tuple[int, int, int, int], ...]

# A directory for each instance, in it the file of its capability (facts: mig-capability-files).
CAPABILITIES_DIR = "/proc/driver/nvidia/capabilities"
# The minors of all capabilities, also of instances that do not exist (facts: mig-minors-table).
MIG_MINORS = "/proc/driver/nvidia-caps/mig-minors"
CAPS_DIRECTORY = "/dev/nvidia-caps"

_SIZE_LIMIT = 1 << 20
_FIXED_NODES = 2  # nodes in CAPS_DIRECTORY without any instance: config and monitor


def open_mig_tree(host: Host, gpu: Gpu | None) -> Host:
    """Return the directory of a GPU's instances, or of the machine's own capabilities for None."""
    return host.sub_host(f"{CAPABILITIES_DIR}/gpu{gpu.minor}/mig" if gpu else f"{CAPABILITIES_DIR}/mig")


def list_mig_instance_ids(host: Host, gpu: Gpu) -> list[tuple[int, int]]:
    """Return the (gi, ci) of a GPU's MIG devices, in order."""
    return [(gi, ci) for gi, ci, *_ in read_mig_signature(host, gpu)]


def read_mig_signature(host: Host, gpu: Gpu) -> MigSignature:
    """Return the signature of a GPU's MIG devices, which changes when a device is removed and created again.

    The driver hides its tree from a container that has containers of its own. The minors table and the device nodes
    then still show the devices. Where the tree is visible, a device counts if both of its nodes can be given to
    containers here (`device_nodes.find_unusable_nodes`). NVML sees the same devices.
    """
    tree = open_mig_tree(host, gpu)
    signature = []
    for gi in list_numbered_entries(tree, "/", "gi"):
        for ci in list_numbered_entries(tree, f"/gi{gi}", "ci"):
            status = tree.stat_path(f"/gi{gi}/ci{ci}")
            signature.append((gi, ci, status.st_mtime_ns if status else 0, status.st_ino if status else 0))
    if not signature and not host.list_names(CAPABILITIES_DIR):
        signature = [(gi, ci, 0, 0) for gi, ci in _list_instance_ids_by_nodes(host, gpu)]
    elif signature:
        unusable = _find_unusable_instances(host, gpu, tree, [(gi, ci) for gi, ci, _, _ in signature])
        signature = [entry for entry in signature if entry[:2] not in unusable]
    return tuple(signature)


def _find_unusable_instances(
    host: Host, gpu: Gpu, tree: Host, ids: list[tuple[int, int]]
) -> frozenset[tuple[int, int]]:
    """Return the (gi, ci) whose nodes cannot be given to containers here."""
    major = read_device_majors(host).caps
    if major is None:  # the driver grants its capabilities through /proc alone (facts: mig-450-proc-rights)
        return frozenset()
    minors_by_instance: dict[int, int] = {}
    minors_by_id: dict[tuple[int, int], tuple[int, int]] = {}
    for gi, ci in ids:
        if gi not in minors_by_instance:
            minors_by_instance[gi] = _read_capability_minor(host, gpu, tree, f"gi{gi}")
        minors_by_id[gi, ci] = (minors_by_instance[gi], _read_capability_minor(host, gpu, tree, f"gi{gi}/ci{ci}"))
    known_minors = dict.fromkeys(minor for minors in minors_by_id.values() for minor in minors if minor >= 0)
    nodes = [(f"{CAPS_DIRECTORY}/nvidia-cap{minor}", major, minor) for minor in known_minors]
    unusable = find_unusable_nodes(host, nodes, mig=True)
    if not unusable:
        return frozenset()
    unusable_minors = {minor for path, _, minor in nodes if path in unusable}
    return frozenset(ids for ids, minors in minors_by_id.items() if unusable_minors.intersection(minors))


def list_instance_minors(host: Host, gpu: Gpu, gi: int, ci: int) -> list[int]:
    """Return the device minors of the two capabilities of a MIG device, without unknown ones."""
    tree = open_mig_tree(host, gpu)
    minors = [_read_capability_minor(host, gpu, tree, name) for name in (f"gi{gi}", f"gi{gi}/ci{ci}")]
    return [minor for minor in minors if minor >= 0]


def _read_capability_minor(host: Host, gpu: Gpu, tree: Host, capability: str) -> int:
    """Return the device minor of a capability of a GPU, from its file or from the minors table; -1 if unknown."""
    minor, _ = read_capability_file(tree, f"/{capability}/access")
    return minor if minor >= 0 else read_capability_minors(host).get(format_capability_name(gpu, capability), -1)


def _list_instance_ids_by_nodes(host: Host, gpu: Gpu) -> list[tuple[int, int]]:
    """Return the (gi, ci) of the MIG devices of a GPU whose capability node exists, in order."""
    node_names = frozenset(host.list_names(CAPS_DIRECTORY))
    if len(node_names) <= _FIXED_NODES:
        return []
    ids = []
    for name, minor in _read_minors_table(host):
        parts = name.split("/")
        if (
            len(parts) == 4
            and parts[0] == f"gpu{gpu.minor}"
            and f"nvidia-cap{minor}" in node_names
            and host.can_open_node(f"{CAPS_DIRECTORY}/nvidia-cap{minor}", write=False)
        ):
            gi, ci = parse_small_number(parts[1][2:]), parse_small_number(parts[2][2:])
            if gi >= 0 and ci >= 0:
                ids.append((gi, ci))
    return sorted(ids)


def read_mig_enabled_gpus(host: Host, gpus: list[Gpu]) -> frozenset[int]:
    """Return the indices of the GPUs that have MIG instances.

    The driver has a directory for each instance. A GPU in MIG mode without instances cannot be told from a GPU without
    MIG mode, and it has no MIG device to inject.
    """
    if not gpus:
        return frozenset()
    gpu_directories = host.list_names(CAPABILITIES_DIR)
    if not gpu_directories:  # the driver hides them, see `read_mig_signature`
        if len(host.list_names(CAPS_DIRECTORY)) <= _FIXED_NODES:
            return frozenset()
        return frozenset(gpu.index for gpu in gpus if list_mig_instance_ids(host, gpu))
    return frozenset(
        gpu.index
        for gpu in gpus
        if f"gpu{gpu.minor}" in gpu_directories
        and any(name.startswith("gi") for name in host.list_names(f"{CAPABILITIES_DIR}/gpu{gpu.minor}/mig"))
    )


def list_numbered_entries(host: Host, path: str, prefix: str) -> list[int]:
    """Return the numbers N of a directory's entries "<prefix>N", sorted."""
    names = [name for name in host.list_names(path) if name.startswith(prefix)]
    numbers = [parse_small_number(name[len(prefix) :]) for name in names]
    return sorted(number for number in numbers if number >= 0)


def format_capability_name(gpu: Gpu | None, capability: str) -> str:
    """Return a capability's name in the minors table, which lacks the tree's component "mig"."""
    return f"gpu{gpu.minor}/{capability}/access" if gpu else capability


def read_capability_minors(host: Host) -> dict[str, int]:
    """Return the minors table: name to device minor, -1 for an unreadable one."""
    return {name: parse_small_number(minor) for name, minor in _read_minors_table(host)}


def read_capability_file(tree: Host, path: str) -> tuple[int, int]:
    """Return device minor and mode in a capability's file, -1 for what it does not have."""
    lines = parse_key_value_lines(read_whole_lines(tree, path))
    return parse_small_number(lines.get("DeviceFileMinor", "")), parse_small_number(lines.get("DeviceFileMode", ""))


def _read_minors_table(host: Host) -> list[tuple[str, str]]:
    """Return the (name, minor as text) of each line of the minors table."""
    lines = [line.strip().partition(" ") for line in read_whole_lines(host, MIG_MINORS).split("\n")]
    return [(name, minor.strip()) for name, _, minor in lines]


def read_whole_lines(host: Host, path: str) -> str:
    """Return the whole lines of a small file, "" if it cannot be read.

    A line that breaks off may lack digits and so name another capability.
    """
    try:
        data = host.read_file(path, _SIZE_LIMIT)
    except Fault:
        return ""
    return (data or b"").rpartition(b"\n")[0].decode("utf-8", "replace")
