"""Machines that are no desktop: a Linux on Windows (WSL2), and Jetson boards.

Small, but with everything in the place where the real ones have it. A WSL has two driver stores, an Intel GPU's and
NVIDIA's. A Jetson with one GPU is an Orin, whose GPU is not NVIDIA's module's; with more it is a Thor with discrete
GPUs beside it; with none an Orin whose nodes are missing. Cost rule: none.
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook.container.rootfs import Rootfs
from gpu_oci_hook.errors import words
from gpu_oci_hook.formats import ARCHITECTURES, elf, ldcache
from gpu_oci_hook.simulate import kernel

BOARDS = ("wsl", "jetson")
LISTS = "/etc/nvidia-container-runtime/host-files-for-container.d"
STORE = "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_0b9ec0a3f4a1c7d2"
OTHER_STORE = "/usr/lib/wsl/drivers/iigd_dch.inf_amd64_5f3a9c61b2e8d407"

_CUDA = ("cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuCtxCreate_v2", "cuGetProcAddress")
_NVML = ("nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown")
_NEEDS = ("libdl.so.2", "libpthread.so.0", "libc.so.6")
# Numbers that no driver of an ordinary machine has; /dev/dxg is one of the kernel's "misc" devices as on Windows.
_MISC, _DXG, _NVHOST, _NVGPU, _NVMAP = 10, 125, 501, 502, 503
_TABLE = "Character devices:\n  1 mem\n  5 /dev/tty\n 10 misc\n{more}\nBlock devices:\n  7 loop\n"
_SCRIPT = '#!/bin/sh\n# Made by `gpu-oci-hook simulate`.\necho "nvidia-smi (simulated)"\n'

# Name in the store: (SONAME, symbols); a name without an entry is no library.
_STORE = {
    "libcuda.so.1.1": ("libcuda.so.1", _CUDA),
    "libcuda_loader.so": ("libcuda_loader.so", _CUDA),
    "libnvidia-ptxjitcompiler.so.1": ("libnvidia-ptxjitcompiler.so.1", ()),
    "libnvidia-ml.so.1": ("libnvidia-ml.so.1", _NVML),
    "libnvidia-ml_loader.so": ("libnvidia-ml_loader.so", ()),
    "libnvdxgdmal.so.1": ("libnvdxgdmal.so.1", ()),
    "libnvidia-encode.so.1": ("libnvidia-encode.so.1", ()),
}
_TEGRA = {
    "libcuda.so.1.1": ("libcuda.so.1", _CUDA),
    "libnvidia-ml.so.1": ("libnvidia-ml.so.1", _NVML),
    "libnvidia-ptxjitcompiler.so.1": ("libnvidia-ptxjitcompiler.so.1", ()),
    "libnvrm_gpu.so": ("libnvrm_gpu.so", ()),
    "libnvrm_mem.so": ("libnvrm_mem.so", ()),
    "libnvos.so": ("libnvos.so", ()),
}
_RELEASES = {
    "Orin": ("36", "4.3", "NVIDIA Jetson AGX Orin Developer Kit"),
    "Thor": ("38", "2.0", "NVIDIA Jetson AGX Thor Developer Kit"),
}


class Board:
    """What was made of a machine; the fields are those of `Report`."""

    def __init__(self, files: Rootfs, driver: str, arch: str) -> None:
        self.files = files
        self.driver = driver
        self.arch = arch
        self.triple = ARCHITECTURES[arch].triple
        self.cards: tuple[kernel.Gpu, ...] = ()
        self.directory = ""
        self.libraries: dict[str, str] = {}
        self.nodes: list[str] = []
        self.left_out: list[str] = []
        self.cache = "/etc/ld.so.cache"

    def build(self, layout: str, gpus: int, model: str) -> None:
        """Makes everything."""
        for path in ("/bin", "/lib", "/lib64"):
            self.files.directory(f"/usr{path}")
            self.files.link(path, f"usr{path}")
        for path in ("/etc", "/run", "/tmp", "/var", "/dev", f"/usr/lib/{self.triple}"):  # noqa: S108
            self.files.directory(path)
        self.files.link("/var/run", "../run")
        self.text("/etc/os-release", "ID=ubuntu\nVERSION_ID=22.04\n")
        self.text("/etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
        name = f"/usr/lib/{self.triple}/libdrm.so.2"  # so that the host's loader cache is not empty
        self.files.write(name, elf.write(soname="libdrm.so.2", arch=self.arch), 0o644)
        entry = ("libdrm.so.2", f"/lib/{self.triple}/libdrm.so.2", ARCHITECTURES[self.arch].flags)
        self.files.write(self.cache, ldcache.dump(ldcache.merge(None, [entry])))
        if layout == "wsl":
            self._wsl(gpus)
        else:
            self._jetson(gpus, model)

    def text(self, path: str, text: str, mode: int = 0o644) -> None:
        """A text file."""
        self.files.write(path, text.encode(), mode)

    def library(self, path: str, soname: str, symbols: tuple[str, ...] = ()) -> None:
        """A library that loads."""
        data = elf.write(soname=soname, needed=_NEEDS, arch=self.arch, symbols=symbols, glibc="2.17")
        self.files.write(path, data, 0o644)
        self.libraries.setdefault(soname, path)

    def node(self, path: str, major: int, minor: int, mode: int = 0o666, group: int = 0) -> None:
        """A device node, or the reason why not."""
        above, _, name = path.rpartition("/")
        directory = self.files.directory(above)
        try:
            os.mknod(name, stat.S_IFCHR | mode, os.makedev(major, minor), dir_fd=directory.fd)
            os.chmod(name, mode, dir_fd=directory.fd)  # undoes the umask
            os.chown(name, 0, group, dir_fd=directory.fd, follow_symlinks=False)
        except OSError as error:
            text = f"device nodes below /dev: {words(error)}; only root can make them"
            self.left_out += [text] if text not in self.left_out else []
            return
        self.nodes.append(path)

    def _wsl(self, gpus: int) -> None:
        self.text("/proc/version", "Linux version 5.15.167.4-microsoft-standard-WSL2 (root@f9c826d3017f)\n", 0o444)
        self.text("/proc/devices", _TABLE.format(more=""), 0o444)
        self.text("/proc/misc", f"{_DXG} dxg\n183 hw_random\n", 0o444)
        self.text("/etc/ld.so.conf.d/ld.wsl.conf", "/usr/lib/wsl/lib\n")
        self.directory = STORE
        for name, (soname, symbols) in _STORE.items():
            self.library(f"{STORE}/{name}", soname, symbols)
        self.text(f"{STORE}/nvcubins.bin", "cubins, made by gpu-oci-hook simulate\n")
        self.text(f"{STORE}/nvoptix.bin", "data, made by gpu-oci-hook simulate\n")
        self.text(f"{STORE}/nvcuda64.dll", "MZ\n")
        self.text(f"{STORE}/nvidia-smi", _SCRIPT, 0o755)
        for name in ("nvidia-smi.exe", "nv_dispi.inf", "nv_disp.cat"):  # Windows' own, for no container
            self.text(f"{STORE}/{name}", "of Windows\n")
        self.library(f"{OTHER_STORE}/libigdgmm_w.so.12", "libigdgmm_w.so.12")
        self.text(f"{OTHER_STORE}/igd10um64xe.dll", "MZ\n")
        # What Windows puts beside the stores: libdxcore, Direct3D, and loaders that find the store by libdxcore.
        for name, soname in (("libdxcore.so", "libdxcore.so"), ("libd3d12.so", "libd3d12.so")):
            self.library(f"/usr/lib/wsl/lib/{name}", soname)
        self.library("/usr/lib/wsl/lib/libcuda.so.1.1", "libcuda.so.1", _CUDA)
        for name in ("libcuda.so.1", "libcuda.so"):
            self.files.link(f"/usr/lib/wsl/lib/{name}", "libcuda.so.1.1")
        if gpus:
            self.node("/dev/dxg", _MISC, _DXG)

    def _jetson(self, gpus: int, model: str) -> None:
        major, revision, name = _RELEASES["Thor" if gpus > 1 else "Orin"]
        self.text(
            "/etc/nv_tegra_release",
            f"# R{major} (release), REVISION: {revision}, GCID: 38968081, BOARD: generic, EABI: aarch64, "
            "DATE: Wed Jan  8 01:49:37 UTC 2025\n",
        )
        self.text("/sys/devices/soc0/family", "Tegra\n", 0o444)
        self.files.write("/proc/device-tree/model", name.encode() + b"\0", 0o444)
        self.directory = f"/usr/lib/{self.triple}/nvidia"
        self.text("/etc/ld.so.conf.d/nvidia-tegra.conf", f"{self.directory}\n")
        for file, (soname, symbols) in _TEGRA.items():
            self.library(f"{self.directory}/{file}", soname, symbols)
        for link in ("libcuda.so.1", "libcuda.so"):
            self.files.link(f"{self.directory}/{link}", "libcuda.so.1.1")
        self.files.link(f"/usr/lib/{self.triple}/libcuda.so", "nvidia/libcuda.so")
        self.text(f"{self.directory}/nvidia_icd.json", '{"ICD": {"library_path": "libGLX_nvidia.so.0"}}\n')
        self.files.link("/etc/vulkan/icd.d/nvidia_icd.json", f"{self.directory}/nvidia_icd.json")
        self.text("/usr/lib/firmware/tegra23x/nvhost_nvdec0.fw", "firmware, made by gpu-oci-hook simulate\n")
        self.text("/usr/src/jetson_multimedia_api/README", "everything\n")
        devices = ["/dev/nvmap", "/dev/nvhost-ctrl-isp"]
        if gpus > 1:
            devices += self._thor(gpus, model)
        else:
            table = f"{_NVHOST} nvhost\n{_NVGPU} nvgpu\n{_NVMAP} nvmap\n"
            self.text("/proc/devices", _TABLE.format(more=table), 0o444)
            devices += [f"/dev/{name}" for name in _ORIN] + ["/dev/nvgpu/igpu0/*", "/dev/nvidiactl"]
            for number, name in enumerate(_ORIN if gpus else ()):
                self.node(f"/dev/{name}", _NVHOST, number, 0o660, 44)
            for number, name in enumerate(("as", "channel", "ctrl", "power") if gpus else ()):
                self.node(f"/dev/nvgpu/igpu0/{name}", _NVGPU, number, 0o660, 44)
        if gpus:
            self.node("/dev/nvmap", _NVMAP, 0, 0o660, 44)
        self._lists(devices)

    def _thor(self, gpus: int, model: str) -> list[str]:
        discrete = kernel.gpus(gpus - 1, model)
        thor = kernel.Gpu(0, "d5b4c0de-6b07-5a1c-9d3e-3f2a1b0c9d8e", "0000:01:00.0", 0, "NVIDIA Thor")
        more = [
            kernel.Gpu(card.index + 1, card.uuid, f"0005:{card.index + 1:02x}:00.0", card.index + 1, card.model)
            for card in discrete
        ]
        self.cards = (thor, *more)
        module = kernel.Module(self.files, self.driver, self.arch, self.cards)
        module.tables("")
        module.drm()
        module.nodes()
        self.nodes += module.made
        self.left_out += module.left_out
        if gpus == 2:
            self.node("/dev/nvidia2", kernel.NVIDIA, 2)
        names = ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
        return [f"/dev/{name}" for name in names]

    def _lists(self, devices: list[str]) -> None:
        lines = {
            "devices": [f"dev, {path}" for path in devices],
            "drivers": [
                *(f"lib, {self.directory}/{name}" for name in _TEGRA),
                f"lib, {self.directory}/libnvargus.so",  # a list for all boards: this one has none
                f"sym, {self.directory}/libcuda.so",
                f"sym, /usr/lib/{self.triple}/libcuda.so",
                "dir, /usr/lib/firmware/tegra23x",
            ],
            "l4t": ["sym, /etc/vulkan/icd.d/nvidia_icd.json", "dir, /usr/local/cuda-10.2"],
            "multimedia": ["dir, /usr/src/jetson_multimedia_api"],
        }
        for name, rows in lines.items():
            self.text(f"{LISTS}/{name}.csv", "\n".join(rows) + "\n")


_ORIN = ("nvhost-ctrl-gpu", "nvhost-gpu", "nvhost-as-gpu", "nvhost-prof-gpu")
