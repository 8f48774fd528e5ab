"""The input of a plan, built by hand: no machine is read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from typing import Any

from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.container.image import Image
from gpu_oci_hook.model.machine import DeviceNode, DriverFile, Gpu, Inventory
from gpu_oci_hook.model.optional_devices import OptionalItems
from gpu_oci_hook.model.plan_input import ContainerFacts, PlanInput
from gpu_oci_hook.request import selectors
from gpu_oci_hook.request.read import read_request

VERSION = "550.163.01"
IMAGE_LIBRARY_DIR = "/usr/lib/x86_64-linux-gnu"
DRIVER_LIBRARY_DIR = "/usr/local/nvidia/lib64"


class FakeRootfs:
    """A container's root with the listed links, directories and files."""

    def __init__(
        self, links: dict[str, str] | None = None, there: tuple[str, ...] = (), files: tuple[str, ...] = ()
    ) -> None:
        self.links = links or {}
        self.there = there
        self.files = files

    def resolve_destination(self, path: str) -> str:
        for link, target in self.links.items():
            if path == link or path.startswith(link + "/"):
                return target + path[len(link) :]
        return path

    def resolve_path(self, path: str) -> str | None:
        found = self.resolve_destination(path)
        return found if found in (*self.there, *self.files) else None

    def list_names(self, path: str, limit: int = 20000) -> list[str]:
        below = [name[len(path) + 1 :] for name in self.there + self.files if name.startswith(f"{path}/")]
        return sorted({name.partition("/")[0] for name in below})[:limit]

    def readlink(self, path: str) -> str | None:
        return self.links.get(path)

    def read_file(self, path: str, limit: int) -> bytes | None:
        return None

    def stat_path(self, path: str, *, follow: bool = False) -> os.stat_result | None:
        if path not in (*self.there, *self.files):
            return None
        kind = stat.S_IFDIR if path in self.there else stat.S_IFREG
        return os.stat_result((kind | 0o755, 1, 1, 1, 0, 0, 7, 0, 0, 0))

    def find_nearest_directory(self, path: str) -> tuple[str, bool]:
        return path, False

    def can_replace(self, path: str) -> bool:
        return True

    def stat_names(self, path: str, names: Iterable[str]) -> dict[str, os.stat_result]:
        found = {name: self.stat_path(f"{path}/{name}") for name in names}
        return {name: status for name, status in found.items() if status is not None}


def make_library(
    stem: str,
    capability: str,
    *,
    soname: str = "1",
    needs: tuple[str, ...] = (),
    links: tuple[str, ...] = (),
    arch: str = "x86_64",
) -> DriverFile:
    name = f"{stem}.so.{VERSION}"
    own = f"{stem}.so.{soname}" if soname else name
    path = f"/drv/{arch}/{name}"
    return DriverFile(
        kind="library", capability=capability, path=path, source=path, name=name, soname=own, needs=needs, links=links,
        arch=arch,
    )  # fmt: skip


def make_driver_file(kind: str, capability: str, container: str) -> DriverFile:
    path = f"/drv{container}"
    return DriverFile(
        kind=kind,
        capability=capability,
        path=path,
        source=path,
        name=container.rpartition("/")[2],
        container_path=container,
    )


FILES = (
    make_library("libcuda", "compute", links=("libcuda.so",)),
    make_library("libnvidia-ptxjitcompiler", "compute"),
    make_library("libnvidia-ml", "utility"),
    make_library("libnvidia-encode", "video"),
    make_library("libGLX_nvidia", "graphics", soname="0", needs=(f"libnvidia-glcore.so.{VERSION}", "libX11.so.6")),
    make_library("libnvidia-glcore", "graphics", soname=""),
    make_library("libnvidia-ngx", "ngx", needs=(f"libnvidia-deep.so.{VERSION}",)),
    make_library("libnvidia-deep", "graphics", soname="", needs=(f"libnvidia-deeper.so.{VERSION}",)),
    make_library("libnvidia-deeper", "graphics", soname=""),
    make_library("libcuda", "compute", arch="i386"),
    make_driver_file("binary", "utility", "/usr/bin/nvidia-smi"),
    make_driver_file("binary", "compute", "/usr/bin/nvidia-cuda-mps-control"),
    make_driver_file("config", "graphics", "/etc/vulkan/icd.d/nvidia_icd.json"),
    make_driver_file("config", "compute", "/etc/OpenCL/vendors/nvidia.icd"),
    make_driver_file("firmware", "", f"/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin"),
    make_driver_file("socket", "utility", "/var/run/nvidia-persistenced/socket"),
    make_driver_file("directory", "compute", "/tmp/nvidia-mps"),
)


def make_gpu(index: int) -> Gpu:
    """Build a GPU; GPU 0 has minor 1 and GPU 1 minor 0, as real hosts may have."""
    minor = {0: 1, 1: 0}.get(index, index)
    uuid = f"GPU-00000000-0000-0000-0000-00000000000{index}"
    return Gpu(index=index, uuid=uuid, pci=f"0000:0{index + 1}:00.0", minor=minor, model="NVIDIA A100")


def make_node(path: str, major: int, minor: int, *, gid: int = 0, mode: int = 0o666, exists: bool = True) -> DeviceNode:
    return DeviceNode(
        path=path, major=major, minor=minor, mode=mode, uid=0, gid=gid, exists=exists, source=f"/sim{path}"
    )  # fmt: skip


CONTROL_NODES = (
    ("", make_node("/dev/nvidiactl", 195, 255)),
    ("compute", make_node("/dev/nvidia-uvm", 510, 0)),
    ("compute", make_node("/dev/nvidia-uvm-tools", 510, 1)),
    ("display", make_node("/dev/nvidia-modeset", 195, 254)),
)


def make_plan_input(
    asked: str = "0",
    capabilities: str = "",
    *,
    spec: dict[str, Any] | None = None,
    env: tuple[str, ...] = (),
    image: Image | None = None,
    target: FakeRootfs | None = None,
    inside: bool = False,
    **config: Any,
) -> PlanInput:
    """Build the plan input of a machine with two GPUs and every kind of driver file."""
    words = [f"NVIDIA_VISIBLE_DEVICES={asked}", *env]
    if capabilities:
        words.append(f"NVIDIA_DRIVER_CAPABILITIES={capabilities}")
    config_json = {
        "mounts": [],
        "linux": {"namespaces": [{"type": "mount"}], "resources": {"devices": [{"allow": False, "access": "rwm"}]}},
        **(spec or {}),
        "process": {"env": words},
    }
    settings = Config(**config)
    request = read_request(config_json, settings)
    gpus = [make_gpu(0), make_gpu(1)]
    chosen_gpus = selectors.resolve_gpus(request.device_requests, gpus)
    return PlanInput(
        request=request,
        config=settings,
        inventory=Inventory(version=VERSION, library_version=VERSION, files=FILES),
        gpus=gpus,
        chosen_gpus=chosen_gpus,
        control_nodes=list(CONTROL_NODES),
        absent_control_nodes=[],
        gpu_nodes={one.minor: make_node(f"/dev/nvidia{one.minor}", 195, one.minor) for one, _ in chosen_gpus},
        optional_items=OptionalItems(),
        container=ContainerFacts(
            spec=config_json,
            image=image or Image(library_dir=IMAGE_LIBRARY_DIR, library_dir32="/usr/lib/i386-linux-gnu"),
            rootfs_reader=target or FakeRootfs(),
            rootfs_path="/b/rootfs",
            generated_dir="/b/gpu-oci-hook",
            shared_dir="/state",
            process_in_user_namespace=inside,
            driver_params=None,
            has_mount_program=True,
            datacenter_only=True,
        ),
    )
