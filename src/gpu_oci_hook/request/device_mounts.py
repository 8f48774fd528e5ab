"""Read device requests from mounts and devices below /var/run/nvidia-container-devices. No I/O.

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.errors import clip_text
from gpu_oci_hook.formats.oci import get_int, get_list, get_member, get_text, normalize_destination
from gpu_oci_hook.model.request import DeviceRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_oci_hook.model.request import Request

DEVICE_MOUNT_ROOTS = ("/var/run/nvidia-container-devices", "/run/nvidia-container-devices")
NULL_DEVICE = ("c", 1, 3)


def find_device_mounts(
    request: Request, spec: object, is_null_device: Callable[[str], bool] | None
) -> list[DeviceRequest]:
    """Return the devices requested by mounts of /dev/null, or by nodes like it, below the device directory.

    Some clients turn such a mount into a device or change its source, and the device decides then
    (facts: device-mounts-changed). Anything else there requests nothing and is withheld.
    """
    device_requests = []
    for position, mount in enumerate(get_list(spec, "mounts")):
        source, destination = get_member(mount, "source"), get_member(mount, "destination")
        if not isinstance(source, str) or not isinstance(destination, str):
            continue
        path = normalize_destination(destination)
        selector = _find_device_selector(path)
        if not selector:
            continue
        origin = f"mount {path} (mounts[{position}])"
        if normalize_destination(source) == "/dev/null" or (is_null_device is not None and is_null_device(source)):
            device_requests.append(DeviceRequest(selector, origin))
        else:
            _withhold_device_mount(request, origin, f"its source {clip_text(source)} is not /dev/null")
    for position, node in enumerate(get_list(spec, "linux", "devices")):
        path = normalize_destination(get_text(node, "path"))
        selector = _find_device_selector(path)
        if not selector:
            continue
        origin = f"device {path} (linux.devices[{position}])"
        numbers = (get_text(node, "type"), get_int(node, "major"), get_int(node, "minor"))
        if numbers == NULL_DEVICE:
            device_requests.append(DeviceRequest(selector, origin))
        else:
            _withhold_device_mount(request, origin, f"it is the device {numbers[1]}:{numbers[2]} and not /dev/null")
    return device_requests


def _find_device_selector(path: str) -> str:
    """Return the part of a path below the device directory, "" for another path."""
    for root in DEVICE_MOUNT_ROOTS:
        if path.startswith(root + "/"):
            return path[len(root) + 1 :]
    return ""


def _withhold_device_mount(request: Request, origin: str, reason: str) -> None:
    request.withheld.append((origin, reason))
    request.warnings.append(f"{origin} requests nothing: {reason}")
