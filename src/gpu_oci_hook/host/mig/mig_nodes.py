"""Resolve the capability nodes of MIG devices, which let a container open its own instances.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host.device_nodes import DeviceMajors, ModuleParameters, resolve_device_node
from gpu_oci_hook.host.mig.capability_files import (
    CAPABILITIES_DIR,
    CAPS_DIRECTORY,
    MIG_MINORS,
    format_capability_name,
    list_numbered_entries,
    open_mig_tree,
    read_capability_file,
    read_capability_minors,
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

_TABLE_THRESHOLD = 16  # number of MIG devices above which reading the minors table is faster than the files of each
_DEFAULT_MODE = 0o444
_NO_CAPABILITIES = "this driver has no MIG (no nvidia-caps in /proc/devices)"


def add_mig_nodes(
    items: OptionalItems,
    mig_devices: MigDevices,
    chosen: list[tuple[MigDevice, str]],
    rights: tuple[tuple[str, str], ...],
    gpus: list[Gpu],
    node_settings: NodeSettings,
) -> None:
    """Add the capability nodes of MIG devices, and of the rights to configure and monitor MIG.

    Arguments:
        chosen: the MIG devices that are injected, each with the origin of its request.
        rights: ("config" or "monitor", origin). A right brings its own node and those of all instances of `gpus`, which
            programs that configure or monitor MIG open (facts: mig-rights-nodes).
        node_settings: majors, the module's parameters, and a list that takes sentences about unexpected nodes.

    Raises:
        Fault: the driver does not report the device number of a capability.
    """
    host = mig_devices.host
    if node_settings[0].caps is None and host.list_names(CAPABILITIES_DIR):
        # The container's /proc shows the files that grant the rights (facts: mig-450-proc-rights).
        items.warnings.append("no nvidia-caps in /proc/devices: this driver grants MIG rights through /proc alone")
        return
    if node_settings[0].caps is None and not chosen:
        for right, origin in rights:
            items.withheld.append(("request", describe_mig_right(right), f"{origin}, but {_NO_CAPABILITIES}"))
            items.warnings.append(f"{describe_mig_right(right)} is not granted ({origin}): {_NO_CAPABILITIES}")
        return
    nodes: dict[str, tuple[DeviceNode, str]] = {}
    capability_nodes = _CapabilityNodes(host, node_settings, use_table=len(chosen) > _TABLE_THRESHOLD or bool(rights))

    def add_node(gpu: Gpu | None, capability: str, reason: str) -> None:
        node = capability_nodes.build_node(gpu, capability, reason)
        nodes.setdefault(node.path, (node, reason))

    for device, origin in chosen:
        label = f"MIG device {device.name}" + (f" ({device.uuid})" if device.uuid else "")
        add_node(device.gpu, f"gi{device.gi}", f"GPU instance {device.gi} of {label}: {origin}")
        add_node(device.gpu, f"gi{device.gi}/ci{device.ci}", f"compute instance {device.ci} of {label}: {origin}")
    for right, origin in rights:
        add_node(None, right, f"{describe_mig_right(right)}: {origin}")
        for gpu in gpus:
            tree = open_mig_tree(host, gpu)
            for gi in list_numbered_entries(tree, "/", "gi"):
                label = f"GPU instance {gi} of GPU {gpu.index}"
                add_node(gpu, f"gi{gi}", f"{label}: {origin}")
                for ci in list_numbered_entries(tree, f"/gi{gi}", "ci"):
                    add_node(gpu, f"gi{gi}/ci{ci}", f"compute instance {ci} of {label}: {origin}")
    items.nodes += nodes.values()


class _CapabilityNodes:
    """Builds the nodes of MIG capabilities; each directory is resolved once.

    Arguments:
        use_table: read the minors table first. It has thousands of entries; the driver's tree has a file with minor and
            mode for each capability.
    """

    __slots__ = ("_caps_directory", "_host", "_minors_table", "_node_settings", "_trees")

    def __init__(self, host: Host, node_settings: NodeSettings, *, use_table: bool) -> None:
        self._host = host
        self._node_settings = node_settings
        self._caps_directory = host.sub_host(CAPS_DIRECTORY)
        self._trees: dict[int, Host] = {}
        self._minors_table = read_capability_minors(host) if use_table else {}

    def build_node(self, gpu: Gpu | None, capability: str, reason: str) -> DeviceNode:
        """Return the node of a capability, with its minor from the driver's tree or table.

        Arguments:
            gpu: None for the machine's own capabilities.
            capability: "gi1", "gi1/ci0", "config" or "monitor".
            reason: names the request in an error.

        Raises:
            Fault: the driver does not report the number.
        """
        majors, parameters, problems = self._node_settings
        minor = self._minors_table.get(format_capability_name(gpu, capability), -1)
        mode = _DEFAULT_MODE
        # The mode is needed only if the host has no node.
        if minor < 0 or self._caps_directory.stat_path(f"/nvidia-cap{minor}", follow=False) is None:
            minor, mode = self._read_minor_and_mode(gpu, capability, minor)
        if minor < 0 or majors.caps is None:
            file = self._open_mig_tree(gpu).full_path(self._capability_path(gpu, capability))
            raise Fault(
                f"the device number of the MIG capability {capability} is unknown: "
                + ("no nvidia-caps in /proc/devices" if majors.caps is None else f"not in {file} or {MIG_MINORS}"),
                where=reason,
                hint="Use a GPU and a driver that support MIG",
            )
        defaults = ModuleParameters(mode=mode, uid=parameters.uid, gid=parameters.gid)
        node = resolve_device_node(self._caps_directory, f"/nvidia-cap{minor}", majors.caps, minor, defaults, problems)
        node.path = CAPS_DIRECTORY + node.path
        return node

    def _read_minor_and_mode(self, gpu: Gpu | None, capability: str, table_minor: int) -> tuple[int, int]:
        """Return a capability's minor and mode from the driver's tree, or the table's minor if the tree has none."""
        minor, mode = read_capability_file(self._open_mig_tree(gpu), self._capability_path(gpu, capability))
        if minor < 0 and table_minor < 0:
            self._minors_table = self._minors_table or read_capability_minors(self._host)
            minor = self._minors_table.get(format_capability_name(gpu, capability), -1)
        return minor if minor >= 0 else table_minor, mode & 0o777 if mode >= 0 else _DEFAULT_MODE

    @staticmethod
    def _capability_path(gpu: Gpu | None, capability: str) -> str:
        """Return the path of a capability's file in its tree."""
        return f"/{capability}{'/access' if gpu else ''}"

    def _open_mig_tree(self, gpu: Gpu | None) -> Host:
        key = gpu.minor if gpu else -1
        tree = self._trees.get(key)
        if tree is None:
            tree = self._trees[key] = open_mig_tree(self._host, gpu)
        return tree
