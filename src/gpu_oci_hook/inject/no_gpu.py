"""What is missing on a machine that has no GPU to give; cold, nobody gets here on a machine that works."""

from __future__ import annotations

import stat

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host.driver.inventory_cache import load_inventory
from gpu_oci_hook.inject.gather import get_driver_host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.machine import Cache
    from gpu_oci_hook.model.outcome import Outcome

# What to do about a root that is not there.
ROOT_HINT = "name the directory that has the machine's files; `gpu-oci-hook config validate` checks it"
# What to do when the module has found no GPU.
NO_GPU_HINT = "look for the reason in the kernel's log (dmesg | grep -i nvrm) and for the card (lspci -d 10de:)"


def report_missing_gpu(
    outcome: Outcome, host: Host, config: Config, version: str | None, cache: Cache, *, nvidia_loaded: bool
) -> None:
    """Fails or warns, by policy, with what is missing.

    Arguments:
        version: of the running kernel module; None when it is not loaded.
        nvidia_loaded: its device numbers are there all the same.
    """
    text, cures = describe_missing_gpu(outcome, host, config, version, cache, nvidia_loaded=nvidia_loaded)
    if config.missing_gpu == "fail":
        cures.append('set [request] missing-gpu = "warn" to start without a GPU')
        raise Fault(text, where=outcome.request.origin, hint=join_hints(cures))
    outcome.plan.warnings.append(f"{text}; the container starts without a GPU")


def describe_missing_gpu(
    outcome: Outcome, host: Host, config: Config, version: str | None, cache: Cache, *, nvidia_loaded: bool
) -> tuple[str, list[str]]:
    """What is missing, and what can be done about it; arguments as for `report_missing_gpu`."""
    astray = find_missing_root(host, config)
    if astray:
        return astray, [ROOT_HINT]
    found = load_inventory(host, get_driver_host(host, config), config.library_paths, version, cache)
    lacks = []
    libraries = any(file.kind == "library" for file in found.files)
    if version is None:
        numbers = "its device numbers are there" if nvidia_loaded else "no nvidia in /proc/devices"
        lacks.append(f"the kernel module nvidia is not loaded ({numbers}, no /proc/driver/nvidia/version)")
    elif not outcome.gpus:
        lacks.append(f"the kernel module {version} is loaded but has no GPU in /proc/driver/nvidia/gpus")
    if not libraries:
        lacks.append("no driver libraries are installed where they are looked for (see gpu-oci-hook list)")
    elif version is None:
        lacks.append("driver libraries are installed")
    cures = [NO_GPU_HINT if version else "load the driver" if libraries else "install and load the driver"]
    if not libraries:
        cures.append("set [host] driver-root or library-paths if its files lie elsewhere")
    # Engines hand on no environment of a person's, so the file that he has named may not be the one that counts.
    by = f"by {config.path}" if config.path else "by the default configuration"
    return f"this machine has no NVIDIA GPU to give ({by}): {'; '.join(lacks)}", cures


def find_missing_root(host: Host, config: Config) -> str:
    """The configured root that is not there; "" when all are. What is missing below it is no news then."""
    for key, root in (("root", host), ("driver-root", get_driver_host(host, config))):
        status = root.stat_path("/")
        if status is None or not stat.S_ISDIR(status.st_mode):
            said = f"[host] {key} = {root.root}" if key == "root" else f"[host] {key} = {config.driver_root}"
            inside = "" if host.root == "/" or key == "root" else f" below {host.root}"
            return f"{said} is no directory{inside}{f' ({config.path})' if config.path else ''}"
    return ""


def join_hints(hints: list[str]) -> str:
    """The cures as one sentence."""
    text = ", or ".join(hints)
    return text[0].upper() + text[1:]


def check_driver_root(host: Host, config: Config) -> None:
    """Looks whether required files are missing because their whole root is.

    Raises:
        Fault: it is.
    """
    astray = find_missing_root(host, config)
    if astray:
        raise Fault(astray, hint=join_hints([ROOT_HINT]))
