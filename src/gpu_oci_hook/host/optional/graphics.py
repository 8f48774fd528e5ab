"""Find what containers with graphics need in addition to driver files: DRM nodes, by-path links, the EGL profile.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.proc import parse_small_number
from gpu_oci_hook.host.device_nodes import (
    ModuleParameters,
    explain_optional_node_access,
    resolve_device_node,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.machine import Gpu
    from gpu_oci_hook.model.optional_devices import OptionalItems

DRM_MAJOR = 226  # assigned to DRM (Linux, Documentation/admin-guide/devices.txt)
# For a node that the host lacks: root only, because the group is unknown (facts: drm-node-numbers).
_DEFAULT_NODE_PARAMS = ModuleParameters(mode=0o660)
_STALE_NODE_HINT = "Remove the stale node; udevadm trigger recreates it"

EGL_PROFILE_PATH = "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"
_MASK_BITS = 64  # minors that the profile's bit mask can name


def add_graphics_items(
    items: OptionalItems, host: Host, chosen: list[Gpu], gpus: list[Gpu], problems: list[str]
) -> None:
    """Add the DRM nodes, by-path links and EGL profile of the chosen GPUs.

    Arguments:
        chosen: the GPUs that are injected, each once.
        gpus: all GPUs of the machine.
        problems: takes sentences about unexpected nodes.
    """
    for gpu in chosen:
        _add_drm_nodes(items, host, gpu, problems)
    if chosen:
        _add_egl_profile(items, chosen, subset=len(chosen) < len(gpus))


def list_drm_devices(host: Host, gpu: Gpu) -> list[tuple[str, int | None]]:
    """Return (name, minor) of the DRM devices of a GPU's PCI device, minor None if the kernel does not report it."""
    directory = _get_drm_directory(gpu)
    names = [
        name
        for name in host.list_names(directory)
        if _has_numeric_suffix(name, "card") or _has_numeric_suffix(name, "renderD")
    ]
    return [(name, _read_drm_minor(host, f"{directory}/{name}/dev")) for name in names]


def _get_drm_directory(gpu: Gpu) -> str:
    return f"/sys/bus/pci/devices/{gpu.pci}/drm"


def _add_drm_nodes(items: OptionalItems, host: Host, gpu: Gpu, problems: list[str]) -> None:
    devices = list_drm_devices(host, gpu)
    if not devices:
        reason = f"the kernel has none (no {_get_drm_directory(gpu)}): the module nvidia_drm is not loaded"
        items.withheld.append(("device", f"DRM nodes of GPU {gpu.index}", reason))
    for name, minor in devices:
        path = f"/dev/dri/{name}"
        if minor is None:
            reason = f"{_get_drm_directory(gpu)}/{name}/dev does not have its device number"
            items.withheld.append(("device", path, reason))
            continue
        node = resolve_device_node(host, path, DRM_MAJOR, minor, _DEFAULT_NODE_PARAMS, problems, hint=_STALE_NODE_HINT)
        access = explain_optional_node_access(host, path, DRM_MAJOR, minor)
        if access:
            items.withheld.append(("device", path, access))
            continue
        items.best_effort_nodes.append((node, f"draws on GPU {gpu.index} ({gpu.pci})"))
        items.links.append((*build_by_path_link(gpu, name), f"by-path link to a DRM node of GPU {gpu.index}"))


def build_by_path_link(gpu: Gpu, name: str) -> tuple[str, str]:
    """Return (path, target) of the link that udev creates for a DRM node."""
    kind = "card" if name.startswith("card") else "render"
    return f"/dev/dri/by-path/pci-{gpu.pci}-{kind}", f"../{name}"


def _has_numeric_suffix(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and parse_small_number(name[len(prefix) :]) >= 0


def _read_drm_minor(host: Host, path: str) -> int | None:
    try:
        data = host.read_file(path, 64) or b""
    except Fault:
        return None
    major, _, minor_text = data.decode("latin-1").strip().partition(":")
    minor = parse_small_number(minor_text)
    return minor if major == str(DRM_MAJOR) and minor >= 0 else None


def _add_egl_profile(items: OptionalItems, chosen: list[Gpu], *, subset: bool) -> None:
    profile = decide_egl_profile([gpu.minor for gpu in chosen], subset=subset)
    if profile.warning:
        items.warnings.append(profile.warning)
    if profile.content:
        items.generated_files.append((EGL_PROFILE_PATH, profile.content, profile.reason, profile.always))


class EglProfile:
    """The decision about a container's EGL application profile.

    Attributes:
        content: b"" if there is no profile to write.
        always: write it even if the image has none.
        reason: why it is written.
        warning: a sentence about GPUs that it cannot name, or "".
    """

    __slots__ = ("always", "content", "reason", "warning")

    def __init__(self, content: bytes, *, always: bool, reason: str, warning: str) -> None:
        self.content = content
        self.always = always
        self.reason = reason
        self.warning = warning


def decide_egl_profile(minors: list[int], *, subset: bool) -> EglProfile:
    """Decide on the profile that limits EGL to a container's GPUs; without it EGL lists GPUs that it cannot open.

    Arguments:
        minors: the container's GPUs.
        subset: the machine has more GPUs. If it has not, the profile only replaces one of the image.
    """
    content, warning = build_egl_profile(minors)
    reason = "EGL lists the GPUs of this container only" if subset else "replaces the image's profile for other GPUs"
    return EglProfile(content, always=subset, reason=reason, warning=warning if subset else "")


def build_egl_profile(minors: list[int]) -> tuple[bytes, str]:
    """Build the application profile that makes EGL list the GPUs with these minors (facts: egl-visible-devices).

    Returns:
        (content, warning). The content is b"" if the profile can name none of the GPUs.
    """
    excess_minors = [minor for minor in minors if minor >= _MASK_BITS]
    warning = ""
    if excess_minors:
        warning = (
            f"EGL's application profile can name the first {_MASK_BITS} GPUs only: it lacks "
            f"/dev/nvidia{excess_minors[0]}, which EGL may not list"
        )
    mask = 0
    for minor in minors:
        mask |= 1 << minor if 0 <= minor < _MASK_BITS else 0
    if not mask:
        return b"", warning
    content = (
        '{"profiles": [{"name": "_container_", "settings": ["EGLVisibleDGPUDevices", '
        f'{mask:#x}]}}], "rules": [{{"pattern": [], "profile": "_container_"}}]}}\n'
    )
    return content.encode(), warning
