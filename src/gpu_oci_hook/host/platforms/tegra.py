"""Support Jetson boards: an integrated GPU whose nodes and files are named by JetPack's CSV lists.

The lists name the nodes and files of all boards, so one that this board lacks is not an error
(facts: jetpack-lists-name-absent-files). `list` and `explain` show the result of each line (facts:
jetpack-list-report). A container that would get a GPU without any node is refused (facts: jetson-without-nodes). A
board can have discrete GPUs too, with the desktop's driver. The integrated GPU is then index 0 (facts:
thor-mixed-gpus).

Nodes are read on every start. The list of files is cached, see `collect_inventory`.

Import budget: cold.
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

# The display's node of a Thor that has a discrete GPU too. No list names it (facts: thor-mixed-gpus).
_THOR_DISPLAY_NODE = "/dev/nvidia2"
# The compat libraries of a CUDA release for boards (facts: cuda-compat-boards).
_ORIN_COMPAT_DIRECTORY, _COMPAT_DIRECTORY = "/usr/local/cuda/compat_orin", "/usr/local/cuda/compat"
# L4T release of JetPack (major, minor) to the CUDA version of its libcuda (facts: l4t-cuda-versions).
_CUDA_BY_L4T_RELEASE = (
    (32, 1, "10.0"), (32, 4, "10.2"), (34, 1, "11.4"), (35, 1, "11.4"), (36, 2, "12.2"), (36, 4, "12.6"),
    (38, 2, "13.0"),
)  # fmt: skip


class TegraPlatform(Platform):
    """The platform "tegra".

    Attributes:
        csv_lines: the lines of the lists with their results, known after `collect_inventory`.
        csv_links: (path, target, line) of the links to create in containers.
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
        """Return the integrated GPU first, then the discrete ones in their order.

        Before Thor the integrated GPU is not in /proc/driver/nvidia.
        """
        integrated = [gpu for gpu in proc_gpus if is_integrated_gpu(gpu)]
        discrete = [gpu for gpu in proc_gpus if not is_integrated_gpu(gpu)]
        if not integrated:
            model = read_first_line(self.host, "/proc/device-tree/model") or "integrated GPU"
            integrated = [Gpu(index=0, uuid="", pci="", minor=-1, model=model)]
        self._known_gpus = [
            Gpu(index=index, uuid=gpu.uuid, pci=gpu.pci, minor=gpu.minor, model=gpu.model)
            for index, gpu in enumerate([*integrated, *discrete])
        ]
        return self._known_gpus

    def needs_desktop_driver(self, chosen: list[Gpu]) -> bool:
        """Tell whether one of the chosen GPUs is discrete: those have the desktop's driver."""
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
        """Return the files of the lists, and for a discrete GPU those of its driver that no list names.

        What invalidates the cached files: another version of gpu-oci-hook or Python, other roots, list directories or
        ignored links, another architecture, and a changed stat signature of anything that the search read.
        """
        self._csv_directory = config.csv_directory
        key = (
            "tegra", VERSION, sys.hexversion, self.host.root, driver.root, driver.machine,
            config.csv_directory, config.csv_ignore,
        )  # fmt: skip
        name = inventory_cache_name("tegra-all" if all_lists else "tegra", self.host.root, driver.root)

        def search() -> InventorySearchResult:
            from gpu_oci_hook.host.platforms.tegra_csv import search_csv_files

            return search_csv_files(self.host, driver, config.csv_directory, config.csv_ignore, all_lists=all_lists)

        listed, (self.csv_lines, self.csv_links) = load_cached_inventory(cache, name, key, search)
        self.loaded_inventory = listed
        if not self.needs_desktop_driver(chosen):
            return listed
        merged = load_inventory(self.host, driver, config.library_paths, version, cache)
        sonames = {file.soname for file in listed.files if file.soname}
        paths = {file.container_path for file in listed.files} | {path for path, _, _ in self.csv_links}
        merged.files = (
            *listed.files,
            *(file for file in merged.files if file.soname not in sonames and file.container_path not in paths),
        )
        merged.missing_libraries = tuple([missing for missing in merged.missing_libraries if missing[1] not in sonames])
        merged.missing_expected = tuple([missing for missing in merged.missing_expected if missing[1] not in sonames])
        merged.search_report = (*listed.search_report, *merged.search_report)
        merged.problems = (*listed.problems, *merged.problems)
        self.loaded_inventory = merged
        return merged

    def read_host_properties(self, label: str, gpu: Gpu | None, version: str) -> HostProperties:
        """Return the values by the kernel module's version for its GPUs, else by the board's L4T release.

        An integrated GPU has a brand that no requirement names.
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

    def get_cuda_compat(self, chosen: list[Gpu]) -> tuple[tuple[str, ...], str]:
        """Return the directories for the integrated GPU, and the CUDA version of the L4T release."""
        integrated = [gpu for gpu in chosen if not self._is_discrete(gpu)]
        if not integrated:
            return (), ""
        is_orin = any("orin" in gpu.model.lower() for gpu in integrated)
        exact, at_least = lookup_l4t_cuda_version(read_first_line(self.host, TEGRA_RELEASE_FILE))
        return (*((_ORIN_COMPAT_DIRECTORY,) if is_orin else ()), _COMPAT_DIRECTORY), exact or at_least

    def read_driver_identity(self) -> str:
        """Return the board's L4T release."""
        return f"tegra {read_first_line(self.host, TEGRA_RELEASE_FILE)}"

    def add_platform_items(self, chosen: list[tuple[Gpu, str]], taken_paths: set[str], items: OptionalItems) -> None:
        """Add the nodes and links of the lists, and the lines without result; see `Platform.add_platform_items`."""
        # A directory that is mounted as a whole has its links already.
        trees = tuple([f"{file.container_path}/" for file in self.loaded_inventory.files if file.kind == "tree"])
        items.links += [
            (path, target, f"listed in {where}")
            for path, target, where in self.csv_links
            if not trees or not path.startswith(trees)
        ]
        discrete = {f"/dev/nvidia{gpu.minor}" for gpu in self._known_gpus if self._is_discrete(gpu)}
        chosen_integrated = [(gpu, origin) for gpu, origin in chosen if not self._is_discrete(gpu)]
        chosen_discrete = [(gpu, origin) for gpu, origin in chosen if self._is_discrete(gpu)]
        control_paths = {path for path, _, _, _ in CONTROL_NODES}
        has_integrated_node = False
        for path, line in self._list_present_nodes(items, mixed=bool(discrete)):
            is_gpu_node = path.startswith("/dev/nvidia") and path[len("/dev/nvidia") :].isdigit()
            owner = ""
            if chosen_integrated and path not in discrete:
                owner = f"GPU {chosen_integrated[0][0].index}: {chosen_integrated[0][1]}"
            elif chosen_discrete and not is_gpu_node and path not in control_paths:
                owner = f"GPU {chosen_discrete[0][0].index}: {chosen_discrete[0][1]}"
            if not owner:
                if path not in taken_paths:
                    items.withheld.append(("device", path, "its GPU was not requested"))
                continue
            has_integrated_node = has_integrated_node or bool(chosen_integrated)
            node = None if path in taken_paths else read_device_node(self.host, path)
            if node is not None:
                taken_paths.add(path)
                items.nodes.append((node, f"{owner}; {line}"))
        if chosen_integrated and not has_integrated_node:
            raise Fault(
                "the board's CSV lists name no device node that exists, so the container could not open its GPU",
                where=self._csv_directory,
                hint="Install JetPack's lists (package nvidia-l4t-init and similar ones), or name their directory in "
                "[host] csv-directory. gpu-oci-hook list shows the result of each line",
            )

    def _list_present_nodes(self, items: OptionalItems, *, mixed: bool) -> list[tuple[str, str]]:
        """Return (path, origin) of the listed nodes that the machine has, and withhold lines without result.

        Arguments:
            mixed: the board has a discrete GPU too.
        """
        origin_by_path: dict[str, str] = {}
        for file, number, kind, pattern, result, paths in self._check_device_lines():
            line = f"{file.rpartition('/')[2]}:{number}"
            if kind == "dev" and paths:
                for path in paths:
                    origin_by_path.setdefault(path, f"listed in {line}")
            elif result != "matched":
                items.withheld.append(("csv", f"{kind}, {pattern}".strip(", ") or "empty", f"{line}: {result}"))
        if mixed and read_device_node(self.host, _THOR_DISPLAY_NODE) is not None:
            origin_by_path.setdefault(_THOR_DISPLAY_NODE, "display of the integrated GPU")
        return list(origin_by_path.items())

    def _check_device_lines(self) -> list[CsvLine]:
        """Return all lines, those about nodes with their result as of now."""
        from gpu_oci_hook.host.platforms.tegra_csv import check_device_line

        return [check_device_line(self.host, line) if line[2] == "dev" else line for line in self.csv_lines]

    def report_list_lines(self) -> list[tuple[str, str, str, str]]:
        """Return the result of each line; see `Platform.report_list_lines`."""
        lines = self._check_device_lines()
        return [(f"{file}:{number}", kind, path, result) for file, number, kind, path, result, _ in lines]


def lookup_l4t_cuda_version(release_line: str) -> tuple[str, str]:
    """Return a board's CUDA version as (exact, at least), each "" if unknown; see `model_tables.lookup_cuda_version`.

    Arguments:
        release_line: the first line of /etc/nv_tegra_release.
    """
    release = _parse_l4t_release(release_line)
    rows = [row for row in _CUDA_BY_L4T_RELEASE if release is not None and row[:2] <= release]
    if release is None or not rows:
        return "", ""
    major, _, cuda_version = rows[-1]
    return cuda_version if major == release[0] else "", cuda_version


def _parse_l4t_release(release_line: str) -> tuple[int, int] | None:
    """Return (36, 4) for "# R36 (release), REVISION: 4.3, GCID: ...", None for any other form of line."""
    head, _, rest = release_line.lstrip("# ").partition(" ")
    minor = rest.partition("REVISION:")[2].strip().partition(",")[0].partition(".")[0]
    if head[:1] != "R" or not (head[1:].isascii() and head[1:].isdigit() and minor.isascii() and minor.isdigit()):
        return None
    return int(head[1:5]), int(minor[:4])
