"""What the host does not have at this moment, so that a file that engines read later must not promise it; pure.

A container that starts now can have a node made from the kernel's numbers. A CDI file is read by engines that look
at the host's own node, and in a rootless one bind it, so one without a node there would fail every container, and one
without the node in the file gives a container in which CUDA fails later (field reports A2-08, A2-09).
Cost rule: imported only to make a CDI file.
"""

from __future__ import annotations

from gpu_oci_hook.plan.devices import find_control_node_reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import DeviceNode
    from gpu_oci_hook.model.plan_input import PlanInput


class MissingNode:
    """One node that is not there.

    Attributes:
        path: of the node. needed_for: for what, such as "compute". reason: why, as far as the kernel tells.
        required: whether what needs it is nothing without it.
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
    """The control nodes that are missing; they are taken out of the facts, so that the plan is one without them.

    Arguments:
        implied_by: see `capabilities.add_implied_capabilities`; what serves no capability of these stays and is withheld as ever.
    """
    found: list[MissingNode] = []
    there: list[tuple[str, DeviceNode]] = []
    for capability, node in plan_input.control_nodes:
        if node.exists or not find_control_node_reason(capability, implied_by):
            there.append((capability, node))
        else:
            found.append(_make_missing_node(capability, node.path, _describe_absence(node)))
    plan_input.control_nodes = there
    unserved: list[tuple[str, str, str]] = []
    for capability, path, module in plan_input.absent_control_nodes:
        if find_control_node_reason(capability, implied_by):
            name = module.replace("-", "_")
            reason = f"the host has no such node (module {name} loaded: no, from /proc/devices)"
            found.append(_make_missing_node(capability, path, reason))
        else:
            unserved.append((capability, path, module))
    plan_input.absent_control_nodes = unserved
    return found


def extract_missing_device_nodes(plan_input: PlanInput, device_label: str) -> list[MissingNode]:
    """The missing nodes of the devices themselves. Optional ones are taken out of the facts.

    Arguments:
        device_label: its name for people, such as "GPU 0".
    """
    found = [
        MissingNode(node.path, device_label, _describe_absence(node))
        for node in plan_input.gpu_nodes.values()
        if not node.exists
    ]
    found += [
        MissingNode(node.path, device_label, _describe_absence(node))
        for node, _ in plan_input.optional_items.nodes
        if not node.exists
    ]
    optional = [node for node, _ in plan_input.optional_items.best_effort_nodes if not node.exists]
    found += [
        MissingNode(node.path, f"drawing on {device_label}", _describe_absence(node), required=False)
        for node in optional
    ]
    plan_input.optional_items.best_effort_nodes = [
        (node, why) for node, why in plan_input.optional_items.best_effort_nodes if node.exists
    ]
    return found


def _make_missing_node(capability: str, path: str, reason: str) -> MissingNode:
    return MissingNode(path, capability or "every GPU container", reason, required=capability != "display")


def _describe_absence(node: DeviceNode) -> str:
    name = node.path.rpartition("/")[2]
    loaded = ""
    if name.startswith("nvidia"):
        module = next((word for word in ("nvidia-uvm", "nvidia-modeset") if name.startswith(word)), "nvidia")
        loaded = f" (module {module.replace('-', '_')} loaded: yes, from /proc/devices major {node.major})"
    return f"the host has no node {node.major}:{node.minor} there{loaded}"
