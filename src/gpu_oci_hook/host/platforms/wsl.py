"""Support a Linux on Windows (WSL2): one device node for all GPUs, and the driver's files in Windows' driver store.

Windows shows its driver stores below /usr/lib/wsl/drivers (facts: wsl-driver-store). NVIDIA's is the one that contains
libcuda.so.1.1. An Intel GPU has a store too (facts: wsl-several-stores). The store's files load each other from their
own directory, so they are mounted at the same paths. A container cannot get some of the GPUs only: a process that may
open /dev/dxg has all of them.

Import budget: cold.
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
# Files of the store that are mounted in addition to nvidia-smi and all libraries, such as nvcubins.bin.
STORE_FILE_SUFFIXES = (".bin", ".dll")


class WslPlatform(Platform):
    """The platform "wsl".

    Attributes:
        driver_store: the driver store's directory, "" if none has libcuda.
        skipped_stores: (directory, reason) of the stores that are not used.
    """

    __slots__ = ("driver_store", "skipped_stores")
    name = "wsl"

    def __init__(self, host: Host, evidence: tuple[str, ...]) -> None:
        super().__init__(host, evidence)
        self.driver_store = ""
        self.skipped_stores: tuple[tuple[str, str], ...] = ()

    def list_gpus(self, proc_gpus: list[Gpu]) -> list[Gpu]:
        """Return one entry that stands for all GPUs."""
        return [Gpu(index=0, uuid="", pci="", minor=-1, model="all GPUs that Windows shows")]

    def needs_desktop_driver(self, chosen: list[Gpu]) -> bool:
        """Return False: WSL has no such driver."""
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
        """Return libdxcore and the store's files, at their host paths. See `load_cached_inventory` for the cache."""
        paths = config.library_paths
        key = ("wsl", VERSION, sys.hexversion, driver.root, paths, driver.machine)
        name = inventory_cache_name("wsl", driver.root)
        inventory, (store, skipped) = load_cached_inventory(cache, name, key, lambda: search_wsl_files(driver, paths))
        self.driver_store, self.skipped_stores = str(store), skipped
        self.loaded_inventory = inventory
        return inventory

    def read_host_properties(self, label: str, gpu: Gpu | None, version: str) -> HostProperties:
        """Return no values: no file has them, and the store's libraries have no version in their names."""
        return HostProperties(label, cuda="", cuda_at_least="", driver="", arch="", brand=())

    def read_driver_identity(self) -> str:
        """Return the store's name, which changes with the driver."""
        return f"wsl {self.driver_store}"

    def add_platform_items(self, chosen: list[tuple[Gpu, str]], taken_paths: set[str], items: OptionalItems) -> None:
        """Add /dev/dxg, a link to nvidia-smi, and the skipped stores; see `Platform.add_platform_items`."""
        items.withheld += [("store", path, reason) for path, reason in self.skipped_stores]
        names = {file.name for file in self.loaded_inventory.files}
        if not self.driver_store:
            stores = "; ".join(f"{path}: {reason}" for path, reason in self.skipped_stores[:8]) or "there is no store"
            raise Fault(
                f"no driver store of Windows has NVIDIA's {CUDA_LIBRARY}: {stores}",
                where=DRIVER_STORES_DIRECTORY,
                hint="Install NVIDIA's driver in Windows, not in this Linux, and restart WSL: wsl --shutdown",
            )
        if DXCORE_LIBRARY not in names:
            raise Fault(
                f"{DXCORE_LIBRARY} is missing, which all libraries of the driver store need",
                where=WSL_LIBRARY_DIRECTORY,
                hint="Update WSL with wsl --update, or name the library's directory in [host] library-paths",
            )
        if NVIDIA_SMI in names:
            items.links.append(
                (f"/usr/bin/{NVIDIA_SMI}", f"{self.driver_store}/{NVIDIA_SMI}", "makes nvidia-smi available in PATH")
            )
        for _, origin in chosen:
            node = read_device_node(self.host, DXG_NODE)
            if node is None:
                raise Fault(
                    f"{DXG_NODE} is not a device node, so there is no GPU to inject",
                    where=self.host.full_path(DXG_NODE),
                    hint="Update WSL with wsl --update, and NVIDIA's driver in Windows",
                )
            items.nodes.append((node, f"all GPUs, because WSL cannot select some of them: {origin}"))


def search_wsl_files(driver: Host, library_paths: tuple[str, ...]) -> InventorySearchResult:
    """Search the driver's files; return (stat signatures, inventory, (store, skipped stores))."""
    from gpu_oci_hook.host.driver.catalogue import load_catalogue
    from gpu_oci_hook.host.driver.search import FileSearch

    search = FileSearch(driver)
    search_report: list[tuple[str, str]] = []
    problems: list[str] = []
    files: list[DriverFile] = []
    for path in (*library_paths, WSL_LIBRARY_DIRECTORY):
        directory = search.find_directory(path)
        hit = search.find_file(f"{directory}/{DXCORE_LIBRARY}") if directory else "is missing"
        if isinstance(hit, str):
            search_report.append((path, f"no {DXCORE_LIBRARY}" if directory else "missing"))
            continue
        files.append(_build_store_file(search, f"{directory}/{DXCORE_LIBRARY}", path, {}))
        search_report.append((path, DXCORE_LIBRARY))
        break
    store, skipped = _choose_driver_store(search, library_paths, search_report, problems)
    if store:
        links = {stem: entry.links for stem, entry in load_catalogue().libraries.items()}
        names = [name for name in driver.list_names(store) if name == NVIDIA_SMI or _is_store_file(name)]
        names = [name for name in names if not isinstance(search.find_file(f"{store}/{name}"), str)]
        store_files = [_build_store_file(search, f"{store}/{name}", store, links) for name in names]
        # Of two files with the same SONAME the one whose name begins with it comes first: libcuda before its loader.
        files += sorted(store_files, key=lambda file: (not file.name.startswith(file.soname), file.name))
        search_report.append((store, f"the driver store: {len(names)} files"))
    inventory = Inventory(version="", files=tuple(files), search_report=tuple(search_report), problems=tuple(problems))
    return search.collect_stat_signatures(), inventory.to_data(), (store, tuple(skipped))


def _is_store_file(name: str) -> bool:
    return ".so" in name or name.endswith(STORE_FILE_SUFFIXES)


def _choose_driver_store(
    search: FileSearch, library_paths: tuple[str, ...], search_report: list[tuple[str, str]], problems: list[str]
) -> tuple[str, list[tuple[str, str]]]:
    """Return the store that has libcuda, and (directory, reason) of the stores that are not used.

    Windows keeps the stores of earlier drivers for a while, and no file shows which one is in use. A configured store
    is preferred, else the newest one, with a sentence in `problems`.
    """
    search.find_directory(DRIVER_STORES_DIRECTORY)
    skipped: list[tuple[str, str]] = []
    candidates: list[tuple[bool, int, str]] = []
    for path in dict.fromkeys((*library_paths, *search.expand_pattern(f"{DRIVER_STORES_DIRECTORY}/*"))):
        if search.find_directory(path) is None:
            continue
        hit = search.find_file(f"{path}/{CUDA_LIBRARY}")
        if not isinstance(hit, str):
            candidates.append((path in library_paths, hit[1].st_mtime_ns, path))
        elif path not in library_paths:
            skipped.append(
                (path, f"it has no {CUDA_LIBRARY}" if hit == "leads nowhere" else f"its {CUDA_LIBRARY} {hit}")
            )
    store = ""
    if candidates:
        configured, _, store = max(candidates)
        others = [path for _, _, path in candidates if path != store]
        preference = "is named in [host] library-paths" if configured else "has a newer one"
        skipped += [(path, f"it has a {CUDA_LIBRARY}, but {store} {preference}") for path in others]
        if others and not configured:
            problems.append(
                f"several driver stores have {CUDA_LIBRARY}: {store} is used because its file is the newest, and "
                f"{', '.join(others)} is not. If that is wrong, name the right store in [host] library-paths"
            )
    search_report += [(path, f"not used: {reason}") for path, reason in skipped]
    return store, skipped


def _build_store_file(search: FileSearch, path: str, found_in: str, links: dict[str, tuple[str, ...]]) -> DriverFile:
    """Build the description of a file that is mounted at its host path."""
    from gpu_oci_hook.host.driver.catalogue import library_stem

    hit = search.find_file(path)
    resolved = path if isinstance(hit, str) else hit[0]
    search.watch_file(resolved)
    elf = search.read_elf(resolved)
    name = os.path.basename(path)
    is_library = not isinstance(elf, str) and ".so" in name
    soname = (elf.soname or name) if not isinstance(elf, str) and is_library else ""
    return DriverFile(
        kind="library" if is_library else "binary" if name == NVIDIA_SMI else "config",
        capability="",
        path=resolved,
        source=search.host.full_path(resolved),
        name=name,
        soname=soname,
        links=tuple([link for link in links.get(library_stem(soname), ()) if "/" not in link and link != name]),
        needs=() if isinstance(elf, str) else tuple(elf.needed),
        glibc="" if isinstance(elf, str) else elf.glibc,
        arch="" if isinstance(elf, str) else elf.arch,
        container_path=path,
        found_in=found_in,
    )
