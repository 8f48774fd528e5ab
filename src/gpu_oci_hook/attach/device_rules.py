"""Allow and deny devices in the cgroup of a running container, unless it shares that with other processes.

Import budget: cold.
"""

from __future__ import annotations

import os

from gpu_oci_hook.attach.running_container import RunningContainer
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.live.attachment_record import Device
from gpu_oci_hook.live.device_cgroup import DeviceCgroup, allow_devices, deny_devices, find_device_cgroup

_SHARED_NOTE = (
    "the container has no cgroup of its own, so its device rules are those of other processes and stay as they are"
)


def allow_container_devices(container: RunningContainer, devices: list[Device]) -> list[str]:
    """Allow a container to open devices; return notes, such as that it has no rules of its own.

    Raises:
        Fault: the kernel refuses.
    """
    return _change(container, devices, is_allowing=True)


def deny_container_devices(container: RunningContainer, devices: list[Device]) -> list[str]:
    """Keep a container from opening devices; return notes, such as that it has no rules of its own.

    Raises:
        Fault: the kernel refuses.
    """
    return _change(container, devices, is_allowing=False)


def _change(container: RunningContainer, devices: list[Device], *, is_allowing: bool) -> list[str]:
    if not devices:
        return []
    cgroup = find_device_cgroup(container.pid)
    if cgroup is None:
        return []
    if _is_shared(cgroup, container):
        return [_SHARED_NOTE]
    return allow_devices(cgroup, devices) if is_allowing else deny_devices(cgroup, devices)


def _is_shared(cgroup: DeviceCgroup, container: RunningContainer) -> bool:
    """Tell whether processes outside of the container are in its cgroup."""
    for pid in (1, os.getpid(), container.monitor_pid):
        try:
            other = find_device_cgroup(pid) if pid else None
        except Fault:
            continue
        if other is not None and cgroup.paths[0] == other.paths[0]:
            return True
    return False
