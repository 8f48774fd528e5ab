"""Name GPUs and MIG devices in a generated CDI file by index, UUID or type and index.

Import budget: cold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_oci_hook.formats.cdi_names import is_device_name

if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import Gpu
    from gpu_oci_hook.model.mig import MigDevice


def list_gpu_names(gpu: Gpu, gpus: list[Gpu], strategies: tuple[str, ...], warnings: list[str]) -> list[str]:
    """List the names of a GPU; appends a warning for a name that it cannot have.

    Arguments:
        gpus: all GPUs of the machine. Engines refuse a file in which two devices have one name.
        strategies: of NAME_STRATEGIES.
    """
    uuid, reason = gpu.uuid, ""
    if uuid and not is_device_name(uuid):
        reason = f"the driver does not know it yet ({uuid})"
    elif uuid and [other.uuid.lower() for other in gpus].count(uuid.lower()) > 1:
        uuid, reason = "", f"another GPU has the same one ({uuid})"
    if reason and "uuid" in strategies:
        warnings.append(f"GPU {gpu.index} has no name by UUID: {reason}")
    names = {"index": str(gpu.index), "uuid": uuid, "type-index": f"gpu{gpu.index}"}
    return _choose_valid_names(names, strategies, warnings)


def list_mig_device_names(device: MigDevice, strategies: tuple[str, ...], warnings: list[str]) -> list[str]:
    """List the names of a MIG device; appends a warning for a name that it cannot have.

    Arguments:
        strategies: of NAME_STRATEGIES.
    """
    if device.uuid and not is_device_name(device.uuid) and "uuid" in strategies:
        warnings.append(f"MIG device {device.name} has no name by UUID: {device.uuid} is not a valid CDI device name")
    names = {"index": device.name, "uuid": device.uuid, "type-index": f"mig{device.name}"}
    return _choose_valid_names(names, strategies, warnings)


def _choose_valid_names(names: dict[str, str], strategies: tuple[str, ...], warnings: list[str]) -> list[str]:
    """Choose the names by some strategies that CDI allows.

    Arguments:
        names: name by strategy.
    """
    valid_names = [names[strategy] for strategy in dict.fromkeys(strategies) if is_device_name(names[strategy])]
    if not valid_names:
        warnings.append(f"{names['type-index']} is left out: it has no name by {', '.join(strategies)}")
    return valid_names
