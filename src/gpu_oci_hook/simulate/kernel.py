"""What the kernel shows of NVIDIA's modules: /proc, /sys and /dev.

Texts follow a 550 driver on Linux 6.1. Cost rule: none.
"""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_oci_hook.container.rootfs import Rootfs
from gpu_oci_hook.errors import words
from gpu_oci_hook.simulate import mig

# Written by hand, once: UUIDs of simulated GPUs are the same on every machine and in every run.
_NAMESPACE = uuid.UUID("6f0c1d2e-5b7a-4c39-9e18-0a2b4c6d8e0f")
NVIDIA, UVM, CAPS = 195, 510, 235
DRM = 226  # Documentation/admin-guide/devices.txt of the kernel
# A display controller of the board that is none of NVIDIA's: a server has one, and it is nobody's GPU.
_BOARD = ("0000:03:00.0", "0x1a03", 0)
_VIDEO, _RENDER = 44, 104  # Debian's groups for such nodes

_DEVICES = f"""Character devices:
  1 mem
  4 /dev/vc/0
  4 tty
  5 /dev/tty
  5 /dev/console
  5 /dev/ptmx
 10 misc
136 pts
{NVIDIA} nvidia
{NVIDIA} nvidia-modeset
{NVIDIA} nvidiactl
226 drm
234 nvidia-caps-imex-channels
{CAPS} nvidia-caps
{UVM} nvidia-uvm

Block devices:
  7 loop
  8 sd
259 blkext
"""
_PARAMS = """ResmanDebugLevel: 4294967295
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
class Gpu:
    """A simulated GPU: index (rank of the PCI address), UUID, PCI address, device minor, model, MIG devices."""

    index: int
    uuid: str
    pci: str
    minor: int
    model: str
    mig: tuple[mig.Instance, ...] = ()


def gpus(count: int, model: str, words: Sequence[str] = ()) -> tuple[Gpu, ...]:
    """So many GPUs, always the same ones; `words` divide them, see `mig.instances`."""
    divided = mig.instances(words, count)
    minors = [1, 0, *range(2, count)] if count >= 2 else [0]
    return tuple(
        Gpu(
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


def drm_names(card: Gpu) -> list[tuple[str, int]]:
    """Name and minor of the DRM nodes of a GPU: other numbers than its index.

    The kernel has 64 cards and 64 render nodes at fixed minors; what is more shares the minors from 192 on
    (drivers/gpu/drm/drm_drv.c, since Linux 6.8).
    """
    number = card.minor + 1
    if number < 64:
        return [(f"card{number}", number), (f"renderD{128 + card.minor}", 128 + card.minor)]
    more = 192 + 2 * (number - 64)
    return [(f"card{more}", more), (f"renderD{more + 1}", more + 1)]


class Module:
    """Files and nodes of the loaded modules.

    made: nodes that were made. left_out: why others were not.
    """

    def __init__(self, files: Rootfs, driver: str, arch: str, cards: tuple[Gpu, ...]) -> None:
        self.files = files
        self.driver = driver
        self.arch = arch
        self.cards = cards
        self.made: list[str] = []
        self.left_out: list[str] = []

    def tables(self, firmware: str) -> None:
        """The text files below /proc and /sys."""
        texts = {
            "/proc/devices": _DEVICES,
            "/proc/driver/nvidia/version": (
                f"NVRM version: NVIDIA UNIX {self.arch} Kernel Module  {self.driver}  Tue Apr  8 12:41:17 UTC 2025\n"
                "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1) \n"
            ),
            "/proc/driver/nvidia/params": _PARAMS,
            "/proc/driver/nvidia/capabilities/mig/config": _capability(1, 0o400),
            "/proc/driver/nvidia/capabilities/mig/monitor": _capability(2, 0o444),
            "/proc/driver/nvidia-caps/mig-minors": mig.table(),
            "/proc/modules": "".join(
                f"{name} 0 - - Live 0x0000000000000000 (POE)\n"
                for name in ("nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia")
            ),
            "/sys/module/nvidia/version": f"{self.driver}\n",
            "/sys/module/nvidia_uvm/version": f"{self.driver}\n",
            "/sys/module/nvidia_modeset/version": f"{self.driver}\n",
            # The kernel ends an unset parameter with a newline too.
            "/sys/module/firmware_class/parameters/path": f"{firmware}\n",
        }
        for card in self.cards:
            texts[f"/proc/driver/nvidia/gpus/{card.pci}/information"] = _information(card)
            texts[f"/sys/bus/pci/devices/{card.pci}/vendor"] = "0x10de\n"
            texts[f"/sys/bus/pci/devices/{card.pci}/device"] = "0x20b0\n"
            texts[f"/sys/bus/pci/devices/{card.pci}/class"] = "0x030200\n"
            for steps, number in _rights(card):
                place = f"/proc/driver/nvidia/capabilities/gpu{card.minor}/mig/{steps}/access"
                texts[place] = _capability(number, 0o444)
        for path, text in texts.items():
            self.files.write(path, text.encode(), 0o444)
        self.files.directory("/proc/driver/nvidia/gpus")

    def drm(self) -> None:
        """The DRM devices below /sys."""
        address, vendor, _ = _BOARD
        self.files.write(f"/sys/bus/pci/devices/{address}/vendor", f"{vendor}\n".encode(), 0o444)
        self.files.write(f"/sys/bus/pci/devices/{address}/class", b"0x030000\n", 0o444)
        for address, name, minor in self._drm_devices():
            below = f"/sys/bus/pci/devices/{address}/drm/{name}"
            self.files.write(f"{below}/dev", f"{DRM}:{minor}\n".encode(), 0o444)
            if name.startswith("card"):
                self.files.write(f"{below}/{name}-DP-1/status", b"disconnected\n", 0o444)  # a connector, no device

    def _drm_devices(self) -> list[tuple[str, str, int]]:
        address, _, number = _BOARD
        devices = [(address, f"card{number}", number)]
        for card in self.cards:
            devices += [(card.pci, name, minor) for name, minor in drm_names(card)]
        return devices

    def nodes(self) -> None:
        """The device nodes, real ones or none: a plain file in place of a node would only mislead."""
        self.files.directory("/dev")
        wanted = [(f"/dev/nvidia{card.minor}", NVIDIA, card.minor, 0o666) for card in self.cards]
        wanted += [
            ("/dev/nvidiactl", NVIDIA, 255, 0o666),
            ("/dev/nvidia-modeset", NVIDIA, 254, 0o666),
            ("/dev/nvidia-uvm", UVM, 0, 0o666),
            ("/dev/nvidia-uvm-tools", UVM, 1, 0o666),
            ("/dev/nvidia-caps/nvidia-cap1", CAPS, 1, 0o400),
            ("/dev/nvidia-caps/nvidia-cap2", CAPS, 2, 0o444),
        ]
        for card in self.cards:
            wanted += [(f"/dev/nvidia-caps/nvidia-cap{number}", CAPS, number, 0o444) for _, number in _rights(card)]
        groups: dict[str, int] = {}
        for _, name, minor in self._drm_devices():
            wanted.append((f"/dev/dri/{name}", DRM, minor, 0o660))
            groups[f"/dev/dri/{name}"] = _VIDEO if name.startswith("card") else _RENDER
        for path, major, minor, mode in wanted:
            above, _, name = path.rpartition("/")
            directory = self.files.directory(above)
            try:
                os.mknod(name, stat.S_IFCHR | mode, os.makedev(major, minor), dir_fd=directory.fd)
                # The descriptor is an O_PATH one; chmod by name undoes the umask. Nobody else works in this tree.
                os.chmod(name, mode, dir_fd=directory.fd)
                if path in groups:
                    os.chown(name, 0, groups[path], dir_fd=directory.fd, follow_symlinks=False)
            except OSError as error:
                self.left_out.append(f"device nodes below /dev: {words(error, writing=True)}; only root can make them")
                return
            self.made.append(path)
        self.files.directory("/dev/dri/by-path")
        for address, name, _ in self._drm_devices():  # links that udev makes
            kind = "card" if name.startswith("card") else "render"
            self.files.link(f"/dev/dri/by-path/pci-{address}-{kind}", f"../{name}")


def _rights(card: Gpu) -> list[tuple[str, int]]:
    """The capabilities of a GPU's instances: the directory below its own, and the device minor."""
    found = {f"gi{one.gi}": mig.minor(card.minor, one.gi) for one in card.mig}
    found |= {f"gi{one.gi}/ci{one.ci}": mig.minor(card.minor, one.gi, one.ci) for one in card.mig}
    return list(found.items())


def _capability(minor: int, mode: int) -> str:
    return f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"


def _information(card: Gpu) -> str:
    return (
        f"Model: \t\t {card.model}\n"
        f"IRQ:   \t\t {100 + card.index}\n"
        f"GPU UUID: \t {card.uuid}\n"
        "Video BIOS: \t 92.00.45.00.03\n"
        "Bus Type: \t PCIe\n"
        "DMA Size: \t 47 bits\n"
        "DMA Mask: \t 0x7fffffffffff\n"
        f"Bus Location: \t {card.pci}\n"
        f"Device Minor: \t {card.minor}\n"
        "GPU Firmware: \t N/A\n"
        "GPU Excluded:\t No\n"
    )
