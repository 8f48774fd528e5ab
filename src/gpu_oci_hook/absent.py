"""What is missing on a machine that has no GPU to give; cold, nobody gets here on a machine that works."""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host import inventory as host_inventory
from gpu_oci_hook.supply import driver_host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config import Config
    from gpu_oci_hook.host.inventory import Memory
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.pipeline import Outcome

# What to do when the module has found no GPU.
NO_GPUS = "look for the reason in the kernel's log (dmesg | grep -i nvrm) and for the card (lspci -d 10de:)"


def tell(
    outcome: Outcome, host: Host, config: Config, version: str | None, memory: Memory, *, loaded: bool
) -> None:
    """Fails or warns, by policy, with what is missing.

    Arguments:
        version: of the running kernel module; None when it is not loaded.
        loaded: its device numbers are there all the same.
    """
    text, cures = missing(outcome, host, config, version, memory, loaded=loaded)
    if config.missing_gpu == "fail":
        cures.append('set [request] missing-gpu = "warn" to start without a GPU')
        raise Fault(text, where=outcome.request.origin, cure=sentence(cures))
    outcome.plan.warnings.append(f"{text}; the container starts without a GPU")


def missing(
    outcome: Outcome, host: Host, config: Config, version: str | None, memory: Memory, *, loaded: bool
) -> tuple[str, list[str]]:
    """What is missing, and what can be done about it; arguments as for `tell`."""
    found = host_inventory.load(host, driver_host(host, config), config.library_paths, version, memory)
    lacks = []
    libraries = any(file.kind == "library" for file in found.files)
    if version is None:
        numbers = "its device numbers are there" if loaded else "no nvidia in /proc/devices"
        lacks.append(f"the kernel module nvidia is not loaded ({numbers}, no /proc/driver/nvidia/version)")
    elif not outcome.gpus:
        lacks.append(f"the kernel module {version} is loaded but has no GPU in /proc/driver/nvidia/gpus")
    if not libraries:
        lacks.append("no driver libraries are installed where they are looked for (see gpu-oci-hook list)")
    elif version is None:
        lacks.append("driver libraries are installed")
    cures = [NO_GPUS if version else "load the driver" if libraries else "install and load the driver"]
    if not libraries:
        cures.append("set [host] driver-root or library-paths if its files lie elsewhere")
    return f"this machine has no NVIDIA GPU to give: {'; '.join(lacks)}", cures


def sentence(cures: list[str]) -> str:
    """The cures as one sentence."""
    text = ", or ".join(cures)
    return text[0].upper() + text[1:]
