"""A MIG device, as plain data.

Import budget: GPU container.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import Gpu


class MigDevice:
    """One MIG device.

    Attributes:
        gpu: its parent GPU.
        index: its index among the GPU's MIG devices: NVML's if NVML was asked, else by gi and ci.
        gi, ci: ids of its GPU instance and of its compute instance.
        uuid: "MIG-…"; "" if NVML was not asked.
    """

    __slots__ = ("ci", "gi", "gpu", "index", "uuid")

    def __init__(self, *, gpu: Gpu, index: int, gi: int, ci: int, uuid: str = "") -> None:
        self.gpu = gpu
        self.index = index
        self.gi = gi
        self.ci = ci
        self.uuid = uuid

    @property
    def name(self) -> str:
        """The name in NVIDIA_VISIBLE_DEVICES, such as "0:1"."""
        return f"{self.gpu.index}:{self.index}"

    @property
    def old_name(self) -> str:
        """The name that drivers before 470 use; it needs no NVML."""
        return f"MIG-{self.gpu.uuid}/{self.gi}/{self.ci}"
