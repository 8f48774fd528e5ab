"""Read the GPUs and the driver's version from the /proc files of the kernel module nvidia.

NVML is not used: without persistence mode it takes seconds, and it would load vendor code into this process.

Import budget: GPU container.
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
    """Return the version of the running kernel module, or None when no module is loaded or its files are unreadable.

    Closed and open modules write /proc/driver/nvidia/version differently. /sys/module/nvidia/version has the bare
    number.
    """
    for path in ("/proc/driver/nvidia/version", "/sys/module/nvidia/version"):
        try:
            data = host.read_file(path, _READ_LIMIT)
        except Fault:
            continue
        version = None if data is None else parse_driver_version(data)
        if version and is_driver_version(version):
            return version
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
    """Return the GPUs in PCI order, and a sentence for each GPU that is left out because its file is broken.

    Excluded GPUs have no index, because the driver hides them from all programs. A GPU with a broken file keeps its
    index. Otherwise an index in a container's request would select another GPU.
    """
    entries: list[tuple[tuple[int, int, int, int], str, GpuInformation | None]] = []
    problems: list[str] = []
    for name in host.list_names(_GPUS_DIR):
        address = _parse_pci_address(name)
        if address is None:
            problems.append(
                f"{host.full_path(_GPUS_DIR + '/' + name)}: the name is not a PCI address, so it is left out"
            )
            continue
        information, reason = _read_gpu_information(host, f"{_GPUS_DIR}/{name}/information")
        if information is not None and information["excluded"]:
            continue
        if reason:
            information = None
            problems.append(f"GPU {name} is left out: {reason}")
        entries.append((address, name, information))
    entries.sort(key=lambda entry: entry[0])
    gpus: list[Gpu] = []
    for index, (_, name, information) in enumerate(entries):
        if information is not None:
            uuid, model, minor = information["uuid"], information["model"], information["minor"]
            gpus.append(Gpu(index=index, uuid=uuid, pci=name.lower(), minor=minor, model=model))
    return gpus, problems


def _read_gpu_information(host: Host, path: str) -> tuple[GpuInformation | None, str]:
    """Return one GPU's information, and the reason why it cannot be used ("" when it can)."""
    try:
        data = host.read_file(path, _READ_LIMIT)
    except Fault as fault:
        return None, str(fault)
    if data is None:
        return None, f"{host.full_path(path)} is missing"
    information = parse_gpu_information(data)
    return information, f"{host.full_path(path)} has no device minor" if information["minor"] < 0 else ""


def _parse_pci_address(name: str) -> tuple[int, int, int, int] | None:
    """Return an address like 0000:65:00.0 as numbers to sort by: domains may have more digits than four."""
    parts = name.replace(".", ":").split(":")
    if len(parts) != 4 or not name.isascii() or not name.replace(".", "").replace(":", "").isalnum():
        return None
    try:
        domain, bus, device, function = (int(part, 16) for part in parts)
    except ValueError:
        return None
    return domain, bus, device, function
