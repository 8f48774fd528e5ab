"""The device nodes of MIG devices, and of the rights over all of them: what lets a container open its own instances.

Cost rule: imported only where a container or a GPU has to do with MIG.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.proc import parse_key_value_lines
from gpu_oci_hook.host.device_nodes import DeviceMajors, ModuleParameters, resolve_device_node
from gpu_oci_hook.host.mig.capability_files import (
    CAPABILITIES_DIR,
    CAPS_DIRECTORY,
    MIG_MINORS,
    format_capability_name,
    list_numbered_entries,
    open_mig_tree,
    parse_small_number,
    read_capability_minors,
    read_whole_lines,
)
from gpu_oci_hook.request.mig_selectors import describe_mig_right

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.mig.mig_devices import MigDevices
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.machine import DeviceNode, Gpu
    from gpu_oci_hook.model.mig import MigDevice
    from gpu_oci_hook.model.optional_devices import OptionalItems

    NodeSettings = tuple[DeviceMajors, ModuleParameters, list[str]]

_TABLE_THRESHOLD = 16  # MIG devices from which on the table is the cheaper of the two places of their numbers


def add_mig_nodes(
    items: OptionalItems,
    mig_devices: MigDevices,
    chosen: list[tuple[MigDevice, str]],
    rights: tuple[tuple[str, str], ...],
    gpus: list[Gpu],
    node_settings: NodeSettings,
) -> None:
    """The capability nodes of MIG devices, and of the rights over all of them.

    Arguments:
        chosen: the MIG devices that go in, each with whose word it was.
        rights: ("config" or "monitor", origin): bring the right's own node, and every instance of `gpus`, as libnvidia-
            container gives them: who makes and watches instances opens them.
        node_settings: the majors, the module's parameters, and where sentences about odd nodes go.

    Raises:
        Fault: the driver does not say the number of one.
    """
    host = mig_devices.host
    if node_settings[0].caps is None and host.list_names(CAPABILITIES_DIR):
        # Drivers of the 450 series: to open the file below /proc is the right, and the container's /proc has it.
        items.warnings.append("there are no nvidia-caps in /proc/devices: this driver gives MIG rights by /proc alone")
        return
    given: dict[str, tuple[DeviceNode, str]] = {}
    places = _CapabilityNodes(host, node_settings, use_table=len(chosen) > _TABLE_THRESHOLD or bool(rights))

    def add(gpu: Gpu | None, steps: str, why: str) -> None:
        node = places.build_node(gpu, steps, why)
        given.setdefault(node.path, (node, why))

    for one, origin in chosen:
        who = f"MIG device {one.name}" + (f" ({one.uuid})" if one.uuid else "")
        add(one.gpu, f"gi{one.gi}", f"GPU instance {one.gi} of {who}: {origin}")
        add(one.gpu, f"gi{one.gi}/ci{one.ci}", f"compute instance {one.ci} of {who}: {origin}")
    for right, origin in rights:
        add(None, right, f"{describe_mig_right(right)}: {origin}")
        for gpu in gpus:
            tree = open_mig_tree(host, gpu)
            for gi in list_numbered_entries(tree, "/", "gi"):
                add(gpu, f"gi{gi}", f"GPU instance {gi} of GPU {gpu.index}: {origin}")
                for ci in list_numbered_entries(tree, f"/gi{gi}", "ci"):
                    add(gpu, f"gi{gi}/ci{ci}", f"compute instance {ci} of it: {origin}")
    items.nodes += given.values()


class _CapabilityNodes:
    """Where a host has its MIG capabilities: each directory is walked to once.

    Arguments:
        use_table: of the numbers that are wanted. The driver's tree has number and mode of each in a file of its own, its
            table has all that there could ever be: thousands.
    """

    __slots__ = ("_caps_directory", "_host", "_minors_table", "_node_settings", "_trees")

    def __init__(self, host: Host, node_settings: NodeSettings, *, use_table: bool) -> None:
        self._host = host
        self._node_settings = node_settings
        self._caps_directory = host.sub_host(CAPS_DIRECTORY)
        self._trees: dict[int, Host] = {}
        self._minors_table = read_capability_minors(host) if use_table else {}

    def build_node(self, gpu: Gpu | None, capability: str, reason: str) -> DeviceNode:
        """The node of one capability, its number from the driver's tree or table.

        Arguments:
            gpu: None for the machine's own capabilities.
            capability: "gi1", "gi1/ci0"; "config", "monitor".
            reason: whose word asks for it.

        Raises:
            Fault: the driver does not say the number.
        """
        numbers, defaults, problems = self._node_settings
        minor = self._minors_table.get(format_capability_name(gpu, capability), -1)
        mode = 0o444
        # The mode counts only where the host has no node.
        if minor < 0 or self._caps_directory.stat_path(f"/nvidia-cap{minor}", follow=False) is None:
            minor, mode = self._read_minor_and_mode(gpu, capability, minor)
        if minor < 0 or numbers.caps is None:
            what = f"neither {self._open_mig_tree(gpu).full_path(capability + '/access' * bool(gpu))} nor {MIG_MINORS} has it"
            raise Fault(
                f"the device number of the MIG capability {capability} is not known: "
                f"{'no nvidia-caps in /proc/devices' if numbers.caps is None else what}",
                where=reason,
                hint="MIG needs a GPU and a driver that support it",
            )
        wanted = ModuleParameters(mode=mode, uid=defaults.uid, gid=defaults.gid)
        made = resolve_device_node(self._caps_directory, f"/nvidia-cap{minor}", numbers.caps, minor, wanted, problems)
        made.path = CAPS_DIRECTORY + made.path
        return made

    def _read_minor_and_mode(self, gpu: Gpu | None, capability: str, minor: int) -> tuple[int, int]:
        """The number and mode that the driver's tree has for a capability; the given number where it has none."""
        table = parse_key_value_lines(
            read_whole_lines(self._open_mig_tree(gpu), f"/{capability}{'/access' if gpu else ''}")
        )
        said, mode = (
            parse_small_number(table.get("DeviceFileMinor", "")),
            parse_small_number(table.get("DeviceFileMode", "")),
        )
        if said < 0 and minor < 0:
            self._minors_table = self._minors_table or read_capability_minors(self._host)
            said = self._minors_table.get(format_capability_name(gpu, capability), -1)
        return said if said >= 0 else minor, mode & 0o777 if mode >= 0 else 0o444

    def _open_mig_tree(self, gpu: Gpu | None) -> Host:
        key = gpu.minor if gpu else -1
        tree = self._trees.get(key)
        if tree is None:
            tree = self._trees[key] = open_mig_tree(self._host, gpu)
        return tree
