"""Find every device node of the driver, for containers that manage it: fabric manager, DCGM, MIG manager, validators.

The plan adds the GPUs' nodes and the control nodes. This module adds the others: MIG capabilities, IMEX channels,
NVSwitch, NVLink, vGPU and GPUDirect Storage.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.host.optional.features import NOT_A_CHARACTER_DEVICE, inspect_device_node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.device_nodes import DeviceMajors
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.optional_devices import OptionalItems

_NODE_DIRECTORIES = ("/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels")


def add_management_nodes(
    items: OptionalItems, host: Host, majors: DeviceMajors, taken_paths: set[str], origin: str
) -> None:
    """Add every device node below /dev that belongs to one of NVIDIA's modules.

    Arguments:
        taken_paths: paths of nodes that are injected already.
        origin: origin of the request.
    """
    modules = [name for name in majors.majors_by_name if name.startswith("nvidia")] or ["nvidia"]
    paths = [f"/dev/{name}" for name in host.list_names("/dev") if name.startswith("nvidia")]
    paths += [f"{directory}/{name}" for directory in _NODE_DIRECTORIES for name in host.list_names(directory)]
    taken_paths = taken_paths | {node.path for node, _ in items.nodes}
    for path in paths:
        if path in taken_paths or path in _NODE_DIRECTORIES:
            continue
        node, reason = inspect_device_node(host, majors, path, *modules)
        if node is not None:
            items.nodes.append((node, f"management: {origin}"))
        elif reason != NOT_A_CHARACTER_DEVICE:
            items.withheld.append(("device", path, reason))
