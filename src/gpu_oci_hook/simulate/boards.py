"""Build simulated machines other than desktops and servers: a Linux on Windows (WSL2), and Jetson boards.

They are small, but every file is where the real machine has it. A WSL has two driver stores, an Intel GPU's and
NVIDIA's. A Jetson with one GPU is an Orin, whose GPU is not managed by the kernel module nvidia. With more GPUs it is a
Thor with discrete GPUs, with none it is an Orin whose device nodes are missing.

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.formats.architectures import ARCHITECTURES
from gpu_oci_hook.formats.elf_builder import build_shared_object
from gpu_oci_hook.formats.ldcache import dump_ld_cache, merge_ld_cache
from gpu_oci_hook.simulate.kernel import NVIDIA_MAJOR, KernelFiles, SimulatedGpu, build_simulated_gpus
from gpu_oci_hook.simulate.special_files import SpecialFiles

BOARD_LAYOUTS = ("wsl", "jetson")
CSV_DIRECTORY = "/etc/nvidia-container-runtime/host-files-for-container.d"
NVIDIA_STORE = "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_0b9ec0a3f4a1c7d2"
INTEL_STORE = "/usr/lib/wsl/drivers/iigd_dch.inf_amd64_5f3a9c61b2e8d407"

_CUDA_SYMBOLS = (
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuCtxCreate_v2",
    "cuGetProcAddress",
)
_NVML_SYMBOLS = ("nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown")
_SYSTEM_LIBRARIES = ("libdl.so.2", "libpthread.so.0", "libc.so.6")
# Majors that the driver of a desktop or server does not use. /dev/dxg is a "misc" device, as in WSL.
_MISC, _DXG, _NVHOST, _NVGPU, _NVMAP = 10, 125, 501, 502, 503
_PROC_DEVICES = "Character devices:\n  1 mem\n  5 /dev/tty\n 10 misc\n{more}\nBlock devices:\n  7 loop\n"
_SCRIPT = '#!/bin/sh\n# Made by `gpu-oci-hook simulate`.\necho "nvidia-smi (simulated)"\n'

# Library in the driver store to its (SONAME, symbols).
_STORE_LIBRARIES = {
    "libcuda.so.1.1": ("libcuda.so.1", _CUDA_SYMBOLS),
    "libcuda_loader.so": ("libcuda_loader.so", _CUDA_SYMBOLS),
    "libnvidia-ptxjitcompiler.so.1": ("libnvidia-ptxjitcompiler.so.1", ()),
    "libnvidia-ml.so.1": ("libnvidia-ml.so.1", _NVML_SYMBOLS),
    "libnvidia-ml_loader.so": ("libnvidia-ml_loader.so", ()),
    "libnvdxgdmal.so.1": ("libnvdxgdmal.so.1", ()),
    "libnvidia-encode.so.1": ("libnvidia-encode.so.1", ()),
}
_TEGRA_LIBRARIES = {
    "libcuda.so.1.1": ("libcuda.so.1", _CUDA_SYMBOLS),
    "libnvidia-ml.so.1": ("libnvidia-ml.so.1", _NVML_SYMBOLS),
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
    """A machine that is being built; its fields are those of `SimulatedHost`."""

    def __init__(self, special_files: SpecialFiles, driver: str, arch: str) -> None:
        self.special_files = special_files
        self.files = special_files.files
        self.driver = driver
        self.arch = arch
        self.triple = ARCHITECTURES[arch].triple
        self.gpus: tuple[SimulatedGpu, ...] = ()
        self.directory = ""
        self.libraries: dict[str, str] = {}
        self.loader_cache = "/etc/ld.so.cache"

    def build_files(self, layout: str, gpus: int, model: str) -> None:
        """Write all files of a layout."""
        for path in ("/bin", "/lib", "/lib64"):
            self.files.open_directory(f"/usr{path}")
            self.files.make_symlink(path, f"usr{path}")
        for path in ("/etc", "/run", "/tmp", "/var", "/dev", f"/usr/lib/{self.triple}"):  # noqa: S108
            self.files.open_directory(path)
        self.files.make_symlink("/var/run", "../run")
        self.write_text("/etc/os-release", "ID=ubuntu\nVERSION_ID=22.04\n")
        self.write_text("/etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
        path = f"/usr/lib/{self.triple}/libdrm.so.2"  # so that the host's loader cache is not empty
        self.files.write_file(path, build_shared_object(soname="libdrm.so.2", arch=self.arch), 0o644)
        entry = ("libdrm.so.2", f"/lib/{self.triple}/libdrm.so.2", ARCHITECTURES[self.arch].cache_flags)
        self.files.write_file(self.loader_cache, dump_ld_cache(merge_ld_cache(None, [entry])))
        if layout == "wsl":
            self._build_wsl(gpus)
        else:
            self._build_jetson(gpus, model)

    def write_text(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a text file."""
        self.files.write_file(path, text.encode(), mode)

    def write_library(self, path: str, soname: str, symbols: tuple[str, ...] = ()) -> None:
        """Write a library that loads."""
        data = build_shared_object(
            soname=soname, needed=_SYSTEM_LIBRARIES, arch=self.arch, symbols=symbols, glibc="2.17"
        )
        self.files.write_file(path, data, 0o644)
        self.libraries.setdefault(soname, path)

    def _build_wsl(self, gpus: int) -> None:
        self.write_text(
            "/proc/version", "Linux version 5.15.167.4-microsoft-standard-WSL2 (root@f9c826d3017f)\n", 0o444
        )
        self.write_text("/proc/devices", _PROC_DEVICES.format(more=""), 0o444)
        self.write_text("/proc/misc", f"{_DXG} dxg\n183 hw_random\n", 0o444)
        self.write_text("/etc/ld.so.conf.d/ld.wsl.conf", "/usr/lib/wsl/lib\n")
        self.directory = NVIDIA_STORE
        for name, (soname, symbols) in _STORE_LIBRARIES.items():
            self.write_library(f"{NVIDIA_STORE}/{name}", soname, symbols)
        self.write_text(f"{NVIDIA_STORE}/nvcubins.bin", "cubins, made by gpu-oci-hook simulate\n")
        self.write_text(f"{NVIDIA_STORE}/nvoptix.bin", "data, made by gpu-oci-hook simulate\n")
        self.write_text(f"{NVIDIA_STORE}/nvcuda64.dll", "MZ\n")
        self.write_text(f"{NVIDIA_STORE}/nvidia-smi", _SCRIPT, 0o755)
        for name in ("nvidia-smi.exe", "nv_dispi.inf", "nv_disp.cat"):  # for Windows only
            self.write_text(f"{NVIDIA_STORE}/{name}", "of Windows\n")
        self.write_library(f"{INTEL_STORE}/libigdgmm_w.so.12", "libigdgmm_w.so.12")
        self.write_text(f"{INTEL_STORE}/igd10um64xe.dll", "MZ\n")
        # Outside the stores Windows puts libdxcore, Direct3D, and loaders that find the store through libdxcore.
        for name, soname in (("libdxcore.so", "libdxcore.so"), ("libd3d12.so", "libd3d12.so")):
            self.write_library(f"/usr/lib/wsl/lib/{name}", soname)
        self.write_library("/usr/lib/wsl/lib/libcuda.so.1.1", "libcuda.so.1", _CUDA_SYMBOLS)
        for name in ("libcuda.so.1", "libcuda.so"):
            self.files.make_symlink(f"/usr/lib/wsl/lib/{name}", "libcuda.so.1.1")
        if gpus:
            self.special_files.make_node("/dev/dxg", _MISC, _DXG)

    def _build_jetson(self, gpus: int, model: str) -> None:
        major, revision, name = _RELEASES["Thor" if gpus > 1 else "Orin"]
        self.write_text(
            "/etc/nv_tegra_release",
            f"# R{major} (release), REVISION: {revision}, GCID: 38968081, BOARD: generic, EABI: aarch64, "
            "DATE: Wed Jan  8 01:49:37 UTC 2025\n",
        )
        self.write_text("/sys/devices/soc0/family", "Tegra\n", 0o444)
        self.files.write_file("/proc/device-tree/model", name.encode() + b"\0", 0o444)
        self.directory = f"/usr/lib/{self.triple}/nvidia"
        self.write_text("/etc/ld.so.conf.d/nvidia-tegra.conf", f"{self.directory}\n")
        for file, (soname, symbols) in _TEGRA_LIBRARIES.items():
            self.write_library(f"{self.directory}/{file}", soname, symbols)
        for link in ("libcuda.so.1", "libcuda.so"):
            self.files.make_symlink(f"{self.directory}/{link}", "libcuda.so.1.1")
        self.files.make_symlink(f"/usr/lib/{self.triple}/libcuda.so", "nvidia/libcuda.so")
        self.write_text(f"{self.directory}/nvidia_icd.json", '{"ICD": {"library_path": "libGLX_nvidia.so.0"}}\n')
        self.files.make_symlink("/etc/vulkan/icd.d/nvidia_icd.json", f"{self.directory}/nvidia_icd.json")
        self.write_text("/usr/lib/firmware/tegra23x/nvhost_nvdec0.fw", "firmware, made by gpu-oci-hook simulate\n")
        self.write_text("/usr/src/jetson_multimedia_api/README", "everything\n")
        devices = ["/dev/nvmap", "/dev/nvhost-ctrl-isp"]
        if gpus > 1:
            devices += self._build_thor(gpus, model)
        else:
            table = f"{_NVHOST} nvhost\n{_NVGPU} nvgpu\n{_NVMAP} nvmap\n"
            self.write_text("/proc/devices", _PROC_DEVICES.format(more=table), 0o444)
            devices += [f"/dev/{name}" for name in _ORIN_NODES] + ["/dev/nvgpu/igpu0/*", "/dev/nvidiactl"]
            for number, name in enumerate(_ORIN_NODES if gpus else ()):
                self.special_files.make_node(f"/dev/{name}", _NVHOST, number, 0o660, 44)
            for number, name in enumerate(("as", "channel", "ctrl", "power") if gpus else ()):
                self.special_files.make_node(f"/dev/nvgpu/igpu0/{name}", _NVGPU, number, 0o660, 44)
        if gpus:
            self.special_files.make_node("/dev/nvmap", _NVMAP, 0, 0o660, 44)
        self._write_csv_lists(devices)

    def _build_thor(self, gpus: int, model: str) -> list[str]:
        """Write the kernel's files for a Thor with discrete GPUs, and return the nodes that its lists name."""
        discrete = build_simulated_gpus(gpus - 1, model)
        thor = SimulatedGpu(0, "d5b4c0de-6b07-5a1c-9d3e-3f2a1b0c9d8e", "0000:01:00.0", 0, "NVIDIA Thor")
        renumbered = [
            SimulatedGpu(gpu.index + 1, gpu.uuid, f"0005:{gpu.index + 1:02x}:00.0", gpu.index + 1, gpu.model)
            for gpu in discrete
        ]
        self.gpus = (thor, *renumbered)
        module = KernelFiles(self.special_files, self.driver, self.arch, self.gpus)
        module.write_text_files("")
        module.write_drm_entries()
        module.make_device_nodes()
        if gpus == 2:
            self.special_files.make_node("/dev/nvidia2", NVIDIA_MAJOR, 2)
        names = ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
        return [f"/dev/{name}" for name in names]

    def _write_csv_lists(self, devices: list[str]) -> None:
        lines = {
            "devices": [f"dev, {path}" for path in devices],
            "drivers": [
                *(f"lib, {self.directory}/{name}" for name in _TEGRA_LIBRARIES),
                f"lib, {self.directory}/libnvargus.so",  # the list is for all boards, and this one lacks it
                f"sym, {self.directory}/libcuda.so",
                f"sym, /usr/lib/{self.triple}/libcuda.so",
                "dir, /usr/lib/firmware/tegra23x",
            ],
            "l4t": ["sym, /etc/vulkan/icd.d/nvidia_icd.json", "dir, /usr/local/cuda-10.2"],
            "multimedia": ["dir, /usr/src/jetson_multimedia_api"],
        }
        for name, rows in lines.items():
            self.write_text(f"{CSV_DIRECTORY}/{name}.csv", "\n".join(rows) + "\n")


_ORIN_NODES = ("nvhost-ctrl-gpu", "nvhost-gpu", "nvhost-as-gpu", "nvhost-prof-gpu")
