"""MIG instances of simulated GPUs: ids and device minors as a 550 driver gives them.

Cost rule: none.
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
# The driver's table: config, monitor, then for each GPU 15 GPU instances with 8 compute instances each.
_FIRST_MINOR, _TABLE_GPUS, _GPU_INSTANCES, _COMPUTE_INSTANCES = 3, 32, 15, 8


@dataclass(frozen=True)
class SimulatedMigDevice:
    """A MIG device: ids of its GPU instance and its compute instance, UUID."""

    gi: int
    ci: int
    uuid: str


def build_mig_devices(profile_lists: Sequence[str], count: int) -> list[tuple[SimulatedMigDevice, ...]]:
    """The MIG devices of each of `count` GPUs.

    Arguments:
        profile_lists: one for all GPUs, or one for each from the first on; the others are then in no MIG mode. A word is a
            number of devices of one slice each, or a list of profiles: `3g.20gb,2g,1c.2g` (the last one divided into
            compute instances of one slice each).

    Raises Fault for a word that means nothing, or asks for more than 7 slices of a GPU.
    """
    each = list(profile_lists) * count if len(profile_lists) == 1 else list(profile_lists)
    if len(each) > count and len(profile_lists) > 1:
        raise Fault(f"there are {len(profile_lists)} words for MIG and {count} GPUs")
    each += ["0"] * (count - len(each))
    return [
        tuple(
            SimulatedMigDevice(gi, ci, f"MIG-{uuid.uuid5(_NAMESPACE, f'{index}/{gi}/{ci}')}")
            for gi, ci in _parse_profile_list(word)
        )
        for index, word in enumerate(each[:count])
    ]


def _parse_profile_list(profile_list: str) -> list[tuple[int, int]]:
    profiles = (
        ["1g"] * int(profile_list)
        if profile_list.isascii() and profile_list.isdigit() and len(profile_list) < 3
        else profile_list.split(",")
    )
    found = []
    used = 0
    left = {size: list(ids) for size, ids in _IDS_BY_SLICES.items()}
    for profile in profiles:
        match = _PROFILE.fullmatch(profile.strip())
        size = int(match[2]) if match else 0
        if not match or size not in left:
            raise Fault(f'"{profile}" is no MIG profile', hint="Give a number, or a list such as 3g,2g,1c.2g")
        used += size
        if used > _SLICES_PER_GPU or not left[size]:
            raise Fault(f'"{profile_list}" does not fit a GPU', hint=f"It has {_SLICES_PER_GPU} slices")
        gi = left[size].pop(0)
        if size == 4:
            left[3] = [2]
        found += [(gi, ci) for ci in range(size // int(match[1]) if match[1] else 1)]
    return sorted(found)


def compute_capability_minor(gpu: int, gi: int, ci: int = -1) -> int:
    """The device minor of a capability; `gpu` is the GPU's own minor, and without `ci` it is the GPU instance's."""
    per_instance = _COMPUTE_INSTANCES + 1
    return _FIRST_MINOR + (gpu * _GPU_INSTANCES + gi) * per_instance + ci + 1


def format_minors_table() -> str:
    """/proc/driver/nvidia-caps/mig-minors: the same on every machine."""
    lines = ["config 1", "monitor 2"]
    for gpu in range(_TABLE_GPUS):
        for gi in range(_GPU_INSTANCES):
            lines.append(f"gpu{gpu}/gi{gi}/access {compute_capability_minor(gpu, gi)}")
            for ci in range(_COMPUTE_INSTANCES):
                lines.append(f"gpu{gpu}/gi{gi}/ci{ci}/access {compute_capability_minor(gpu, gi, ci)}")
    return "\n".join(lines) + "\n"
