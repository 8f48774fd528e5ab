"""The result of planning one bundle."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.container.image import Image
    from gpu_oci_hook.files.rootfs import Rootfs
    from gpu_oci_hook.host.mig.mig_devices import MigDevices
    from gpu_oci_hook.host.platforms.platform import Platform
    from gpu_oci_hook.model.edits import Plan
    from gpu_oci_hook.model.machine import Gpu, Inventory
    from gpu_oci_hook.model.mig import MigDevice
    from gpu_oci_hook.model.request import Request


class Outcome:
    """What became of one bundle's request.

    Attributes:
        request, plan: see their classes.
        gpus: all GPUs of the machine; `chosen_gpus` those that go in, the parents of MIG devices among them.
        chosen_mig_devices: the MIG devices that go in; `mig_parents`: indices of the GPUs that go in for their sake alone.
        mig_devices: all MIG devices; None where nobody had to look.
        inventory: None when the container does not get as far.
        rootfs: the container's root file system, held; None when the container does not get as far.
        image: facts about it.
        platform: the machine's own way of doing things; None for a desktop's or server's.
        cdi_devices: the devices that come from CDI files: (qualified name, file, whose word).
    """

    __slots__ = (
        "bundle",
        "cdi_devices",
        "chosen_gpus",
        "chosen_mig_devices",
        "gpus",
        "image",
        "inventory",
        "mig_devices",
        "mig_parents",
        "plan",
        "platform",
        "request",
        "rootfs",
    )  # fmt: skip

    def __init__(self, request: Request, plan: Plan) -> None:
        self.request = request
        self.plan = plan
        self.gpus: list[Gpu] = []
        self.chosen_gpus: list[tuple[Gpu, str]] = []
        self.chosen_mig_devices: list[tuple[MigDevice, str]] = []
        self.mig_parents: frozenset[int] = frozenset()
        self.mig_devices: MigDevices | None = None
        self.inventory: Inventory | None = None
        self.platform: Platform | None = None
        self.rootfs: Rootfs | None = None
        self.image: Image | None = None
        self.bundle = ""
        self.cdi_devices: list[tuple[str, str, str]] = []
