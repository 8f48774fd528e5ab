"""Device nodes, the rules that let a container open them, and the groups that may; pure.

Cost rule: hot, no imports of the library.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.oci import in_user_namespace, items
from gpu_oci_hook.plan.edits import DeviceNode, DeviceRule, Gid, Mount, Plan, Withheld
from gpu_oci_hook.plan.facts import needs
from gpu_oci_hook.request.devices import everything

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.inventory import Node
    from gpu_oci_hook.plan.facts import Facts

NODE = ("nosuid", "noexec", "bind", "rprivate")


def bound_and_ruled(spec: object, *, inside: bool) -> tuple[bool, bool]:
    """Whether the host's nodes are bound in the place of new ones, and whether device rules are written.

    In a user namespace nothing can mknod: there the host's nodes are bound, and rules count only where the
    engine has some and can enforce them (docker's userns-remap yes, rootless podman no).

    Arguments:
        inside: this process runs in a user namespace.
    """
    bound = inside or in_user_namespace(spec)
    return bound, not inside and (not bound or bool(items(spec, "linux", "resources", "devices")))


def add(facts: Facts, plan: Plan, brought: dict[str, str]) -> None:
    """Device nodes, their rules and groups."""
    bound, rules = bound_and_ruled(facts.spec, inside=facts.inside)
    wanted: list[tuple[Node, str]] = []
    for gpu, origin in facts.chosen:
        if gpu.minor >= 0:  # others have their nodes among the extras
            wanted.append((facts.gpu_nodes[gpu.minor], f"GPU {gpu.index} ({gpu.uuid}): {origin}"))
    for capability, node in facts.nodes:
        why = serves(capability, brought)
        if why:
            wanted.append((node, why))
        else:
            plan.withheld.append(Withheld("device", node.path, needs(capability)))
    chosen = {gpu.index for gpu, _ in facts.chosen}
    every = everything(facts.request.asks)
    left_out = "it is in MIG mode without a MIG device" if every else "this GPU was not asked for"
    for gpu in facts.gpus:
        if gpu.index not in chosen:
            path = f"/dev/nvidia{gpu.minor}" if gpu.minor >= 0 else gpu.model
            name = f"{path} (GPU {gpu.index}{', ' * bool(gpu.uuid)}{gpu.uuid})"
            plan.withheld.append(Withheld("device", name, left_out))
    for capability, path, module in facts.absent_nodes:
        if not serves(capability, brought):
            plan.withheld.append(Withheld("device", path, needs(capability)))
            continue
        reason = f"the kernel module {module.replace('-', '_')} is not loaded (no {module} in /proc/devices)"
        if capability == "display":
            plan.withheld.append(Withheld("device", path, reason))
            plan.warnings.append(f"{path} is not given: {reason}")
            continue
        raise Fault(
            f"{path} is required for {brought.get('compute', 'the driver')}, but {reason}",
            cure=f"Load it: modprobe {module.replace('-', '_')}, or nvidia-modprobe -u -c=0",
        )
    wanted += facts.extra.nodes
    for node, why in facts.extra.optional:
        if node.exists or not bound:
            wanted.append((node, why))
        else:
            reason = f"the host has no {node.source}, and in a user namespace a node cannot be made"
            plan.withheld.append(Withheld("device", node.path, reason))
    groups: list[int] = []
    for node, why in wanted:
        if not bound:
            plan.edits.append(
                DeviceNode(node.path, node.major, node.minor, node.mode, node.uid, node.gid, why)
            )
        elif node.exists:
            reason = f"{why}; bound, since a user namespace cannot make nodes"
            plan.edits.append(Mount(node.source, node.path, NODE, reason, make_way=False))
        else:
            raise Fault(
                f"{node.source} is missing, and in a user namespace a node cannot be made",
                cure="Make it on the host as root: nvidia-modprobe -u -c=0, or start nvidia-persistenced",
            )
        if rules:
            plan.edits.append(DeviceRule(node.major, node.minor, "rw", f"lets the container open {node.path}"))
        if node.gid and node.mode & 0o006 != 0o006 and node.gid not in groups:
            groups.append(node.gid)
            if not facts.inside:
                reason = f"{node.path} is for group {node.gid} (mode {node.mode:04o})"
                plan.edits.append(Gid(node.gid, reason))


def serves(capability: str, brought: dict[str, str]) -> str:
    """Why a control node that serves a capability goes in; "" when it does not."""
    if not capability:
        return "every GPU container needs it"
    # The GL stack opens modeset as well, not a display alone (libnvidia-glsi does).
    for word in (capability, "graphics") if capability == "display" else (capability,):
        if word in brought:
            return f"capability {word}" + ("" if brought[word] == word else f", brought by {brought[word]}")
    return ""
