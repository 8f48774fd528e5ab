"""Compare the NVIDIA nodes of a CDI file with the GPUs and MIG devices that its devices are named after.

A file keeps the device minors and DRM numbers of the day on which it was written. A GPU that was added, removed or
moved changes them, and every node in the file may still exist: the device named by one GPU's UUID then gives another
GPU (facts: cdi-file-goes-stale).

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.errors import clip_text
from gpu_oci_hook.formats.cdi_names import parse_qualified_name
from gpu_oci_hook.host.device_nodes import NVIDIA_MAJOR, find_unusable_nodes
from gpu_oci_hook.host.gpus import read_gpus, select_usable_gpus
from gpu_oci_hook.host.mig.capability_files import CAPS_DIRECTORY, list_instance_minors, list_mig_instance_ids
from gpu_oci_hook.host.optional.graphics import list_drm_devices
from gpu_oci_hook.request.cdi_requests import strip_type_prefix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.machine import Gpu

_NVIDIA_VENDOR = "nvidia.com"
_MAX_SHOWN = 3


class DeviceIdentity:
    """The GPUs of this host, to compare devices of CDI files with.

    Attributes:
        is_known: the host shows GPUs; without that nothing is compared.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self._driver_gpus, _ = read_gpus(host)
        self.is_known = bool(self._driver_gpus)
        self._gpus, _ = select_usable_gpus(host, self._driver_gpus)

    def describe_foreign_node(self, path: str) -> str:
        """Return why no GPU of this host has a node /dev/nvidiaN, "" if one has it."""
        if not self.is_known or not is_gpu_node(path) or any(path == _gpu_node(gpu) for gpu in self._gpus):
            return ""
        for gpu in self._driver_gpus:
            if path == _gpu_node(gpu):
                reasons = find_unusable_nodes(self.host, [(_gpu_node(gpu), NVIDIA_MAJOR, gpu.minor)])
                reason = reasons.get(path) or f"{self.host.full_path(path)} is missing"
                return f"{path} cannot be given to containers here: {reason}"
        return f"no GPU of this host has the node {path}"

    def describe_wrong_device(self, qualified_name: str, paths: list[str]) -> str:
        """Return how the nodes of a device differ from those of the GPU that its name stands for, "" if they do not.

        Arguments:
            qualified_name: vendor/class=device.
            paths: the host paths of the device's nodes.
        """
        name_parts = parse_qualified_name(qualified_name)
        gpu_nodes = [path for path in paths if is_gpu_node(path)]
        if not self.is_known or name_parts is None or not gpu_nodes:
            return ""
        vendor, category, device = name_parts
        is_uuid = device.lower().startswith("gpu-")
        # An index means a GPU in the kinds that NVIDIA's and our generators write; a UUID means it in every kind.
        is_nvidia = vendor == _NVIDIA_VENDOR or vendor.endswith(f".{_NVIDIA_VENDOR}")
        if not is_uuid and not (is_nvidia and category.partition(".")[0] == "gpu"):
            return ""
        selector = strip_type_prefix(device)
        gpu_index, colon, mig_index = selector.partition(":")
        if is_uuid:
            if any("?" in gpu.uuid for gpu in self._driver_gpus):
                return ""  # the driver does not know all UUIDs yet
            gpu = next((gpu for gpu in self._gpus if gpu.uuid.lower() == device.lower()), None)
        elif gpu_index.isdigit() and (not colon or mig_index.isdigit()):
            gpu = next((gpu for gpu in self._gpus if gpu.index == int(gpu_index)), None)
        else:
            return ""
        if gpu is None:
            return f"this host has no GPU {clip_text(gpu_index if colon else selector)} for containers"
        wrong = [path for path in gpu_nodes if path != _gpu_node(gpu)]
        if wrong:
            return f"GPU {gpu.index} ({gpu.uuid}) has the node {_gpu_node(gpu)}, and the spec gives {_join(wrong)}"
        if colon:
            return self._describe_wrong_mig_device(gpu, int(mig_index), paths)
        return self._describe_wrong_drm_nodes(gpu, paths)

    def _describe_wrong_mig_device(self, gpu: Gpu, index: int, paths: list[str]) -> str:
        ids = list_mig_instance_ids(self.host, gpu)
        if index >= len(ids):
            return f"this host has no MIG device {gpu.index}:{index} for containers"
        own = {f"{CAPS_DIRECTORY}/nvidia-cap{minor}" for minor in list_instance_minors(self.host, gpu, *ids[index])}
        wrong = [path for path in paths if path.startswith(f"{CAPS_DIRECTORY}/") and path not in own]
        return f"MIG device {gpu.index}:{index} does not have the node {_join(wrong)}" if wrong else ""

    def _describe_wrong_drm_nodes(self, gpu: Gpu, paths: list[str]) -> str:
        if self.host.stat_path(f"/sys/bus/pci/devices/{gpu.pci}") is None:
            return ""
        own = {f"/dev/dri/{name}" for name, _ in list_drm_devices(self.host, gpu)}
        wrong = [path for path in paths if is_drm_node(path) and path not in own]
        return f"GPU {gpu.index} ({gpu.pci}) does not have the node {_join(wrong)}" if wrong else ""


def is_gpu_node(path: str) -> bool:
    """Tell whether a path is that of a GPU's own node, /dev/nvidiaN."""
    return path.startswith("/dev/nvidia") and path[len("/dev/nvidia") :].isdigit()


def is_drm_node(path: str) -> bool:
    """Tell whether a path is that of a DRM node."""
    return path.startswith(("/dev/dri/card", "/dev/dri/renderD"))


def _gpu_node(gpu: Gpu) -> str:
    return f"/dev/nvidia{gpu.minor}"


def _join(paths: list[str]) -> str:
    more = f" and {len(paths) - _MAX_SHOWN} more" if len(paths) > _MAX_SHOWN else ""
    return f"{', '.join(clip_text(path) for path in paths[:_MAX_SHOWN])}{more}"
