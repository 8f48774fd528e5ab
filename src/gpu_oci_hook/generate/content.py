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

from gpu_oci_hook.container.image import Image
from gpu_oci_hook.formats.architectures import ARCHITECTURES, ARCHITECTURES_32BIT
from gpu_oci_hook.hook.arguments import HookArguments
from gpu_oci_hook.model.edits import (
    AddDeviceNode,
    AddDeviceRule,
    AddFile,
    AddGroup,
    AddLink,
    AddMount,
    Plan,
    PrepareDirectory,
    SetEnvVariable,
)
from gpu_oci_hook.model.machine import DeviceNode, DriverFile
from gpu_oci_hook.model.plan_input import ContainerFacts, PlanInput
from gpu_oci_hook.plan.loader_files import LD_CONF_DROP_IN

ContainerEdits = dict[str, Any]
"""A `containerEdits` object."""

FIXED_MAJORS = frozenset((195, 226))  # Documentation/admin-guide/devices.txt of the kernel
VISIBLE_DEVICES_VOID = "NVIDIA_VISIBLE_DEVICES=void"

# The library directories of an image that nobody knows yet.
LIBRARY_DIR_PLACEHOLDER, LIBRARY_DIR32_PLACEHOLDER = "/@own", "/@own32"
DRM_BY_PATH_DIR = "/dev/dri/by-path/"
GENERATED_DIR_PLACEHOLDER = "/@nowhere"


class EmptyRootfs:
    """The root of a container that does not exist yet: nothing is in it, see `plan_input.RootfsReader`."""

    def resolve_destination(self, path: str) -> str:
        """The path: there are no links."""
        return path

    def resolve_path(self, path: str) -> None:
        """Nothing is there."""

    def list_names(self, path: str, limit: int = 0) -> list[str]:
        """Nothing is there."""
        return []

    def stat_path(self, path: str, *, follow: bool = False) -> None:
        """Nothing is there."""

    def stat_names(self, path: str, names: Iterable[str]) -> dict[str, Any]:
        """Nothing is there."""
        return {}


def build_unknown_container(machine: str) -> ContainerFacts:
    """Return the facts about a container that does not exist yet.

    Arguments:
        machine: `uname -m` of the machine that it will run on.
    """
    arch32 = ARCHITECTURES[machine].arch32 if machine in ARCHITECTURES else ""
    return ContainerFacts(
        spec={},
        image=Image(
            arch=machine,
            library_dir=LIBRARY_DIR_PLACEHOLDER,
            library_dir32=LIBRARY_DIR32_PLACEHOLDER if arch32 else LIBRARY_DIR_PLACEHOLDER,
        ),
        rootfs_reader=EmptyRootfs(),
        rootfs_path="",
        generated_dir=GENERATED_DIR_PLACEHOLDER,
        shared_dir=GENERATED_DIR_PLACEHOLDER,
        process_in_user_namespace=False,
        driver_params=None,  # the hook decides: it sees which nodes the container has
        has_mount_program=False,
        datacenter_only=False,
    )


@dataclass
class SpecContent:
    """What a plan brings, in CDI's words.

    Attributes:
        nodes: by path in the container. mounts: by place in the container. gids: additional groups.
        env: entries. links: (target, path in the container); plugins, plugins32: (target, name in the image's
            own library directory).
        folders, folders32: directories for the loader.
    """

    nodes: dict[str, ContainerEdits] = field(default_factory=dict)
    mounts: dict[str, ContainerEdits] = field(default_factory=dict)
    gids: list[int] = field(default_factory=list)
    env: list[str] = field(default_factory=list)
    links: list[tuple[str, str]] = field(default_factory=list)
    plugins: list[tuple[str, str]] = field(default_factory=list)
    plugins32: list[tuple[str, str]] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    folders32: list[str] = field(default_factory=list)

    def subtract_content(self, other: SpecContent) -> SpecContent:
        """What this has and the other has not: nodes, mounts, groups and variables."""
        return SpecContent(
            nodes={path: node for path, node in self.nodes.items() if path not in other.nodes},
            mounts={place: mount for place, mount in self.mounts.items() if place not in other.mounts},
            gids=[gid for gid in self.gids if gid not in other.gids],
            env=[entry for entry in self.env if entry not in other.env],
        )

    def to_container_edits(self, hook: ContainerEdits | None = None) -> ContainerEdits:
        """As a `containerEdits` object, keys in the specification's order, empty ones left out."""
        found: ContainerEdits = {
            "env": self.env,
            "deviceNodes": list(self.nodes.values()),
            "hooks": [hook] if hook else [],
            "mounts": list(self.mounts.values()),
            "additionalGids": self.gids,
        }
        return {key: value for key, value in found.items() if value}

    def to_hook_arguments(self) -> HookArguments:
        """What the hook has to do about files; the rest is the configuration's."""
        made = HookArguments()
        made.links, made.plugins, made.plugins32 = self.links, self.plugins, self.plugins32
        made.folders, made.folders32 = self.folders, self.folders32
        return made

    def replace_links_by_mounts(self) -> list[str]:
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


def build_spec_content(plan: Plan, plan_input: PlanInput) -> SpecContent:
    """The content of a plan made from these facts."""
    found = SpecContent()
    access = {(edit.major, edit.minor): edit.access for edit in plan.edits if isinstance(edit, AddDeviceRule)}
    sources = {node.path: node for node in _list_host_nodes(plan_input)}
    small = {file.source for file in _list_driver_files(plan_input) if file.arch in ARCHITECTURES_32BIT}
    below32: set[str] = set()
    for edit in plan.edits:
        if isinstance(edit, AddDeviceNode):
            found.nodes[edit.path] = build_node_entry(edit, sources[edit.path].source, access[edit.major, edit.minor])
        elif isinstance(edit, AddGroup):
            found.gids.append(edit.gid)
        elif isinstance(edit, SetEnvVariable):
            found.env.append(f"{edit.name}={edit.value}")
        elif isinstance(edit, AddMount) and not edit.source.startswith(f"{GENERATED_DIR_PLACEHOLDER}/"):
            found.mounts[edit.destination] = {
                "hostPath": edit.source, "containerPath": edit.destination, "options": list(edit.options),
            }  # fmt: skip
            if edit.source in small:
                below32.add(edit.destination.rpartition("/")[0])
        elif isinstance(edit, PrepareDirectory):
            found.links += [(target, f"{edit.destination}/{name}") for name, target in edit.entries if target]
        elif isinstance(edit, AddLink):
            _add_link(found, edit)
    for folder in _list_loader_folders(plan):
        (found.folders32 if folder in below32 else found.folders).append(folder)
    return found


def build_node_entry(edit: AddDeviceNode, source: str, access: str) -> ContainerEdits:
    """A `deviceNodes` entry; see the module about its numbers. Owner and group are said even when they are root's.

    Engines give a node without an owner to the container's user (ecosystem facts 1.5).
    """
    made: ContainerEdits = {"path": edit.path}
    if source != edit.path:
        made["hostPath"] = source
    made["type"] = "c"
    if edit.major in FIXED_MAJORS:
        made["major"], made["minor"] = edit.major, edit.minor
    made.update(fileMode=edit.mode, permissions=access, uid=edit.uid, gid=edit.gid)
    return made


def _add_link(content: SpecContent, edit: AddLink) -> None:
    if edit.path.startswith(DRM_BY_PATH_DIR):
        return  # the hook names the nodes that the container has
    for top, plugins in (
        (f"{LIBRARY_DIR_PLACEHOLDER}/", content.plugins),
        (f"{LIBRARY_DIR32_PLACEHOLDER}/", content.plugins32),
    ):
        if edit.path.startswith(top):
            name = edit.path[len(top) :]
            if "/" in name:  # the main libraries' names are the hook's own business
                plugins.append((edit.target, name))
            return
    content.links.append((edit.target, edit.path))


def _list_loader_folders(plan: Plan) -> list[str]:
    """The directories that the plan tells the loader of: its drop-in names them all."""
    for edit in plan.edits:
        if isinstance(edit, AddFile) and edit.path == LD_CONF_DROP_IN:
            return [line for line in edit.content.decode().splitlines() if not line.startswith("#")]
    return []


def _list_host_nodes(plan_input: PlanInput) -> list[DeviceNode]:
    found = [node for _, node in plan_input.control_nodes]
    found += plan_input.gpu_nodes.values()
    return found + [
        node for node, _ in (*plan_input.optional_items.nodes, *plan_input.optional_items.best_effort_nodes)
    ]


def _list_driver_files(plan_input: PlanInput) -> list[DriverFile]:
    return [*plan_input.inventory.files, *[file for file, _ in plan_input.optional_items.files]]
