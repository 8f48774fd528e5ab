"""Everything that a plan is made from, as one object; gathered by `inject.pipeline`, read by the parts of the plan.

Cost rule: hot, no imports.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Iterable
    from typing import Protocol

    class RootfsReader(Protocol):
        """The questions that a plan has about a container's root; `rootfs.Rootfs` answers them."""

        def resolve_destination(self, path: str) -> str:
            """See `Rootfs.resolve_destination`."""

        def resolve_path(self, path: str) -> str | None:
            """See `Rootfs.resolve_path`."""

        def list_names(self, path: str, limit: int = ...) -> list[str]:
            """See `Rootfs.list_names`."""

        def stat_path(self, path: str, *, follow: bool = False) -> os.stat_result | None:
            """See `Rootfs.stat_path`."""

        def stat_names(self, path: str, names: Iterable[str]) -> dict[str, os.stat_result]:
            """See `Rootfs.stat_names`."""

    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.container.image import Image
    from gpu_oci_hook.model.machine import DeviceNode, Gpu, Inventory
    from gpu_oci_hook.model.optional_devices import OptionalItems
    from gpu_oci_hook.model.request import Request


class PlanInput:
    """Everything that a plan is made from, gathered by `inject.pipeline`.

    Attributes:
        spec: the config.json as parsed; not changed.
        request, config, inventory: see their classes.
        chosen_gpus: the GPUs that go in, each with the origin of the word that named it; `gpus` are all there are.
        control_nodes: (capability that it serves, node) of the control nodes; `gpu_nodes`: minor to node.
        optional_items: nodes and files beside the driver's own: MIG capabilities, DRM nodes, IMEX channels and so on.
        absent_control_nodes: (capability, path, module) of control nodes whose module is not loaded.
        image, rootfs_reader: the container's root file system.
        rootfs_path: its absolute path in this process.
        generated_dir: a directory in the bundle for files that are bind-mounted.
        shared_dir: a directory of ours for what containers share; the same as `generated_dir` where we have none.
        process_in_user_namespace: this process runs in a user namespace.
        driver_params: the host's /proc/driver/nvidia/params, if containers will see that file; else None.
        has_mount_program: whether the host has MOUNT_PROGRAM.
        datacenter_only: all chosen GPUs are of the data-centre class.
    """

    __slots__ = (
        "absent_control_nodes",
        "chosen_gpus",
        "config",
        "control_nodes",
        "datacenter_only",
        "driver_params",
        "generated_dir",
        "gpu_nodes",
        "gpus",
        "has_mount_program",
        "image",
        "inventory",
        "optional_items",
        "process_in_user_namespace",
        "request",
        "rootfs_path",
        "rootfs_reader",
        "shared_dir",
        "spec",
    )

    spec: dict[str, object]
    request: Request
    config: Config
    inventory: Inventory
    chosen_gpus: list[tuple[Gpu, str]]
    gpus: list[Gpu]
    control_nodes: list[tuple[str, DeviceNode]]
    gpu_nodes: dict[int, DeviceNode]
    absent_control_nodes: list[tuple[str, str, str]]
    image: Image
    rootfs_reader: RootfsReader
    rootfs_path: str
    generated_dir: str
    shared_dir: str
    process_in_user_namespace: bool
    driver_params: bytes | None
    has_mount_program: bool
    datacenter_only: bool
    optional_items: OptionalItems


def explain_missing_capability(capability: str) -> str:
    """The reason for withholding what serves a capability that was not asked for."""
    return f"needs capability {capability}"
