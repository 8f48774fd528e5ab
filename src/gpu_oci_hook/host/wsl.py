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
from gpu_oci_hook.host import inventory as host_inventory
from gpu_oci_hook.host import nodes as host_nodes
from gpu_oci_hook.host.inventory import DriverFile, Gpu, Inventory
from gpu_oci_hook.host.platform import DXG, Special
from gpu_oci_hook.request.requirements import Values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config import Config
    from gpu_oci_hook.host.extra import Extra
    from gpu_oci_hook.host.inventory import Memory, Remembered
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.host.search import Search

DXCORE = "libdxcore.so"
LIBRARIES = "/usr/lib/wsl/lib"
STORES = "/usr/lib/wsl/drivers"
CUDA = "libcuda.so.1.1"
SMI = "nvidia-smi"
# What is taken from the store beside nvidia-smi: libcuda.so.1.1, libcuda_loader.so, libnvidia-ptxjitcompiler.so.1,
# libnvidia-ml.so.1, libnvidia-ml_loader.so, libnvdxgdmal.so.1, nvcubins.bin, and whatever else is of these kinds.
KINDS = (".bin", ".dll")


class Wsl(Special):
    """See the module.

    Attributes:
        store: the driver store's directory, "" when none has libcuda.
        skipped: (directory, why) of the others.
    """

    __slots__ = ("skipped", "store")
    name = "wsl"

    def __init__(self, host: Host, evidence: tuple[str, ...]) -> None:
        super().__init__(host, evidence)
        self.store = ""
        self.skipped: tuple[tuple[str, str], ...] = ()

    def gpus(self, found: list[Gpu]) -> list[Gpu]:
        """One entry that stands for all of them."""
        return [Gpu(index=0, uuid="", pci="", minor=-1, model="all GPUs that Windows shows")]

    def ordinary(self, chosen: list[Gpu]) -> bool:
        """Never: there is no such driver here."""
        return False

    def inventory(
        self,
        driver: Host,
        config: Config,
        chosen: list[Gpu],
        version: str | None,
        memory: Memory,
        *,
        every: bool,
    ) -> Inventory:
        """libdxcore and the store's files, at the paths that they have here."""
        paths = config.library_paths
        key = ("wsl", VERSION, sys.hexversion, driver.root, paths, driver.machine)
        name = host_inventory.place("wsl", driver.root)
        found, (store, skipped) = host_inventory.remembered(memory, name, key, lambda: search(driver, paths))
        self.store, self.skipped = str(store), skipped
        self.found = found
        return found

    def values(self, label: str, gpu: Gpu | None, version: str) -> Values:
        """No file here tells: the store's libraries have no version in their names."""
        return Values(label, cuda="", cuda_at_least="", driver="", arch="", brand=())

    def identity(self) -> str:
        """The store's name changes with the driver."""
        return f"wsl {self.store}"

    def add(self, chosen: list[tuple[Gpu, str]], taken: set[str], extra: Extra) -> None:
        """/dev/dxg, nvidia-smi's link, and the stores that do not count; see `Special.add`."""
        extra.withheld += [("store", path, why) for path, why in self.skipped]
        names = {file.name for file in self.found.files}
        if not self.store:
            looked = "; ".join(f"{path}: {why}" for path, why in self.skipped[:8]) or "there is none"
            raise Fault(
                f"no driver store of Windows has NVIDIA's {CUDA}: {looked}",
                where=STORES,
                cure="Install NVIDIA's driver in Windows (not here) and restart WSL: wsl --shutdown",
            )
        if DXCORE not in names:
            raise Fault(
                f"{DXCORE} is missing, without which no library of the driver store works",
                where=LIBRARIES,
                cure="Update WSL: wsl --update, or name its directory in [host] library-paths",
            )
        if SMI in names:
            extra.links.append((f"/usr/bin/{SMI}", f"{self.store}/{SMI}", "so that it is found in PATH"))
        for _, origin in chosen:
            node = host_nodes.present(self.host, DXG)
            if node is None:
                raise Fault(f"{DXG} is no device node: there is no GPU to give", where=self.host.path(DXG))
            extra.nodes.append((node, f"all GPUs, as WSL knows no choice among them: {origin}"))


def search(driver: Host, paths: tuple[str, ...]) -> Remembered:
    """The search: (witnesses, inventory, (store, skipped stores))."""
    from gpu_oci_hook.host import catalogue as catalogues
    from gpu_oci_hook.host.search import Search

    looking = Search(driver)
    places: list[tuple[str, str]] = []
    problems: list[str] = []
    files: list[DriverFile] = []
    for place in (*paths, LIBRARIES):
        directory = looking.directory(place)
        hit = looking.file(f"{directory}/{DXCORE}") if directory else "is missing"
        if isinstance(hit, str):
            places.append((place, f"no {DXCORE}" if directory else "missing"))
            continue
        files.append(_file(looking, f"{directory}/{DXCORE}", place, {}))
        places.append((place, DXCORE))
        break
    store, skipped = _store(looking, paths, places, problems)
    if store:
        links = {stem: entry.links for stem, entry in catalogues.load().libraries.items()}
        names = [name for name in driver.names(store) if name == SMI or _taken(name)]
        found = [name for name in names if not isinstance(looking.file(f"{store}/{name}"), str)]
        # Of two with one SONAME the one that has it as its name comes first: libcuda before its loader.
        own = [_file(looking, f"{store}/{name}", store, links) for name in found]
        files += sorted(own, key=lambda file: (not file.name.startswith(file.soname), file.name))
        places.append((store, f"the driver store: {len(found)} files"))
    inventory = Inventory(version="", files=tuple(files), places=tuple(places), problems=tuple(problems))
    return looking.witnesses(), inventory.to_data(), (store, tuple(skipped))


def _taken(name: str) -> bool:
    return ".so" in name or name.endswith(KINDS)


def _store(
    looking: Search, paths: tuple[str, ...], places: list[tuple[str, str]], problems: list[str]
) -> tuple[str, list[tuple[str, str]]]:
    """The store that has libcuda, and why the others do not count.

    Windows keeps a driver's earlier stores for a while. Which of several is in use only its own library could tell;
    a configured one comes first, else the one that was made last, and that is said.
    """
    looking.directory(STORES)
    skipped: list[tuple[str, str]] = []
    having: list[tuple[bool, int, str]] = []
    for path in dict.fromkeys((*paths, *looking.expand(f"{STORES}/*"))):
        if looking.directory(path) is None:
            continue
        hit = looking.file(f"{path}/{CUDA}")
        if not isinstance(hit, str):
            having.append((path in paths, hit[1].st_mtime_ns, path))
        elif path not in paths:
            skipped.append((path, f"it has no {CUDA}" if hit == "leads nowhere" else f"its {CUDA} {hit}"))
    store = ""
    if having:
        configured, _, store = max(having)
        others = [path for _, _, path in having if path != store]
        by = "is named in [host] library-paths" if configured else "has a newer one"
        skipped += [(path, f"it has a {CUDA}, but {store} {by}") for path in others]
        if others and not configured:
            problems.append(
                f"several driver stores have {CUDA}: {store} is taken, as its own is the newest, and not "
                f"{', '.join(others)}; [host] library-paths can name the right one"
            )
    places += [(path, f"left out: {why}") for path, why in skipped]
    return store, skipped


def _file(looking: Search, path: str, place: str, links: dict[str, tuple[str, ...]]) -> DriverFile:
    """A file at its own path; a library if it is one."""
    from gpu_oci_hook.host.catalogue import stem

    hit = looking.file(path)
    real = path if isinstance(hit, str) else hit[0]
    looking.watch(real)
    facts = looking.library(real)
    name = os.path.basename(path)
    shared = not isinstance(facts, str) and ".so" in name
    soname = (facts.soname or name) if not isinstance(facts, str) and shared else ""
    return DriverFile(
        kind="library" if shared else "binary" if name == SMI else "config",
        capability="",
        path=real,
        source=looking.host.path(real),
        name=name,
        soname=soname,
        links=tuple([link for link in links.get(stem(soname), ()) if "/" not in link and link != name]),
        needs=() if isinstance(facts, str) else tuple(facts.needed),
        glibc="" if isinstance(facts, str) else facts.glibc,
        arch="" if isinstance(facts, str) else facts.arch,
        container=path,
        found=place,
    )
