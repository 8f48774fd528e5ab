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
from gpu_oci_hook.formats import proc
from gpu_oci_hook.host import nodes
from gpu_oci_hook.host.gpus import CAPABILITIES
from gpu_oci_hook.request.mig import title

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_oci_hook.host.extra import Extra
    from gpu_oci_hook.host.inventory import Gpu, Memory, Node
    from gpu_oci_hook.host.nvml import Card
    from gpu_oci_hook.host.root import Host

    Machine = tuple[nodes.Majors, nodes.Params, list[str]]
    # (gi, ci, mtime in ns, inode) of each device of a GPU: other numbers, other devices.
    Signature = tuple[tuple[int, int, int, int], ...]
    Identity = tuple[int, int, str]  # gi, ci, UUID
    Known = dict[tuple[str, str], tuple[Signature, tuple[Identity, ...]]]  # by the GPU's address and UUID

# One "name minor" a line, for many more GPUs and instances than there are; its names lack the tree's "mig".
MINORS = "/proc/driver/nvidia-caps/mig-minors"
NODES = "/dev/nvidia-caps"
LIMIT = 10.0  # seconds for NVML: what the incumbent gives it

_NAME = "mig"
_TEXT = 1 << 20
_MANY = 16  # MIG devices from which on the table is the cheaper of the two places of their numbers
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
            signature = _signature(self.host, gpu)
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

        before = [_signature(self.host, gpu) for gpu in gpus]
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
            signature = _signature(self.host, gpu)
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


def fill(
    extra: Extra,
    instances: Instances,
    chosen: list[tuple[Mig, str]],
    rights: tuple[tuple[str, str], ...],
    gpus: list[Gpu],
    machine: Machine,
) -> None:
    """The capability nodes of MIG devices, and of the rights over all of them.

    Arguments:
        chosen: the MIG devices that go in, each with whose word it was.
        rights: ("config" or "monitor", origin): bring the right's own node, and every instance of `gpus`, as libnvidia-
            container gives them: who makes and watches instances opens them.
        machine: the majors, the module's parameters, and where sentences about odd nodes go.

    Raises:
        Fault: the driver does not say the number of one.
    """
    host = instances.host
    if machine[0].caps is None and host.names(CAPABILITIES):
        # Drivers of the 450 series: to open the file below /proc is the right, and the container's /proc has it.
        extra.warnings.append("there are no nvidia-caps in /proc/devices: this driver gives MIG rights by /proc alone")
        return
    given: dict[str, tuple[Node, str]] = {}
    places = _Places(host, machine, many=len(chosen) > _MANY or bool(rights))

    def add(gpu: Gpu | None, steps: str, why: str) -> None:
        node = places.node(gpu, steps, why)
        given.setdefault(node.path, (node, why))

    for one, origin in chosen:
        who = f"MIG device {one.name}" + (f" ({one.uuid})" if one.uuid else "")
        add(one.gpu, f"gi{one.gi}", f"GPU instance {one.gi} of {who}: {origin}")
        add(one.gpu, f"gi{one.gi}/ci{one.ci}", f"compute instance {one.ci} of {who}: {origin}")
    for right, origin in rights:
        add(None, right, f"{title(right)}: {origin}")
        for gpu in gpus:
            tree = _tree(host, gpu)
            for gi in _numbered(tree, "/", "gi"):
                add(gpu, f"gi{gi}", f"GPU instance {gi} of GPU {gpu.index}: {origin}")
                for ci in _numbered(tree, f"/gi{gi}", "ci"):
                    add(gpu, f"gi{gi}/ci{ci}", f"compute instance {ci} of it: {origin}")
    extra.nodes += given.values()


class _Places:
    """Where a host has its MIG capabilities: each directory is walked to once.

    Arguments:
        many: of the numbers that are wanted. The driver's tree has number and mode of each in a file of its own, its
            table has all that there could ever be: thousands.
    """

    __slots__ = ("_dev", "_host", "_machine", "_table", "_trees")

    def __init__(self, host: Host, machine: Machine, *, many: bool) -> None:
        self._host = host
        self._machine = machine
        self._dev = host.below(NODES)
        self._trees: dict[int, Host] = {}
        self._table = _minors(host) if many else {}

    def node(self, gpu: Gpu | None, steps: str, why: str) -> Node:
        """The node of one capability, its number from the driver's tree or table.

        Arguments:
            gpu: None for the machine's own capabilities.
            steps: "gi1", "gi1/ci0"; "config", "monitor".
            why: whose word asks for it.

        Raises:
            Fault: the driver does not say the number.
        """
        numbers, defaults, problems = self._machine
        minor = self._table.get(_called(gpu, steps), -1)
        mode = 0o444
        # The mode counts only where the host has no node.
        if minor < 0 or self._dev.status(f"/nvidia-cap{minor}", follow=False) is None:
            minor, mode = self._of_tree(gpu, steps, minor)
        if minor < 0 or numbers.caps is None:
            what = f"neither {self._tree_of(gpu).path(steps + '/access' * bool(gpu))} nor {MINORS} has it"
            raise Fault(
                f"the device number of the MIG capability {steps} is not known: "
                f"{'no nvidia-caps in /proc/devices' if numbers.caps is None else what}",
                where=why,
                cure="MIG needs a GPU and a driver that support it",
            )
        wanted = nodes.Params(mode=mode, uid=defaults.uid, gid=defaults.gid)
        made = nodes.node(self._dev, f"/nvidia-cap{minor}", numbers.caps, minor, wanted, problems)
        made.path = NODES + made.path
        return made

    def _of_tree(self, gpu: Gpu | None, steps: str, minor: int) -> tuple[int, int]:
        """The number and mode that the driver's tree has for a capability; the given number where it has none."""
        table = proc.params(_text(self._tree_of(gpu), f"/{steps}{'/access' if gpu else ''}"))
        said, mode = _number(table.get("DeviceFileMinor", "")), _number(table.get("DeviceFileMode", ""))
        if said < 0 and minor < 0:
            self._table = self._table or _minors(self._host)
            said = self._table.get(_called(gpu, steps), -1)
        return said if said >= 0 else minor, mode & 0o777 if mode >= 0 else 0o444

    def _tree_of(self, gpu: Gpu | None) -> Host:
        key = gpu.minor if gpu else -1
        tree = self._trees.get(key)
        if tree is None:
            tree = self._trees[key] = _tree(self._host, gpu)
        return tree


def _tree(host: Host, gpu: Gpu | None) -> Host:
    """The directory of a GPU's instances, or of the machine's own capabilities."""
    return host.below(f"{CAPABILITIES}/gpu{gpu.minor}/mig" if gpu else f"{CAPABILITIES}/mig")


def pairs(host: Host, gpu: Gpu) -> list[tuple[int, int]]:
    """The (gi, ci) of a GPU's MIG devices, in order."""
    return [(gi, ci) for gi, ci, *_ in _signature(host, gpu)]


def _signature(host: Host, gpu: Gpu) -> Signature:
    """The GPU's devices, with what changes when one is removed and made again under the same numbers.

    A driver that hides its tree (from a container that has containers of its own) still has the table and the nodes.
    """
    tree = _tree(host, gpu)
    found = []
    for gi in _numbered(tree, "/", "gi"):
        for ci in _numbered(tree, f"/gi{gi}", "ci"):
            status = tree.status(f"/gi{gi}/ci{ci}")
            found.append((gi, ci, status.st_mtime_ns if status else 0, status.st_ino if status else 0))
    if not found and not host.names(CAPABILITIES):
        there = frozenset(host.names(NODES))
        for line in _text(host, MINORS).split("\n") if len(there) > 2 else ():  # config and monitor are always there
            name, _, minor = line.strip().partition(" ")
            parts = name.split("/")
            if len(parts) == 4 and parts[0] == f"gpu{gpu.minor}" and f"nvidia-cap{minor}" in there:
                gi, ci = _number(parts[1][2:]), _number(parts[2][2:])
                if gi >= 0 and ci >= 0:
                    found.append((gi, ci, 0, 0))
        found.sort()
    return tuple(found)


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


def _numbered(host: Host, path: str, word: str) -> list[int]:
    """The numbers N of the entries "<word>N" of a directory, in their order."""
    found = [_number(name[len(word) :]) for name in host.names(path) if name.startswith(word)]
    return sorted(number for number in found if number >= 0)


def _called(gpu: Gpu | None, steps: str) -> str:
    """What the table calls a capability."""
    return f"gpu{gpu.minor}/{steps}/access" if gpu else steps


def _minors(host: Host) -> dict[str, int]:
    """The driver's table: what a capability is called there, and its number."""
    found = {}
    for line in _text(host, MINORS).split("\n"):
        name, _, minor = line.strip().partition(" ")
        found[name] = _number(minor.strip())
    return found


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 7 else -1


def _text(host: Host, path: str) -> str:
    """The whole lines of a small file: one that breaks off may have lost digits, and name another capability."""
    try:
        data = host.read(path, _TEXT)
    except Fault:
        return ""
    return (data or b"").rpartition(b"\n")[0].decode("utf-8", "replace")
