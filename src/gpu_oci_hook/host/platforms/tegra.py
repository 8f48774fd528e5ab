"""Jetson boards and their like: an integrated GPU whose nodes and files are what JetPack's CSV lists name.

A list names everything that some board has, so that what this board lacks is no error (field report A1-18); what
became of each line is in `list` and `explain` (A1-17). A container that gets a GPU without any node is refused
(A1-20). Beside an integrated GPU there can be discrete ones, with the desktop's driver: the integrated one is then
index 0. Facts: container toolkit 3.15. Cost rule: only on such boards; nodes are looked at every time, files only
when something has changed.
"""

from __future__ import annotations

import sys

from gpu_oci_hook import VERSION
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host.device_nodes import CONTROL_NODES, read_device_node
from gpu_oci_hook.host.driver.inventory_cache import inventory_cache_name, load_cached_inventory, load_inventory
from gpu_oci_hook.host.model_tables import lookup_compute_capability, lookup_cuda_version, lookup_gpu_brands
from gpu_oci_hook.host.platforms.platform import TEGRA_RELEASE_FILE, Platform, is_integrated_gpu, read_first_line
from gpu_oci_hook.model.machine import Gpu, Inventory
from gpu_oci_hook.request.require_expressions import HostProperties

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.host.platforms.tegra_csv import CsvLine
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.machine import Cache, InventorySearchResult
    from gpu_oci_hook.model.optional_devices import OptionalItems

# A Thor with a discrete GPU has its display's node as this, which no list names (toolkit facts 3.15).
_THOR_DISPLAY_NODE = "/dev/nvidia2"
# L4T release of JetPack (major, minor) to the CUDA version of its libcuda, from JetPack's release notes.
_CUDA_BY_L4T_RELEASE = (
    (32, 1, "10.0"), (32, 4, "10.2"), (34, 1, "11.4"), (35, 1, "11.4"), (36, 2, "12.2"), (36, 4, "12.6"),
    (38, 2, "13.0"),
)  # fmt: skip


class TegraPlatform(Platform):
    """See the module.

    Attributes:
        csv_lines: what became of each line of the lists; known after `collect_inventory`.
        csv_links: (path, target, the line) to be made in containers.
    """

    __slots__ = ("_csv_directory", "_known_gpus", "csv_lines", "csv_links")
    name = "tegra"

    def __init__(self, host: Host, evidence: tuple[str, ...]) -> None:
        super().__init__(host, evidence)
        self.csv_lines: tuple[CsvLine, ...] = ()
        self.csv_links: tuple[tuple[str, str, str], ...] = ()
        self._known_gpus: list[Gpu] = []
        self._csv_directory = ""

    def list_gpus(self, proc_gpus: list[Gpu]) -> list[Gpu]:
        """The integrated GPU first, then the discrete ones in their order.

        A Tegra before Thor has its GPU not in NVIDIA's /proc.
        """
        own = [gpu for gpu in proc_gpus if is_integrated_gpu(gpu)]
        others = [gpu for gpu in proc_gpus if not is_integrated_gpu(gpu)]
        if not own:
            model = read_first_line(self.host, "/proc/device-tree/model") or "integrated GPU"
            own = [Gpu(index=0, uuid="", pci="", minor=-1, model=model)]
        self._known_gpus = [
            Gpu(index=index, uuid=gpu.uuid, pci=gpu.pci, minor=gpu.minor, model=gpu.model)
            for index, gpu in enumerate([*own, *others])
        ]
        return self._known_gpus

    def needs_desktop_driver(self, chosen: list[Gpu]) -> bool:
        """A discrete GPU has the desktop's driver."""
        return any(self._is_discrete(gpu) for gpu in chosen)

    def _is_discrete(self, gpu: Gpu) -> bool:
        return gpu.minor >= 0 and not is_integrated_gpu(gpu)

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
        """The files of the lists; with a discrete GPU also those of its driver that no list names."""
        self._csv_directory = config.csv_directory
        key = (
            "tegra", VERSION, sys.hexversion, self.host.root, driver.root, driver.machine,
            config.csv_directory, config.csv_ignore,
        )  # fmt: skip
        name = inventory_cache_name("tegra-all" if all_lists else "tegra", self.host.root, driver.root)

        def search() -> InventorySearchResult:
            from gpu_oci_hook.host.platforms.tegra_csv import search_csv_files

            return search_csv_files(self.host, driver, config.csv_directory, config.csv_ignore, all_lists=all_lists)

        found, (self.csv_lines, self.csv_links) = load_cached_inventory(cache, name, key, search)
        self.loaded_inventory = found
        if not self.needs_desktop_driver(chosen):
            return found
        other = load_inventory(self.host, driver, config.library_paths, version, cache)
        sonames = {file.soname for file in found.files if file.soname}
        places = {file.container_path for file in found.files} | {path for path, _, _ in self.csv_links}
        other.files = (
            *found.files,
            *(file for file in other.files if file.soname not in sonames and file.container_path not in places),
        )
        other.missing_libraries = tuple([missing for missing in other.missing_libraries if missing[1] not in sonames])
        other.search_report = (*found.search_report, *other.search_report)
        other.problems = (*found.problems, *other.problems)
        self.loaded_inventory = other
        return other

    def read_host_properties(self, label: str, gpu: Gpu | None, version: str) -> HostProperties:
        """By the module's version if the GPU is the module's, else by the release of the board's software.

        An integrated GPU is of no brand that a requirement means.
        """
        arch, brand = (lookup_compute_capability(gpu.model), lookup_gpu_brands(gpu.model)) if gpu else ("", ())
        if gpu is not None and not self._is_discrete(gpu):
            brand = ("tegra",)
        if gpu is not None and gpu.minor >= 0 and version:
            driver = version
            exact, at_least = lookup_cuda_version(version)
        else:
            driver = ""
            exact, at_least = lookup_l4t_cuda_version(read_first_line(self.host, TEGRA_RELEASE_FILE))
        return HostProperties(label, cuda=exact, cuda_at_least=at_least, driver=driver, arch=arch, brand=brand)

    def read_driver_identity(self) -> str:
        """The board's release."""
        return f"tegra {read_first_line(self.host, TEGRA_RELEASE_FILE)}"

    def add_platform_items(self, chosen: list[tuple[Gpu, str]], taken_paths: set[str], items: OptionalItems) -> None:
        """The nodes of the lists, the lists' links, and the lines that gave nothing; see `Platform.add_platform_items`."""
        # What is in a directory that goes in as a whole has its links there.
        trees = tuple([f"{file.container_path}/" for file in self.loaded_inventory.files if file.kind == "tree"])
        items.links += [
            (path, target, f"listed in {where}")
            for path, target, where in self.csv_links
            if not trees or not path.startswith(trees)
        ]
        discrete = {f"/dev/nvidia{gpu.minor}" for gpu in self._known_gpus if self._is_discrete(gpu)}
        own = [(gpu, origin) for gpu, origin in chosen if not self._is_discrete(gpu)]
        others = [(gpu, origin) for gpu, origin in chosen if self._is_discrete(gpu)]
        control = {path for path, _, _, _ in CONTROL_NODES}
        given = False
        for path, where in self._list_present_nodes(items, mixed=bool(discrete)):
            numbered = path.startswith("/dev/nvidia") and path[len("/dev/nvidia") :].isdigit()
            owner = ""
            if own and path not in discrete:
                owner = f"GPU {own[0][0].index}: {own[0][1]}"
            elif others and not numbered and path not in control:
                owner = f"GPU {others[0][0].index}: {others[0][1]}"
            if not owner:
                if path not in taken_paths:
                    items.withheld.append(("device", path, "its GPU was not asked for"))
                continue
            given = given or bool(own)
            node = None if path in taken_paths else read_device_node(self.host, path)
            if node is not None:
                taken_paths.add(path)
                items.nodes.append((node, f"{owner}; {where}"))
        if own and not given:
            raise Fault(
                "the board's CSV lists name no device node that exists: the container would get a GPU that it cannot "
                "open",
                where=self._csv_directory,
                hint="Install JetPack's lists (package nvidia-l4t-init and its like) or name their directory in [host] "
                "csv-directory; gpu-oci-hook list shows what became of each line",
            )

    def _list_present_nodes(self, items: OptionalItems, *, mixed: bool) -> list[tuple[str, str]]:
        """The nodes that the lists name and the machine has, each with its line; what is not there is withheld."""
        found: dict[str, str] = {}
        for file, number, kind, pattern, what, paths in self._check_device_lines():
            where = f"{file.rpartition('/')[2]}:{number}"
            if kind == "dev" and paths:
                for path in paths:
                    found.setdefault(path, f"listed in {where}")
            elif what != "matched":
                items.withheld.append(("csv", f"{kind}, {pattern}".strip(", ") or "empty", f"{where}: {what}"))
        if mixed and read_device_node(self.host, _THOR_DISPLAY_NODE) is not None:
            found.setdefault(_THOR_DISPLAY_NODE, "the display of an integrated GPU beside a discrete one")
        return list(found.items())

    def _check_device_lines(self) -> list[CsvLine]:
        """The lines, with what became of the nodes among them now."""
        from gpu_oci_hook.host.platforms.tegra_csv import check_device_line

        return [check_device_line(self.host, row) if row[2] == "dev" else row for row in self.csv_lines]

    def report_list_lines(self) -> list[tuple[str, str, str, str]]:
        """See `Platform.report_list_lines`."""
        return [
            (f"{file}:{number}", kind, path, what) for file, number, kind, path, what, _ in self._check_device_lines()
        ]


def lookup_l4t_cuda_version(release_line: str) -> tuple[str, str]:
    """The CUDA version of a board's release, and what it has at least; as `model_tables.lookup_cuda_version`.

    Arguments:
        release_line: the first line of /etc/nv_tegra_release.
    """
    number = _parse_l4t_release(release_line)
    below = [row for row in _CUDA_BY_L4T_RELEASE if number is not None and row[:2] <= number]
    if number is None or not below:
        return "", ""
    return below[-1][2] if below[-1][0] == number[0] else "", below[-1][2]


def _parse_l4t_release(text: str) -> tuple[int, int] | None:
    """(36, 4) of "# R36 (release), REVISION: 4.3, GCID: ..."; None when it is no such line."""
    head, _, rest = text.lstrip("# ").partition(" ")
    minor = rest.partition("REVISION:")[2].strip().partition(",")[0].partition(".")[0]
    if head[:1] != "R" or not (head[1:].isascii() and head[1:].isdigit() and minor.isascii() and minor.isdigit()):
        return None
    return int(head[1:5]), int(minor[:4])
