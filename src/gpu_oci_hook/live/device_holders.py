"""Find the processes of a container that hold device nodes open: a rule keeps them from opening, not from using.

Import budget: cold.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.live.monitors import PROC, read_namespace_id, read_process_file
from gpu_oci_hook.live.namespace_process import run_with_deadline

_DEADLINE = 5.0  # seconds; looking at a file of a hostile FUSE can take for ever


class DeviceHolder(NamedTuple):
    """A process that holds devices open.

    Attributes:
        pid: on the host.
        command: its name.
        devices: numbers of the devices.
    """

    pid: int
    command: str
    devices: list[str]


def list_device_holders(init_pid: int, devices: list[tuple[int, int]]) -> list[DeviceHolder]:
    """List the processes of a container that hold one of these character devices open.

    Arguments:
        init_pid: the container's first process.

    Raises:
        Fault: that cannot be found out in time.
    """
    numbers = {os.makedev(*device) for device in devices}
    found = run_with_deadline(lambda: _scan_processes(init_pid, numbers), deadline=_DEADLINE) if numbers else []
    if not isinstance(found, list):
        raise Fault("the processes of the container cannot be looked at")
    return [DeviceHolder(*holder) for holder in found]


def _scan_processes(init_pid: int, numbers: set[int]) -> list[DeviceHolder]:
    namespace, cgroups = read_namespace_id(init_pid, "mnt"), read_process_file(init_pid, "cgroup")
    holders = []
    for pid in sorted(int(name) for name in os.listdir(PROC) if name.isdigit()):
        # A container's processes can have other mount namespaces, as those of containers in it have.
        if read_namespace_id(pid, "mnt") != namespace and not _is_below(read_process_file(pid, "cgroup"), cgroups):
            continue
        held = _list_held_devices(pid, numbers)
        if held:
            command = os.fsdecode(read_process_file(pid, "comm")).strip()
            holders.append(DeviceHolder(pid, command, held))
    return holders


def _is_below(cgroups: bytes, parent_cgroups: bytes) -> bool:
    """Tell whether all cgroups of a process are those of another one, or below; the root does not count."""
    pairs = list(zip(cgroups.splitlines(), parent_cgroups.splitlines(), strict=False))
    own = [(line, parent) for line, parent in pairs if not parent.endswith(b":/")]
    return bool(own) and all(line == parent or line.startswith(parent + b"/") for line, parent in own)


def _list_held_devices(pid: int, numbers: set[int]) -> list[str]:
    held: set[str] = set()
    directory = f"{PROC}/{pid}/fd"
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    for name in names:
        try:
            status = os.stat(f"{directory}/{name}")
        except OSError:
            continue
        if stat.S_ISCHR(status.st_mode) and status.st_rdev in numbers:
            held.add(f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}")
    return sorted(held)
