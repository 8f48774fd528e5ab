"""Allow and deny devices in the cgroup of a running container, unless it shares that with other processes.

Import budget: cold.
"""

from __future__ import annotations

import os

from gpu_oci_hook.attach.running_container import RunningContainer
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.live.attachment_record import Device
from gpu_oci_hook.live.device_access import query_device_access
from gpu_oci_hook.live.device_cgroup import DeviceCgroup, allow_devices, deny_devices, find_device_cgroup

_NO_RULES_NOTE = (
    "the container has no cgroup of its own, so no rule keeps it from opening the GPU by a node that it makes itself"
)


def list_denied_devices(container: RunningContainer, devices: list[Device]) -> list[Device]:
    """Return the devices that a container may not read or write by the kernel's rules, as far as these are known."""
    accesses = query_device_access(container.pid, [(major, minor, "rw") for major, minor in devices])
    return [(access.major, access.minor) for access in accesses if access.allowed is False]


def allow_container_devices(container: RunningContainer, devices: list[Device]) -> list[str]:
    """Allow a container to open devices; return notes about what was not possible.

    Raises:
        Fault: the kernel refuses; or the container has no rules of its own, and those of other processes deny a device.
    """
    cgroup = find_device_cgroup(container.pid) if devices else None
    if cgroup is None:
        return []
    if not _is_shared(cgroup, container):
        return allow_devices(cgroup, devices)
    denied = list_denied_devices(container, devices)
    if denied:
        raise Fault(
            f"the device {denied[0][0]}:{denied[0][1]} cannot be allowed: the container has no cgroup of its own, and "
            "the rules of its cgroup count for other processes too",
            where=cgroup.paths[0],
            hint="Start the container with a cgroup of its own",
        )
    return []


def deny_container_devices(container: RunningContainer, devices: list[Device]) -> list[str]:
    """Keep a container from opening devices; return notes about what was not possible.

    Raises:
        Fault: the kernel refuses.
    """
    cgroup = find_device_cgroup(container.pid) if devices else None
    if cgroup is None:
        return []
    if not _is_shared(cgroup, container):
        return deny_devices(cgroup, devices)
    if container.in_user_namespace:
        return []  # nothing there can make another node
    return [_NO_RULES_NOTE]


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
