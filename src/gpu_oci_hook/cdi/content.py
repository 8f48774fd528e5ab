"""From a plan to the parts of a CDI file: device nodes, mounts, groups, and the links that our hook makes.

The plan is the shim's, for a container without an image: what depends on the image (its library directory, its
loader's cache) is left to the hook, which asks the same functions when the image is there.

Numbers in device nodes. NVIDIA's 195 and DRM's 226 are the kernel's for good, so these nodes are written with type,
major and minor, and no engine has to look at the host's. The majors of nvidia-uvm, nvidia-caps and the like are given
when a module is loaded: written down they would one day be another device's (case R05: 510 was nvidia-uvm and is
nvidia-caps after a boot), and engines would inject that without a word. Such nodes have no numbers, and every engine
takes them from the host's own node as a container starts. If that is missing then, the container fails with its
name. Cost rule: cold; pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gpu_oci_hook.cdi.errand import Errand
from gpu_oci_hook.container import loader
from gpu_oci_hook.container.image import Image
from gpu_oci_hook.formats import ARCHITECTURES, SMALL
from gpu_oci_hook.host.inventory import DriverFile, Node
from gpu_oci_hook.plan.edits import DeviceNode, DeviceRule, Directory, Env, File, Gid, Link, Mount, Plan
from gpu_oci_hook.plan.facts import Facts

Edits = dict[str, Any]
"""A `containerEdits` object."""

LASTING = frozenset((195, 226))  # Documentation/admin-guide/devices.txt of the kernel
VOID = "NVIDIA_VISIBLE_DEVICES=void"

# The library directories of an image that nobody knows yet.
OWN, OWN32 = "/@own", "/@own32"
BY_PATH = "/dev/dri/by-path/"
NOWHERE = "/@nowhere"


class NoImage:
    """The root of a container that does not exist yet: nothing is in it, see `plan.places.Target`."""

    def destination(self, path: str) -> str:
        """The path: there are no links."""
        return path

    def resolve(self, path: str) -> None:
        """Nothing is there."""

    def names(self, path: str, limit: int = 0) -> list[str]:
        """Nothing is there."""
        return []

    def status(self, path: str, *, follow: bool = False) -> None:
        """Nothing is there."""

    def statuses(self, path: str, names: Iterable[str]) -> dict[str, Any]:
        """Nothing is there."""
        return {}


def without_image(facts: Facts, machine: str) -> None:
    """Completes the facts for a container that does not exist yet.

    Arguments:
        machine: `uname -m` of what it will run on.
    """
    small = ARCHITECTURES[machine].small if machine in ARCHITECTURES else ""
    facts.image = Image(arch=machine, library_dir=OWN, library_dir32=OWN32 if small else OWN)
    facts.target = NoImage()
    facts.rootfs = ""
    facts.generated = facts.prepared = NOWHERE
    facts.inside = False
    facts.params = None  # the hook's business: it sees which nodes the container has
    facts.mount_program = False
    facts.datacenter = False


@dataclass
class Content:
    """What a plan brings, in CDI's words.

    Attributes:
        nodes: by path in the container. mounts: by place in the container. gids: additional groups.
        env: entries. links: (target, path in the container); plugins, plugins32: (target, name in the image's
            own library directory).
        folders, folders32: directories for the loader.
    """

    nodes: dict[str, Edits] = field(default_factory=dict)
    mounts: dict[str, Edits] = field(default_factory=dict)
    gids: list[int] = field(default_factory=list)
    env: list[str] = field(default_factory=list)
    links: list[tuple[str, str]] = field(default_factory=list)
    plugins: list[tuple[str, str]] = field(default_factory=list)
    plugins32: list[tuple[str, str]] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    folders32: list[str] = field(default_factory=list)

    def beyond(self, other: Content) -> Content:
        """What this has and the other has not: nodes, mounts, groups and variables."""
        return Content(
            nodes={path: node for path, node in self.nodes.items() if path not in other.nodes},
            mounts={place: mount for place, mount in self.mounts.items() if place not in other.mounts},
            gids=[gid for gid in self.gids if gid not in other.gids],
            env=[entry for entry in self.env if entry not in other.env],
        )

    def edits(self, hook: Edits | None = None) -> Edits:
        """As a `containerEdits` object, keys in the specification's order, empty ones left out."""
        found: Edits = {
            "env": self.env,
            "deviceNodes": list(self.nodes.values()),
            "hooks": [hook] if hook else [],
            "mounts": list(self.mounts.values()),
            "additionalGids": self.gids,
        }
        return {key: value for key, value in found.items() if value}

    def errand(self) -> Errand:
        """What the hook has to do about files; the rest is the configuration's."""
        made = Errand()
        made.links, made.plugins, made.plugins32 = self.links, self.plugins, self.plugins32
        made.folders, made.folders32 = self.folders, self.folders32
        return made

    def bind_links(self) -> list[str]:
        """Makes the links mounts of what they lead to, for a file without our hook; those that cannot be, by path."""
        left: list[str] = []
        for target, path in self.links:
            wanted = target if target.startswith("/") else f"{path.rpartition('/')[0]}/{target}"
            mount = self.mounts.get(wanted)
            if mount is None:
                left.append(path)
            else:
                self.mounts[path] = {**mount, "containerPath": path}
        return left


def of(plan: Plan, facts: Facts) -> Content:
    """The content of a plan made from these facts."""
    found = Content()
    access = {(edit.major, edit.minor): edit.access for edit in plan.edits if isinstance(edit, DeviceRule)}
    sources = {node.path: node for node in _nodes(facts)}
    small = {file.source for file in _libraries(facts) if file.arch in SMALL}
    below32: set[str] = set()
    for edit in plan.edits:
        if isinstance(edit, DeviceNode):
            found.nodes[edit.path] = node(edit, sources[edit.path].source, access[edit.major, edit.minor])
        elif isinstance(edit, Gid):
            found.gids.append(edit.gid)
        elif isinstance(edit, Env):
            found.env.append(f"{edit.name}={edit.value}")
        elif isinstance(edit, Mount) and not edit.source.startswith(f"{NOWHERE}/"):
            found.mounts[edit.destination] = {
                "hostPath": edit.source, "containerPath": edit.destination, "options": list(edit.options),
            }  # fmt: skip
            if edit.source in small:
                below32.add(edit.destination.rpartition("/")[0])
        elif isinstance(edit, Directory):
            found.links += [(target, f"{edit.destination}/{name}") for name, target in edit.entries if target]
        elif isinstance(edit, Link):
            _link(found, edit)
    for folder in _folders(plan):
        (found.folders32 if folder in below32 else found.folders).append(folder)
    return found


def node(edit: DeviceNode, source: str, access: str) -> Edits:
    """A `deviceNodes` entry; see the module about its numbers. Owner and group are said even when they are root's.

    Engines give a node without an owner to the container's user (ecosystem facts 1.5).
    """
    made: Edits = {"path": edit.path}
    if source != edit.path:
        made["hostPath"] = source
    made["type"] = "c"
    if edit.major in LASTING:
        made["major"], made["minor"] = edit.major, edit.minor
    made.update(fileMode=edit.mode, permissions=access, uid=edit.uid, gid=edit.gid)
    return made


def _link(found: Content, edit: Link) -> None:
    if edit.path.startswith(BY_PATH):
        return  # the hook names the nodes that the container has
    for top, plugins in ((f"{OWN}/", found.plugins), (f"{OWN32}/", found.plugins32)):
        if edit.path.startswith(top):
            name = edit.path[len(top) :]
            if "/" in name:  # the main libraries' names are the hook's own business
                plugins.append((edit.target, name))
            return
    found.links.append((edit.target, edit.path))


def _folders(plan: Plan) -> list[str]:
    """The directories that the plan tells the loader of: its drop-in names them all."""
    for edit in plan.edits:
        if isinstance(edit, File) and edit.path == loader.DROP_IN:
            return [line for line in edit.content.decode().splitlines() if not line.startswith("#")]
    return []


def _nodes(facts: Facts) -> list[Node]:
    found = [node for _, node in facts.nodes]
    found += facts.gpu_nodes.values()
    return found + [node for node, _ in (*facts.extra.nodes, *facts.extra.optional)]


def _libraries(facts: Facts) -> list[DriverFile]:
    return [*facts.inventory.files, *[file for file, _ in facts.extra.files]]
