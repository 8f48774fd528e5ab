"""What a container that draws gets beside files: DRM nodes of its GPUs, their names by path, the EGL profile.

Cost rule: imported only for a container with graphics or display; one directory and two small files per GPU.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host.device_nodes import ModuleParameters, resolve_device_node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.machine import Gpu
    from gpu_oci_hook.model.optional_devices import OptionalItems

DRM_MAJOR = 226  # Documentation/admin-guide/devices.txt of the kernel: given to DRM for good
# Where the host has no node: for root alone, since nobody has said which group may. (The kernel's own is 0600.)
_DEFAULT_NODE_PARAMS = ModuleParameters(mode=0o660)
_STALE_NODE_HINT = "Remove the stale node: udevadm trigger makes it anew"

EGL_PROFILE_PATH = "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"
_MASK_BITS = 64  # bits of the mask


def add_graphics_items(
    items: OptionalItems, host: Host, chosen: list[Gpu], gpus: list[Gpu], problems: list[str]
) -> None:
    """Adds what the chosen ones of all GPUs need; each GPU of `chosen` is there once."""
    for gpu in chosen:
        _add_drm_nodes(items, host, gpu, problems)
    if chosen:
        _add_egl_profile(items, chosen, subset=len(chosen) < len(gpus))


def list_drm_devices(host: Host, gpu: Gpu) -> list[tuple[str, int | None]]:
    """The DRM devices that the kernel has made of this PCI device: name and minor, None when it does not say that."""
    directory = _build_drm_path(gpu)
    names = [
        name
        for name in host.list_names(directory)
        if _has_numeric_suffix(name, "card") or _has_numeric_suffix(name, "renderD")
    ]
    return [(name, _read_drm_minor(host, f"{directory}/{name}/dev")) for name in names]


def _build_drm_path(gpu: Gpu) -> str:
    return f"/sys/bus/pci/devices/{gpu.pci}/drm"


def _add_drm_nodes(items: OptionalItems, host: Host, gpu: Gpu, problems: list[str]) -> None:
    found = list_drm_devices(host, gpu)
    if not found:
        reason = f"the kernel has made none (no {_build_drm_path(gpu)}): the module nvidia_drm is not loaded"
        items.withheld.append(("device", f"DRM nodes of GPU {gpu.index}", reason))
    for name, minor in found:
        path = f"/dev/dri/{name}"
        if minor is None:
            reason = f"{_build_drm_path(gpu)}/{name}/dev does not say its numbers"
            items.withheld.append(("device", path, reason))
            continue
        node = resolve_device_node(host, path, DRM_MAJOR, minor, _DEFAULT_NODE_PARAMS, problems, hint=_STALE_NODE_HINT)
        items.best_effort_nodes.append((node, f"draws on GPU {gpu.index} ({gpu.pci})"))
        items.links.append((*build_by_path_link(gpu, name), f"the name by path of GPU {gpu.index}'s node"))


def build_by_path_link(gpu: Gpu, name: str) -> tuple[str, str]:
    """(path, text) of the link that udev makes for a DRM node."""
    kind = "card" if name.startswith("card") else "render"
    return f"/dev/dri/by-path/pci-{gpu.pci}-{kind}", f"../{name}"


def _has_numeric_suffix(name: str, prefix: str) -> bool:
    number = name.removeprefix(prefix)
    return number != name and number.isascii() and number.isdigit() and len(number) < 8


def _read_drm_minor(host: Host, path: str) -> int | None:
    try:
        data = host.read_file(path, 64) or b""
    except Fault:
        return None
    major, _, minor = data.decode("latin-1").strip().partition(":")
    if major == str(DRM_MAJOR) and minor.isascii() and minor.isdigit() and len(minor) < 8:
        return int(minor)
    return None


def _add_egl_profile(items: OptionalItems, chosen: list[Gpu], *, subset: bool) -> None:
    """Tells EGL which GPUs to list: it would else name devices that it cannot open (libnvidia-container facts 2.8)."""
    text, warning = build_egl_profile([gpu.minor for gpu in chosen])
    if warning and subset:
        items.warnings.append(warning)
    if not text:
        return
    reason = "EGL lists the GPUs of this container only" if subset else "the image has one for other GPUs"
    items.generated_files.append((EGL_PROFILE_PATH, text, reason, subset))


def build_egl_profile(minors: list[int]) -> tuple[bytes, str]:
    """The application profile that makes EGL list the GPUs with these minors, b"" when it can name none; a warning."""
    beyond = [minor for minor in minors if minor >= _MASK_BITS]
    warning = ""
    if beyond:
        warning = (
            f"EGL's profile names the first {_MASK_BITS} GPUs only: /dev/nvidia{beyond[0]} is not in it, and EGL may not "
            "list it"
        )
    mask = 0
    for minor in minors:
        mask |= 1 << minor if 0 <= minor < _MASK_BITS else 0
    if not mask:
        return b"", warning
    text = (
        '{"profiles": [{"name": "_container_", "settings": ["EGLVisibleDGPUDevices", '
        f'{mask:#x}]}}], "rules": [{{"pattern": [], "profile": "_container_"}}]}}\n'
    )
    return text.encode(), warning
