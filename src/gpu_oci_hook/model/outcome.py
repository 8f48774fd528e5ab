"""The devices that a request selects, and the result of planning one bundle, as plain data.

Import budget: GPU container.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.container.image import Image
    from gpu_oci_hook.files.rootfs import Rootfs
    from gpu_oci_hook.host.mig.mig_devices import MigDevices
    from gpu_oci_hook.model.edits import Plan
    from gpu_oci_hook.model.machine import Gpu, Inventory
    from gpu_oci_hook.model.mig import MigDevice
    from gpu_oci_hook.model.request import Request

    CdiDevice = tuple[str, str, str]  # qualified name, path of the CDI file, origin of the request


class ChosenDevices:
    """The GPUs and MIG devices that go into a container.

    Attributes:
        gpus: each GPU with the origin of the selector that names it; the parents of MIG devices are among them.
        mig_devices: each MIG device with the origin of its selector.
        mig_parents: indices of the GPUs that go in only as parents of MIG devices.
        all_mig_devices: all MIG devices of the machine; None if they were not read.
    """

    __slots__ = ("all_mig_devices", "gpus", "mig_devices", "mig_parents")

    def __init__(
        self,
        gpus: list[tuple[Gpu, str]],
        *,
        mig_devices: list[tuple[MigDevice, str]] | None = None,
        mig_parents: frozenset[int] = frozenset(),
        all_mig_devices: MigDevices | None = None,
    ) -> None:
        self.gpus = gpus
        self.mig_devices = mig_devices or []
        self.mig_parents = mig_parents
        self.all_mig_devices = all_mig_devices


class Outcome:
    """The result of planning one bundle.

    Attributes:
        request, plan: see their classes.
        bundle: the bundle's directory, absolute.
        gpus: all GPUs of the machine.
        chosen_gpus, chosen_mig_devices, mig_parents, mig_devices: see `ChosenDevices`; `mig_devices` are all of them.
        inventory: None if the plan did not need the driver's files.
        rootfs: the container's root file system, held open; None if nothing is injected.
        image: facts about its image; None if the plan did not need them.
        cdi_devices: the devices that CDI files define.
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
        "request",
        "rootfs",
    )  # fmt: skip

    def __init__(
        self,
        request: Request,
        plan: Plan,
        bundle: str,
        *,
        gpus: list[Gpu] | None = None,
        chosen: ChosenDevices | None = None,
        inventory: Inventory | None = None,
        rootfs: Rootfs | None = None,
        image: Image | None = None,
        cdi_devices: list[CdiDevice] | None = None,
    ) -> None:
        self.request = request
        self.plan = plan
        self.bundle = bundle
        self.gpus = gpus or []
        self.chosen_gpus = chosen.gpus if chosen else []
        self.chosen_mig_devices = chosen.mig_devices if chosen else []
        self.mig_parents = chosen.mig_parents if chosen else frozenset()
        self.mig_devices = chosen.all_mig_devices if chosen else None
        self.inventory = inventory
        self.rootfs = rootfs
        self.image = image
        self.cdi_devices = cdi_devices or []
