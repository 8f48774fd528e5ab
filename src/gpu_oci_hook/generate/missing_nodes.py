"""Find the device nodes that the host lacks, which a CDI file must not reference. No I/O.

The runtime can create a node in a container from the kernel's numbers. Engines that read a CDI file look up the host's
own node, and rootless ones bind mount it. A file that references a missing node fails every container. A file without
a node that CUDA needs gives containers in which CUDA fails later (facts: cdi-generated-before-uvm-node).

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.plan.devices import find_control_node_reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import DeviceNode
    from gpu_oci_hook.model.plan_input import AbsentControlNode, PlanInput


class MissingNode:
    """A device node that the host lacks.

    Attributes:
        path: path of the node.
        needed_for: what needs it, such as "compute".
        reason: why it is missing, as far as the kernel reports.
        required: whether that does not work without it.
    """

    __slots__ = ("needed_for", "path", "reason", "required")

    def __init__(self, path: str, needed_for: str, reason: str, *, required: bool = True) -> None:
        self.path = path
        self.needed_for = needed_for
        self.reason = reason
        self.required = required

    def __str__(self) -> str:
        verb = "is required for" if self.required else "is left out: it is for"
        return f"{self.path} {verb} {self.needed_for}, and {self.reason}"


def extract_missing_control_nodes(plan_input: PlanInput, implied_by: dict[str, str]) -> list[MissingNode]:
    """Remove the missing control nodes from a plan input, so that the plan does without them.

    Arguments:
        implied_by: driver capabilities, see `capabilities.add_implied_capabilities`. Nodes that serve none of them
            stay; the plan withholds them anyway.

    Returns:
        The removed nodes.
    """
    missing: list[MissingNode] = []
    present: list[tuple[str, DeviceNode]] = []
    for capability, node in plan_input.control_nodes:
        if node.exists or not find_control_node_reason(capability, implied_by):
            present.append((capability, node))
        else:
            missing.append(_make_missing_node(capability, node.path, _describe_absence(node)))
    plan_input.control_nodes = present
    unserved: list[AbsentControlNode] = []
    for entry in plan_input.absent_control_nodes:
        capability, path, module, access = entry
        if find_control_node_reason(capability, implied_by):
            name = module.replace("-", "_")
            reason = access or f"the host has no such node (module {name} loaded: no, from /proc/devices)"
            missing.append(_make_missing_node(capability, path, reason))
        else:
            unserved.append(entry)
    plan_input.absent_control_nodes = unserved
    return missing


def extract_missing_device_nodes(plan_input: PlanInput, device_label: str) -> list[MissingNode]:
    """Find the missing nodes of the devices themselves, and remove the optional ones from a plan input.

    Arguments:
        device_label: name of the device for people, such as "GPU 0".

    Returns:
        All missing nodes.
    """
    missing = [
        MissingNode(node.path, device_label, _describe_absence(node))
        for node in plan_input.gpu_nodes.values()
        if not node.exists
    ]
    missing += [
        MissingNode(node.path, device_label, _describe_absence(node))
        for node, _ in plan_input.optional_items.nodes
        if not node.exists
    ]
    optional_nodes = [node for node, _ in plan_input.optional_items.best_effort_nodes if not node.exists]
    missing += [
        MissingNode(node.path, f"drawing on {device_label}", _describe_absence(node), required=False)
        for node in optional_nodes
    ]
    plan_input.optional_items.best_effort_nodes = [
        (node, reason) for node, reason in plan_input.optional_items.best_effort_nodes if node.exists
    ]
    return missing


def _make_missing_node(capability: str, path: str, reason: str) -> MissingNode:
    return MissingNode(path, capability or "every GPU container", reason, required=capability != "display")


def _describe_absence(node: DeviceNode) -> str:
    name = node.path.rpartition("/")[2]
    loaded = ""
    if name.startswith("nvidia"):
        module = next((known for known in ("nvidia-uvm", "nvidia-modeset") if name.startswith(known)), "nvidia")
        loaded = f" (module {module.replace('-', '_')} loaded: yes, from /proc/devices major {node.major})"
    return f"the host has no node {node.major}:{node.minor} there{loaded}"
