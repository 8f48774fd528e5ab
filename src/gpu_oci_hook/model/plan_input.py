"""Everything that a plan is made from, as one object: `inject.gather` builds it, the modules of `plan` read it.

Import budget: GPU container.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Iterable
    from typing import Protocol

    class RootfsReader(Protocol):
        """What a plan reads below a container's root; `files.rootfs.Rootfs` implements it."""

        def resolve_destination(self, path: str) -> str:
            """See `Rootfs.resolve_destination`."""

        def resolve_path(self, path: str) -> str | None:
            """See `Rootfs.resolve_path`."""

        def list_names(self, path: str, limit: int = ...) -> list[str]:
            """See `Rootfs.list_names`."""

        def readlink(self, path: str) -> str | None:
            """See `Rootfs.readlink`."""

        def read_file(self, path: str, limit: int) -> bytes | None:
            """See `Rootfs.read_file`."""

        def stat_path(self, path: str, *, follow: bool = False) -> os.stat_result | None:
            """See `Rootfs.stat_path`."""

        def find_nearest_directory(self, path: str) -> tuple[str, bool]:
            """See `Rootfs.find_nearest_directory`."""

        def can_replace(self, path: str) -> bool:
            """See `Rootfs.can_replace`."""

        def stat_names(self, path: str, names: Iterable[str]) -> dict[str, os.stat_result]:
            """See `Rootfs.stat_names`."""

    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.container.image import Image
    from gpu_oci_hook.model.machine import DeviceNode, Gpu, Inventory
    from gpu_oci_hook.model.optional_devices import OptionalItems
    from gpu_oci_hook.model.request import Request

    ControlNode = tuple[str, DeviceNode]  # capability that it serves, node
    # Capability, path, kernel module, and why the node cannot be given here ("": the module is not loaded).
    AbsentControlNode = tuple[str, str, str, str]


class ContainerFacts:
    """The container that a plan is for, and what the process that starts it can do.

    Attributes:
        spec: the config.json as parsed; not changed.
        image, rootfs_reader: the container's root file system.
        rootfs_path: its absolute path in this process.
        generated_dir: a directory in the bundle for files that are bind-mounted.
        shared_dir: the state directory, for directories that containers share; the same as `generated_dir` if there is
            none, or if this container could change what the others see.
        process_in_user_namespace: this process runs in a user namespace.
        driver_params: the host's /proc/driver/nvidia/params if containers will see that file, else None.
        has_mount_program: whether the host has the program `mount`, which a hook runs.
        datacenter_only: all chosen GPUs are data-centre GPUs; only read for an image with CUDA compat libraries.
        board_cuda: the CUDA version of a Tegra board, by which compat libraries are judged there; "" elsewhere.
    """

    __slots__ = (
        "board_cuda",
        "datacenter_only",
        "driver_params",
        "generated_dir",
        "has_mount_program",
        "image",
        "process_in_user_namespace",
        "rootfs_path",
        "rootfs_reader",
        "shared_dir",
        "spec",
    )

    def __init__(
        self,
        *,
        spec: dict[str, object],
        image: Image,
        rootfs_reader: RootfsReader,
        rootfs_path: str,
        generated_dir: str,
        shared_dir: str,
        process_in_user_namespace: bool,
        driver_params: bytes | None,
        has_mount_program: bool,
        datacenter_only: bool,
        board_cuda: str = "",
    ) -> None:
        self.spec = spec
        self.image = image
        self.rootfs_reader = rootfs_reader
        self.rootfs_path = rootfs_path
        self.generated_dir = generated_dir
        self.shared_dir = shared_dir
        self.process_in_user_namespace = process_in_user_namespace
        self.driver_params = driver_params
        self.has_mount_program = has_mount_program
        self.datacenter_only = datacenter_only
        self.board_cuda = board_cuda


class PlanInput:
    """Everything that a plan is made from: the request, the host's side and the container's side.

    Attributes:
        request, config, inventory, container: see their classes.
        gpus: all GPUs of the machine.
        chosen_gpus: the GPUs that go in, each with the origin of the selector that names it.
        control_nodes: the driver's nodes that are no GPU's.
        absent_control_nodes: those whose kernel module is not loaded, or that may not be opened here.
        gpu_nodes: the nodes of the chosen GPUs by their minor number.
        optional_items: optional nodes and files: MIG capabilities, DRM nodes, IMEX channels and so on.
    """

    __slots__ = (
        "absent_control_nodes",
        "chosen_gpus",
        "config",
        "container",
        "control_nodes",
        "gpu_nodes",
        "gpus",
        "inventory",
        "optional_items",
        "request",
    )

    def __init__(
        self,
        *,
        request: Request,
        config: Config,
        inventory: Inventory,
        gpus: list[Gpu],
        chosen_gpus: list[tuple[Gpu, str]],
        control_nodes: list[ControlNode],
        absent_control_nodes: list[AbsentControlNode],
        gpu_nodes: dict[int, DeviceNode],
        optional_items: OptionalItems,
        container: ContainerFacts,
    ) -> None:
        self.request = request
        self.config = config
        self.inventory = inventory
        self.gpus = gpus
        self.chosen_gpus = chosen_gpus
        self.control_nodes = control_nodes
        self.absent_control_nodes = absent_control_nodes
        self.gpu_nodes = gpu_nodes
        self.optional_items = optional_items
        self.container = container


NOT_ON_HOST = "not on the host"


def explain_absent_file(capability: str) -> str:
    """Return the reason for withholding a file that a capability is expected to bring and that the host lacks."""
    return f"{NOT_ON_HOST}; capability {capability} needs it"


MISSING_CAPABILITY = "needs capability"
"""How the reason for withholding begins when no requested capability uses an item."""


def explain_missing_capability(capability: str) -> str:
    """Return the reason for withholding items that serve a capability which the container does not request."""
    return f"{MISSING_CAPABILITY} {capability}"
