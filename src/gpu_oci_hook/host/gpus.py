"""Read the GPUs and the driver's version from the /proc files of the kernel module nvidia.

NVML is not used: without persistence mode it takes seconds, and it would load vendor code into this process.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.proc import parse_driver_version, parse_gpu_information
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.model.machine import Gpu

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.formats.proc import GpuInformation
    from gpu_oci_hook.host.platforms.platform import Platform

_READ_LIMIT = 65536
_MAX_SHOWN_NODES = 4
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
        if version:
            return version
    return None


class MachineGpus:
    """The GPUs of a machine as containers can request them.

    Attributes:
        gpus: the GPUs that can be given, with their index among these.
        problems: one sentence for each oddity.
        left_out: one sentence for each GPU of the driver that cannot be given here.
        platform: the platform; None for a desktop or server.
    """

    __slots__ = ("gpus", "left_out", "platform", "problems")

    def __init__(self, gpus: list[Gpu], problems: list[str], left_out: list[str], platform: Platform | None) -> None:
        self.gpus = gpus
        self.problems = problems
        self.left_out = left_out
        self.platform = platform


def read_machine_gpus(host: Host, configured_platform: str) -> MachineGpus:
    """Read the GPUs that containers can request on this machine, and the machine's platform.

    On a desktop or server this costs two or three stat calls, and two calls for each GPU, more than `read_gpus`. The
    platform modules are imported only where a marker of another platform exists or the configuration names one.

    Arguments:
        configured_platform: `[host] platform`.
    """
    driver_gpus, problems = read_gpus(host)
    gpus, left_out = select_usable_gpus(host, driver_gpus)
    if left_out and gpus:
        problems += _report_uncreated_nodes(host, driver_gpus)
    platform = find_machine_platform(host, driver_gpus, configured_platform)
    return MachineGpus(gpus if platform is None else platform.list_gpus(gpus), problems, left_out, platform)


def _report_uncreated_nodes(host: Host, driver_gpus: list[Gpu]) -> list[str]:
    """Return a sentence about GPUs that are left out only because nobody has created their nodes."""
    from gpu_oci_hook.host.device_nodes import NVIDIA_MAJOR
    from gpu_oci_hook.host.node_access import list_uncreated_nodes

    paths = list_uncreated_nodes(host, [(f"/dev/nvidia{gpu.minor}", NVIDIA_MAJOR, gpu.minor) for gpu in driver_gpus])
    if not paths:
        return []
    shown = ", ".join(paths[:_MAX_SHOWN_NODES])
    more = f" and {len(paths) - _MAX_SHOWN_NODES} more" if len(paths) > _MAX_SHOWN_NODES else ""
    problem = f"GPUs without a node are left out, and indices count the others: {shown}{more} missing"
    return [f"{problem}; nvidia-modprobe -c MINOR creates one"]


def find_machine_platform(host: Host, driver_gpus: list[Gpu], configured_platform: str) -> Platform | None:
    """Return the machine's platform, None for a desktop or server; see `read_machine_gpus`."""
    if configured_platform == "desktop":
        return None
    if configured_platform == "auto" and not has_platform_marker(host, nvidia_loaded=bool(driver_gpus)):
        return None
    from gpu_oci_hook.host.platforms.detect import find_platform

    return find_platform(host, driver_gpus, configured_platform)


def select_usable_gpus(host: Host, driver_gpus: list[Gpu]) -> tuple[list[Gpu], list[str]]:
    """Select the GPUs whose nodes can be given to containers here, see `device_nodes.find_unusable_nodes`.

    NVML and CUDA see the same GPUs in this place, so the index counts among these.

    Returns:
        (GPUs, one sentence for each GPU that is left out).
    """
    from gpu_oci_hook.host.device_nodes import NVIDIA_MAJOR, find_unusable_nodes  # the hook needs neither

    reasons = find_unusable_nodes(host, [(f"/dev/nvidia{gpu.minor}", NVIDIA_MAJOR, gpu.minor) for gpu in driver_gpus])
    if not reasons:
        return driver_gpus, []
    gpus: list[Gpu] = []
    left_out: list[str] = []
    for gpu in driver_gpus:
        reason = reasons.get(f"/dev/nvidia{gpu.minor}")
        if reason:
            uuid = f" ({gpu.uuid})" if gpu.uuid else ""
            left_out.append(f"GPU {gpu.pci}{uuid} cannot be given to containers here: {reason}")
        else:
            index = gpu.index - len(left_out)
            gpus.append(Gpu(index=index, uuid=gpu.uuid, pci=gpu.pci, minor=gpu.minor, model=gpu.model))
    return gpus, left_out


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
    """Return every GPU that the driver shows, in PCI order, and a sentence for each one whose file is broken.

    In a container the driver shows all GPUs of the machine: see `select_usable_gpus`.

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
