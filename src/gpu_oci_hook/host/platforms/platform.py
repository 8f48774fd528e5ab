"""What a machine that is not a desktop or server does its own way."""

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
    """A machine that is no desktop: what the ordinary way would ask of it.

    Attributes:
        host: the machine. evidence: why it is taken for what it is.
        loaded_inventory: what `collect_inventory` gave.
    """

    __slots__ = ("evidence", "host", "loaded_inventory")
    name = ""

    def __init__(self, host: Host, evidence: tuple[str, ...]) -> None:
        self.host = host
        self.evidence = evidence
        self.loaded_inventory = Inventory(version="")

    def list_gpus(self, proc_gpus: list[Gpu]) -> list[Gpu]:
        """The GPUs that containers can ask for; `proc_gpus` are those of /proc/driver/nvidia/gpus."""
        raise NotImplementedError

    def needs_desktop_driver(self, chosen: list[Gpu]) -> bool:
        """Whether a GPU was chosen that needs the nodes and files of the desktop's driver."""
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
        """The files that go into containers.

        Arguments:
            driver: the root that has them.
            version: of the kernel module nvidia, None where it is not loaded.
            all_lists: all lists of the board count, see `Request.use_all_csv_lists`.
        """
        raise NotImplementedError

    def read_host_properties(self, label: str, gpu: Gpu | None, version: str) -> HostProperties:
        """What requirements are held against, as far as files tell.

        Arguments:
            version: of the kernel module nvidia, "" where it is not loaded.
        """
        raise NotImplementedError

    def read_driver_identity(self) -> str:
        """What NVML's remembered answers are true for: changes with every update of the driver."""
        raise NotImplementedError

    def locate_nvml_library(self) -> str:
        """The path of the library that answers for NVML.

        Raises:
            Fault: there is none.
        """
        from gpu_oci_hook.host.nvml.query import find_nvml_library

        return find_nvml_library(self.host, self.loaded_inventory)

    def add_platform_items(self, chosen: list[tuple[Gpu, str]], taken_paths: set[str], items: OptionalItems) -> None:
        """Adds the nodes of the chosen GPUs, links, and what is withheld.

        Arguments:
            taken_paths: paths of nodes that go in anyway.

        Raises:
            Fault: what no container can do without is not there.
        """
        raise NotImplementedError

    def report_list_lines(self) -> list[tuple[str, str, str, str]]:
        """What became of each line of the lists, for people: (place, type, path, what); none where there are none."""
        return []


def is_integrated_gpu(gpu: Gpu) -> bool:
    """Whether a GPU of a Tegra board is the one in its own chip: by name, else by the address that it has there.

    NVML calls them "Orin (nvgpu)" and "NVIDIA Thor"; a Thor without a name is at 0000:01:00.0 (toolkit facts 3.15).
    """
    words = gpu.model.upper().replace("(", " ").replace(")", " ").split()
    if any(word in ("NVGPU", "THOR", "ORIN") for word in words):
        return True
    return (not words or words[-1] in ("UNKNOWN", "GRAPHICS")) and gpu.pci == "0000:01:00.0"


def read_first_line(host: Host, path: str) -> str:
    """The first line of a small file; "" when it is missing, empty or not to be read."""
    try:
        data = host.read_file(path, 65536) or b""
    except Fault:
        return ""
    lines = os.fsdecode(data.replace(b"\0", b"\n")).split("\n")
    return lines[0].strip()
