"""What a container that draws gets beside files: DRM nodes of its GPUs, their names by path, the EGL profile.

Cost rule: imported only for a container with graphics or display; one directory and two small files per GPU.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host import nodes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.extra import Extra
    from gpu_oci_hook.host.inventory import Gpu
    from gpu_oci_hook.host.root import Host

DRM_MAJOR = 226  # Documentation/admin-guide/devices.txt of the kernel: given to DRM for good
# Where the host has no node: for root alone, since nobody has said which group may. (The kernel's own is 0600.)
_DEFAULTS = nodes.Params(mode=0o660)
_CURE = "Remove the stale node: udevadm trigger makes it anew"

PROFILE = "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"
_MOST = 64  # bits of the mask


def fill(extra: Extra, host: Host, chosen: list[Gpu], gpus: list[Gpu], problems: list[str]) -> None:
    """Adds what the chosen ones of all GPUs need; each GPU of `chosen` is there once."""
    for gpu in chosen:
        _drm(extra, host, gpu, problems)
    if chosen:
        _profile(extra, chosen, subset=len(chosen) < len(gpus))


def drm(host: Host, gpu: Gpu) -> list[tuple[str, int | None]]:
    """The DRM devices that the kernel has made of this PCI device: name and minor, None when it does not say that."""
    directory = _directory(gpu)
    names = [name for name in host.names(directory) if _numbered(name, "card") or _numbered(name, "renderD")]
    return [(name, _minor(host, f"{directory}/{name}/dev")) for name in names]


def _directory(gpu: Gpu) -> str:
    return f"/sys/bus/pci/devices/{gpu.pci}/drm"


def _drm(extra: Extra, host: Host, gpu: Gpu, problems: list[str]) -> None:
    found = drm(host, gpu)
    if not found:
        reason = f"the kernel has made none (no {_directory(gpu)}): the module nvidia_drm is not loaded"
        extra.withheld.append(("device", f"DRM nodes of GPU {gpu.index}", reason))
    for name, minor in found:
        path = f"/dev/dri/{name}"
        if minor is None:
            reason = f"{_directory(gpu)}/{name}/dev does not say its numbers"
            extra.withheld.append(("device", path, reason))
            continue
        node = nodes.node(host, path, DRM_MAJOR, minor, _DEFAULTS, problems, cure=_CURE)
        extra.optional.append((node, f"draws on GPU {gpu.index} ({gpu.pci})"))
        extra.links.append((*by_path(gpu, name), f"the name by path of GPU {gpu.index}'s node"))


def by_path(gpu: Gpu, name: str) -> tuple[str, str]:
    """(path, text) of the link that udev makes for a DRM node."""
    kind = "card" if name.startswith("card") else "render"
    return f"/dev/dri/by-path/pci-{gpu.pci}-{kind}", f"../{name}"


def _numbered(name: str, stem: str) -> bool:
    number = name.removeprefix(stem)
    return number != name and number.isascii() and number.isdigit() and len(number) < 8


def _minor(host: Host, path: str) -> int | None:
    try:
        data = host.read(path, 64) or b""
    except Fault:
        return None
    major, _, minor = data.decode("latin-1").strip().partition(":")
    if major == str(DRM_MAJOR) and minor.isascii() and minor.isdigit() and len(minor) < 8:
        return int(minor)
    return None


def _profile(extra: Extra, chosen: list[Gpu], *, subset: bool) -> None:
    """Tells EGL which GPUs to list: it would else name devices that it cannot open (libnvidia-container facts 2.8)."""
    text, warning = profile([gpu.minor for gpu in chosen])
    if warning and subset:
        extra.warnings.append(warning)
    if not text:
        return
    reason = "EGL lists the GPUs of this container only" if subset else "the image has one for other GPUs"
    extra.texts.append((PROFILE, text, reason, subset))


def profile(minors: list[int]) -> tuple[bytes, str]:
    """The application profile that makes EGL list the GPUs with these minors, b"" when it can name none; a warning."""
    beyond = [minor for minor in minors if minor >= _MOST]
    warning = ""
    if beyond:
        warning = (
            f"EGL's profile names the first {_MOST} GPUs only: /dev/nvidia{beyond[0]} is not in it, and EGL may not "
            "list it"
        )
    mask = 0
    for minor in minors:
        mask |= 1 << minor if 0 <= minor < _MOST else 0
    if not mask:
        return b"", warning
    text = (
        '{"profiles": [{"name": "_container_", "settings": ["EGLVisibleDGPUDevices", '
        f'{mask:#x}]}}], "rules": [{{"pattern": [], "profile": "_container_"}}]}}\n'
    )
    return text.encode(), warning
