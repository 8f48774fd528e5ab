"""What the kernel shows of NVIDIA's modules: /proc, /sys and /dev.

Texts follow a 550 driver on Linux 6.1. Cost rule: none.
"""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_oci_hook.errors import describe_os_error
from gpu_oci_hook.files.rootfs import Rootfs
from gpu_oci_hook.simulate.mig_instances import (
    SimulatedMigDevice,
    build_mig_devices,
    compute_capability_minor,
    format_minors_table,
)

# Written by hand, once: UUIDs of simulated GPUs are the same on every machine and in every run.
_NAMESPACE = uuid.UUID("6f0c1d2e-5b7a-4c39-9e18-0a2b4c6d8e0f")
NVIDIA_MAJOR, UVM_MAJOR, CAPS_MAJOR = 195, 510, 235
DRM_MAJOR = 226  # Documentation/admin-guide/devices.txt of the kernel
# A display controller of the board that is none of NVIDIA's: a server has one, and it is nobody's GPU.
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
    """A simulated GPU: index (rank of the PCI address), UUID, PCI address, device minor, model, MIG devices."""

    index: int
    uuid: str
    pci: str
    minor: int
    model: str
    mig: tuple[SimulatedMigDevice, ...] = ()


def build_simulated_gpus(count: int, model: str, mig_profile_lists: Sequence[str] = ()) -> tuple[SimulatedGpu, ...]:
    """So many GPUs, always the same ones; `mig_profile_lists` divide them, see `mig_instances.build_mig_devices`."""
    divided = build_mig_devices(mig_profile_lists, count)
    minors = [1, 0, *range(2, count)] if count >= 2 else [0]
    return tuple(
        SimulatedGpu(
            index=index,
            uuid=f"GPU-{uuid.uuid5(_NAMESPACE, str(index))}",
            # Eight bus numbers apart, as behind the switches of a server; a new PCI domain when the buses run out.
            pci=f"{(7 + 8 * index) // 256:04x}:{(7 + 8 * index) % 256:02x}:00.0",
            minor=minors[index],
            model=model,
            mig=divided[index],
        )
        for index in range(count)
    )


def list_drm_names(gpu: SimulatedGpu) -> list[tuple[str, int]]:
    """Name and minor of the DRM nodes of a GPU: other numbers than its index.

    The kernel has 64 cards and 64 render nodes at fixed minors; what is more shares the minors from 192 on
    (drivers/gpu/drm/drm_drv.c, since Linux 6.8).
    """
    number = gpu.minor + 1
    if number < 64:
        return [(f"card{number}", number), (f"renderD{128 + gpu.minor}", 128 + gpu.minor)]
    more = 192 + 2 * (number - 64)
    return [(f"card{more}", more), (f"renderD{more + 1}", more + 1)]


class KernelFiles:
    """Files and nodes of the loaded modules.

    made_nodes: nodes that were made. left_out: why others were not.
    """

    def __init__(self, files: Rootfs, driver: str, arch: str, gpus: tuple[SimulatedGpu, ...]) -> None:
        self.files = files
        self.driver = driver
        self.arch = arch
        self.gpus = gpus
        self.made_nodes: list[str] = []
        self.left_out: list[str] = []

    def write_text_files(self, firmware_path: str) -> None:
        """The text files below /proc and /sys."""
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
            # The kernel ends an unset parameter with a newline too.
            "/sys/module/firmware_class/parameters/path": f"{firmware_path}\n",
        }
        for card in self.gpus:
            texts[f"/proc/driver/nvidia/gpus/{card.pci}/information"] = _format_gpu_information(card)
            texts[f"/sys/bus/pci/devices/{card.pci}/vendor"] = "0x10de\n"
            texts[f"/sys/bus/pci/devices/{card.pci}/device"] = "0x20b0\n"
            texts[f"/sys/bus/pci/devices/{card.pci}/class"] = "0x030200\n"
            for steps, number in _list_mig_capabilities(card):
                place = f"/proc/driver/nvidia/capabilities/gpu{card.minor}/mig/{steps}/access"
                texts[place] = _format_capability(number, 0o444)
        for path, text in texts.items():
            self.files.write_file(path, text.encode(), 0o444)
        self.files.open_directory("/proc/driver/nvidia/gpus")

    def write_drm_entries(self) -> None:
        """The DRM devices below /sys."""
        address, vendor, _ = _BOARD_DISPLAY
        self.files.write_file(f"/sys/bus/pci/devices/{address}/vendor", f"{vendor}\n".encode(), 0o444)
        self.files.write_file(f"/sys/bus/pci/devices/{address}/class", b"0x030000\n", 0o444)
        for address, name, minor in self._list_drm_devices():
            below = f"/sys/bus/pci/devices/{address}/drm/{name}"
            self.files.write_file(f"{below}/dev", f"{DRM_MAJOR}:{minor}\n".encode(), 0o444)
            if name.startswith("card"):
                self.files.write_file(f"{below}/{name}-DP-1/status", b"disconnected\n", 0o444)  # a connector, no device

    def _list_drm_devices(self) -> list[tuple[str, str, int]]:
        address, _, number = _BOARD_DISPLAY
        devices = [(address, f"card{number}", number)]
        for card in self.gpus:
            devices += [(card.pci, name, minor) for name, minor in list_drm_names(card)]
        return devices

    def make_device_nodes(self) -> None:
        """The device nodes, real ones or none: a plain file in place of a node would only mislead."""
        self.files.open_directory("/dev")
        wanted = [(f"/dev/nvidia{card.minor}", NVIDIA_MAJOR, card.minor, 0o666) for card in self.gpus]
        wanted += [
            ("/dev/nvidiactl", NVIDIA_MAJOR, 255, 0o666),
            ("/dev/nvidia-modeset", NVIDIA_MAJOR, 254, 0o666),
            ("/dev/nvidia-uvm", UVM_MAJOR, 0, 0o666),
            ("/dev/nvidia-uvm-tools", UVM_MAJOR, 1, 0o666),
            ("/dev/nvidia-caps/nvidia-cap1", CAPS_MAJOR, 1, 0o400),
            ("/dev/nvidia-caps/nvidia-cap2", CAPS_MAJOR, 2, 0o444),
        ]
        for card in self.gpus:
            wanted += [
                (f"/dev/nvidia-caps/nvidia-cap{number}", CAPS_MAJOR, number, 0o444)
                for _, number in _list_mig_capabilities(card)
            ]
        groups: dict[str, int] = {}
        for _, name, minor in self._list_drm_devices():
            wanted.append((f"/dev/dri/{name}", DRM_MAJOR, minor, 0o660))
            groups[f"/dev/dri/{name}"] = _VIDEO_GROUP if name.startswith("card") else _RENDER_GROUP
        for path, major, minor, mode in wanted:
            above, _, name = path.rpartition("/")
            directory = self.files.open_directory(above)
            try:
                os.mknod(name, stat.S_IFCHR | mode, os.makedev(major, minor), dir_fd=directory.fd)
                # The descriptor is an O_PATH one; chmod by name undoes the umask. Nobody else works in this tree.
                os.chmod(name, mode, dir_fd=directory.fd)
                if path in groups:
                    os.chown(name, 0, groups[path], dir_fd=directory.fd, follow_symlinks=False)
            except OSError as error:
                self.left_out.append(
                    f"device nodes below /dev: {describe_os_error(error, writing=True)}; only root can make them"
                )
                return
            self.made_nodes.append(path)
        self.files.open_directory("/dev/dri/by-path")
        for address, name, _ in self._list_drm_devices():  # links that udev makes
            kind = "card" if name.startswith("card") else "render"
            self.files.make_symlink(f"/dev/dri/by-path/pci-{address}-{kind}", f"../{name}")


def _list_mig_capabilities(gpu: SimulatedGpu) -> list[tuple[str, int]]:
    """The capabilities of a GPU's instances: the directory below its own, and the device minor."""
    found = {f"gi{one.gi}": compute_capability_minor(gpu.minor, one.gi) for one in gpu.mig}
    found |= {f"gi{one.gi}/ci{one.ci}": compute_capability_minor(gpu.minor, one.gi, one.ci) for one in gpu.mig}
    return list(found.items())


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
