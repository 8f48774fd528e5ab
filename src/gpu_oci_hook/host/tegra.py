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
from gpu_oci_hook.host import inventory as host_inventory
from gpu_oci_hook.host import nodes as host_nodes
from gpu_oci_hook.host import versions
from gpu_oci_hook.host.inventory import Gpu, Inventory
from gpu_oci_hook.host.platform import RELEASE, Special, integrated, line
from gpu_oci_hook.request.requirements import Values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config import Config
    from gpu_oci_hook.host.extra import Extra
    from gpu_oci_hook.host.inventory import Memory
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.host.tegra_lists import Line

# A Thor with a discrete GPU has its display's node as this, which no list names (toolkit facts 3.15).
_THIRD = "/dev/nvidia2"
# L4T release of JetPack (major, minor) to the CUDA version of its libcuda, from JetPack's release notes.
_CUDA = (
    (32, 1, "10.0"), (32, 4, "10.2"), (34, 1, "11.4"), (35, 1, "11.4"), (36, 2, "12.2"), (36, 4, "12.6"),
    (38, 2, "13.0"),
)  # fmt: skip


class Tegra(Special):
    """See the module.

    Attributes:
        lines: what became of each line of the lists; known after `inventory`.
        links: (path, target, the line) to be made in containers.
    """

    __slots__ = ("_directory", "_gpus", "lines", "links")
    name = "tegra"

    def __init__(self, host: Host, evidence: tuple[str, ...]) -> None:
        super().__init__(host, evidence)
        self.lines: tuple[Line, ...] = ()
        self.links: tuple[tuple[str, str, str], ...] = ()
        self._gpus: list[Gpu] = []
        self._directory = ""

    def gpus(self, found: list[Gpu]) -> list[Gpu]:
        """The integrated GPU first, then the discrete ones in their order.

        A Tegra before Thor has its GPU not in NVIDIA's /proc.
        """
        own = [gpu for gpu in found if integrated(gpu)]
        others = [gpu for gpu in found if not integrated(gpu)]
        if not own:
            model = line(self.host, "/proc/device-tree/model") or "integrated GPU"
            own = [Gpu(index=0, uuid="", pci="", minor=-1, model=model)]
        self._gpus = [
            Gpu(index=index, uuid=gpu.uuid, pci=gpu.pci, minor=gpu.minor, model=gpu.model)
            for index, gpu in enumerate([*own, *others])
        ]
        return self._gpus

    def ordinary(self, chosen: list[Gpu]) -> bool:
        """A discrete GPU has the desktop's driver."""
        return any(self._discrete(gpu) for gpu in chosen)

    def _discrete(self, gpu: Gpu) -> bool:
        return gpu.minor >= 0 and not integrated(gpu)

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
        """The files of the lists; with a discrete GPU also those of its driver that no list names."""
        self._directory = config.csv_directory
        key = (
            "tegra", VERSION, sys.hexversion, self.host.root, driver.root, driver.machine,
            config.csv_directory, config.csv_ignore,
        )  # fmt: skip
        name = host_inventory.place("tegra-all" if every else "tegra", self.host.root, driver.root)

        def search() -> host_inventory.Remembered:
            from gpu_oci_hook.host import tegra_lists

            return tegra_lists.search(self.host, driver, config.csv_directory, config.csv_ignore, every=every)

        found, (self.lines, self.links) = host_inventory.remembered(memory, name, key, search)
        self.found = found
        if not self.ordinary(chosen):
            return found
        other = host_inventory.load(self.host, driver, config.library_paths, version, memory)
        sonames = {file.soname for file in found.files if file.soname}
        places = {file.container for file in found.files} | {path for path, _, _ in self.links}
        other.files = (
            *found.files,
            *(file for file in other.files if file.soname not in sonames and file.container not in places),
        )
        other.missing = tuple([missing for missing in other.missing if missing[1] not in sonames])
        other.places = (*found.places, *other.places)
        other.problems = (*found.problems, *other.problems)
        self.found = other
        return other

    def values(self, label: str, gpu: Gpu | None, version: str) -> Values:
        """By the module's version if the GPU is the module's, else by the release of the board's software.

        An integrated GPU is of no brand that a requirement means.
        """
        arch, brand = (versions.arch(gpu.model), versions.brands(gpu.model)) if gpu else ("", ())
        if gpu is not None and not self._discrete(gpu):
            brand = ("tegra",)
        if gpu is not None and gpu.minor >= 0 and version:
            driver = version
            exact, at_least = versions.cuda_version(version)
        else:
            driver = ""
            exact, at_least = cuda_version(line(self.host, RELEASE))
        return Values(label, cuda=exact, cuda_at_least=at_least, driver=driver, arch=arch, brand=brand)

    def identity(self) -> str:
        """The board's release."""
        return f"tegra {line(self.host, RELEASE)}"

    def add(self, chosen: list[tuple[Gpu, str]], taken: set[str], extra: Extra) -> None:
        """The nodes of the lists, the lists' links, and the lines that gave nothing; see `Special.add`."""
        # What is in a directory that goes in as a whole has its links there.
        trees = tuple([f"{file.container}/" for file in self.found.files if file.kind == "tree"])
        extra.links += [
            (path, target, f"listed in {where}")
            for path, target, where in self.links
            if not trees or not path.startswith(trees)
        ]
        discrete = {f"/dev/nvidia{gpu.minor}" for gpu in self._gpus if self._discrete(gpu)}
        own = [(gpu, origin) for gpu, origin in chosen if not self._discrete(gpu)]
        others = [(gpu, origin) for gpu, origin in chosen if self._discrete(gpu)]
        control = {path for path, _, _, _ in host_nodes.CONTROL}
        given = False
        for path, where in self._listed(extra, mixed=bool(discrete)):
            numbered = path.startswith("/dev/nvidia") and path[len("/dev/nvidia") :].isdigit()
            owner = ""
            if own and path not in discrete:
                owner = f"GPU {own[0][0].index}: {own[0][1]}"
            elif others and not numbered and path not in control:
                owner = f"GPU {others[0][0].index}: {others[0][1]}"
            if not owner:
                if path not in taken:
                    extra.withheld.append(("device", path, "its GPU was not asked for"))
                continue
            given = given or bool(own)
            node = None if path in taken else host_nodes.present(self.host, path)
            if node is not None:
                taken.add(path)
                extra.nodes.append((node, f"{owner}; {where}"))
        if own and not given:
            raise Fault(
                "the board's CSV lists name no device node that exists: the container would get a GPU that it cannot "
                "open",
                where=self._directory,
                cure="Install JetPack's lists (package nvidia-l4t-init and its like) or name their directory in [host] "
                "csv-directory; gpu-oci-hook list shows what became of each line",
            )

    def _listed(self, extra: Extra, *, mixed: bool) -> list[tuple[str, str]]:
        """The nodes that the lists name and the machine has, each with its line; what is not there is withheld."""
        found: dict[str, str] = {}
        for file, number, kind, pattern, what, paths in self._judged():
            where = f"{file.rpartition('/')[2]}:{number}"
            if kind == "dev" and paths:
                for path in paths:
                    found.setdefault(path, f"listed in {where}")
            elif what != "matched":
                extra.withheld.append(("csv", f"{kind}, {pattern}".strip(", ") or "empty", f"{where}: {what}"))
        if mixed and host_nodes.present(self.host, _THIRD) is not None:
            found.setdefault(_THIRD, "the display of an integrated GPU beside a discrete one")
        return list(found.items())

    def _judged(self) -> list[Line]:
        """The lines, with what became of the nodes among them now."""
        from gpu_oci_hook.host import tegra_lists

        return [tegra_lists.judged(self.host, row) if row[2] == "dev" else row for row in self.lines]

    def report(self) -> list[tuple[str, str, str, str]]:
        """See `Special.report`."""
        return [(f"{file}:{number}", kind, path, what) for file, number, kind, path, what, _ in self._judged()]


def cuda_version(release: str) -> tuple[str, str]:
    """The CUDA version of a board's release, and what it has at least; as `versions.cuda_version`.

    Arguments:
        release: the first line of /etc/nv_tegra_release.
    """
    number = _release(release)
    below = [row for row in _CUDA if number is not None and row[:2] <= number]
    if number is None or not below:
        return "", ""
    return below[-1][2] if below[-1][0] == number[0] else "", below[-1][2]


def _release(text: str) -> tuple[int, int] | None:
    """(36, 4) of "# R36 (release), REVISION: 4.3, GCID: ..."; None when it is no such line."""
    head, _, rest = text.lstrip("# ").partition(" ")
    minor = rest.partition("REVISION:")[2].strip().partition(",")[0].partition(".")[0]
    if head[:1] != "R" or not (head[1:].isascii() and head[1:].isdigit() and minor.isascii() and minor.isdigit()):
        return None
    return int(head[1:5]), int(minor[:4])
