"""The GPUs and the driver's version, read live from the NVIDIA module's /proc files.

No NVML: it costs seconds without persistence mode and would load vendor code. Cost rule: on the way of
every GPU container; one small read per GPU.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.driver_version import is_driver_version
from gpu_oci_hook.formats.proc import parse_driver_version, parse_gpu_information
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.model.machine import Gpu

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.formats.proc import GpuInformation
    from gpu_oci_hook.host.platforms.platform import Platform

_READ_LIMIT = 65536
_GPUS_DIR = "/proc/driver/nvidia/gpus"


def read_driver_version(host: Host) -> str | None:
    """The running kernel module's version; None when no module is loaded (or says nothing readable).

    Closed and open modules write /proc/driver/nvidia/version differently; /sys/module/nvidia/version has
    the bare number.
    """
    for path in ("/proc/driver/nvidia/version", "/sys/module/nvidia/version"):
        try:
            data = host.read_file(path, _READ_LIMIT)
        except Fault:
            continue
        found = None if data is None else parse_driver_version(data)
        if found and is_driver_version(found):
            return found
    return None


def read_machine_gpus(host: Host, configured_platform: str) -> tuple[list[Gpu], list[str], Platform | None]:
    """Read the GPUs that containers can request on this machine, and the machine's platform.

    On a desktop or server this costs two or three stat calls more than `read_gpus`. The platform modules are imported
    only where a marker of another platform exists or the configuration names one.

    Arguments:
        configured_platform: `[host] platform`.

    Returns:
        (GPUs, one sentence for each GPU that is left out, the platform or None for a desktop or server).
    """
    gpus, problems = read_gpus(host)
    if configured_platform == "desktop":
        return gpus, problems, None
    if configured_platform == "auto" and not has_platform_marker(host, nvidia_loaded=bool(gpus)):
        return gpus, problems, None
    from gpu_oci_hook.host.platforms.detect import find_platform

    platform = find_platform(host, gpus, configured_platform)
    return gpus if platform is None else platform.list_gpus(gpus), problems, platform


def has_platform_marker(host: Host, *, nvidia_loaded: bool) -> bool:
    """Tell whether this machine may be something other than a desktop or server (see `detect.detect_platform`).

    Arguments:
        nvidia_loaded: the kernel module nvidia is loaded, which rules WSL out.
    """
    return (
        host.stat_path("/etc/nv_tegra_release") is not None
        or host.stat_path("/sys/devices/soc0/family") is not None
        or (not nvidia_loaded and host.stat_path("/dev/dxg") is not None)
    )


def read_gpus(host: Host) -> tuple[list[Gpu], list[str]]:
    """The GPUs in PCI order, and a sentence for each one that is left out because its file is broken.

    The index counts only GPUs that are not excluded: the driver hides excluded ones from everybody. One that is left
    out keeps its index, or a container would get another GPU than the one that its index names.
    """
    found: list[tuple[tuple[int, int, int, int], str, GpuInformation | None]] = []
    problems: list[str] = []
    for name in host.list_names(_GPUS_DIR):
        where = f"{_GPUS_DIR}/{name}/information"
        address = _parse_pci_address(name)
        if address is None:
            problems.append(f"{host.full_path(_GPUS_DIR + '/' + name)}: the name is no PCI address, so it is left out")
            continue
        facts, why = None, ""
        try:
            data = host.read_file(where, _READ_LIMIT)
            if data is None:
                why = f"{host.full_path(where)} is missing"
            else:
                facts = parse_gpu_information(data)
        except Fault as fault:
            why = str(fault)
        if facts is not None and facts["excluded"]:
            continue
        if facts is not None and facts["minor"] < 0:
            facts, why = None, f"{host.full_path(where)} has no device minor"
        if facts is None:
            problems.append(f"GPU {name} is left out: {why}")
        found.append((address, name, facts))
    found.sort(key=lambda item: item[0])
    known: list[Gpu] = []
    for index, (_, name, facts) in enumerate(found):
        if facts is not None:
            uuid, model, minor = facts["uuid"], facts["model"], facts["minor"]
            known.append(Gpu(index=index, uuid=uuid, pci=name.lower(), minor=minor, model=model))
    return known, problems


def _parse_pci_address(name: str) -> tuple[int, int, int, int] | None:
    """An address like 0000:65:00.0 as numbers: domains may have more digits, so text does not sort right."""
    parts = name.replace(".", ":").split(":")
    if len(parts) != 4 or not name.isascii() or not name.replace(".", "").replace(":", "").isalnum():
        return None
    try:
        domain, bus, device, function = (int(part, 16) for part in parts)
    except ValueError:
        return None
    return domain, bus, device, function
