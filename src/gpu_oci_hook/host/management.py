"""Every device node of the driver's, for containers that manage it: fabric manager, DCGM, MIG manager, validators.

The GPUs' own nodes and the control nodes come with the plan; here is the rest: capabilities, IMEX channels,
NVSwitches, NVLink, vGPU, GPUDirect Storage. Cost rule: imported only for a management container.
"""

from __future__ import annotations

from gpu_oci_hook.host.features import existing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.extra import Extra
    from gpu_oci_hook.host.nodes import Majors
    from gpu_oci_hook.host.root import Host

_DIRECTORIES = ("/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels")


def add(extra: Extra, host: Host, numbers: Majors, known: set[str], origin: str) -> None:
    """Puts every node below /dev that is NVIDIA's among the extras.

    Arguments:
        known: paths of nodes that go in already.
        origin: whose word asks for it.
    """
    modules = [name for name in numbers.names if name.startswith("nvidia")] or ["nvidia"]
    paths = [f"/dev/{name}" for name in host.names("/dev") if name.startswith("nvidia")]
    paths += [f"{directory}/{name}" for directory in _DIRECTORIES for name in host.names(directory)]
    known = known | {node.path for node, _ in extra.nodes}
    for path in paths:
        if path in known or path in _DIRECTORIES:
            continue
        node, why = existing(host, numbers, path, *modules)
        if node is not None:
            extra.nodes.append((node, f"management: {origin}"))
        elif why != "it is no character device":
            extra.withheld.append(("device", path, why))
