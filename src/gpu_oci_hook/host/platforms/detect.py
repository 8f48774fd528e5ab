"""Detect the platform of a machine, with the evidence for it.

- "desktop": a desktop or server with NVIDIA's driver for them.
- "wsl": a Linux on Windows, whose GPUs are reached through /dev/dxg.
- "tegra": a Jetson or a similar board. Its integrated GPU has nodes and files listed in CSV files. It may have discrete
  GPUs too.

Detection uses the criteria of NVIDIA's toolkit (facts: toolkit-platform-detection), but reads files only and loads no
library. A machine with contradicting evidence is a desktop. `[host] platform` overrides the result.

Import budget: cold.
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
# Nodes of nvgpu, the driver of integrated GPUs before Thor.
_NVGPU_NODES = ("/dev/nvhost-gpu", "/dev/nvhost-ctrl-gpu", "/dev/nvgpu")


def describe_platform_name(name: str) -> str:
    """Return a platform's name for people: "desktop" is the configuration's word for servers too."""
    return "desktop or server" if name == "desktop" else name


def detect_platform(host: Host, proc_gpus: list[Gpu], configured: str = "auto") -> tuple[str, tuple[str, ...]]:
    """Return the platform's name and the evidence as short sentences, for markers that are missing too.

    Arguments:
        proc_gpus: the GPUs of /proc/driver/nvidia/gpus.
        configured: `[host] platform`. If it decides, the evidence includes the name that would be detected.
    """
    loaded = read_device_majors(host).nvidia_loaded
    dxg = host.stat_path(DXG_NODE) is not None
    release, family = read_first_line(host, TEGRA_RELEASE_FILE), read_first_line(host, SOC_FAMILY_FILE)
    tegra = bool(release) or family.lower().startswith("tegra")
    evidence = [
        f"{DXG_NODE} exists" if dxg else f"no {DXG_NODE}",
        "the kernel module nvidia is loaded" if loaded else "no nvidia in /proc/devices",
        f"{TEGRA_RELEASE_FILE} contains {clip_text(release)}" if release else f"no {TEGRA_RELEASE_FILE}",
        f"{SOC_FAMILY_FILE} contains {clip_text(family)}" if family else f"no {SOC_FAMILY_FILE}",
    ]
    integrated = _find_integrated_gpus(host, proc_gpus) if tegra else []
    evidence += integrated
    name = "desktop"
    if dxg and loaded:
        evidence.append(f"the loaded module nvidia overrides {DXG_NODE}")
    elif dxg:
        name = "wsl"
    if tegra and name == "desktop":
        if integrated or not proc_gpus:
            name = "tegra"
        else:
            evidence.append("all GPUs are discrete, so the driver is a desktop's")
    if configured == "auto":
        return name, tuple(evidence)
    detected = "" if name == configured else f" (detected: {name})"
    return configured, (f'[host] platform = "{configured}" in the configuration{detected}', *evidence)


def find_platform(host: Host, proc_gpus: list[Gpu], configured: str) -> Platform | None:
    """Return the platform of a machine, None for a desktop; the arguments are those of `detect_platform`."""
    name, evidence = detect_platform(host, proc_gpus, configured)
    if name == "wsl":
        from gpu_oci_hook.host.platforms.wsl import WslPlatform

        return WslPlatform(host, evidence)
    if name == "tegra":
        from gpu_oci_hook.host.platforms.tegra import TegraPlatform

        return TegraPlatform(host, evidence)
    return None


def _find_integrated_gpus(host: Host, proc_gpus: list[Gpu]) -> list[str]:
    """Return the evidence for integrated GPUs."""
    evidence = [f"{path} exists: an integrated GPU" for path in _NVGPU_NODES if host.stat_path(path) is not None][:1]
    return evidence + [f"GPU {gpu.index} ({gpu.model}) is integrated" for gpu in proc_gpus if is_integrated_gpu(gpu)]
