"""Everything that a plan is made from, as one object; gathered by `pipeline`, read by the parts of the plan.

Cost rule: hot, no imports.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config import Config
    from gpu_oci_hook.container.image import Image
    from gpu_oci_hook.host.extra import Extra
    from gpu_oci_hook.host.inventory import Gpu, Inventory, Node
    from gpu_oci_hook.plan.places import Target
    from gpu_oci_hook.request import Request


class Facts:
    """Everything that a plan is made from, gathered by `pipeline`.

    Attributes:
        spec: the config.json as parsed; not changed.
        request, config, inventory: see their classes.
        chosen: the GPUs that go in, each with the origin of the word that named it; `gpus` are all there are.
        nodes: (capability that it serves, node) of the control nodes; `gpu_nodes`: minor to node.
        extra: nodes and files beside the driver's own: MIG capabilities, DRM nodes, IMEX channels and so on.
        absent_nodes: (capability, path, module) of control nodes whose module is not loaded.
        image, target: the container's root file system.
        rootfs: its absolute path in this process.
        generated: a directory in the bundle for files that are bind-mounted.
        prepared: a directory of ours for what containers share; the same as `generated` where we have none.
        inside: this process runs in a user namespace.
        params: the host's /proc/driver/nvidia/params, if containers will see that file; else None.
        mount_program: whether the host has MOUNT_PROGRAM.
        datacenter: all chosen GPUs are of the data-centre class.
    """

    __slots__ = (
        "absent_nodes",
        "chosen",
        "config",
        "datacenter",
        "extra",
        "generated",
        "gpu_nodes",
        "gpus",
        "image",
        "inside",
        "inventory",
        "mount_program",
        "nodes",
        "params",
        "prepared",
        "request",
        "rootfs",
        "spec",
        "target",
    )

    spec: dict[str, object]
    request: Request
    config: Config
    inventory: Inventory
    chosen: list[tuple[Gpu, str]]
    gpus: list[Gpu]
    nodes: list[tuple[str, Node]]
    gpu_nodes: dict[int, Node]
    absent_nodes: list[tuple[str, str, str]]
    image: Image
    target: Target
    rootfs: str
    generated: str
    prepared: str
    inside: bool
    params: bytes | None
    mount_program: bool
    datacenter: bool
    extra: Extra


def needs(capability: str) -> str:
    """The reason for withholding what serves a capability that was not asked for."""
    return f"needs capability {capability}"
