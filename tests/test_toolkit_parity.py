"""Everything that NVIDIA's tools put into a container, and what we put there on the same host.

NVIDIA's tools are the Container Toolkit 1.20 ("toolkit") and the library below its older hook, libnvidia-container 1.19;
the rows follow the files that each discovers in its source. A row names a container, what to look for in its plan,
whether it must be there, and, where NVIDIA's tools do something else, why. `pytest tests/test_toolkit_parity.py -k table -s`
prints the table.
"""

# ruff: noqa: E501  one row of the table is one line
from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import pytest

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.formats import elf_builder
from gpu_oci_hook.host.driver import catalogue
from gpu_oci_hook.inject import gather, pipeline
from gpu_oci_hook.model.file_edits import PrepareDirectory
from gpu_oci_hook.request.environment import MANAGEMENT_DEVICE
from gpu_oci_hook.simulate import feature_files, host_tree
from support.bundles import PROC, container_spec, host_config, make_bundle

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can make device nodes")

DRIVER = "550.163.01"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
IN = "/usr/local/nvidia/lib64"


class Row(NamedTuple):
    """One row.

    section: the tool and the kind of thing, one of SECTIONS. thing: what it is. nvidia: what that tool does.
    container: a key of CONTAINERS. look: a pattern (fnmatch) for a line of what goes in; "error ..." for a refusal.
    given: whether there must be one. why: the reason where we differ; "" where we do the same.
    """

    section: str
    thing: str
    nvidia: str
    container: str
    look: str
    given: bool = True
    why: str = ""


# Host, environment; "caps" stands for NVIDIA_DRIVER_CAPABILITIES.
CONTAINERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "all": ("desktop", ("NVIDIA_VISIBLE_DEVICES=all", "caps=all")),
    "one": ("desktop", ("NVIDIA_VISIBLE_DEVICES=0", "caps=all")),
    "uuid": ("desktop", ("NVIDIA_VISIBLE_DEVICES=GPU-44b97862-417b-5351-9f9b-fc184b5f19e7",)),
    "usual": ("desktop", ("NVIDIA_VISIBLE_DEVICES=all",)),
    "none": ("desktop", ("NVIDIA_VISIBLE_DEVICES=none",)),
    **{
        word: ("desktop", ("NVIDIA_VISIBLE_DEVICES=all", f"caps={word}"))
        for word in ("utility", "compute", "video", "graphics", "display", "ngx")
    },
    "compat32": ("desktop", ("NVIDIA_VISIBLE_DEVICES=all", "caps=compute,compat32")),
    **{
        word.lower(): ("desktop", ("NVIDIA_VISIBLE_DEVICES=0", f"NVIDIA_{word}=enabled"))
        for word in ("GDS", "MOFED", "GDRCOPY", "NVSWITCH")
    },
    "imex 1": ("desktop", ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_IMEX_CHANNELS=1")),
    "imex all": ("desktop", ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_IMEX_CHANNELS=all")),
    "imex none": ("desktop", ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_IMEX_CHANNELS=none")),
    "imex 9": ("desktop", ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_IMEX_CHANNELS=9")),
    "management": ("desktop", (f"NVIDIA_VISIBLE_DEVICES={MANAGEMENT_DEVICE}", "privileged")),
    "bare gds": ("bare", ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_GDS=enabled")),
    "stale cache": ("stale", ("NVIDIA_VISIBLE_DEVICES=0",)),
    "mig": ("mig", ("NVIDIA_VISIBLE_DEVICES=0:0", "caps=all")),
    "mig all": ("mig", ("NVIDIA_VISIBLE_DEVICES=all",)),
    "wsl": ("wsl", ("NVIDIA_VISIBLE_DEVICES=all",)),
    "jetson": ("jetson", ("NVIDIA_VISIBLE_DEVICES=all",)),
    "jetson none": ("jetson", ("NVIDIA_VISIBLE_DEVICES=none",)),
    "thor": ("thor", ("NVIDIA_VISIBLE_DEVICES=1",)),
    "arm": ("arm", ("NVIDIA_VISIBLE_DEVICES=all",)),
}

NO_HOOK = "a hook costs a process per start and runs beside the image's files; the shim has done it before runc starts"
NEUTRAL = "vendor-neutral: the image brings its own, and two of them break programs"
CAPABILITY = "only with the capability; the toolkit's own CDI mode ignores NVIDIA_DRIVER_CAPABILITIES"


def nodes(section: str, container: str, nvidia: str, *wanted: str, why: str = "") -> list[Row]:
    return [Row(section, path.partition(" ")[0], nvidia, container, f"device {path}*", why=why) for path in wanted]


def libraries(section: str, container: str, nvidia: str, *names: str, why: str = "") -> list[Row]:
    """Libraries, by what their file names begin with, mounted in the libraries' directory."""
    return [Row(section, name, nvidia, container, f"mount {IN}/{name}.* <- *", why=why) for name in names]


def files(section: str, container: str, nvidia: str, *paths: str, why: str = "") -> list[Row]:
    return [Row(section, path, nvidia, container, f"mount {path} <- *", why=why) for path in paths]


ROWS: list[Row] = [
    # --- toolkit: control nodes, driver files
    *nodes("toolkit control nodes", "usual", "given", "/dev/nvidiactl c 195:255", "/dev/nvidia-uvm c 510:0", "/dev/nvidia-uvm-tools c 510:1"),
    Row("toolkit control nodes", "/dev/nvidia-modeset", "given always", "usual", "device /dev/nvidia-modeset *", False, CAPABILITY),
    *nodes("toolkit control nodes", "display", "given", "/dev/nvidia-modeset c 195:254"),
    *libraries("toolkit libraries", "all", "*.so.<version>", "libnvidia-ml.so", "libcuda.so", "libnvidia-glcore.so", "libnvidia-newer.so"),
    Row("toolkit libraries", "vdpau/*.so.<version>", "given", "video", f"mount {IN}/libvdpau_nvidia.so.{DRIVER} <- *"),
    *libraries("toolkit libraries", "usual", "given", "libnvidia-nvvm70.so"),
    *[
        Row("toolkit libraries", f"{name} (explicit-driver-libraries)", "off by default", "all", f"mount {IN}/{name}*", False)
        for name in ("libEGL.so", "libGL.so", "libGLESv1_CM.so", "libGLESv2.so", "libGLX.so", "libGLdispatch.so",
                     "libOpenCL.so", "libOpenGL.so")
    ],
    *libraries("toolkit libraries", "all", "off by default", "libnvidia-api.so", "libnvidia-egl-xcb.so", "libnvidia-egl-xlib.so",
               why="part of the driver, with versions of their own: programs need them"),
    Row("toolkit sockets", "persistenced's socket", "nosuid,nodev,noexec, not ro", "utility",
        "mount /run/nvidia-persistenced/socket <- * (nosuid,nodev,noexec,rbind,rprivate)"),
    Row("toolkit sockets", "fabric manager's socket", "nosuid,nodev,noexec, not ro", "utility",
        "mount /run/nvidia-fabricmanager/socket <- * (nosuid,nodev,noexec,rbind,rprivate)"),
    Row("toolkit sockets", "/tmp/nvidia-mps", "listed, never given", "compute", "mount /tmp/nvidia-mps <- *",
        why="its file filter rejects directories: a defect"),
    *files("toolkit firmware", "all", "given", f"/usr/lib/firmware/nvidia/{DRIVER}/gsp_ga10x.bin", f"/usr/lib/firmware/nvidia/{DRIVER}/gsp_tu10x.bin"),
    *files("toolkit programs", "utility", "given", "/usr/bin/nvidia-smi", "/usr/bin/nvidia-debugdump", "/usr/bin/nvidia-persistenced",
           "/usr/bin/nvidia-imex", "/usr/bin/nvidia-imex-ctl"),
    *files("toolkit programs", "compute", "given", "/usr/bin/nvidia-cuda-mps-control", "/usr/bin/nvidia-cuda-mps-server"),
    Row("toolkit variables", "NVIDIA_CTK_LIBCUDA_DIR", "set", "usual", "env NVIDIA_CTK_LIBCUDA_DIR*", False, "nothing but their own tools reads it"),
    Row("toolkit variables", "NVIDIA_VISIBLE_DEVICES=void", "set", "usual", "env NVIDIA_VISIBLE_DEVICES*", False,
        "a second run of ours changes nothing, so what the user asked for stays to be read"),
    # --- toolkit: graphics
    *libraries("toolkit graphics", "graphics", "given always", "libnvidia-egl-gbm.so", "libnvidia-egl-wayland.so", "libnvidia-egl-wayland2.so",
               "libnvidia-egl-xcb.so", "libnvidia-egl-xlib.so", "libnvidia-vulkan-producer.so"),
    Row("toolkit graphics", "EGL platforms without graphics", "given always", "usual", f"mount {IN}/libnvidia-egl-*", False, CAPABILITY),
    Row("toolkit graphics", "gbm/nvidia-drm_gbm.so", "link by hook", "graphics", f"link {LIBRARIES}/gbm/nvidia-drm_gbm.so -> {IN}/libnvidia-allocator.so.1"),
    *files("toolkit graphics", "display", "at the host's path", "/usr/lib/xorg/modules/drivers/nvidia_drv.so",
           "/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so*",
           why="where the image's own X server looks, whatever the host's layout"),
    *files("toolkit graphics", "display", "given always", "/usr/bin/nvidia-xconfig"),
    Row("toolkit graphics", "nvidia-xconfig without display", "given always", "usual", "mount /usr/bin/nvidia-xconfig *", False, CAPABILITY),
    *files("toolkit graphics", "graphics", "given always", "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
           *(f"/usr/share/egl/egl_external_platform.d/{name}.json"
             for name in ("15_nvidia_gbm", "10_nvidia_wayland", "09_nvidia_wayland2", "20_nvidia_xcb", "20_nvidia_xlib")),
           "/usr/share/nvidia/nvoptix.bin", "/etc/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/icd.d/nvidia_icd.x86_64.json",
           "/etc/vulkan/implicit_layer.d/nvidia_layers.json"),
    *files("toolkit graphics", "graphics", "given always", "/etc/vulkan/icd.d/nvidia_layers.json"),
    Row("toolkit graphics", "Vulkan search in the current directory", "with an empty driver root", "graphics", f"* <- {os.getcwd()}/*", False,
        "a defect: every source is below [host] root"),
    *files("toolkit graphics", "display", "given always", "/usr/share/X11/xorg.conf.d/10-nvidia.conf",
           "/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf"),
    *files("toolkit graphics", "usual", "given always", "/etc/OpenCL/vendors/nvidia.icd"),
    # --- toolkit: hooks
    *[
        Row("toolkit hooks", name, "hook", "all", "hook *", False, NO_HOOK)
        for name in ("create-symlinks", "enable-cuda-compat", "update-ldcache", "update-application-profile")
    ],
    Row("toolkit hooks", "update-ldcache's work", "ldconfig in the container", "all", "file /etc/ld.so.cache *"),
    Row("toolkit hooks", "a later ldconfig in the container", "drop-in", "all", "file /etc/ld.so.conf.d/00-gpu-oci-hook.conf *"),
    Row("toolkit hooks", "disable-device-node-modification", "hook always", "all", "hook *", False, "with every GPU there is nothing to hide"),
    Row("toolkit hooks", "disable-device-node-modification, one GPU", "hook always", "one", "hook createContainer: /usr/bin/mount --bind *params"),
    Row("toolkit hooks", "update-application-profile's work", "file by hook", "one", "file /etc/nvidia/nvidia-application-profiles-rc.d/* *"),
    Row("toolkit hooks", "the profile without graphics", "hook always", "usual", "file /etc/nvidia/*", False, CAPABILITY),
    Row("toolkit hooks", "chmod", "off by default", "all", "hook *chmod*", False),
    # --- toolkit: links
    Row("toolkit links", "libcuda.so", "link", "compute", f"name {IN}/libcuda.so -> libcuda.so.1"),
    Row("toolkit links", "libcuda.so.1", "link where the host has one", "compute", f"name {IN}/libcuda.so.1 -> libcuda.so.{DRIVER}"),
    Row("toolkit links", "libGLX_indirect.so.0", "link", "graphics", f"name {IN}/libGLX_indirect.so.0 -> libGLX_nvidia.so.0"),
    Row("toolkit links", "libnvidia-opticalflow.so", "link", "video", f"name {IN}/libnvidia-opticalflow.so -> libnvidia-opticalflow.so.1"),
    Row("toolkit links", "libcuda.so in the image's directory", "there, in the image's layer", "compute", f"link {LIBRARIES}/libcuda.so.1 -> {IN}/libcuda.so.1"),
    # --- toolkit: GPUs
    *nodes("toolkit GPU nodes", "one", "by NVML's minor", "/dev/nvidia1 c 195:1"),
    Row("toolkit GPU nodes", "another GPU's node", "not given", "one", "device /dev/nvidia0 *", False),
    Row("toolkit GPU nodes", "another GPU's rule", "not given", "one", "rule allow c 195:0 *", False),
    *nodes("toolkit GPU nodes", "graphics", "given always", "/dev/dri/card1 c 226:1", "/dev/dri/renderD128 c 226:128"),
    Row("toolkit GPU nodes", "DRM nodes without graphics", "given always", "usual", "device /dev/dri/*", False, CAPABILITY),
    Row("toolkit GPU nodes", "another GPU's DRM node", "not given", "one", "device /dev/dri/card1 *", False),
    Row("toolkit GPU nodes", "a board without a GPU of NVIDIA's", "not given", "all", "device /dev/dri/card0 *", False),
    Row("toolkit GPU nodes", "by-path links", "with the dev root in their path", "one", "link /dev/dri/by-path/pci-0000:07:00.0-card -> ../card2",
        why="the path in the container: theirs is a defect"),
    Row("toolkit GPU nodes", "GPUs named DGX Display", "left out of `all`", "dgx", "device /dev/nvidia0 *", False),
    Row("toolkit GPU nodes", "coherent annotation", "off by default, CDI only", "one", "annotation *", False),
    # --- toolkit: MIG
    *nodes("toolkit MIG", "mig", "given", "/dev/nvidia1 c 195:1", "/dev/nvidia-caps/nvidia-cap* c 235:*"),
    Row("toolkit MIG", "DRM nodes of a MIG device without gfx", "not given", "mig", "device /dev/dri/*", False),
    Row("toolkit MIG", "mig/config and mig/monitor", "not given", "mig", "device /dev/nvidia-caps/nvidia-cap[12] *", False),
    *nodes("toolkit device names", "uuid", "index or UUID", "/dev/nvidia1 c 195:1"),
    *nodes("toolkit device names", "mig", "0:0", "/dev/nvidia1 c 195:1"),
    # --- toolkit: management
    *nodes("toolkit management", "management", "given", "/dev/nvidia0 c 195:0", "/dev/nvidia1 c 195:1", "/dev/nvidiactl c 195:255",
           "/dev/nvidia-uvm c 510:0", "/dev/nvidia-uvm-tools c 510:1", "/dev/nvidia-modeset c 195:254",
           "/dev/nvidia-caps/nvidia-cap1 c 235:1", "/dev/nvidia-caps/nvidia-cap2 c 235:2",
           "/dev/nvidia-caps-imex-channels/channel0 c 234:0"),
    *nodes("toolkit management", "management", "left out", "/dev/nvidia-fs0 c 509:0", "/dev/nvidia-nvswitch0 c 507:0",
           "/dev/nvidia-nvswitchctl c 507:255",
           why="fabric manager and DCGM open the switches; management means everything"),
    *libraries("toolkit management", "management", "given", "libnvidia-ml.so", "libcuda.so"),
    *files("toolkit management", "management", "given", "/usr/bin/nvidia-smi", "/run/nvidia-persistenced/socket",
           f"/usr/lib/firmware/nvidia/{DRIVER}/gsp_ga10x.bin"),
    *libraries("toolkit management", "management", "left out", "libGLX_nvidia.so", why="a validator of graphics needs it too"),
    Row("toolkit management", "update-application-profile", "left out", "management", "file /etc/nvidia/*", False),
    Row("toolkit management", "disable-device-node-modification", "left out", "management", "hook *", False),
    Row("toolkit management", "update-ldcache", "given", "management", "file /etc/ld.so.cache *"),
    # --- toolkit: gated
    *nodes("toolkit features", "gds", "given", "/dev/nvidia-fs0 c 509:0", "/dev/nvidia-fs2 c 509:2"),
    *files("toolkit features", "gds", "given", "/etc/cufile.json", "/run/udev"),
    *nodes("toolkit features", "mofed", "given", "/dev/infiniband/uverbs0 c 231:192", "/dev/infiniband/rdma_cm c 10:122"),
    *nodes("toolkit features", "nvswitch", "given", "/dev/nvidia-nvswitchctl c 507:255", "/dev/nvidia-nvswitch1 c 507:1"),
    *nodes("toolkit features", "gdrcopy", "given", "/dev/gdrdrv c 508:0"),
    Row("toolkit features", "a feature that the host has not", "an empty device", "bare gds",
        "error *GPUDirect Storage is requested, but this host does not have it: /dev/nvidia-fs[*]: no nvidia-fs in /proc/devices*",
        why="what is asked for is given, or the error says what is missing"),
    *nodes("toolkit features", "imex 1", "given, without numbers", "/dev/nvidia-caps-imex-channels/channel1 c 234:1"),
    # --- toolkit: WSL and Tegra
    *nodes("toolkit WSL", "wsl", "given", "/dev/dxg c 10:125"),
    *files("toolkit WSL", "wsl", "given", "/usr/lib/wsl/lib/libdxcore.so",
           *(f"/usr/lib/wsl/drivers/nv_*/{name}"
             for name in ("libcuda.so.1.1", "libcuda_loader.so", "libnvidia-ptxjitcompiler.so.1", "libnvidia-ml.so.1",
                          "libnvidia-ml_loader.so", "libnvdxgdmal.so.1", "nvcubins.bin", "nvidia-smi",
                          "libnvidia-encode.so.1", "nvoptix.bin", "nvcuda64.dll"))),
    Row("toolkit WSL", "another maker's driver store", "first with libcuda", "wsl", "mount /usr/lib/wsl/drivers/iigd*", False),
    Row("toolkit WSL", "/usr/bin/nvidia-smi", "link by hook", "wsl", "link /usr/bin/nvidia-smi -> /usr/lib/wsl/drivers/nv_*/nvidia-smi"),
    Row("toolkit WSL", "update-ldcache", "hook", "wsl", "file /etc/ld.so.cache *"),
    *nodes("toolkit Tegra", "jetson", "dev lines", "/dev/nvmap c 503:0", "/dev/nvhost-ctrl-gpu c 501:0", "/dev/nvgpu/igpu0/ctrl c 502:2"),
    *files("toolkit Tegra", "jetson", "lib, dir and sym lines", f"{LIBRARIES}/nvidia/libcuda.so.1.1", "/usr/lib/firmware/tegra23x",
           f"{LIBRARIES}/nvidia/nvidia_icd.json"),
    Row("toolkit Tegra", "a sym line's links", "by hook", "jetson", f"link /etc/vulkan/icd.d/nvidia_icd.json -> {LIBRARIES}/nvidia/nvidia_icd.json"),
    *files("toolkit Tegra", "jetson", "given", "/etc/nv_tegra_release"),
    Row("toolkit Tegra", "other lists than devices, drivers, l4t", "left out", "jetson", "mount /usr/src/jetson_multimedia_api *", False),
    Row("toolkit Tegra", "NVIDIA_VISIBLE_DEVICES=none", "everything", "jetson none", "device /dev/nv*", False, "none is none: theirs is a defect"),
    *nodes("toolkit Tegra", "thor", "the discrete GPU's", "/dev/nvidia1 c 195:1", "/dev/nvidiactl c 195:255"),
    # --- libnvidia-container: binaries and libraries
    *files("libnvidia-container programs", "utility", "utility", "/usr/bin/nvidia-smi", "/usr/bin/nvidia-debugdump", "/usr/bin/nvidia-persistenced",
           "/usr/bin/nv-fabricmanager"),
    *files("libnvidia-container programs", "compute", "compute", "/usr/bin/nvidia-cuda-mps-control", "/usr/bin/nvidia-cuda-mps-server"),
    *[
        Row("libnvidia-container programs", name, "left out", "all", f"mount /usr/bin/{name} *", False) for name in ("nvidia-modprobe", "nvidia-settings")
    ],
    *libraries("libnvidia-container libraries", "utility", "utility", "libnvidia-ml.so", "libnvidia-cfg.so", "libnvidia-nscq.so"),
    *libraries("libnvidia-container libraries", "compute", "compute", "libcuda.so", "libcudadebugger.so", "libnvidia-opencl.so", "libnvidia-gpucomp.so",
               "libnvidia-ptxjitcompiler.so", "libnvidia-fatbinaryloader.so", "libnvidia-allocator.so", "libnvidia-compiler.so",
               "libnvidia-pkcs11.so", "libnvidia-pkcs11-openssl3.so", "libnvidia-nvvm.so", "libnvidia-tileiras.so"),
    *libraries("libnvidia-container libraries", "video", "video", "libvdpau_nvidia.so", "libnvidia-encode.so", "libnvidia-opticalflow.so", "libnvcuvid.so"),
    *libraries("libnvidia-container libraries", "graphics", "graphics", "libnvidia-eglcore.so", "libnvidia-glcore.so", "libnvidia-tls.so", "libnvidia-glsi.so",
               "libnvidia-fbc.so", "libnvidia-ifr.so", "libnvidia-rtcore.so", "libnvoptix.so", "libGLX_nvidia.so",
               "libEGL_nvidia.so", "libGLESv2_nvidia.so", "libGLESv1_CM_nvidia.so", "libnvidia-glvkspirv.so", "libnvidia-cbl.so"),
    *[
        Row("libnvidia-container libraries", f"{name} (no-glvnd)", "for drivers without glvnd", "all", f"mount {IN}/{name}*", False, NEUTRAL)
        for name in ("libGL.so", "libEGL.so", "libGLESv1_CM.so", "libGLESv2.so")
    ],
    *libraries("libnvidia-container libraries", "ngx", "ngx", "libnvidia-ngx.so"),
    *files("libnvidia-container libraries", "wsl", "dxcore", "/usr/lib/wsl/lib/libdxcore.so"),
    *[
        Row("libnvidia-container libraries", name, "left out", "all", f"mount {IN}/{name}*", False)
        for name in ("libnvidia-gtk2.so", "libnvidia-gtk3.so", "libnvidia-wfb.so")
    ],
    *libraries("libnvidia-container libraries", "all", "absent", "libnvidia-nvvm70.so", "libnvidia-egl-gbm.so", "libnvidia-egl-xcb.so", "libnvidia-egl-xlib.so",
               "libnvidia-egl-wayland.so", "libnvidia-sandboxutils.so", "libnvidia-vksc-core.so", "libnvidia-api.so",
               why="not versioned like the driver or newer than their list; by SONAME we find them"),
    # --- libnvidia-container: capabilities
    Row("libnvidia-container capabilities", "utility alone", "no libcuda", "utility", f"mount {IN}/libcuda.so*", False),
    Row("libnvidia-container capabilities", "compute alone", "no NVML", "compute", f"mount {IN}/libnvidia-ml.so*", False),
    *libraries("libnvidia-container capabilities", "video", "video brings compute's libraries", "libcuda.so"),
    Row("libnvidia-container capabilities", "video alone", "no compute binaries", "video", "mount /usr/bin/nvidia-cuda-mps-*", False),
    *nodes("libnvidia-container capabilities", "video", "video brings uvm", "/dev/nvidia-uvm c 510:0"),
    Row("libnvidia-container capabilities", "video alone", "the MPS directory", "video", "mount /tmp/nvidia-mps *", False, "a video container is no MPS client"),
    *libraries("libnvidia-container capabilities", "display", "display brings graphics' libraries", "libGLX_nvidia.so"),
    *nodes("libnvidia-container capabilities", "graphics", "display alone has it", "/dev/nvidia-modeset c 195:254", why="libnvidia-glsi opens it for EGL"),
    Row("libnvidia-container capabilities", "compute alone", "no uvm without compute", "utility", "device /dev/nvidia-uvm*", False),
    Row("libnvidia-container capabilities", "compat32", "32-bit libraries", "compat32", f"mount /usr/local/nvidia/lib/libcuda.so.{DRIVER} <- {{i386}}/*"),
    Row("libnvidia-container capabilities", "32-bit libraries without compat32", "not given", "compute", "mount /usr/local/nvidia/lib/*", False),
    # --- libnvidia-container: selection
    Row("libnvidia-container selection", "a library of another version", "refused", "all", "mount *libnvidia-glcore.so.535.99", False),
    Row("libnvidia-container selection", "a stale loader cache", "nothing matches", "stale cache", f"mount {IN}/libcuda.so.{DRIVER} *",
        why="directories are looked at as well"),
    Row("libnvidia-container selection", "libnvidia-tls", "the one with the new ABI note", "graphics", f"mount {IN}/libnvidia-tls.so.{DRIVER} *"),
    Row("libnvidia-container selection", "the result has the newest of a name", "last accepted wins", "compute", f"name {IN}/libcuda.so.1 -> libcuda.so.{DRIVER}"),
    Row("libnvidia-container architectures", "x86_64", "cache and multiarch directory", "usual", f"mount {IN}/libcuda.so.* <- {LIBRARIES}/*"),
    Row("libnvidia-container architectures", "aarch64", "cache and multiarch directory", "arm", f"mount {IN}/libcuda.so.* <- /usr/lib/aarch64-linux-gnu/*"),
    # --- libnvidia-container: sockets, firmware, nodes
    Row("libnvidia-container sockets", "persistenced's socket", "at the resolved path", "utility", "mount /run/nvidia-persistenced/socket *"),
    Row("libnvidia-container sockets", "fabric manager's socket", "at the resolved path", "utility", "mount /run/nvidia-fabricmanager/socket *"),
    Row("libnvidia-container sockets", "MPS directory", "compute", "compute", "mount /tmp/nvidia-mps <- * (nosuid,nodev,noexec,rbind,rprivate)"),
    *files("libnvidia-container firmware", "usual", "/lib/firmware alone", f"/usr/lib/firmware/nvidia/{DRIVER}/gsp_ga10x.bin"),
    *nodes("libnvidia-container device nodes", "wsl", "given", "/dev/dxg c 10:125"),
    *nodes("libnvidia-container device nodes", "none", "always", "/dev/nvidiactl c 195:255"),
    *nodes("libnvidia-container device nodes", "compute", "compute", "/dev/nvidia-uvm c 510:0", "/dev/nvidia-uvm-tools c 510:1"),
    *nodes("libnvidia-container device nodes", "display", "display", "/dev/nvidia-modeset c 195:254"),
    *nodes("libnvidia-container device nodes", "all", "given", "/dev/nvidia0 c 195:0", "/dev/nvidia1 c 195:1"),
    *nodes("libnvidia-container device nodes", "mig", "given", "/dev/nvidia-caps/nvidia-cap* c 235:*"),
    *nodes("libnvidia-container device nodes", "imex 1", "given", "/dev/nvidia-caps-imex-channels/channel1 c 234:1"),
    *nodes("libnvidia-container device nodes", "nvswitch", "not handled", "/dev/nvidia-nvswitch0 c 507:0", why="the toolkit has a switch for it, and so have we"),
    *nodes("libnvidia-container device nodes", "graphics", "not handled", "/dev/dri/renderD129 c 226:129", why="OpenGL, Vulkan and VAAPI open it"),
    *nodes("libnvidia-container device nodes", "gds", "not handled", "/dev/nvidia-fs1 c 509:1", why="the toolkit has a switch for it, and so have we"),
    *nodes("libnvidia-container device nodes", "gdrcopy", "not handled", "/dev/gdrdrv c 508:0", why="the toolkit has a switch for it, and so have we"),
    Row("libnvidia-container GPU order", "index 0 is minor 1", "NVML in a child", "one", "device /dev/nvidia1 c 195:1 *"),
    Row("libnvidia-container GPU order", "no vendor library is loaded for it", "NVML in a child", "one", "reason *NVML*", False,
        "/proc has all that a start needs"),
    *nodes("libnvidia-container MIG", "mig", "DEV style", "/dev/nvidia-caps/nvidia-cap* c 235:*"),
    Row("libnvidia-container MIG", "the parent's node", "given", "mig", "device /dev/nvidia1 c 195:1 *"),
    Row("libnvidia-container MIG", "the proc entries of a MIG device", "bound ro over a tmpfs", "mig", "mount /proc/*", False,
        "runc refuses mounts below /proc, and the nodes are what counts"),
    Row("libnvidia-container MIG", "all: every MIG device", "given", "mig all", "device /dev/nvidia-caps/nvidia-cap* c 235:*"),
    *nodes("libnvidia-container IMEX channels", "imex 1", "stat of the host's node", "/dev/nvidia-caps-imex-channels/channel1 c 234:1"),
    Row("libnvidia-container IMEX channels", "another channel", "not given", "imex 1", "device */channel0 *", False),
    Row("libnvidia-container IMEX channels", "NVIDIA_IMEX_CHANNELS=all", "no channel", "imex all", "device /dev/nvidia-caps-imex-channels/channel2 *",
        why="all is all: theirs is a defect"),
    Row("libnvidia-container IMEX channels", "NVIDIA_IMEX_CHANNELS=none", "every channel", "imex none", "device *channel*", False, "none is none: theirs is a defect"),
    Row("libnvidia-container IMEX channels", "a channel that is not there", "made on the host by the image's word", "imex 9", "error *this host has no IMEX channel 9. Channels that exist: 0 to 2*",
        why="an image must not make devices on the host"),
]  # fmt: skip
CONTAINERS["dgx"] = ("dgx", ("NVIDIA_VISIBLE_DEVICES=all",))

# Everything that NVIDIA's tools discover; the table has rows of each.
SECTIONS = {
    "toolkit control nodes",
    "toolkit libraries",
    "toolkit sockets",
    "toolkit firmware",
    "toolkit programs",
    "toolkit variables",
    "toolkit graphics",
    "toolkit hooks",
    "toolkit links",
    "toolkit GPU nodes",
    "toolkit MIG",
    "toolkit device names",
    "toolkit management",
    "toolkit features",
    "toolkit WSL",
    "toolkit Tegra",
    "libnvidia-container programs",
    "libnvidia-container libraries",
    "libnvidia-container capabilities",
    "libnvidia-container selection",
    "libnvidia-container architectures",
    "libnvidia-container sockets",
    "libnvidia-container firmware",
    "libnvidia-container device nodes",
    "libnvidia-container GPU order",
    "libnvidia-container MIG",
    "libnvidia-container IMEX channels",
}


class Hosts:
    """The simulated hosts, made when a row needs them, and the plans for the containers."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.made: dict[str, Path] = {}
        self.plans: dict[str, list[str]] = {}

    def host(self, name: str) -> Path:
        if name not in self.made:
            place = self.made[name] = self.root / name
            if name == "desktop":
                host_tree.build_host(place, gpus=2, imex=3, features=feature_files.FEATURES)
                _more(place)
            elif name == "mig":
                host_tree.build_host(place, gpus=2, mig=["2", "0"])
            elif name in ("wsl", "jetson"):
                host_tree.build_host(place, layout=name)
            elif name == "thor":
                host_tree.build_host(place, layout="jetson", gpus=2)
            elif name == "arm":
                host_tree.build_host(place, arch="aarch64")
            elif name == "dgx":
                host_tree.build_host(place, model="NVIDIA DGX Display")
            elif name == "stale":
                host_tree.build_host(place, loader_cache=False)
            else:
                host_tree.build_host(place)
        return self.made[name]

    def lines(self, name: str) -> list[str]:
        """What goes into a container, a line each: kind and description, with the host's root left out of paths."""
        if name in self.plans:
            return self.plans[name]
        where, words = CONTAINERS[name]
        host = self.host(where)
        env = [word.replace("caps=", "NVIDIA_DRIVER_CAPABILITIES=") for word in words if word != "privileged"]
        made = container_spec(*env, mounts=[PROC])
        if "privileged" in words:
            made["process"]["capabilities"] = {"bounding": ["CAP_SYS_ADMIN"]}
        place = make_bundle(self.root / "bundles" / name, made)
        try:
            outcome = pipeline.prepare_injection(made, host_config(host), str(place), state_dir.StateCache())
        except Fault as fault:
            self.plans[name] = [f"error {fault}"]
            return self.plans[name]
        found = []
        for edit in outcome.plan.edits:
            found += [f"{edit.kind} {edit.describe()}", f"reason {edit.reason}"]
            if isinstance(edit, PrepareDirectory):
                found += [f"name {edit.destination}/{entry} -> {target}" for entry, target in edit.entries if target]
        found += [f"withheld {one.name}: {one.reason}" for one in outcome.plan.withheld]
        self.plans[name] = [line.replace(str(host), "") for line in found]
        return self.plans[name]


def _more(host: Path) -> None:
    """What a driver of the 550 series alone does not have: older, newer and separately packaged parts."""
    for name in ("nvidia-imex", "nvidia-imex-ctl", "nv-fabricmanager"):
        (host / "usr/bin" / name).write_text("#!/bin/sh\n")
        (host / "usr/bin" / name).chmod(0o755)
    versioned = ("fatbinaryloader", "compiler", "tileiras", "ifr", "cbl", "vulkan-producer", "newer", "wfb")
    for stem in versioned:
        name = f"libnvidia-{stem}.so.{DRIVER}"
        (host / f"usr/lib/x86_64-linux-gnu/{name}").write_bytes(elf_builder.build_shared_object(soname=name))
    own = {"libnvidia-egl-wayland2.so.1.0.1": "libnvidia-egl-wayland2.so.1", "libnvidia-glcore.so.535.99": ""}
    for name, soname in own.items():
        (host / f"usr/lib/x86_64-linux-gnu/{name}").write_bytes(elf_builder.build_shared_object(soname=soname or name))
        if soname:
            (host / f"usr/lib/x86_64-linux-gnu/{soname}").symlink_to(name)
    text = '{"file_format_version": "1.0.0", "ICD": {"library_path": "%s"}}\n'
    share = host / "usr/share"
    (share / "egl/egl_external_platform.d/09_nvidia_wayland2.json").write_text(text % "libnvidia-egl-wayland2.so.1")
    for name in ("nvidia_layers.json", "nvidia_icd.x86_64.json"):
        (share / "vulkan/icd.d" / name).write_text(text % "libGLX_nvidia.so.0")
    (share / "X11/xorg.conf.d/10-nvidia.conf").write_text('Section "OutputClass"\nEndSection\n')
    (host / "tmp/nvidia-mps").mkdir()


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Hosts:
    return Hosts(tmp_path_factory.mktemp("nvidia"))


@pytest.fixture(scope="module", autouse=True)
def every_device_file(isolated_module_state: Path) -> Iterator[None]:
    """A driver that makes device files; all rows share one state directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather, "_read_visible_params", lambda _: b"ModifyDeviceFiles: 1\n")
        yield


def hit(row: Row, hosts: Hosts) -> str:
    """The first line that a row looks for; "" when there is none."""
    look = row.look.replace("{i386}", "/usr/lib/i386-linux-gnu").replace("[[", "[")
    lines = [line for line in hosts.lines(row.container) if not line.startswith("withheld ")]
    return next((line for line in lines if fnmatchcase(line, look)), "")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.section} {row.thing} ({row.container})")
def test_each_thing_that_nvidias_tools_discover_is_given_or_not_as_the_table_says(row: Row, hosts: Hosts) -> None:
    found = hit(row, hosts)
    assert bool(found) == row.given, found or "\n".join(hosts.lines(row.container))
    if not row.given:
        assert len(hosts.lines(row.container)) > 1, "the container gets something else"


def test_everything_that_nvidias_tools_discover_has_its_rows() -> None:
    assert {row.section for row in ROWS} == SECTIONS
    assert {row.container for row in ROWS} == set(CONTAINERS), "every container of the table is looked at"


def test_where_we_give_what_nvidias_tools_leave_out_or_the_other_way_there_is_a_reason() -> None:
    absent = ("not given", "left out", "absent", "not handled", "no channel", "nothing matches", "off by default")
    for row in ROWS:
        given = not row.nvidia.startswith(absent) and not row.nvidia.startswith(("no ", "refused", "for drivers"))
        if row.nvidia.startswith("first with"):
            continue  # says how it chooses
        assert row.why or given == row.given, row


def test_every_library_of_the_drivers_version_goes_in_or_is_withheld_with_a_reason(hosts: Hosts) -> None:
    """NVIDIA's toolkit globs *.so.<version>: nothing may fall through between its glob and our table."""
    lines = hosts.lines("all")
    host = hosts.host("desktop")
    there = [
        path for path in host.joinpath("usr/lib/x86_64-linux-gnu").rglob(f"*.so.{DRIVER}") if not path.is_symlink()
    ]
    assert len(there) > 40
    for path in there:
        mounted = any(fnmatchcase(line, f"mount {IN}/{path.name} <- *") for line in lines)
        elsewhere = any(line.startswith("mount ") and f"/{path.name} (" in line for line in lines)
        stem = path.name.partition(".so")[0] + ".so"
        withheld = stem in catalogue.load_catalogue().withheld
        assert mounted or elsewhere or withheld, path.name


def test_the_table(hosts: Hosts) -> None:
    """Prints it (pytest -s)."""
    out = [("section", "thing", "nvidia", "container", "we give", "why we differ")]
    for row in ROWS:
        found = hit(row, hosts)
        held = [line for line in hosts.lines(row.container) if line.startswith("withheld ") and row.thing in line]
        ours = found or (f"not given ({held[0].removeprefix('withheld ')})" if held else "not given")
        out.append((row.section, row.thing, row.nvidia, row.container, ours[:100], row.why))
    widths = [max(len(cell) for cell in column) for column in zip(*out, strict=True)]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in out]
    print("\n" + "\n".join(table))
    assert len(table) == len(ROWS) + 1


def test_nodes_of_the_table_are_real_ones(hosts: Hosts) -> None:
    """A plain file in a node's place would make the whole table worthless."""
    for name in ("nvidia0", "nvidia-fs0", "infiniband/uverbs0", "nvidia-caps-imex-channels/channel0"):
        assert stat.S_ISCHR((hosts.host("desktop") / "dev" / name).lstat().st_mode)
