"""What the host does not have at this moment, so that a file that engines read later must not promise it; pure.

A container that starts now can have a node made from the kernel's numbers. A CDI file is read by engines that look
at the host's own node, and in a rootless one bind it, so one without a node there would fail every container, and one
without the node in the file gives a container in which CUDA fails later (field reports A2-08, A2-09).
Cost rule: imported only to make a CDI file.
"""

from __future__ import annotations

from gpu_oci_hook.plan.devices import serves

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.inventory import Node
    from gpu_oci_hook.plan.facts import Facts


class Missing:
    """One node that is not there.

    Attributes:
        path: of the node. needed: for what, such as "compute". reason: why, as far as the kernel tells.
        required: whether what needs it is nothing without it.
    """

    __slots__ = ("needed", "path", "reason", "required")

    def __init__(self, path: str, needed: str, reason: str, *, required: bool = True) -> None:
        self.path = path
        self.needed = needed
        self.reason = reason
        self.required = required

    def __str__(self) -> str:
        verb = "is required for" if self.required else "is left out: it is for"
        return f"{self.path} {verb} {self.needed}, and {self.reason}"


def control(facts: Facts, brought: dict[str, str]) -> list[Missing]:
    """The control nodes that are missing; they are taken out of the facts, so that the plan is one without them.

    Arguments:
        brought: see `capabilities.with_brought`; what serves no capability of these stays and is withheld as ever.
    """
    found: list[Missing] = []
    there: list[tuple[str, Node]] = []
    for capability, node in facts.nodes:
        if node.exists or not serves(capability, brought):
            there.append((capability, node))
        else:
            found.append(_missing(capability, node.path, _not_there(node)))
    facts.nodes = there
    unserved: list[tuple[str, str, str]] = []
    for capability, path, module in facts.absent_nodes:
        if serves(capability, brought):
            name = module.replace("-", "_")
            reason = f"the host has no such node (module {name} loaded: no, from /proc/devices)"
            found.append(_missing(capability, path, reason))
        else:
            unserved.append((capability, path, module))
    facts.absent_nodes = unserved
    return found


def own(facts: Facts, device: str) -> list[Missing]:
    """The missing nodes of the devices themselves. Optional ones are taken out of the facts.

    Arguments:
        device: its name for people, such as "GPU 0".
    """
    found = [Missing(node.path, device, _not_there(node)) for node in facts.gpu_nodes.values() if not node.exists]
    found += [Missing(node.path, device, _not_there(node)) for node, _ in facts.extra.nodes if not node.exists]
    optional = [node for node, _ in facts.extra.optional if not node.exists]
    found += [Missing(node.path, f"drawing on {device}", _not_there(node), required=False) for node in optional]
    facts.extra.optional = [(node, why) for node, why in facts.extra.optional if node.exists]
    return found


def _missing(capability: str, path: str, reason: str) -> Missing:
    return Missing(path, capability or "every GPU container", reason, required=capability != "display")


def _not_there(node: Node) -> str:
    name = node.path.rpartition("/")[2]
    loaded = ""
    if name.startswith("nvidia"):
        module = next((word for word in ("nvidia-uvm", "nvidia-modeset") if name.startswith(word)), "nvidia")
        loaded = f" (module {module.replace('-', '_')} loaded: yes, from /proc/devices major {node.major})"
    return f"the host has no node {node.major}:{node.minor} there{loaded}"
