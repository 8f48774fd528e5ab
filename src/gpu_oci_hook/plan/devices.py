"""Device nodes, the rules that let a container open them, and the groups that may; pure.

Cost rule: hot, no imports of the library.
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
    """Whether the host's nodes are bound in the place of new ones, and whether device rules are written.

    In a user namespace nothing can mknod: there the host's nodes are bound, and rules count only where the
    engine has some and can enforce them (docker's userns-remap yes, rootless podman no).

    Arguments:
        process_in_user_namespace: this process runs in a user namespace.
    """
    bound = process_in_user_namespace or has_user_namespace(spec)
    return bound, not process_in_user_namespace and (not bound or bool(get_list(spec, "linux", "resources", "devices")))


def add_device_nodes(plan_input: PlanInput, plan: Plan, implied_by: dict[str, str]) -> None:
    """Device nodes, their rules and groups."""
    bound, rules = decide_node_binding(
        plan_input.container.spec, process_in_user_namespace=plan_input.container.process_in_user_namespace
    )
    wanted: list[tuple[DeviceNode, str]] = []
    for gpu, origin in plan_input.chosen_gpus:
        if gpu.minor >= 0:  # others have their nodes among the extras
            wanted.append((plan_input.gpu_nodes[gpu.minor], f"GPU {gpu.index} ({gpu.uuid}): {origin}"))
    for capability, node in plan_input.control_nodes:
        why = find_control_node_reason(capability, implied_by)
        if why:
            wanted.append((node, why))
        else:
            plan.withheld.append(WithheldItem("device", node.path, explain_missing_capability(capability)))
    chosen = {gpu.index for gpu, _ in plan_input.chosen_gpus}
    every = has_all_selector(plan_input.request.device_requests)
    left_out = "it is in MIG mode without a MIG device" if every else "this GPU was not asked for"
    for gpu in plan_input.gpus:
        if gpu.index not in chosen:
            path = f"/dev/nvidia{gpu.minor}" if gpu.minor >= 0 else gpu.model
            name = f"{path} (GPU {gpu.index}{', ' * bool(gpu.uuid)}{gpu.uuid})"
            plan.withheld.append(WithheldItem("device", name, left_out))
    for capability, path, module in plan_input.absent_control_nodes:
        if not find_control_node_reason(capability, implied_by):
            plan.withheld.append(WithheldItem("device", path, explain_missing_capability(capability)))
            continue
        reason = f"the kernel module {module.replace('-', '_')} is not loaded (no {module} in /proc/devices)"
        if capability == "display":
            plan.withheld.append(WithheldItem("device", path, reason))
            plan.warnings.append(f"{path} is not given: {reason}")
            continue
        raise Fault(
            f"{path} is required for {implied_by.get('compute', 'the driver')}, but {reason}",
            hint=f"Load it: modprobe {module.replace('-', '_')}, or nvidia-modprobe -u -c=0",
        )
    wanted += plan_input.optional_items.nodes
    for node, why in plan_input.optional_items.best_effort_nodes:
        if node.exists or not bound:
            wanted.append((node, why))
        else:
            reason = f"the host has no {node.source}, and in a user namespace a node cannot be made"
            plan.withheld.append(WithheldItem("device", node.path, reason))
    groups: list[int] = []
    for node, why in wanted:
        if not bound:
            plan.edits.append(AddDeviceNode(node.path, node.major, node.minor, node.mode, node.uid, node.gid, why))
        elif node.exists:
            reason = f"{why}; bound, since a user namespace cannot make nodes"
            plan.edits.append(AddMount(node.source, node.path, NODE_MOUNT_OPTIONS, reason, clear_mount_point=False))
        else:
            raise Fault(
                f"{node.source} is missing, and in a user namespace a node cannot be made",
                hint="Make it on the host as root: nvidia-modprobe -u -c=0, or start nvidia-persistenced",
            )
        if rules:
            plan.edits.append(AddDeviceRule(node.major, node.minor, "rw", f"lets the container open {node.path}"))
        if node.gid and node.mode & 0o006 != 0o006 and node.gid not in groups:
            groups.append(node.gid)
            if not plan_input.container.process_in_user_namespace:
                reason = f"{node.path} is for group {node.gid} (mode {node.mode:04o})"
                plan.edits.append(AddGroup(node.gid, reason))


def find_control_node_reason(capability: str, implied_by: dict[str, str]) -> str:
    """Why a control node that serves a capability goes in; "" when it does not."""
    if not capability:
        return "every GPU container needs it"
    # The GL stack opens modeset as well, not a display alone (libnvidia-glsi does).
    for word in (capability, "graphics") if capability == "display" else (capability,):
        if word in implied_by:
            return f"capability {word}" + ("" if implied_by[word] == word else f", brought by {implied_by[word]}")
    return ""
