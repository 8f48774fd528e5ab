"""Tell what this host has for a CDI name of our own kinds, without reading a CDI file.

A name of our own kind stands for a GPU. If the host has no such GPU, that is the cause of a failure, whatever the files
say.

Import budget: cold.
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


class OwnDevices:
    """The devices of this host that selectors of our own kinds name. Does not query NVML.

    Arguments:
        host: the host.
        config: our configuration.
        cache: cached MIG devices; nothing is written.
    """

    def __init__(self, host: Host, config: Config, cache: Cache) -> None:
        self.host = host
        self.config = config
        self.cache = cache
        self._gpus: list[Gpu] | None = None
        self._loaded_mig_devices: MigDevices | None = None

    @property
    def gpus(self) -> list[Gpu]:
        """The GPUs of the host that containers can be given."""
        if self._gpus is None:
            self._gpus = read_machine_gpus(self.host, self.config.platform).gpus
        return self._gpus

    def describe_devices(self, selector: str) -> str:
        """Describe what our runtime injects for a selector without any file; "" for nothing or if unknown.

        Arguments:
            selector: as in NVIDIA_VISIBLE_DEVICES.
        """
        if selector == "none":
            return "the driver's files without a GPU"
        try:
            return ", ".join(self._list_matching_devices(selector))
        except Fault:
            return ""

    def find_missing_fault(self, selector: str) -> Fault | None:
        """Return why this host has no device for a selector; None if it has one or if that is unknown."""
        if (
            selector == "none"
            or not self.gpus
            or any("?" in gpu.uuid for gpu in self.gpus)  # only NVML knows which GPU a UUID names
            or (_is_mig_uuid(selector) and any(map(self._mig_devices.list_for_gpu, self.gpus)))
        ):
            return None
        try:
            self._list_matching_devices(selector)
        except Fault as fault:
            return fault
        return None

    def is_same_device(self, selector: str, other_selector: str) -> bool:
        """Tell whether two different selectors name the same GPUs or MIG devices."""
        if "all" in (selector, other_selector):
            return False
        devices = self.describe_devices(selector)
        return bool(devices) and devices == self.describe_devices(other_selector)

    @property
    def _mig_devices(self) -> MigDevices:
        if self._loaded_mig_devices is None:
            version = read_driver_version(self.host) or ""
            self._loaded_mig_devices = MigDevices(self.host, self.gpus, version, self.cache, lambda: "")
        return self._loaded_mig_devices

    def _list_matching_devices(self, selector: str) -> list[str]:
        """List the devices that a selector names, for people.

        Raises:
            Fault: there is none.
        """
        request = DeviceRequest(selector, "")
        if _is_mig_uuid(selector):
            device = self._mig_devices.find_cached_device(selector)
            return [] if device is None else [f"MIG device {device.name}"]
        names: list[str] = []
        mig_enabled = read_mig_enabled_gpus(self.host, self.gpus) if has_all_selector((request,)) else frozenset()
        if not is_mig_selector(selector):
            gpus = find_matching_gpus(request, self.gpus, mig_enabled)
            names += [f"GPU {gpu.index} ({gpu.uuid})" if gpu.uuid else f"GPU {gpu.index}" for gpu in gpus]
        if is_mig_selector(selector) or mig_enabled:
            devices = resolve_mig_devices((request,), self.gpus, mig_enabled, self._mig_devices)
            names += [f"MIG device {device.name}" for device, _ in devices]
        return names


def _is_mig_uuid(selector: str) -> bool:
    """Tell whether a selector is the UUID of a MIG device, which only NVML knows."""
    return selector.lower().startswith("mig-") and not selector.lower().startswith("mig-gpu-")
