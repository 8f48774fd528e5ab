"""MIG devices: which there are, by the capabilities that the driver shows below /proc, and NVML's names for them.

A MIG device is a GPU instance (gi) and a compute instance (ci) in it. Who may use it is decided by two device nodes,
one for each, beside the GPU's own. Its UUID is known to NVML alone: that is asked when a request names one, in a
child, and the answer is remembered until the GPU's capabilities change. Cost rule: imported only where a container
or a GPU has to do with MIG; lists one directory for each GPU instance.
"""

from __future__ import annotations

import marshal

from gpu_oci_hook import VERSION
from gpu_oci_hook.errors import Fault, clipped
from gpu_oci_hook.host import mig_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_oci_hook.host.inventory import Gpu, Memory
    from gpu_oci_hook.host.mig_tree import Signature
    from gpu_oci_hook.host.nvml import Card
    from gpu_oci_hook.host.root import Host

    Identity = tuple[int, int, str]  # gi, ci, UUID
    Known = dict[tuple[str, str], tuple[Signature, tuple[Identity, ...]]]  # by the GPU's address and UUID

LIMIT = 10.0  # seconds for NVML: what the incumbent gives it

_NAME = "mig"
_UUID = frozenset("0123456789abcdefABCDEF-GPUMI/")


class Mig:
    """One MIG device.

    Attributes:
        gpu: the GPU that it is a part of.
        index: its place among the GPU's devices: NVML's where NVML was asked, else by gi and ci.
        gi, ci: ids of the GPU instance and of the compute instance in it.
        uuid: "MIG-…"; "" as long as NVML was not asked.
    """

    __slots__ = ("ci", "gi", "gpu", "index", "uuid")

    def __init__(self, *, gpu: Gpu, index: int, gi: int, ci: int, uuid: str = "") -> None:
        self.gpu = gpu
        self.index = index
        self.gi = gi
        self.ci = ci
        self.uuid = uuid

    @property
    def name(self) -> str:
        """As in NVIDIA_VISIBLE_DEVICES: "0:1"."""
        return f"{self.gpu.index}:{self.index}"

    @property
    def old_name(self) -> str:
        """As drivers before 470 named it; needs no NVML."""
        return f"MIG-{self.gpu.uuid}/{self.gi}/{self.ci}"


class Instances:
    """The MIG devices of a machine, each GPU looked at when it is asked about.

    Arguments:
        gpus: all GPUs of the machine.
        version: the running driver's: what another driver's NVML has said does not count.
        library: gives the path of the host's NVML library, "" where there is none; called only to ask it.
        limit: seconds for NVML.
    """

    def __init__(
        self,
        host: Host,
        gpus: list[Gpu],
        version: str,
        memory: Memory,
        library: Callable[[], str],
        *,
        limit: float = LIMIT,
    ) -> None:
        self.host = host
        self.gpus = gpus
        self.version = version
        self.memory = memory
        self.library = library
        self.limit = limit
        self._found: dict[int, list[Mig]] = {}
        self._known: Known | None = None
        # What the memory had when it was last looked at, and what it had that is not to be believed any more.
        self._blob: bytes | None = None
        self._refused: bytes | None = None

    def _memory(self) -> Known:
        """What is remembered, read once."""
        if self._known is None:
            self._blob = self.memory.get(_NAME)
            self._known = {} if self._blob == self._refused else _recall(self._blob, self.version)
        return self._known

    def of(self, gpu: Gpu) -> list[Mig]:
        """The GPU's MIG devices, in the order of their index; with UUIDs if those are known. Asks nobody."""
        found = self._found.get(gpu.index)
        if found is None:
            signature = mig_tree.signature(self.host, gpu)
            before, identities = self._memory().get((gpu.pci, gpu.uuid), ((), ()))
            if before != signature:
                identities = tuple((gi, ci, "") for gi, ci, *_ in signature)
            found = self._found[gpu.index] = [
                Mig(gpu=gpu, index=index, gi=gi, ci=ci, uuid=uuid)
                for index, (gi, ci, uuid) in enumerate(identities)
            ]
        return found

    def remembered(self, uuid: str) -> Mig | None:
        """The device with this UUID, if that is known without asking; looks at its GPU alone."""
        known = self._memory()
        lower = uuid.lower()
        for gpu in self.gpus:
            _, identities = known.get((gpu.pci, gpu.uuid), ((), ()))
            if any(said.lower() == lower for _, _, said in identities):
                return next((one for one in self.of(gpu) if one.uuid.lower() == lower), None)
        return None

    def identified(self) -> list[Mig]:
        """Every MIG device of the machine, all with their UUIDs; asks NVML about the GPUs that lack some.

        Raises:
            Fault: NVML does not answer within the limit, or says something else than /proc.
        """
        if self._lacking():
            import time

            began = time.monotonic()
            with self.memory.lock(_NAME):  # of many starts at once only one asks
                self._found.clear()
                self._known = None
                lacking = self._lacking()
                if lacking:
                    # Whoever has waited for another start's question has used up his own time.
                    self._ask(lacking, max(1.0, self.limit - (time.monotonic() - began)))
        return [one for gpu in self.gpus for one in self.of(gpu)]

    def forget(self) -> None:
        """Makes `identified` ask NVML anew: a UUID is asked for that nobody has.

        What another start has learnt in the meantime counts, so that of many starts only one asks.
        """
        self._refused = self._blob
        self._found.clear()
        self._known = None

    def _lacking(self) -> list[Gpu]:
        return [gpu for gpu in self.gpus if any(not one.uuid for one in self.of(gpu))]

    def _ask(self, gpus: list[Gpu], limit: float) -> None:
        from gpu_oci_hook.host import nvml

        before = [mig_tree.signature(self.host, gpu) for gpu in gpus]
        self.learn(gpus, nvml.survey([gpu.pci for gpu in gpus], library=self.library(), timeout=limit), before)

    def learn(self, gpus: list[Gpu], cards: list[Card], before: list[Signature] | None = None) -> None:
        """Takes NVML's answer about these GPUs for true, and remembers it.

        Arguments:
            before: the GPUs' signatures when NVML was asked, so that a change in the meantime shows.

        Raises:
            Fault: it says something else than the kernel module, or nothing about one of them.
        """
        known = dict(self._known or {})
        asked = {(gpu.pci, gpu.uuid) for gpu in gpus}
        taken = {uuid.lower() for key, (_, said) in known.items() if key not in asked for _, _, uuid in said}
        for place, (gpu, card) in enumerate(zip(gpus, cards, strict=True)):
            if card.error:
                raise Fault(f"NVML does not know GPU {gpu.index} ({gpu.pci}): {clipped(card.error)}")
            signature = mig_tree.signature(self.host, gpu)
            said = tuple(card.mig)
            what = _disagreement(gpu, card.uuid, {(gi, ci) for gi, ci, *_ in signature}, said, taken)
            if before is not None and before[place] != signature:
                what = f"the MIG devices of GPU {gpu.index} changed while it was asked"
            if what:
                raise Fault(
                    f"NVML cannot be believed: {what}",
                    cure="If MIG devices are being made or removed right now, try again when that is done",
                )
            known[gpu.pci, gpu.uuid] = (signature, said)
        there = {(gpu.pci, gpu.uuid) for gpu in self.gpus}
        self._known = {key: entry for key, entry in known.items() if key in there}
        self._found.clear()
        self.memory.put(_NAME, marshal.dumps((VERSION, self.version, self._known)))


def _disagreement(
    gpu: Gpu, uuid: str, kernels: set[tuple[int, int]], said: tuple[Identity, ...], taken: set[str]
) -> str:
    """Where NVML's answer cannot be true; "" where it can."""
    if uuid.lower() != gpu.uuid.lower() and "?" not in gpu.uuid:
        return f"it says that GPU {gpu.pci} is {clipped(uuid, 80)}, the kernel module that it is {gpu.uuid}"
    if {(gi, ci) for gi, ci, _ in said} != kernels or len(said) != len(kernels):
        listed = ", ".join(f"{gi}/{ci}" for gi, ci, _ in said[:16]) or "none"
        there = ", ".join(f"{gi}/{ci}" for gi, ci in sorted(kernels)) or "none"
        return f"it says that GPU {gpu.index} has the MIG devices (gi/ci) {listed}, the kernel module says {there}"
    for gi, ci, name in said:
        if not name.startswith("MIG-") or not 8 <= len(name) <= 96 or not _UUID.issuperset(name):
            return f'it says that MIG device {gi}/{ci} of GPU {gpu.index} is "{clipped(name, 80)}", which is no UUID'
        old = name.lower().startswith("mig-gpu-")
        if old and name.lower() != f"mig-{gpu.uuid.lower()}/{gi}/{ci}":
            return f"it says that MIG device {gi}/{ci} of GPU {gpu.index} is {name}"
        if name.lower() in taken:
            return f"it gives {name} to two MIG devices"
        taken.add(name.lower())
    return ""


def _recall(blob: bytes | None, version: str) -> Known:
    """The remembered identities; none from damaged memory, another version of ours, or another driver."""
    if blob is not None:
        try:
            ours, driver, known = marshal.loads(blob)  # noqa: S302  the memory is ours alone
            if (ours, driver) == (VERSION, version) and isinstance(known, dict):
                for signature, identities in known.values():
                    if len(signature) != len(identities) or not all(
                        isinstance(gi, int) and isinstance(ci, int) and isinstance(uuid, str)
                        for gi, ci, uuid in identities
                    ):
                        return {}
                return known
        except Exception:  # noqa: S110  whatever a damaged blob does: it costs a question, never a start
            pass
    return {}
