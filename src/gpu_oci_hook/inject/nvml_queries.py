"""Ask NVML about the machine's GPUs where /proc does not tell: the UUIDs of GPUs that were not used since boot.

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host.driver.inventory_cache import load_inventory
from gpu_oci_hook.request.selectors import format_ranges, is_uuid_selector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.inject.gather import Machine
    from gpu_oci_hook.model.machine import Cache, Gpu
    from gpu_oci_hook.model.optional_devices import OptionalItems
    from gpu_oci_hook.model.outcome import ChosenDevices
    from gpu_oci_hook.model.request import DeviceRequest


def locate_nvml_library(host: Host, config: Config, version: str, cache: Cache) -> str:
    """Return the path of the host's NVML library; searched only when NVML has to be asked.

    Raises:
        Fault: see `host.nvml.query.find_nvml_library`.
    """
    from gpu_oci_hook.host.nvml.query import find_nvml_library

    driver = host.driver_host(config.driver_root)
    return find_nvml_library(host, load_inventory(host, driver, config.library_paths, version, cache))


def identify_requested_gpus(machine: Machine, device_requests: tuple[DeviceRequest, ...]) -> None:
    """Ask NVML for the UUIDs that /proc does not show yet, if a selector names a GPU by a UUID that is not known.

    Raises:
        Fault: NVML does not tell them.
    """
    for device_request in device_requests:
        uuid = device_request.selector.strip().lower().removeprefix("mig-").partition("/")[0]
        if not is_uuid_selector(uuid) or any(gpu.uuid.lower().startswith(uuid) for gpu in machine.gpus):
            continue
        try:
            identify_machine_gpus(machine)
        except Fault as fault:
            unknown = format_ranges([gpu.index for gpu in machine.gpus if "?" in gpu.uuid])
            raise Fault(
                f"the driver does not know the UUID of GPU {unknown} yet (not used since boot), and NVML, which would "
                f"tell it, fails: {fault.what}",
                where=device_request.origin,
                hint="Run nvidia-smi once, turn persistence mode on (nvidia-persistenced), or request the GPU by index",
            ) from None
        return


def identify_machine_gpus(machine: Machine) -> None:
    """Fill in the UUIDs that /proc does not show; see `host.nvml.gpu_uuids.identify_gpus`."""
    from gpu_oci_hook.host.nvml.gpu_uuids import identify_gpus

    version, cache = machine.driver_version or "", machine.cache
    identify_gpus(
        machine.gpus, version, cache, lambda: locate_nvml_library(machine.host, machine.config, version, cache)
    )


def add_drawing_mig_parents(drawing: dict[int, Gpu], chosen: ChosenDevices, items: OptionalItems) -> None:
    """Add the GPUs of those chosen MIG devices that can draw.

    Only the RTX PRO models have such MIG devices. If NVML, which knows them, fails, the DRM nodes are withheld.

    Arguments:
        drawing: the GPUs whose DRM nodes are injected, by index.
        items: takes what is withheld.
    """
    from gpu_oci_hook.host.mig.graphics_devices import list_graphics_devices

    for device, origin in chosen.mig_devices:
        gpu = device.gpu
        if "RTX" not in gpu.model or chosen.all_mig_devices is None:
            continue
        try:
            can_draw = (device.gi, device.ci) in list_graphics_devices(chosen.all_mig_devices, gpu)
        except Fault as fault:
            reason = f"only NVML knows whether MIG device {device.name} can draw ({origin}), and it fails: {fault.what}"
            items.withheld.append(("device", f"DRM nodes of MIG device {device.name}", reason))
            items.warnings.append(f"DRM nodes are left out: {reason}")
            return
        if can_draw:
            drawing[gpu.index] = gpu
