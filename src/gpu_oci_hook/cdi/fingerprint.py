"""What a CDI file was made from, as a short hash: another one means that the file may no longer fit the machine.

It tells nothing that changes by itself: no times, no inodes, no sockets of daemons, no UUIDs of MIG devices, which
only NVML knows. Cost rule: cold; pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from gpu_oci_hook import state
from gpu_oci_hook.host.inventory import DriverFile, Gpu


def of(driver: str, gpus: Iterable[Gpu], mig: Iterable[tuple[int, int, int]], files: Iterable[DriverFile]) -> str:
    """The hash of a machine.

    Arguments:
        driver: version of the running kernel module; "" where none is loaded.
        gpus: all of the machine. mig: (GPU's index, gi, ci) of all its MIG devices.
        files: of the driver's inventory.
    """
    known = [
        driver,
        sorted((gpu.index, gpu.uuid, gpu.pci, gpu.minor) for gpu in gpus),
        sorted(mig),
        sorted({(file.source, file.container) for file in files if file.kind not in ("socket", "directory")}),
    ]
    return state.digest(json.dumps(known).encode())
