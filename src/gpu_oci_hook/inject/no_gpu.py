"""Explain what is missing on a machine that has no GPU for a container.

Import budget: cold.
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook.config.load import find_config_path
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host.driver.inventory_cache import load_inventory
from gpu_oci_hook.host.driver.other_roots import find_other_driver_root, suggest_driver_root
from gpu_oci_hook.request.capabilities import add_implied_capabilities

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.inject.gather import Machine
    from gpu_oci_hook.model.machine import Inventory
    from gpu_oci_hook.model.request import Request

# For a root that does not exist.
ROOT_HINT = "name the directory that has the host's files; `gpu-oci-hook config validate` checks it"
# For a kernel module that has found no GPU.
NO_GPU_HINT = "look for the reason in the kernel's log (dmesg | grep -i nvrm) and for the card (lspci -d 10de:)"

# For GPUs of the driver without a node that can be opened here.
NO_NODE_HINT = (
    "create missing nodes (nvidia-modprobe -c MINOR); in a container, start that container with the GPUs that its own "
    "containers need"
)
_VERSION_FILE = "/proc/driver/nvidia/version"
_MAX_SHOWN = 4  # GPUs whose reasons a sentence has


def report_missing_gpu(machine: Machine, request: Request, warnings: list[str]) -> None:
    """Fail or warn, by `[request] missing-gpu`, with what is missing.

    Raises:
        Fault: the policy is to fail.
    """
    text, hints = describe_missing_gpu(machine)
    if machine.config.missing_gpu == "fail":
        hints.append('set [request] missing-gpu = "warn" to start without a GPU')
        raise Fault(text, where=request.origin, hint=join_hints(hints))
    warnings.append(f"{text}; the container starts without a GPU")


def describe_missing_gpu(machine: Machine) -> tuple[str, list[str]]:
    """Return what is missing, and a hint for each thing to do about it."""
    missing_root = find_missing_root(machine)
    if missing_root:
        return missing_root, [ROOT_HINT]
    config, version = machine.config, machine.driver_version
    inventory = load_inventory(machine.host, machine.driver_host, config.library_paths, version, machine.cache)
    has_libraries = any(file.kind == "library" for file in inventory.files)
    facts = []
    if version is None:
        facts.append(_describe_missing_module(machine))
    elif not machine.gpus and (machine.left_out or machine.problems):
        reasons = "; ".join([*machine.problems, *machine.left_out][:_MAX_SHOWN])
        facts.append(f"the kernel module {version} is loaded, but none of its GPUs can be used: {reasons}")
    elif not machine.gpus:
        facts.append(f"the kernel module {version} is loaded but has no GPU in /proc/driver/nvidia/gpus")
    if not has_libraries:
        facts.append("no driver libraries are installed where they are looked for (see gpu-oci-hook list)")
    elif version is None:
        facts.append("driver libraries are installed")
    other_root = "" if has_libraries else find_other_driver_root(machine.host, config, version or "")
    hints = [NO_GPU_HINT if version else "load the driver" if has_libraries else "install and load the driver"]
    if version is None and machine.host.stat_path(_VERSION_FILE) is not None:
        hints = [f"look at {_VERSION_FILE}, and reload the driver"]
    if version and machine.left_out and not machine.gpus:
        hints = [NO_NODE_HINT]
    if other_root:
        suggestion = suggest_driver_root(other_root, config)
        hints = [suggestion, NO_GPU_HINT] if version else [f"{suggestion}, then load the driver's kernel module"]
    elif not has_libraries:
        hints.append("set [host] driver-root or library-paths if its files lie elsewhere")
    # Engines pass on no environment, so the file that GPU_OCI_HOOK_CONFIG names in a shell may not be the one in use.
    if not config.path and not os.environ.get("GPU_OCI_HOOK_CONFIG"):
        hints.append("set GPU_OCI_HOOK_CONFIG if the configuration is in another file")
    return (
        f"this machine has no NVIDIA GPU for containers ({describe_config_source(config)}): {'; '.join(facts)}",
        hints,
    )


def _describe_missing_module(machine: Machine) -> str:
    if machine.host.stat_path(_VERSION_FILE) is not None:
        return (
            f"the version of the kernel module nvidia is unknown, since {_VERSION_FILE} names none such as 550.163.01"
        )
    evidence = "its device numbers are there" if machine.majors.nvidia_loaded else "no nvidia in /proc/devices"
    return f"the kernel module nvidia is not loaded ({evidence}, no {_VERSION_FILE})"


def describe_config_source(config: Config) -> str:
    """Return which config file is in use, or which one was looked for."""
    if config.path:
        return f"configuration {config.path}"
    return f"default configuration, since there is no {find_config_path()}"


def add_left_out_gpus(fault: Fault, machine: Machine) -> Fault:
    """Return the fault of a selector without a match, with the GPUs of the driver that cannot be given here."""
    count = len(machine.left_out)
    others = f"; and {count - 1} more" if count > 1 else ""
    return Fault(fault.what, where=fault.where, hint=f"{fault.hint}. {machine.left_out[0]}{others}")


def find_missing_root(machine: Machine) -> str:
    """Return a sentence about the configured root that does not exist; "" when all exist.

    A missing root explains everything that is missing below it.
    """
    config, host = machine.config, machine.host
    for key, root in (("root", host), ("driver-root", machine.driver_host)):
        status = root.stat_path("/")
        if status is None or not stat.S_ISDIR(status.st_mode):
            setting = f"[host] {key} = {root.root}" if key == "root" else f"[host] {key} = {config.driver_root}"
            below = "" if host.root == "/" or key == "root" else f" below {host.root}"
            return f"{setting} is not a directory{below}{f' ({config.path})' if config.path else ''}"
    return ""


def join_hints(hints: list[str]) -> str:
    """Return the hints as one sentence."""
    text = ", or ".join(hints)
    return text[0].upper() + text[1:]


def check_driver_root(machine: Machine, request: Request, inventory: Inventory) -> None:
    """Check whether required libraries are missing because their root is, or because they are below another root.

    Raises:
        Fault: so it is.
    """
    missing_root = find_missing_root(machine)
    if missing_root:
        raise Fault(missing_root, hint=join_hints([ROOT_HINT]))
    implied_by = add_implied_capabilities(request.capabilities)
    if inventory.library_version or not any(name in implied_by for name, _, _ in inventory.missing_libraries):
        return
    config = machine.config
    other_root = find_other_driver_root(machine.host, config, machine.driver_version or "")
    if other_root:
        raise Fault(
            f"[host] driver-root = {config.driver_root} has no driver libraries",
            where=config.path,
            hint=join_hints([suggest_driver_root(other_root, config)]),
        )
