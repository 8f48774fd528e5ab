"""The GPUs and the driver's version, read live from the NVIDIA module's /proc files.

No NVML: it costs seconds without persistence mode and would load vendor code. Cost rule: on the way of
every GPU container; one small read per GPU.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats import proc
from gpu_oci_hook.host.inventory import Gpu
from gpu_oci_hook.host.root import Host

_LIMIT = 65536
_GPUS = "/proc/driver/nvidia/gpus"
CAPABILITIES = "/proc/driver/nvidia/capabilities"


def version(host: Host) -> str | None:
    """The running kernel module's version; None when no module is loaded (or says nothing readable).

    Closed and open modules write /proc/driver/nvidia/version differently; /sys/module/nvidia/version has
    the bare number.
    """
    for path in ("/proc/driver/nvidia/version", "/sys/module/nvidia/version"):
        try:
            data = host.read(path, _LIMIT)
        except Fault:
            continue
        found = None if data is None else proc.driver_version(data)
        if found and driver_like(found):
            return found
    return None


def driver_like(text: str) -> bool:
    """Whether this is a driver version: NNN.NN or NNN.NN.NN. "1.1" (Tegra, WSL, stubs) is none."""
    parts = text.split(".")
    if not 2 <= len(parts) <= 4 or not text.isascii():
        return False
    return all(part.isdigit() and len(part) <= 4 for part in parts) and len(parts[0]) == 3


def unusual(host: Host, *, loaded: bool) -> bool:
    """Whether there is a mark of a machine that may be no desktop (see `platform.detect`): two looks at most.

    Arguments:
        loaded: the module nvidia is: then it is no Windows.
    """
    return (
        host.status("/etc/nv_tegra_release") is not None
        or host.status("/sys/devices/soc0/family") is not None
        or (not loaded and host.status("/dev/dxg") is not None)
    )


def gpus(host: Host) -> tuple[list[Gpu], list[str]]:
    """The GPUs in PCI order, and a sentence for each one that is left out because its file is broken.

    The index counts only GPUs that are not excluded: the driver hides excluded ones from everybody. One that is left
    out keeps its index, or a container would get another GPU than the one that its index names.
    """
    found: list[tuple[tuple[int, int, int, int], str, proc.GpuText | None]] = []
    problems: list[str] = []
    for name in host.names(_GPUS):
        where = f"{_GPUS}/{name}/information"
        address = _address(name)
        if address is None:
            problems.append(f"{host.path(_GPUS + '/' + name)}: the name is no PCI address, so it is left out")
            continue
        facts, why = None, ""
        try:
            data = host.read(where, _LIMIT)
            if data is None:
                why = f"{host.path(where)} is missing"
            else:
                facts = proc.gpu(data)
        except Fault as fault:
            why = str(fault)
        if facts is not None and facts["excluded"]:
            continue
        if facts is not None and facts["minor"] < 0:
            facts, why = None, f"{host.path(where)} has no device minor"
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


def in_mig_mode(host: Host, known: list[Gpu]) -> frozenset[int]:
    """The indices of the GPUs that are divided into MIG instances.

    The driver has a directory for each instance. One that is in MIG mode without any cannot be told from
    others: there is nothing in it to hand out.
    """
    if not known:
        return frozenset()
    there = host.names(CAPABILITIES)
    if not there:  # hidden from us, as from a container that has containers of its own: the nodes tell
        if len(host.names("/dev/nvidia-caps")) <= 2:  # of configuring and monitoring
            return frozenset()
        from gpu_oci_hook.host import mig_tree

        return frozenset(gpu.index for gpu in known if mig_tree.pairs(host, gpu))
    return frozenset(
        gpu.index
        for gpu in known
        if f"gpu{gpu.minor}" in there
        and any(name.startswith("gi") for name in host.names(f"{CAPABILITIES}/gpu{gpu.minor}/mig"))
    )


def _address(name: str) -> tuple[int, int, int, int] | None:
    """An address like 0000:65:00.0 as numbers: domains may have more digits, so text does not sort right."""
    parts = name.replace(".", ":").split(":")
    if len(parts) != 4 or not name.isascii() or not name.replace(".", "").replace(":", "").isalnum():
        return None
    try:
        domain, bus, device, function = (int(part, 16) for part in parts)
    except ValueError:
        return None
    return domain, bus, device, function
