"""What this machine and our own generator have to do with a CDI name: for `causes` and `cdi resolve`.

A name of ours is a word for a GPU, so a machine that has no such GPU is the cause before any file is; and what is to
be done about a file that is not there is the command that writes it. Cold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host.gpus import read_driver_version, read_machine_gpus
from gpu_oci_hook.host.mig.capability_files import read_mig_enabled_gpus
from gpu_oci_hook.host.mig.mig_devices import MigDevices
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.model.request import DeviceRequest
from gpu_oci_hook.request.mig_selectors import resolve_mig_devices
from gpu_oci_hook.request.selectors import find_matching_gpus, has_all_selector, is_mig_selector

if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import Cache, Gpu

# Where files are advised if no directory is configured.
_DEFAULT_SPEC_DIR = "/etc/cdi"


class OwnDevices:
    """What this machine has for words of our own kinds. Asks no NVML.

    Arguments:
        host: the machine. cache: what is remembered of its MIG devices; nothing is written.
    """

    def __init__(self, host: Host, config: Config, cache: Cache) -> None:
        self.host = host
        self.config = config
        self.cache = cache
        self._gpus: list[Gpu] | None = None
        self._loaded_mig_devices: MigDevices | None = None

    @property
    def gpus(self) -> list[Gpu]:
        """All GPUs of the machine."""
        if self._gpus is None:
            self._gpus, _, _ = read_machine_gpus(self.host, self.config.platform)
        return self._gpus

    def describe_devices(self, selector: str) -> str:
        """What our runtime gives for a word without any file; "" for nothing, or where that cannot be told.

        Arguments:
            selector: of `NVIDIA_VISIBLE_DEVICES`.
        """
        if selector == "none":
            return "the driver's files without a GPU"
        try:
            return ", ".join(self._list_matching_devices(selector))
        except Fault:
            return ""

    def find_missing_fault(self, selector: str) -> Fault | None:
        """Why this machine has nothing for a word; None when it has, or where that cannot be told."""
        if (
            selector == "none"
            or not self.gpus
            or (_is_mig_uuid(selector) and any(map(self._mig_devices.list_for_gpu, self.gpus)))
        ):
            return None
        try:
            self._list_matching_devices(selector)
        except Fault as fault:
            return fault
        return None

    def is_same_device(self, selector: str, other_selector: str) -> bool:
        """Whether two words that are not equal name the same GPUs or MIG devices."""
        if "all" in (selector, other_selector):
            return False
        found = self.describe_devices(selector)
        return bool(found) and found == self.describe_devices(other_selector)

    @property
    def _mig_devices(self) -> MigDevices:
        if self._loaded_mig_devices is None:
            version = read_driver_version(self.host) or ""
            self._loaded_mig_devices = MigDevices(self.host, self.gpus, version, self.cache, lambda: "")
        return self._loaded_mig_devices

    def _list_matching_devices(self, selector: str) -> list[str]:
        """What a word names, each as people know it.

        Raises:
            Fault: nothing.
        """
        ask = DeviceRequest(selector, "")
        if _is_mig_uuid(selector):
            known = self._mig_devices.find_cached_device(selector)
            return [] if known is None else [f"MIG device {known.name}"]
        named: list[str] = []
        divided = read_mig_enabled_gpus(self.host, self.gpus) if has_all_selector((ask,)) else frozenset()
        if not is_mig_selector(selector):
            found = find_matching_gpus(ask, self.gpus, divided)
            named += [f"GPU {gpu.index} ({gpu.uuid})" if gpu.uuid else f"GPU {gpu.index}" for gpu in found]
        if is_mig_selector(selector) or divided:
            parts = resolve_mig_devices((ask,), self.gpus, divided, self._mig_devices)
            named += [f"MIG device {one.name}" for one, _ in parts]
        return named


def _is_mig_uuid(selector: str) -> bool:
    """Whether a word is a MIG device's UUID, which NVML alone knows."""
    return selector.lower().startswith("mig-") and not selector.lower().startswith("mig-gpu-")
