"""What kind of machine this is, with the evidence, and what the machines have in common that are no desktop.

"desktop" is everything with NVIDIA's driver for servers and desktops: the ordinary way. "wsl" is a Linux on
Windows, whose GPUs come through /dev/dxg. "tegra" is a Jetson or its like: an integrated GPU whose nodes and files
are listed in CSV files, with or without a discrete GPU beside it.

Detection follows what NVIDIA's own tools go by (container toolkit facts 1.8), but by files alone: no library is
loaded. Where the evidence does not agree the machine is a desktop; `[host] platform` overrules it. Cost rule:
imported only where `gpus.unusual` has seen a mark, or the configuration names a platform.
"""

from __future__ import annotations

import os

from gpu_oci_hook.errors import Fault, clipped
from gpu_oci_hook.host import gpus as host_gpus
from gpu_oci_hook.host import nodes as host_nodes
from gpu_oci_hook.host.inventory import Inventory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config import Config
    from gpu_oci_hook.host.extra import Extra
    from gpu_oci_hook.host.inventory import Gpu, Memory
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.plan.facts import Facts
    from gpu_oci_hook.request.requirements import Values

NAMES = ("desktop", "wsl", "tegra")
DXG = "/dev/dxg"
RELEASE = "/etc/nv_tegra_release"
FAMILY = "/sys/devices/soc0/family"
# Nodes of nvgpu, the driver of GPUs in the memory of a Tegra before Thor.
_NVGPU = ("/dev/nvhost-gpu", "/dev/nvhost-ctrl-gpu", "/dev/nvgpu")


class Special:
    """A machine that is no desktop: what the ordinary way would ask of it.

    Attributes:
        host: the machine. evidence: why it is taken for what it is.
        found: what `inventory` gave.
    """

    __slots__ = ("evidence", "found", "host")
    name = ""

    def __init__(self, host: Host, evidence: tuple[str, ...]) -> None:
        self.host = host
        self.evidence = evidence
        self.found = Inventory(version="")

    def gpus(self, found: list[Gpu]) -> list[Gpu]:
        """The GPUs that containers can ask for; `found` are those of /proc/driver/nvidia/gpus."""
        raise NotImplementedError

    def ordinary(self, chosen: list[Gpu]) -> bool:
        """Whether a GPU was chosen that needs the nodes and files of the desktop's driver."""
        raise NotImplementedError

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
        """The files that go into containers.

        Arguments:
            driver: the root that has them.
            version: of the kernel module nvidia, None where it is not loaded.
            every: all lists of the board count, see `Request.every_list`.
        """
        raise NotImplementedError

    def values(self, label: str, gpu: Gpu | None, version: str) -> Values:
        """What requirements are held against, as far as files tell.

        Arguments:
            version: of the kernel module nvidia, "" where it is not loaded.
        """
        raise NotImplementedError

    def identity(self) -> str:
        """What NVML's remembered answers are true for: changes with every update of the driver."""
        raise NotImplementedError

    def nvml(self) -> str:
        """The path of the library that answers for NVML.

        Raises:
            Fault: there is none.
        """
        from gpu_oci_hook.host import nvml

        return nvml.library(self.host, self.found)

    def fill(self, facts: Facts) -> None:
        """Puts into the facts what `add` gives, each node once."""
        extra = facts.extra
        taken = {node.path for node in facts.gpu_nodes.values()}
        taken.update([node.path for node, _ in (*extra.nodes, *extra.optional)])
        self.add(facts.chosen, taken, extra)
        given = {node.path for node, _ in extra.nodes}
        facts.nodes = [(capability, node) for capability, node in facts.nodes if node.path not in given]
        facts.absent_nodes = [absent for absent in facts.absent_nodes if absent[1] not in given]

    def add(self, chosen: list[tuple[Gpu, str]], taken: set[str], extra: Extra) -> None:
        """Adds the nodes of the chosen GPUs, links, and what is withheld.

        Arguments:
            taken: paths of nodes that go in anyway.

        Raises:
            Fault: what no container can do without is not there.
        """
        raise NotImplementedError

    def report(self) -> list[tuple[str, str, str, str]]:
        """What became of each line of the lists, for people: (place, type, path, what); none where there are none."""
        return []


def detect(host: Host, wanted: str = "auto") -> tuple[str, tuple[str, ...]]:
    """The platform's name, and the evidence as short sentences, also of what was looked for and is not there.

    Arguments:
        wanted: `[host] platform`; the evidence says so when it decides, and what would have been decided else.
    """
    loaded = host_nodes.majors(host).loaded
    dxg = host.status(DXG) is not None
    found = host_gpus.gpus(host)[0]
    release, family = line(host, RELEASE), line(host, FAMILY)
    tegra = bool(release) or family.lower().startswith("tegra")
    evidence = [
        f"{DXG} is there" if dxg else f"no {DXG}",
        "the kernel module nvidia is loaded" if loaded else "no nvidia in /proc/devices",
        f"{RELEASE} says {clipped(release)}" if release else f"no {RELEASE}",
        f"{FAMILY} says {clipped(family)}" if family else f"no {FAMILY}",
    ]
    inside = _integrated(host, found) if tegra else []
    evidence += inside
    name = "desktop"
    if dxg and loaded:
        evidence.append(f"a loaded module nvidia counts more than {DXG}")
    elif dxg:
        name = "wsl"
    if tegra and name == "desktop":
        if inside or not found:
            name = "tegra"
        else:
            evidence.append("all GPUs are discrete ones, and none is integrated: the driver is a desktop's")
    if wanted == "auto":
        return name, tuple(evidence)
    other = "" if name == wanted else f" (the evidence alone would say {name})"
    return wanted, (f'[host] platform = "{wanted}" in the configuration{other}', *evidence)


def find(host: Host, wanted: str) -> Special | None:
    """The machine's own way, None for a desktop's."""
    name, evidence = detect(host, wanted)
    if name == "wsl":
        from gpu_oci_hook.host.wsl import Wsl

        return Wsl(host, evidence)
    if name == "tegra":
        from gpu_oci_hook.host.tegra import Tegra

        return Tegra(host, evidence)
    return None


def integrated(gpu: Gpu) -> bool:
    """Whether a GPU of a Tegra board is the one in its own chip: by name, else by the address that it has there.

    NVML calls them "Orin (nvgpu)" and "NVIDIA Thor"; a Thor without a name is at 0000:01:00.0 (toolkit facts 3.15).
    """
    words = gpu.model.upper().replace("(", " ").replace(")", " ").split()
    if any(word in ("NVGPU", "THOR", "ORIN") for word in words):
        return True
    return (not words or words[-1] in ("UNKNOWN", "GRAPHICS")) and gpu.pci == "0000:01:00.0"


def line(host: Host, path: str) -> str:
    """The first line of a small file; "" when it is missing, empty or not to be read."""
    try:
        data = host.read(path, 65536) or b""
    except Fault:
        return ""
    lines = os.fsdecode(data.replace(b"\0", b"\n")).split("\n")
    return lines[0].strip()


def _integrated(host: Host, found: list[Gpu]) -> list[str]:
    evidence = [f"{path} is there: an integrated GPU" for path in _NVGPU if host.status(path) is not None][:1]
    return evidence + [f"GPU {gpu.index} ({gpu.model}) is integrated" for gpu in found if integrated(gpu)]
