"""A Linux on Windows (WSL2): one node for all GPUs, and the driver's files in Windows' driver store.

Windows shows its driver store below /usr/lib/wsl/drivers; of its many directories the one counts that really has
libcuda.so.1.1 (field report A1-16: an Intel GPU's store was taken). Its files look for each other in their own
directory, so containers get them at the same paths. There is no choice among the GPUs: whoever may open /dev/dxg
has all of them. Facts: container toolkit 3.14. Cost rule: only on such machines; the search only when something has
changed.
"""

from __future__ import annotations

import os
import sys

from gpu_oci_hook import VERSION
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host.device_nodes import read_device_node
from gpu_oci_hook.host.driver.inventory_cache import inventory_cache_name, load_cached_inventory
from gpu_oci_hook.host.platforms.platform import DXG_NODE, Platform
from gpu_oci_hook.model.machine import DriverFile, Gpu, Inventory
from gpu_oci_hook.request.require_expressions import HostProperties

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.host.driver.search import FileSearch
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.machine import Cache, InventorySearchResult
    from gpu_oci_hook.model.optional_devices import OptionalItems

DXCORE_LIBRARY = "libdxcore.so"
WSL_LIBRARY_DIRECTORY = "/usr/lib/wsl/lib"
DRIVER_STORES_DIRECTORY = "/usr/lib/wsl/drivers"
CUDA_LIBRARY = "libcuda.so.1.1"
NVIDIA_SMI = "nvidia-smi"
# What is taken from the store beside nvidia-smi: libcuda.so.1.1, libcuda_loader.so, libnvidia-ptxjitcompiler.so.1,
# libnvidia-ml.so.1, libnvidia-ml_loader.so, libnvdxgdmal.so.1, nvcubins.bin, and whatever else is of these kinds.
STORE_FILE_SUFFIXES = (".bin", ".dll")


class WslPlatform(Platform):
    """See the module.

    Attributes:
        driver_store: the driver store's directory, "" when none has libcuda.
        skipped_stores: (directory, why) of the others.
    """

    __slots__ = ("driver_store", "skipped_stores")
    name = "wsl"

    def __init__(self, host: Host, evidence: tuple[str, ...]) -> None:
        super().__init__(host, evidence)
        self.driver_store = ""
        self.skipped_stores: tuple[tuple[str, str], ...] = ()

    def list_gpus(self, proc_gpus: list[Gpu]) -> list[Gpu]:
        """One entry that stands for all of them."""
        return [Gpu(index=0, uuid="", pci="", minor=-1, model="all GPUs that Windows shows")]

    def needs_desktop_driver(self, chosen: list[Gpu]) -> bool:
        """Never: there is no such driver here."""
        return False

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
        """libdxcore and the store's files, at the paths that they have here."""
        paths = config.library_paths
        key = ("wsl", VERSION, sys.hexversion, driver.root, paths, driver.machine)
        name = inventory_cache_name("wsl", driver.root)
        found, (store, skipped) = load_cached_inventory(cache, name, key, lambda: search_wsl_files(driver, paths))
        self.driver_store, self.skipped_stores = str(store), skipped
        self.loaded_inventory = found
        return found

    def read_host_properties(self, label: str, gpu: Gpu | None, version: str) -> HostProperties:
        """No file here tells: the store's libraries have no version in their names."""
        return HostProperties(label, cuda="", cuda_at_least="", driver="", arch="", brand=())

    def read_driver_identity(self) -> str:
        """The store's name changes with the driver."""
        return f"wsl {self.driver_store}"

    def add_platform_items(self, chosen: list[tuple[Gpu, str]], taken_paths: set[str], items: OptionalItems) -> None:
        """/dev/dxg, nvidia-smi's link, and the stores that do not count; see `Platform.add_platform_items`."""
        items.withheld += [("store", path, why) for path, why in self.skipped_stores]
        names = {file.name for file in self.loaded_inventory.files}
        if not self.driver_store:
            looked = "; ".join(f"{path}: {why}" for path, why in self.skipped_stores[:8]) or "there is none"
            raise Fault(
                f"no driver store of Windows has NVIDIA's {CUDA_LIBRARY}: {looked}",
                where=DRIVER_STORES_DIRECTORY,
                hint="Install NVIDIA's driver in Windows (not here) and restart WSL: wsl --shutdown",
            )
        if DXCORE_LIBRARY not in names:
            raise Fault(
                f"{DXCORE_LIBRARY} is missing, without which no library of the driver store works",
                where=WSL_LIBRARY_DIRECTORY,
                hint="Update WSL: wsl --update, or name its directory in [host] library-paths",
            )
        if NVIDIA_SMI in names:
            items.links.append(
                (f"/usr/bin/{NVIDIA_SMI}", f"{self.driver_store}/{NVIDIA_SMI}", "so that it is found in PATH")
            )
        for _, origin in chosen:
            node = read_device_node(self.host, DXG_NODE)
            if node is None:
                raise Fault(
                    f"{DXG_NODE} is no device node: there is no GPU to give", where=self.host.full_path(DXG_NODE)
                )
            items.nodes.append((node, f"all GPUs, as WSL knows no choice among them: {origin}"))


def search_wsl_files(driver: Host, library_paths: tuple[str, ...]) -> InventorySearchResult:
    """The search: (witnesses, inventory, (store, skipped stores))."""
    from gpu_oci_hook.host.driver.catalogue import load_catalogue
    from gpu_oci_hook.host.driver.search import FileSearch

    looking = FileSearch(driver)
    places: list[tuple[str, str]] = []
    problems: list[str] = []
    files: list[DriverFile] = []
    for place in (*library_paths, WSL_LIBRARY_DIRECTORY):
        directory = looking.find_directory(place)
        hit = looking.find_file(f"{directory}/{DXCORE_LIBRARY}") if directory else "is missing"
        if isinstance(hit, str):
            places.append((place, f"no {DXCORE_LIBRARY}" if directory else "missing"))
            continue
        files.append(_build_store_file(looking, f"{directory}/{DXCORE_LIBRARY}", place, {}))
        places.append((place, DXCORE_LIBRARY))
        break
    store, skipped = _choose_driver_store(looking, library_paths, places, problems)
    if store:
        links = {stem: entry.links for stem, entry in load_catalogue().libraries.items()}
        names = [name for name in driver.list_names(store) if name == NVIDIA_SMI or _is_store_file(name)]
        found = [name for name in names if not isinstance(looking.find_file(f"{store}/{name}"), str)]
        # Of two with one SONAME the one that has it as its name comes first: libcuda before its loader.
        own = [_build_store_file(looking, f"{store}/{name}", store, links) for name in found]
        files += sorted(own, key=lambda file: (not file.name.startswith(file.soname), file.name))
        places.append((store, f"the driver store: {len(found)} files"))
    inventory = Inventory(version="", files=tuple(files), search_report=tuple(places), problems=tuple(problems))
    return looking.collect_stat_signatures(), inventory.to_data(), (store, tuple(skipped))


def _is_store_file(name: str) -> bool:
    return ".so" in name or name.endswith(STORE_FILE_SUFFIXES)


def _choose_driver_store(
    search: FileSearch, library_paths: tuple[str, ...], search_report: list[tuple[str, str]], problems: list[str]
) -> tuple[str, list[tuple[str, str]]]:
    """The store that has libcuda, and why the others do not count.

    Windows keeps a driver's earlier stores for a while. Which of several is in use only its own library could tell;
    a configured one comes first, else the one that was made last, and that is said.
    """
    search.find_directory(DRIVER_STORES_DIRECTORY)
    skipped: list[tuple[str, str]] = []
    having: list[tuple[bool, int, str]] = []
    for path in dict.fromkeys((*library_paths, *search.expand_pattern(f"{DRIVER_STORES_DIRECTORY}/*"))):
        if search.find_directory(path) is None:
            continue
        hit = search.find_file(f"{path}/{CUDA_LIBRARY}")
        if not isinstance(hit, str):
            having.append((path in library_paths, hit[1].st_mtime_ns, path))
        elif path not in library_paths:
            skipped.append(
                (path, f"it has no {CUDA_LIBRARY}" if hit == "leads nowhere" else f"its {CUDA_LIBRARY} {hit}")
            )
    store = ""
    if having:
        configured, _, store = max(having)
        others = [path for _, _, path in having if path != store]
        by = "is named in [host] library-paths" if configured else "has a newer one"
        skipped += [(path, f"it has a {CUDA_LIBRARY}, but {store} {by}") for path in others]
        if others and not configured:
            problems.append(
                f"several driver stores have {CUDA_LIBRARY}: {store} is taken, as its own is the newest, and not "
                f"{', '.join(others)}; [host] library-paths can name the right one"
            )
    search_report += [(path, f"left out: {why}") for path, why in skipped]
    return store, skipped


def _build_store_file(search: FileSearch, path: str, found_in: str, links: dict[str, tuple[str, ...]]) -> DriverFile:
    """A file at its own path; a library if it is one."""
    from gpu_oci_hook.host.driver.catalogue import library_stem

    hit = search.find_file(path)
    real = path if isinstance(hit, str) else hit[0]
    search.watch_file(real)
    facts = search.read_elf(real)
    name = os.path.basename(path)
    shared = not isinstance(facts, str) and ".so" in name
    soname = (facts.soname or name) if not isinstance(facts, str) and shared else ""
    return DriverFile(
        kind="library" if shared else "binary" if name == NVIDIA_SMI else "config",
        capability="",
        path=real,
        source=search.host.full_path(real),
        name=name,
        soname=soname,
        links=tuple([link for link in links.get(library_stem(soname), ()) if "/" not in link and link != name]),
        needs=() if isinstance(facts, str) else tuple(facts.needed),
        glibc="" if isinstance(facts, str) else facts.glibc,
        arch="" if isinstance(facts, str) else facts.arch,
        container_path=path,
        found_in=found_in,
    )
