"""What kind of machine this is, with the evidence, and what the machines have in common that are no desktop.

"desktop" is everything with NVIDIA's driver for servers and desktops: the ordinary way. "wsl" is a Linux on
Windows, whose GPUs come through /dev/dxg. "tegra" is a Jetson or its like: an integrated GPU whose nodes and files
are listed in CSV files, with or without a discrete GPU beside it.

Detection follows what NVIDIA's own tools go by (container toolkit facts 1.8), but by files alone: no library is
loaded. Where the evidence does not agree the machine is a desktop; `[host] platform` overrules it. Cost rule:
imported only where `gpus.has_platform_marker` has seen a mark, or the configuration names a platform.
"""

from __future__ import annotations

from gpu_oci_hook.errors import clip_text
from gpu_oci_hook.host.device_nodes import read_device_majors
from gpu_oci_hook.host.platforms.platform import DXG_NODE, TEGRA_RELEASE_FILE, is_integrated_gpu, read_first_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.platforms.platform import Platform
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.machine import Gpu

PLATFORM_NAMES = ("desktop", "wsl", "tegra")
SOC_FAMILY_FILE = "/sys/devices/soc0/family"
# Nodes of nvgpu, the driver of GPUs in the memory of a Tegra before Thor.
_NVGPU_NODES = ("/dev/nvhost-gpu", "/dev/nvhost-ctrl-gpu", "/dev/nvgpu")


def detect_platform(host: Host, proc_gpus: list[Gpu], configured: str = "auto") -> tuple[str, tuple[str, ...]]:
    """The platform's name, and the evidence as short sentences, also of what was looked for and is not there.

    Arguments:
        proc_gpus: the GPUs of /proc/driver/nvidia/gpus.
        configured: `[host] platform`; the evidence says so when it decides, and what would have been decided else.
    """
    loaded = read_device_majors(host).nvidia_loaded
    dxg = host.stat_path(DXG_NODE) is not None
    release, family = read_first_line(host, TEGRA_RELEASE_FILE), read_first_line(host, SOC_FAMILY_FILE)
    tegra = bool(release) or family.lower().startswith("tegra")
    evidence = [
        f"{DXG_NODE} is there" if dxg else f"no {DXG_NODE}",
        "the kernel module nvidia is loaded" if loaded else "no nvidia in /proc/devices",
        f"{TEGRA_RELEASE_FILE} says {clip_text(release)}" if release else f"no {TEGRA_RELEASE_FILE}",
        f"{SOC_FAMILY_FILE} says {clip_text(family)}" if family else f"no {SOC_FAMILY_FILE}",
    ]
    inside = _find_integrated_gpus(host, proc_gpus) if tegra else []
    evidence += inside
    name = "desktop"
    if dxg and loaded:
        evidence.append(f"a loaded module nvidia counts more than {DXG_NODE}")
    elif dxg:
        name = "wsl"
    if tegra and name == "desktop":
        if inside or not proc_gpus:
            name = "tegra"
        else:
            evidence.append("all GPUs are discrete ones, and none is integrated: the driver is a desktop's")
    if configured == "auto":
        return name, tuple(evidence)
    other = "" if name == configured else f" (the evidence alone would say {name})"
    return configured, (f'[host] platform = "{configured}" in the configuration{other}', *evidence)


def find_platform(host: Host, proc_gpus: list[Gpu], configured: str) -> Platform | None:
    """The machine's own way, None for a desktop's."""
    name, evidence = detect_platform(host, proc_gpus, configured)
    if name == "wsl":
        from gpu_oci_hook.host.platforms.wsl import WslPlatform

        return WslPlatform(host, evidence)
    if name == "tegra":
        from gpu_oci_hook.host.platforms.tegra import TegraPlatform

        return TegraPlatform(host, evidence)
    return None


def _find_integrated_gpus(host: Host, proc_gpus: list[Gpu]) -> list[str]:
    evidence = [f"{path} is there: an integrated GPU" for path in _NVGPU_NODES if host.stat_path(path) is not None][:1]
    return evidence + [f"GPU {gpu.index} ({gpu.model}) is integrated" for gpu in proc_gpus if is_integrated_gpu(gpu)]
