"""What this machine and our own generator have to do with a CDI name: for `causes` and `cdi resolve`.

A name of ours is a word for a GPU, so a machine that has no such GPU is the cause before any file is; and what is to
be done about a file that is not there is the command that writes it. Cold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_oci_hook.cdi import origin, stale
from gpu_oci_hook.cdi.options import GPU, MODES, Options
from gpu_oci_hook.cdi.scan import Scan
from gpu_oci_hook.config import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host import gpus as host_gpus
from gpu_oci_hook.host import platform
from gpu_oci_hook.host.mig import Instances
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.request import Ask, devices, mig
from gpu_oci_hook.request.cdi import own_kinds, plain

if TYPE_CHECKING:
    from gpu_oci_hook.host.inventory import Gpu, Memory

# Where files are advised if no directory is configured.
_DIRECTORY = "/etc/cdi"


class Here:
    """What this machine has for words of our own kinds. Asks no NVML.

    Arguments:
        host: the machine. memory: what is remembered of its MIG devices; nothing is written.
    """

    def __init__(self, host: Host, config: Config, memory: Memory) -> None:
        self.host = host
        self.config = config
        self.memory = memory
        self._gpus: list[Gpu] | None = None
        self._instances: Instances | None = None

    @property
    def gpus(self) -> list[Gpu]:
        """All GPUs of the machine."""
        if self._gpus is None:
            found, _ = host_gpus.gpus(self.host)
            special = platform.find(self.host, self.config.platform)
            self._gpus = special.gpus(found) if special else found
        return self._gpus

    def gives(self, word: str) -> str:
        """What our runtime gives for a word without any file; "" for nothing, or where that cannot be told.

        Arguments:
            word: of `NVIDIA_VISIBLE_DEVICES`.
        """
        if word == "none":
            return "the driver's files without a GPU"
        try:
            return ", ".join(self._found(word))
        except Fault:
            return ""

    def lacks(self, word: str) -> Fault | None:
        """Why this machine has nothing for a word; None when it has, or where that cannot be told."""
        if word == "none" or not self.gpus or (_of_nvml(word) and any(map(self._parts.of, self.gpus))):
            return None
        try:
            self._found(word)
        except Fault as fault:
            return fault
        return None

    def same(self, word: str, other: str) -> bool:
        """Whether two words that are not equal name the same GPUs or MIG devices."""
        if "all" in (word, other):
            return False
        found = self.gives(word)
        return bool(found) and found == self.gives(other)

    @property
    def _parts(self) -> Instances:
        if self._instances is None:
            version = host_gpus.version(self.host) or ""
            self._instances = Instances(self.host, self.gpus, version, self.memory, lambda: "")
        return self._instances

    def _found(self, word: str) -> list[str]:
        """What a word names, each as people know it.

        Raises:
            Fault: nothing.
        """
        ask = Ask(word, "")
        if _of_nvml(word):
            known = self._parts.remembered(word)
            return [] if known is None else [f"MIG device {known.name}"]
        named: list[str] = []
        divided = host_gpus.in_mig_mode(self.host, self.gpus) if devices.everything((ask,)) else frozenset()
        if not devices.names_mig(word):
            found = devices.matching(ask, self.gpus, divided)
            named += [f"GPU {gpu.index} ({gpu.uuid})" if gpu.uuid else f"GPU {gpu.index}" for gpu in found]
        if devices.names_mig(word) or divided:
            parts = mig.resolve((ask,), self.gpus, divided, self._parts)
            named += [f"MIG device {one.name}" for one, _ in parts]
        return named


def _of_nvml(word: str) -> bool:
    """Whether a word is a MIG device's UUID, which NVML alone knows."""
    return word.lower().startswith("mig-") and not word.lower().startswith("mig-gpu-")


class Asked:
    """A name that is not resolved, and what there is to know about it.

    Attributes:
        name: as it was said. kind, device: what it has before and after its first "=".
        scan: every spec file. config: ours. here: this machine.
    """

    __slots__ = ("config", "device", "here", "kind", "name", "scan")

    def __init__(self, name: str, scan: Scan, config: Config, here: Here) -> None:
        self.name = name
        self.kind, _, self.device = name.partition("=")
        self.scan = scan
        self.config = config
        self.here = here

    @property
    def own(self) -> bool:
        """Whether our runtime plans such devices in memory."""
        return self.kind in own_kinds(self.config)

    @property
    def word(self) -> str:
        """The word for a GPU that a name of ours means."""
        return plain(self.device)

    @property
    def mode(self) -> str:
        """What `cdi generate --mode` has to be to write the name's kind; "" when it writes no such kind."""
        return next((mode for kind, mode in modes(self.config).items() if kind == self.kind), "")

    def gives(self) -> str:
        """What our runtime gives for the name without any file; "" when it needs one."""
        return self.here.gives(self.word) if self.own else ""

    def command(self) -> str:
        """The command that writes a file of the name's kind where engines of this machine look."""
        mode = self.mode or GPU
        words = "" if mode == GPU else f" --mode {mode}"
        file = "nvidia.yaml" if mode == GPU else f"nvidia-{mode}.yaml"
        if any(one.path.rpartition("/")[2] == file for one in self.scan.files):  # it would be replaced
            file = f"{self.kind.replace('/', '-')}.yaml"
        directory = self.scan.directories[0] if self.scan.directories else _DIRECTORY
        return f"gpu-oci-hook cdi generate{words} --output {directory}/{file}"

    def anew(self, path: str) -> str:
        """What to do about a file of the name's kind that lacks a device which this machine has.

        A file of ours is made anew by its own options, which may have left the device out.
        """
        if origin.is_ours(path):
            return f"{stale.ANEW}: gpu-oci-hook cdi refresh --device all,none --output {path}"
        return stale.cure(self.kind, path, own_kinds(self.config))


def modes(config: Config) -> dict[str, str]:
    """The kinds that our generator writes, each with the mode that does."""
    return {Options(mode=mode).kind(config): mode for mode in MODES}


def looked(scan: Scan) -> str:
    """Where files were looked for, and where engines look if that is somewhere else."""
    there = ", ".join(scan.host.path(directory) for directory in scan.directories) or "no directory"
    if not scan.host.prefix:
        return there
    return f"{there} ([host] root is {scan.host.root}: engines of this machine read {', '.join(scan.directories)})"
