"""The device nodes of MIG devices, and of the rights over all of them: what lets a container open its own instances.

Cost rule: imported only where a container or a GPU has to do with MIG.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats import proc
from gpu_oci_hook.host import mig_tree, nodes
from gpu_oci_hook.host.gpus import CAPABILITIES
from gpu_oci_hook.request.mig import title

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.extra import Extra
    from gpu_oci_hook.host.inventory import Gpu, Node
    from gpu_oci_hook.host.mig import Instances, Mig
    from gpu_oci_hook.host.root import Host

    Machine = tuple[nodes.Majors, nodes.Params, list[str]]

_MANY = 16  # MIG devices from which on the table is the cheaper of the two places of their numbers


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
            tree = mig_tree.root(host, gpu)
            for gi in mig_tree.numbered(tree, "/", "gi"):
                add(gpu, f"gi{gi}", f"GPU instance {gi} of GPU {gpu.index}: {origin}")
                for ci in mig_tree.numbered(tree, f"/gi{gi}", "ci"):
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
        self._dev = host.below(mig_tree.NODES)
        self._trees: dict[int, Host] = {}
        self._table = mig_tree.minors(host) if many else {}

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
        minor = self._table.get(mig_tree.called(gpu, steps), -1)
        mode = 0o444
        # The mode counts only where the host has no node.
        if minor < 0 or self._dev.status(f"/nvidia-cap{minor}", follow=False) is None:
            minor, mode = self._of_tree(gpu, steps, minor)
        if minor < 0 or numbers.caps is None:
            what = f"neither {self._tree_of(gpu).path(steps + '/access' * bool(gpu))} nor {mig_tree.MINORS} has it"
            raise Fault(
                f"the device number of the MIG capability {steps} is not known: "
                f"{'no nvidia-caps in /proc/devices' if numbers.caps is None else what}",
                where=why,
                cure="MIG needs a GPU and a driver that support it",
            )
        wanted = nodes.Params(mode=mode, uid=defaults.uid, gid=defaults.gid)
        made = nodes.node(self._dev, f"/nvidia-cap{minor}", numbers.caps, minor, wanted, problems)
        made.path = mig_tree.NODES + made.path
        return made

    def _of_tree(self, gpu: Gpu | None, steps: str, minor: int) -> tuple[int, int]:
        """The number and mode that the driver's tree has for a capability; the given number where it has none."""
        table = proc.params(mig_tree.text(self._tree_of(gpu), f"/{steps}{'/access' if gpu else ''}"))
        said, mode = mig_tree.number(table.get("DeviceFileMinor", "")), mig_tree.number(table.get("DeviceFileMode", ""))
        if said < 0 and minor < 0:
            self._table = self._table or mig_tree.minors(self._host)
            said = self._table.get(mig_tree.called(gpu, steps), -1)
        return said if said >= 0 else minor, mode & 0o777 if mode >= 0 else 0o444

    def _tree_of(self, gpu: Gpu | None) -> Host:
        key = gpu.minor if gpu else -1
        tree = self._trees.get(key)
        if tree is None:
            tree = self._trees[key] = mig_tree.root(self._host, gpu)
        return tree
