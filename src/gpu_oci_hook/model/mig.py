"""A MIG device, as plain data."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import Gpu


class MigDevice:
    """One MIG device.

    Attributes:
        gpu: the GPU that it is a part of.
        index: its place among the GPU's devices: NVML's where NVML was asked, else by gi and ci.
        gi, ci: ids of the GPU instance and of the compute instance in it.
        uuid: "MIG-…"; "" as long as NVML was not asked.
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
        """As in NVIDIA_VISIBLE_DEVICES: "0:1"."""
        return f"{self.gpu.index}:{self.index}"

    @property
    def old_name(self) -> str:
        """As drivers before 470 named it; needs no NVML."""
        return f"MIG-{self.gpu.uuid}/{self.gi}/{self.ci}"
