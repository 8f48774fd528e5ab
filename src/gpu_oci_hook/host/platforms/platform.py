"""Define the interface of platforms other than desktops and servers.

Import budget: cold.
"""

from __future__ import annotations

import os

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.model.machine import Inventory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.machine import Cache, Gpu
    from gpu_oci_hook.model.optional_devices import OptionalItems
    from gpu_oci_hook.request.require_expressions import HostProperties

DXG_NODE = "/dev/dxg"
TEGRA_RELEASE_FILE = "/etc/nv_tegra_release"


class Platform:
    """A platform other than desktops and servers, with everything about it that differs from them.

    Attributes:
        name: its name in `[host] platform`.
        host: the machine.
        evidence: the reasons for this platform.
        loaded_inventory: the result of `collect_inventory`.
    """

    __slots__ = ("evidence", "host", "loaded_inventory")
    name = ""

    def __init__(self, host: Host, evidence: tuple[str, ...]) -> None:
        self.host = host
        self.evidence = evidence
        self.loaded_inventory = Inventory(version="")

    def list_gpus(self, proc_gpus: list[Gpu]) -> list[Gpu]:
        """Return the GPUs that containers can request; `proc_gpus` are those of /proc/driver/nvidia/gpus."""
        raise NotImplementedError

    def needs_desktop_driver(self, chosen: list[Gpu]) -> bool:
        """Tell whether one of the chosen GPUs needs the nodes and files of the desktop's driver."""
        raise NotImplementedError

    def collect_inventory(
        self,
        driver: Host,
        config: Config,
        chosen: list[Gpu],
        version: str | None,
        cache: Cache,
        *,
        all_lists: bool,
    ) -> Inventory:
        """Return the files that are injected into containers.

        Arguments:
            driver: the root with the files.
            version: the kernel module nvidia's, None if it is not loaded.
            all_lists: use all lists of the board, see `Request.use_all_csv_lists`.
        """
        raise NotImplementedError

    def read_host_properties(self, label: str, gpu: Gpu | None, version: str) -> HostProperties:
        """Return the host's values for `NVIDIA_REQUIRE_*`, as far as files have them.

        Arguments:
            version: the kernel module nvidia's, "" if it is not loaded.
        """
        raise NotImplementedError

    def read_driver_identity(self) -> str:
        """Return the key of NVML's cached answers, which changes with every update of the driver."""
        raise NotImplementedError

    def locate_nvml_library(self) -> str:
        """Return the path of the NVML library.

        Raises:
            Fault: the inventory has none.
        """
        from gpu_oci_hook.host.nvml.query import find_nvml_library

        return find_nvml_library(self.host, self.loaded_inventory)

    def add_platform_items(self, chosen: list[tuple[Gpu, str]], taken_paths: set[str], items: OptionalItems) -> None:
        """Add the nodes of the chosen GPUs, links, and the reasons for withheld items.

        Arguments:
            chosen: the GPUs, each with the origin of its request.
            taken_paths: paths of nodes that are injected already.

        Raises:
            Fault: something is missing that every container needs.
        """
        raise NotImplementedError

    def get_cuda_compat(self, chosen: list[Gpu]) -> tuple[tuple[str, ...], str]:
        """Return the directories of an image for the chosen GPUs' compat libraries, and the host's CUDA version.

        Where there are none, compat libraries are judged by the driver's version.
        """
        return (), ""

    def report_list_lines(self) -> list[tuple[str, str, str, str]]:
        """Return (location, type, path, result) of each line of the board's lists; [] for a platform without lists."""
        return []


def is_integrated_gpu(gpu: Gpu) -> bool:
    """Tell whether a GPU of a Tegra board is integrated, by its name or, without a name, by its PCI address.

    NVML names them "Orin (nvgpu)" and "NVIDIA Thor". A Thor without a name is at 0000:01:00.0 (facts: thor-mixed-gpus).
    """
    words = gpu.model.upper().replace("(", " ").replace(")", " ").split()
    if any(word in ("NVGPU", "THOR", "ORIN") for word in words):
        return True
    return (not words or words[-1] in ("UNKNOWN", "GRAPHICS")) and gpu.pci == "0000:01:00.0"


def read_first_line(host: Host, path: str) -> str:
    """Return the first line of a small file, "" if it is missing, empty or unreadable."""
    try:
        data = host.read_file(path, 65536) or b""
    except Fault:
        return ""
    lines = os.fsdecode(data.replace(b"\0", b"\n")).split("\n")
    return lines[0].strip()
