"""Add device nodes, their cgroup device rules, and the groups that can open them.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.oci import get_list, has_user_namespace
from gpu_oci_hook.model.edits import AddDeviceNode, AddDeviceRule, AddGroup, AddMount, Plan, WithheldItem
from gpu_oci_hook.model.plan_input import explain_missing_capability
from gpu_oci_hook.request.selectors import has_all_selector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import DeviceNode
    from gpu_oci_hook.model.plan_input import PlanInput

NODE_MOUNT_OPTIONS = ("nosuid", "noexec", "bind", "rprivate")


def decide_node_binding(spec: object, *, process_in_user_namespace: bool) -> tuple[bool, bool]:
    """Decide whether nodes are bind mounts of the host's, and whether cgroup device rules are written.

    No process in a user namespace can create device nodes, so there the host's are bound. Rules are then written only
    where the engine enforces them: with docker's userns-remap it does, as rootless podman it cannot.

    Arguments:
        process_in_user_namespace: this process runs in a user namespace.

    Returns:
        (nodes are bound, rules are written).
    """
    bound = process_in_user_namespace or has_user_namespace(spec)
    return bound, not process_in_user_namespace and (not bound or bool(get_list(spec, "linux", "resources", "devices")))


def add_device_nodes(plan_input: PlanInput, plan: Plan, implied_by: dict[str, str]) -> None:
    """Add the device nodes of a request with their rules and groups, and withhold the others.

    Arguments:
        implied_by: see `request.capabilities.add_implied_capabilities`.

    Raises:
        Fault: a required node does not exist, or its kernel module is not loaded.
    """
    bound, needs_rules = decide_node_binding(
        plan_input.container.spec, process_in_user_namespace=plan_input.container.process_in_user_namespace
    )
    nodes = _select_driver_nodes(plan_input, plan, implied_by)
    _withhold_other_gpus(plan_input, plan)
    _report_absent_control_nodes(plan_input, plan, implied_by)
    nodes += plan_input.optional_items.nodes
    for node, reason in plan_input.optional_items.best_effort_nodes:
        if node.exists or not bound:
            nodes.append((node, reason))
        else:
            obstacle = f"the host has no {node.source}, and no node can be created in a user namespace"
            plan.withheld.append(WithheldItem("device", node.path, obstacle))
    _add_node_edits(plan_input, plan, nodes, bound=bound, needs_rules=needs_rules)


def _select_driver_nodes(plan_input: PlanInput, plan: Plan, implied_by: dict[str, str]) -> list[tuple[DeviceNode, str]]:
    """Select the nodes of GPUs and the control nodes, each with its reason; withhold control nodes of no use."""
    nodes = [
        (plan_input.gpu_nodes[gpu.minor], f"GPU {gpu.index} ({gpu.uuid}): {origin}")
        for gpu, origin in plan_input.chosen_gpus
        if gpu.minor >= 0  # the nodes of other GPUs are optional items
    ]
    for capability, node in plan_input.control_nodes:
        reason = find_control_node_reason(capability, implied_by)
        if reason:
            nodes.append((node, reason))
        else:
            plan.withheld.append(WithheldItem("device", node.path, explain_missing_capability(capability)))
    return nodes


def _withhold_other_gpus(plan_input: PlanInput, plan: Plan) -> None:
    chosen = {gpu.index for gpu, _ in plan_input.chosen_gpus}
    all_requested = has_all_selector(plan_input.request.device_requests)
    reason = "it is in MIG mode without a MIG device" if all_requested else "this GPU was not requested"
    for gpu in plan_input.gpus:
        if gpu.index not in chosen:
            name = f"/dev/nvidia{gpu.minor}" if gpu.minor >= 0 else gpu.model
            details = f"GPU {gpu.index}, {gpu.uuid}" if gpu.uuid else f"GPU {gpu.index}"
            plan.withheld.append(WithheldItem("device", f"{name} ({details})", reason))


def _report_absent_control_nodes(plan_input: PlanInput, plan: Plan, implied_by: dict[str, str]) -> None:
    """Withhold control nodes whose kernel module is not loaded.

    Raises:
        Fault: the container cannot do without one.
    """
    for capability, path, module in plan_input.absent_control_nodes:
        if not find_control_node_reason(capability, implied_by):
            plan.withheld.append(WithheldItem("device", path, explain_missing_capability(capability)))
            continue
        reason = f"the kernel module {module.replace('-', '_')} is not loaded (no {module} in /proc/devices)"
        if capability != "display":
            raise Fault(
                f"{path} is required for {implied_by.get('compute', 'the driver')}, but {reason}",
                hint=f"Load it: modprobe {module.replace('-', '_')}, or nvidia-modprobe -u -c=0",
            )
        plan.withheld.append(WithheldItem("device", path, reason))
        plan.warnings.append(f"{path} is left out: {reason}")


def _add_node_edits(
    plan_input: PlanInput, plan: Plan, nodes: list[tuple[DeviceNode, str]], *, bound: bool, needs_rules: bool
) -> None:
    """Add the edits for each node.

    Raises:
        Fault: a node has to be bound and the host does not have it.
    """
    groups: list[int] = []
    for node, reason in nodes:
        if not bound:
            plan.edits.append(AddDeviceNode(node.path, node.major, node.minor, node.mode, node.uid, node.gid, reason))
        elif node.exists:
            bound_reason = f"{reason}; bound, since a user namespace cannot make nodes"
            plan.edits.append(
                AddMount(node.source, node.path, NODE_MOUNT_OPTIONS, bound_reason, clear_mount_point=False)
            )
        else:
            raise Fault(
                f"{node.source} is missing, and no node can be created in a user namespace",
                hint="Create it on the host as root: nvidia-modprobe -u -c=0, or start nvidia-persistenced",
            )
        if needs_rules:
            plan.edits.append(AddDeviceRule(node.major, node.minor, "rw", f"lets the container open {node.path}"))
        if node.gid and node.mode & 0o006 != 0o006 and node.gid not in groups:
            groups.append(node.gid)
            if not plan_input.container.process_in_user_namespace:
                group_reason = f"{node.path} is for group {node.gid} (mode {node.mode:04o})"
                plan.edits.append(AddGroup(node.gid, group_reason))


def find_control_node_reason(capability: str, implied_by: dict[str, str]) -> str:
    """Return why a control node that serves a capability is injected; "" if it is not."""
    if not capability:
        return "every GPU container gets it"
    # The GL stack opens modeset too, not only a display (libnvidia-glsi does).
    for served in (capability, "graphics") if capability == "display" else (capability,):
        if served in implied_by:
            return f"capability {served}" + (
                "" if implied_by[served] == served else f", brought by {implied_by[served]}"
            )
    return ""
