"""Write the files that the kernel and NVIDIA's modules show in /proc, /sys and /dev of a simulated host.

Texts follow a 550 driver on Linux 6.1.

Import budget: cold.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_oci_hook.simulate.mig_instances import (
    SimulatedMigDevice,
    build_mig_devices,
    compute_capability_minor,
    format_minors_table,
)
from gpu_oci_hook.simulate.special_files import SpecialFiles

# A constant, so that the UUIDs of simulated GPUs are the same on every machine and in every run.
_NAMESPACE = uuid.UUID("6f0c1d2e-5b7a-4c39-9e18-0a2b4c6d8e0f")
NVIDIA_MAJOR, UVM_MAJOR, CAPS_MAJOR = 195, 510, 235
DRM_MAJOR = 226  # Documentation/admin-guide/devices.txt of the kernel
# The board's own display controller, which is not a GPU of NVIDIA's: PCI address, vendor, DRM card number.
_BOARD_DISPLAY = ("0000:03:00.0", "0x1a03", 0)
_VIDEO_GROUP, _RENDER_GROUP = 44, 104  # Debian's groups for such nodes

_PROC_DEVICES = f"""Character devices:
  1 mem
  4 /dev/vc/0
  4 tty
  5 /dev/tty
  5 /dev/console
  5 /dev/ptmx
 10 misc
136 pts
{NVIDIA_MAJOR} nvidia
{NVIDIA_MAJOR} nvidia-modeset
{NVIDIA_MAJOR} nvidiactl
226 drm
234 nvidia-caps-imex-channels
{CAPS_MAJOR} nvidia-caps
{UVM_MAJOR} nvidia-uvm

Block devices:
  7 loop
  8 sd
259 blkext
"""
_NVIDIA_PARAMS = """ResmanDebugLevel: 4294967295
RmLogonRC: 1
ModifyDeviceFiles: 1
DeviceFileUID: 0
DeviceFileGID: 0
DeviceFileMode: 438
InitializeSystemMemoryAllocations: 1
UsePageAttributeTable: 4294967295
EnableMSI: 1
EnableStreamMemOPs: 0
EnableUserNUMAManagement: 1
NvLinkDisable: 0
RmProfilingAdminOnly: 1
PreserveVideoMemoryAllocations: 0
DynamicPowerManagement: 3
RegisterPCIDriver: 1
EnableResizableBar: 0
EnableGpuFirmware: 18
EnableGpuFirmwareLogs: 2
OpenRmEnableUnsupportedGpus: 1
ImexChannelCount: 2048
CreateImexChannel0: 0
RegistryDwords: ""
RegistryDwordsPerDevice: ""
RmMsg: ""
GpuBlacklist: ""
TemporaryFilePath: ""
ExcludedGpus: ""
"""


@dataclass(frozen=True)
class SimulatedGpu:
    """A simulated GPU.

    Attributes:
        index: rank of the PCI address.
        pci: PCI address.
        minor: device minor; the first two GPUs have each other's.
        mig: its MIG devices.
    """

    index: int
    uuid: str
    pci: str
    minor: int
    model: str
    mig: tuple[SimulatedMigDevice, ...] = ()


def build_simulated_gpus(count: int, model: str, mig_profile_lists: Sequence[str] = ()) -> tuple[SimulatedGpu, ...]:
    """Return this number of GPUs, always the same ones.

    Arguments:
        mig_profile_lists: the MIG devices to create on them, see `mig_instances.build_mig_devices`.
    """
    mig_by_gpu = build_mig_devices(mig_profile_lists, count)
    minors = [1, 0, *range(2, count)] if count >= 2 else [0]
    return tuple(
        SimulatedGpu(
            index=index,
            uuid=f"GPU-{uuid.uuid5(_NAMESPACE, str(index))}",
            # Eight bus numbers apart, as behind a server's switches. The next PCI domain begins when the buses run out.
            pci=f"{(7 + 8 * index) // 256:04x}:{(7 + 8 * index) % 256:02x}:00.0",
            minor=minors[index],
            model=model,
            mig=mig_by_gpu[index],
        )
        for index in range(count)
    )


def list_drm_names(gpu: SimulatedGpu) -> list[tuple[str, int]]:
    """Return name and minor of a GPU's DRM nodes. The numbers differ from the GPU's index.

    The kernel has 64 cards and 64 render nodes at fixed minors. Further ones share the minors from 192 on
    (drivers/gpu/drm/drm_drv.c, since Linux 6.8).
    """
    number = gpu.minor + 1
    if number < 64:
        return [(f"card{number}", number), (f"renderD{128 + gpu.minor}", 128 + gpu.minor)]
    shared = 192 + 2 * (number - 64)
    return [(f"card{shared}", shared), (f"renderD{shared + 1}", shared + 1)]


class KernelFiles:
    """The files and nodes of the loaded modules.

    Arguments:
        special_files: creates the nodes; its root takes the files too.
        driver: the driver's version.
        arch: the machine's architecture, "x86_64" or "aarch64".
    """

    def __init__(self, special_files: SpecialFiles, driver: str, arch: str, gpus: tuple[SimulatedGpu, ...]) -> None:
        self.special_files = special_files
        self.files = special_files.files
        self.driver = driver
        self.arch = arch
        self.gpus = gpus

    def write_text_files(self, firmware_path: str) -> None:
        """Write the text files below /proc and /sys.

        Arguments:
            firmware_path: the kernel's firmware path parameter, "" if it is not set.
        """
        texts = {
            "/proc/devices": _PROC_DEVICES,
            "/proc/driver/nvidia/version": (
                f"NVRM version: NVIDIA UNIX {self.arch} Kernel Module  {self.driver}  Tue Apr  8 12:41:17 UTC 2025\n"
                "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1) \n"
            ),
            "/proc/driver/nvidia/params": _NVIDIA_PARAMS,
            "/proc/driver/nvidia/capabilities/mig/config": _format_capability(1, 0o400),
            "/proc/driver/nvidia/capabilities/mig/monitor": _format_capability(2, 0o444),
            "/proc/driver/nvidia-caps/mig-minors": format_minors_table(),
            "/proc/modules": "".join(
                f"{name} 0 - - Live 0x0000000000000000 (POE)\n"
                for name in ("nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia")
            ),
            "/sys/module/nvidia/version": f"{self.driver}\n",
            "/sys/module/nvidia_uvm/version": f"{self.driver}\n",
            "/sys/module/nvidia_modeset/version": f"{self.driver}\n",
            # The kernel writes the newline for an unset parameter too.
            "/sys/module/firmware_class/parameters/path": f"{firmware_path}\n",
        }
        for gpu in self.gpus:
            texts[f"/proc/driver/nvidia/gpus/{gpu.pci}/information"] = _format_gpu_information(gpu)
            texts[f"/sys/bus/pci/devices/{gpu.pci}/vendor"] = "0x10de\n"
            texts[f"/sys/bus/pci/devices/{gpu.pci}/device"] = "0x20b0\n"
            texts[f"/sys/bus/pci/devices/{gpu.pci}/class"] = "0x030200\n"
            for capability, minor in _list_mig_capabilities(gpu):
                path = f"/proc/driver/nvidia/capabilities/gpu{gpu.minor}/mig/{capability}/access"
                texts[path] = _format_capability(minor, 0o444)
        for path, text in texts.items():
            self.files.write_file(path, text.encode(), 0o444)
        self.files.open_directory("/proc/driver/nvidia/gpus")

    def write_drm_entries(self) -> None:
        """Write the DRM devices below /sys."""
        address, vendor, _ = _BOARD_DISPLAY
        self.files.write_file(f"/sys/bus/pci/devices/{address}/vendor", f"{vendor}\n".encode(), 0o444)
        self.files.write_file(f"/sys/bus/pci/devices/{address}/class", b"0x030000\n", 0o444)
        for address, name, minor in self._list_drm_devices():
            directory = f"/sys/bus/pci/devices/{address}/drm/{name}"
            self.files.write_file(f"{directory}/dev", f"{DRM_MAJOR}:{minor}\n".encode(), 0o444)
            if name.startswith("card"):  # a connector, which is not a device
                self.files.write_file(f"{directory}/{name}-DP-1/status", b"disconnected\n", 0o444)

    def _list_drm_devices(self) -> list[tuple[str, str, int]]:
        """Return the (PCI address, name, minor) of each DRM device."""
        address, _, number = _BOARD_DISPLAY
        devices = [(address, f"card{number}", number)]
        for gpu in self.gpus:
            devices += [(gpu.pci, name, minor) for name, minor in list_drm_names(gpu)]
        return devices

    def make_device_nodes(self) -> None:
        """Create the device nodes and the links that udev makes for them.

        Without root no node is created: a plain file in place of a node would mislead.
        """
        self.files.open_directory("/dev")
        wanted = [(f"/dev/nvidia{gpu.minor}", NVIDIA_MAJOR, gpu.minor, 0o666) for gpu in self.gpus]
        wanted += [
            ("/dev/nvidiactl", NVIDIA_MAJOR, 255, 0o666),
            ("/dev/nvidia-modeset", NVIDIA_MAJOR, 254, 0o666),
            ("/dev/nvidia-uvm", UVM_MAJOR, 0, 0o666),
            ("/dev/nvidia-uvm-tools", UVM_MAJOR, 1, 0o666),
            ("/dev/nvidia-caps/nvidia-cap1", CAPS_MAJOR, 1, 0o400),
            ("/dev/nvidia-caps/nvidia-cap2", CAPS_MAJOR, 2, 0o444),
        ]
        for gpu in self.gpus:
            wanted += [
                (f"/dev/nvidia-caps/nvidia-cap{minor}", CAPS_MAJOR, minor, 0o444)
                for _, minor in _list_mig_capabilities(gpu)
            ]
        groups: dict[str, int] = {}
        for _, name, minor in self._list_drm_devices():
            wanted.append((f"/dev/dri/{name}", DRM_MAJOR, minor, 0o660))
            groups[f"/dev/dri/{name}"] = _VIDEO_GROUP if name.startswith("card") else _RENDER_GROUP
        for path, major, minor, mode in wanted:
            if not self.special_files.make_node(path, major, minor, mode, groups.get(path, 0)):
                return
        self.files.open_directory("/dev/dri/by-path")
        for address, name, _ in self._list_drm_devices():
            kind = "card" if name.startswith("card") else "render"
            self.files.make_symlink(f"/dev/dri/by-path/pci-{address}-{kind}", f"../{name}")


def _list_mig_capabilities(gpu: SimulatedGpu) -> list[tuple[str, int]]:
    """Return the capabilities of a GPU's instances: the directory below the GPU's own, and the device minor."""
    minors = {f"gi{device.gi}": compute_capability_minor(gpu.minor, device.gi) for device in gpu.mig}
    for device in gpu.mig:
        minors[f"gi{device.gi}/ci{device.ci}"] = compute_capability_minor(gpu.minor, device.gi, device.ci)
    return list(minors.items())


def _format_capability(minor: int, mode: int) -> str:
    return f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"


def _format_gpu_information(gpu: SimulatedGpu) -> str:
    return (
        f"Model: \t\t {gpu.model}\n"
        f"IRQ:   \t\t {100 + gpu.index}\n"
        f"GPU UUID: \t {gpu.uuid}\n"
        "Video BIOS: \t 92.00.45.00.03\n"
        "Bus Type: \t PCIe\n"
        "DMA Size: \t 47 bits\n"
        "DMA Mask: \t 0x7fffffffffff\n"
        f"Bus Location: \t {gpu.pci}\n"
        f"Device Minor: \t {gpu.minor}\n"
        "GPU Firmware: \t N/A\n"
        "GPU Excluded:\t No\n"
    )
