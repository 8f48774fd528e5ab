"""Number the MIG instances of simulated GPUs: instance ids and device minors as a 550 driver assigns them.

Import budget: cold.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_oci_hook.errors import Fault

_NAMESPACE = uuid.UUID("0b9c6a53-5c8e-4f0e-8f7e-3b9a1d2c4e6f")
_PROFILE = re.compile(r"(?:([1-7])c\.)?([1-7])g(?:\.[0-9]{1,3}gb)?", re.ASCII)
_SLICES_PER_GPU = 7
# Ids of GPU instances by their size in slices, as on an A100 and later.
_IDS_BY_SLICES = {7: (0,), 4: (1,), 3: (1, 2), 2: (3, 4, 5), 1: (7, 8, 9, 10, 11, 12, 13)}
# The driver's table has config and monitor, then for each GPU 15 GPU instances with 8 compute instances each.
_FIRST_MINOR, _TABLE_GPUS, _GPU_INSTANCES, _COMPUTE_INSTANCES = 3, 32, 15, 8


@dataclass(frozen=True)
class SimulatedMigDevice:
    """A MIG device: ids of its GPU instance and its compute instance, and its UUID."""

    gi: int
    ci: int
    uuid: str


def build_mig_devices(profile_lists: Sequence[str], count: int) -> list[tuple[SimulatedMigDevice, ...]]:
    """Return the MIG devices of each of `count` GPUs.

    Arguments:
        profile_lists: one list for all GPUs, or one for each GPU from the first on; MIG mode is off on the remaining
            GPUs. A list is a number of one-slice devices, or profiles such as `3g.20gb,2g,1c.2g`. The last profile
            of this example is divided into compute instances of one slice each.

    Raises:
        Fault: a profile is unknown, a list takes more than the 7 slices of a GPU, or there are more lists than GPUs.
    """
    list_by_gpu = list(profile_lists) * count if len(profile_lists) == 1 else list(profile_lists)
    if len(list_by_gpu) > count and len(profile_lists) > 1:
        raise Fault(
            f"there are {len(profile_lists)} MIG profile lists, but {count} GPUs",
            hint="Give one list, or one for each GPU",
        )
    list_by_gpu += ["0"] * (count - len(list_by_gpu))
    return [
        tuple(
            SimulatedMigDevice(gi, ci, f"MIG-{uuid.uuid5(_NAMESPACE, f'{index}/{gi}/{ci}')}")
            for gi, ci in _parse_profile_list(profile_list)
        )
        for index, profile_list in enumerate(list_by_gpu[:count])
    ]


def _parse_profile_list(profile_list: str) -> list[tuple[int, int]]:
    """Return the (gi, ci) of each device that a profile list creates on one GPU, in order."""
    if profile_list.isascii() and profile_list.isdigit() and len(profile_list) < 3:
        profiles = ["1g"] * int(profile_list)
    else:
        profiles = profile_list.split(",")
    devices = []
    used_slices = 0
    free_ids = {size: list(ids) for size, ids in _IDS_BY_SLICES.items()}
    for profile in profiles:
        match = _PROFILE.fullmatch(profile.strip())
        size = int(match[2]) if match else 0
        if not match or size not in free_ids:
            raise Fault(f'"{profile}" is not a MIG profile', hint="Give a number, or a list such as 3g,2g,1c.2g")
        used_slices += size
        if used_slices > _SLICES_PER_GPU or not free_ids[size]:
            raise Fault(f'"{profile_list}" does not fit a GPU', hint=f"Use at most its {_SLICES_PER_GPU} slices")
        gi = free_ids[size].pop(0)
        if size == 4:
            free_ids[3] = [2]
        devices += [(gi, ci) for ci in range(size // int(match[1]) if match[1] else 1)]
    return sorted(devices)


def compute_capability_minor(gpu_minor: int, gi: int, ci: int = -1) -> int:
    """Return the device minor of a compute instance's capability, or of the GPU instance's if `ci` is omitted."""
    per_instance = _COMPUTE_INSTANCES + 1
    return _FIRST_MINOR + (gpu_minor * _GPU_INSTANCES + gi) * per_instance + ci + 1


def format_minors_table() -> str:
    """Return the text of /proc/driver/nvidia-caps/mig-minors, which is the same on every machine."""
    lines = ["config 1", "monitor 2"]
    for gpu_minor in range(_TABLE_GPUS):
        for gi in range(_GPU_INSTANCES):
            lines.append(f"gpu{gpu_minor}/gi{gi}/access {compute_capability_minor(gpu_minor, gi)}")
            for ci in range(_COMPUTE_INSTANCES):
                lines.append(f"gpu{gpu_minor}/gi{gi}/ci{ci}/access {compute_capability_minor(gpu_minor, gi, ci)}")
    return "\n".join(lines) + "\n"
