"""Add device nodes, their cgroup device rules, and the groups that can open them.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.oci import get_list, get_member, has_user_namespace, is_bind_mount, normalize_destination
from gpu_oci_hook.model.edits import AddDeviceNode, AddDeviceRule, AddGroup, AddMount, Plan, WithheldItem
from gpu_oci_hook.model.plan_input import explain_missing_capability
from gpu_oci_hook.request.selectors import has_all_selector, is_display_card

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import DeviceNode
    from gpu_oci_hook.model.plan_input import PlanInput
    from gpu_oci_hook.plan.open_devices import OpenDevices

NODE_MOUNT_OPTIONS = ("nosuid", "noexec", "bind", "rprivate")


def decide_node_binding(spec: object, *, process_in_user_namespace: bool) -> tuple[bool, bool]:
    """Decide whether nodes are bind mounts of the host's, and whether cgroup device rules are written.

    No process in a user namespace can create device nodes, so there the host's are bound. Rules are written unless this
    process is in a user namespace itself, where a runtime cannot enforce any (rootless podman). runc enforces its
    default rules even if config.json has none (facts: podman-uidmap-rules).

    Arguments:
        process_in_user_namespace: this process runs in a user namespace.

    Returns:
        (nodes are bound, rules are written).
    """
    bound = process_in_user_namespace or has_user_namespace(spec)
    return bound, not process_in_user_namespace


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
    open_devices = _find_open_devices(plan_input, rules_enforced=needs_rules)
    nodes = _select_driver_nodes(plan_input, plan, implied_by, open_devices)
    _withhold_other_gpus(plan_input, plan, open_devices)
    _report_absent_control_nodes(plan_input, plan, implied_by)
    nodes += plan_input.optional_items.nodes
    for node, reason in plan_input.optional_items.best_effort_nodes:
        if node.exists or not bound:
            nodes.append((node, reason))
        else:
            obstacle = f"the host has no {node.source}, and no node can be created in a user namespace"
            plan.withheld.append(WithheldItem("device", node.path, obstacle))
    _add_node_edits(plan_input, plan, nodes, bound=bound, needs_rules=needs_rules)
    if not bound:  # nodes that are bound are mounted after the mounts of config.json
        _warn_of_hidden_nodes(plan_input.container.spec, plan, [node for node, _ in nodes])


def _warn_of_hidden_nodes(spec: object, plan: Plan, nodes: list[DeviceNode]) -> None:
    """Warn of nodes below a bind mount of config.json, unless it brings the host's own node.

    runc creates nodes after the mounts and keeps what is there; with a bind mount on /dev it creates none
    (facts: nodes-below-mounts).
    """
    mounts: list[tuple[str, str]] = []  # destination and source, which is "" for a file system of the container
    for mount in get_list(spec, "mounts"):
        destination, source = get_member(mount, "destination"), get_member(mount, "source")
        if isinstance(destination, str) and isinstance(source, str):
            path = normalize_destination(destination)
            if f"{path}/".startswith("/dev/"):
                mounts.append((path, normalize_destination(source) if is_bind_mount(mount) else ""))
    hidden: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        covering = [mount for mount in mounts if f"{node.path}/".startswith(f"{mount[0]}/")]
        if covering and covering[-1][1]:
            destination, source = covering[-1]
            if not node.exists or source.rstrip("/") + node.path[len(destination) :] != node.source:
                hidden.setdefault((destination, source), []).append(node.path)
    for (destination, source), paths in hidden.items():
        plan.warnings.append(
            f"config.json mounts {source} on {destination}, so the container has what is there in place of the host's "
            f"{', '.join(paths)}. Remove the mount, or mount the host's own nodes"
        )


def _find_open_devices(plan_input: PlanInput, *, rules_enforced: bool) -> OpenDevices | None:
    """Return what the container can open by its config.json alone; None if that is certainly no device of the driver.

    A rule that allows creating nodes only, which engines write for all numbers, does not count.
    """
    spec = plan_input.container.spec
    known = [*plan_input.gpu_nodes.values(), *(node for _, node in plan_input.control_nodes)]
    if rules_enforced:
        # A rule for all minors has none, and is not among these.
        numbers = [(node.major, node.minor) for node in known]
        majors = (None, -1, _find_nvidia_major(plan_input))
        is_certain = not any(
            get_member(rule, "allow") is True
            and get_member(rule, "access") != "m"
            and get_member(rule, "major") in majors
            and (get_member(rule, "major"), get_member(rule, "minor")) not in numbers
            for rule in get_list(spec, "linux", "resources", "devices")
        )
    else:
        sources = {node.source for node in known}
        tops = (f"{_find_host_root(plan_input)}/dev/nvidia", "/dev/nvidia")
        is_certain = not any(
            isinstance(source, str)
            and source not in sources
            and (source.startswith(tops) or tops[0].startswith(source))
            for source in [get_member(mount, "source") for mount in get_list(spec, "mounts")]
        )
    if is_certain:
        return None
    from gpu_oci_hook.plan.open_devices import OpenDevices

    return OpenDevices(spec, rules_enforced=rules_enforced)


def _find_nvidia_major(plan_input: PlanInput) -> int | None:
    """Return the major number of /dev/nvidiactl and of every GPU's node; None on a machine without them."""
    return next((node.major for _, node in plan_input.control_nodes if node.path == "/dev/nvidiactl"), None)


def _find_host_root(plan_input: PlanInput) -> str:
    """Return the host's root directory without a final slash, as the sources of its nodes show it."""
    return next((node.source.removesuffix(node.path) for _, node in plan_input.control_nodes), "")


def _select_driver_nodes(
    plan_input: PlanInput, plan: Plan, implied_by: dict[str, str], open_devices: OpenDevices | None
) -> list[tuple[DeviceNode, str]]:
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
        elif not open_devices or not open_devices.explain_open(node.major, node.minor, node.source):
            plan.withheld.append(WithheldItem("device", node.path, explain_missing_capability(capability)))
    return nodes


def _withhold_other_gpus(plan_input: PlanInput, plan: Plan, open_devices: OpenDevices | None) -> None:
    """Withhold the other GPUs; warn of those that the container can open all the same."""
    open_gpus: dict[str, list[str]] = {}
    major = _find_nvidia_major(plan_input)
    host_root = _find_host_root(plan_input)
    chosen = {gpu.index for gpu, _ in plan_input.chosen_gpus}
    all_requested = has_all_selector(plan_input.request.device_requests)
    reason = "it is in MIG mode without a MIG device" if all_requested else "this GPU was not requested"
    for gpu in plan_input.gpus:
        if gpu.index not in chosen:
            name = f"/dev/nvidia{gpu.minor}" if gpu.minor >= 0 else gpu.model
            if open_devices and major is not None and gpu.minor >= 0:
                why = open_devices.explain_open(major, gpu.minor, host_root + name)
                if why:
                    open_gpus.setdefault(why, []).append(f"GPU {gpu.index} ({name})")
                    continue
            details = f"GPU {gpu.index}, {gpu.uuid}" if gpu.uuid else f"GPU {gpu.index}"
            why_not = "it is the machine's display card, which all does not include" if is_display_card(gpu) else reason
            plan.withheld.append(WithheldItem("device", f"{name} ({details})", why_not if all_requested else reason))
    for why, names in open_gpus.items():
        plan.warnings.append(f"the container can also open {', '.join(names)}, which it did not request: {why}")


def _report_absent_control_nodes(plan_input: PlanInput, plan: Plan, implied_by: dict[str, str]) -> None:
    """Withhold control nodes whose kernel module is not loaded, or that may not be opened here.

    Raises:
        Fault: the container cannot do without one.
    """
    for capability, path, module, access in plan_input.absent_control_nodes:
        if not find_control_node_reason(capability, implied_by):
            plan.withheld.append(WithheldItem("device", path, explain_missing_capability(capability)))
            continue
        reason = access or f"the kernel module {module.replace('-', '_')} is not loaded (no {module} in /proc/devices)"
        if capability != "display":
            hint = f"Load it: modprobe {module.replace('-', '_')}, or nvidia-modprobe -u -c=0"
            if access:
                outer = f"with the capability {capability}" if capability else "with a GPU or the driver"
                hint = f"Give this user access to the node; in a container, start that container {outer}"
                if capability:
                    hint += ", or request NVIDIA_DRIVER_CAPABILITIES=utility"
            required_by = implied_by.get("compute", "the driver") if capability else "the driver"
            raise Fault(f"{path} is required for {required_by}, but {reason}", hint=hint)
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
