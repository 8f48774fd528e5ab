"""Translate a plan to the parts of a CDI file: device nodes, mounts, groups, and links for our hook. No I/O.

The plan is the runtime's, for a container without an image. Everything that depends on the image (its library
directory, its loader cache) is left to the hook, which calls the same functions when the image exists.

Numbers of device nodes: majors 195 (nvidia) and 226 (DRM) are fixed by the kernel, so these nodes are written with
type, major and minor, and engines need not look at the host's nodes. nvidia-uvm, nvidia-caps and others get their
majors when a module is loaded. Written to a file, such a number would belong to another device after a reboot, and
engines would inject that device silently (facts: cdi-file-goes-stale). These nodes are written without numbers, and
every engine takes them from the host's node when a container starts. If the node is missing then, the container fails
with the node's name.

Import budget: cold.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gpu_oci_hook.container.image import LD_CACHE, Image
from gpu_oci_hook.formats.architectures import ARCHITECTURES, ARCHITECTURES_32BIT
from gpu_oci_hook.formats.ldcache import parse_ld_cache
from gpu_oci_hook.hook.arguments import HookArguments
from gpu_oci_hook.model.edits import AddDeviceNode, AddDeviceRule, AddGroup, AddMount, Plan, SetEnvVariable
from gpu_oci_hook.model.file_edits import AddFile, AddLink, PrepareDirectory
from gpu_oci_hook.model.machine import DeviceNode, DriverFile
from gpu_oci_hook.model.plan_input import ContainerFacts, PlanInput
from gpu_oci_hook.plan.layout import LIBRARY_ROOTS
from gpu_oci_hook.plan.loader_files import LD_CONF_DROP_IN

ContainerEdits = dict[str, Any]
"""A `containerEdits` object, or a part of one."""

FIXED_MAJORS = frozenset((195, 226))  # Documentation/admin-guide/devices.txt of the kernel
VISIBLE_DEVICES_VOID = "NVIDIA_VISIBLE_DEVICES=void"

# The library directories of the image, which is not known yet.
LIBRARY_DIR_PLACEHOLDER, LIBRARY_DIR32_PLACEHOLDER = "/@own", "/@own32"
# Where the plan puts the driver's libraries.
DRIVER_LIBRARY_DIR, DRIVER_LIBRARY_DIR32 = f"{LIBRARY_ROOTS[0]}/lib64", f"{LIBRARY_ROOTS[0]}/lib"
DRM_BY_PATH_DIR = "/dev/dri/by-path/"
GENERATED_DIR_PLACEHOLDER = "/@nowhere"


class EmptyRootfs:
    """The root of a container that does not exist yet, without any file; see `plan_input.RootfsReader`."""

    def resolve_destination(self, path: str) -> str:
        """Return the path, since there are no links."""
        return path

    def resolve_path(self, path: str) -> None:
        """Return None: the path does not exist."""

    def list_names(self, path: str, limit: int = 0) -> list[str]:
        """Return no names."""
        return []

    def readlink(self, path: str) -> None:
        """Return None: there are no links."""

    def read_file(self, path: str, limit: int) -> None:
        """Return None: the path does not exist."""

    def stat_path(self, path: str, *, follow: bool = False) -> None:
        """Return None: the path does not exist."""

    def find_nearest_directory(self, path: str) -> tuple[str, bool]:
        """Return the path itself: nothing is mounted in it."""
        return path, False

    def can_replace(self, path: str) -> bool:
        """Everything can be written."""
        return True

    def stat_names(self, path: str, names: Iterable[str]) -> dict[str, Any]:
        """Return no results."""
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
    """The content of a plan as CDI edits.

    Attributes:
        nodes: `deviceNodes` entries by path in the container.
        mounts: `mounts` entries by path in the container.
        gids: additional groups.
        env: variables, NAME=value.
        links: (target, path in the container) of symbolic links.
        plugins: (target, name in the image's library directory) of links for plug-ins.
        plugins32: the same for 32-bit libraries.
        sockets: (path on the host, path in the container) of daemons' sockets and directories, which the hook mounts.
        folders: directories for the loader.
        folders32: the same for 32-bit libraries.
        libraries: (path, name) of libraries that the loader must find and that no mount or link in a folder has by
            that name: they lie in a directory that is mounted as a whole.
    """

    nodes: dict[str, ContainerEdits] = field(default_factory=dict)
    mounts: dict[str, ContainerEdits] = field(default_factory=dict)
    gids: list[int] = field(default_factory=list)
    env: list[str] = field(default_factory=list)
    links: list[tuple[str, str]] = field(default_factory=list)
    plugins: list[tuple[str, str]] = field(default_factory=list)
    plugins32: list[tuple[str, str]] = field(default_factory=list)
    sockets: list[tuple[str, str]] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    folders32: list[str] = field(default_factory=list)
    libraries: list[tuple[str, str]] = field(default_factory=list)

    def subtract_content(self, other: SpecContent) -> SpecContent:
        """Return the nodes, mounts, groups and variables that the other content lacks."""
        return SpecContent(
            nodes={path: node for path, node in self.nodes.items() if path not in other.nodes},
            mounts={path: mount for path, mount in self.mounts.items() if path not in other.mounts},
            gids=[gid for gid in self.gids if gid not in other.gids],
            env=[entry for entry in self.env if entry not in other.env],
        )

    def to_container_edits(self, hook: ContainerEdits | None = None) -> ContainerEdits:
        """Return the `containerEdits` object, with keys in the specification's order and without empty ones."""
        edits: ContainerEdits = {
            "env": self.env,
            "deviceNodes": list(self.nodes.values()),
            "hooks": [hook] if hook else [],
            "mounts": list(self.mounts.values()),
            "additionalGids": self.gids,
        }
        return {key: value for key, value in edits.items() if value}

    def to_hook_arguments(self) -> HookArguments:
        """Return the hook's arguments about files; the configuration decides the others."""
        arguments = HookArguments()
        arguments.links, arguments.plugins, arguments.plugins32 = self.links, self.plugins, self.plugins32
        arguments.sockets = self.sockets
        arguments.folders, arguments.folders32 = self.folders, self.folders32
        arguments.libraries = self.libraries
        return arguments

    def move_libraries(self, library_dir: str, library_dir32: str) -> None:
        """Move the libraries to directories that loaders search by themselves, for a file without our hook."""
        for plugins, directory in ((self.plugins, library_dir), (self.plugins32, library_dir32)):
            self.links += [(target, f"{directory}/{name}") for target, name in plugins]
        moves = ((f"{DRIVER_LIBRARY_DIR}/", f"{library_dir}/"), (f"{DRIVER_LIBRARY_DIR32}/", f"{library_dir32}/"))

        def move(path: str) -> str:
            return next((new + path[len(old) :] for old, new in moves if path.startswith(old)), path)

        mounts = [{**mount, "containerPath": move(path)} for path, mount in self.mounts.items()]
        self.mounts = {mount["containerPath"]: mount for mount in mounts}
        self.links = [(move(target), move(path)) for target, path in self.links]

    def replace_links_by_mounts(self) -> list[str]:
        """Replace the links by mounts of their targets, for a file without our hook.

        Returns:
            The paths of the links that cannot be replaced.
        """
        remaining: list[str] = []
        for target, path in self.links:
            absolute_target = target if target.startswith("/") else f"{path.rpartition('/')[0]}/{target}"
            mount = self.mounts.get(absolute_target)
            if mount is None:
                remaining.append(path)
            else:
                self.mounts[path] = {**mount, "containerPath": path}
        return remaining


def build_spec_content(plan: Plan, plan_input: PlanInput) -> SpecContent:
    """Build the content of a plan.

    Arguments:
        plan_input: the input that the plan was made from.
    """
    builder = ContentBuilder(plan_input)
    for edit in plan.edits:
        edit.add_to_cdi(builder)
    return builder.build()


class ContentBuilder:
    """The operations that edits of a plan make on the content of a CDI file; see `model.edits.Edit`."""

    def __init__(self, plan_input: PlanInput) -> None:
        self._content = SpecContent()
        self._node_sources = {node.path: node.source for node in _list_host_nodes(plan_input)}
        self._sources32 = {file.source for file in _list_driver_files(plan_input) if file.arch in ARCHITECTURES_32BIT}
        # A daemon can end at any time, and a mount whose source is gone would fail every start.
        self._daemon_sources = {
            file.source for file in _list_driver_files(plan_input) if file.kind in ("socket", "directory")
        }
        self._nodes: list[AddDeviceNode] = []
        self._access: dict[tuple[int, int], str] = {}
        self._loader_directories: list[str] = []
        self._cached_paths: list[tuple[str, str]] = []
        self._arch = plan_input.container.image.arch
        self._directories32: set[str] = set()

    def add_node(self, edit: AddDeviceNode) -> None:
        """Add a device node."""
        self._nodes.append(edit)

    def add_rule(self, edit: AddDeviceRule) -> None:
        """Note which access a device node allows."""
        self._access[edit.major, edit.minor] = edit.access

    def add_group(self, edit: AddGroup) -> None:
        """Add an additional group."""
        self._content.gids.append(edit.gid)

    def set_env(self, edit: SetEnvVariable) -> None:
        """Add an environment variable."""
        self._content.env.append(f"{edit.name}={edit.value}")

    def add_mount(self, edit: AddMount) -> None:
        """Add a mount; files that are generated for one container are the hook's."""
        if edit.source.startswith(f"{GENERATED_DIR_PLACEHOLDER}/"):
            return
        if edit.source in self._daemon_sources:
            self._content.sockets.append((edit.source, edit.destination))
            return
        self._content.mounts[edit.destination] = {
            "hostPath": edit.source, "containerPath": edit.destination, "options": list(edit.options),
        }  # fmt: skip
        if edit.source in self._sources32:
            self._directories32.add(edit.destination.rpartition("/")[0])

    def add_directory(self, edit: PrepareDirectory) -> None:
        """Add the links of a prepared directory."""
        links = [(target, f"{edit.destination}/{name}") for name, target in edit.entries if target]
        self._content.links += links

    def add_link(self, edit: AddLink) -> None:
        """Add a link, or one to a plug-in in the image's library directory."""
        if edit.path.startswith(DRM_BY_PATH_DIR):
            return  # the hook links the nodes that the container has
        for prefix, plugins in (
            (f"{LIBRARY_DIR_PLACEHOLDER}/", self._content.plugins),
            (f"{LIBRARY_DIR32_PLACEHOLDER}/", self._content.plugins32),
        ):
            if edit.path.startswith(prefix):
                name = edit.path[len(prefix) :]
                if "/" in name:  # the hook makes the links of the main libraries by itself
                    plugins.append((edit.target, name))
                return
        self._content.links.append((edit.target, edit.path))

    def add_file(self, edit: AddFile) -> None:
        """Take the loader's directories and libraries from its files; the hook generates the files."""
        if edit.path == LD_CONF_DROP_IN:
            lines = edit.content.decode().splitlines()
            self._loader_directories = [line for line in lines if not line.startswith("#")]
        elif edit.path == LD_CACHE and self._arch in ARCHITECTURES:
            flags = ARCHITECTURES[self._arch].cache_flags
            entries = parse_ld_cache(edit.content).entries
            self._cached_paths = [(entry.path, entry.name) for entry in entries if entry.flags == flags]

    def build(self) -> SpecContent:
        """Return the content."""
        content = self._content
        for node in self._nodes:
            access = self._access[node.major, node.minor]
            content.nodes[node.path] = build_node_entry(node, self._node_sources[node.path], access)
        for directory in self._loader_directories:
            (content.folders32 if directory in self._directories32 else content.folders).append(directory)
        found = {*content.mounts, *[path for _, path in content.links]}
        for path, name in sorted(self._cached_paths):
            folder = path.rpartition("/")[0]
            if folder not in content.folders or f"{folder}/{name}" not in found:
                content.libraries.append((path, name))
        return content


def build_node_entry(edit: AddDeviceNode, source: str, access: str) -> ContainerEdits:
    """Build a `deviceNodes` entry; the module's docstring explains its numbers.

    Owner and group are written even if they are root: engines give a node without an owner to the container's user
    (facts: cdi-node-without-owner).

    Arguments:
        source: path on the host.
        access: cgroup access, such as "rw".
    """
    entry: ContainerEdits = {"path": edit.path}
    if source != edit.path:
        entry["hostPath"] = source
    entry["type"] = "c"
    if edit.major in FIXED_MAJORS:
        entry["major"], entry["minor"] = edit.major, edit.minor
    entry.update(fileMode=edit.mode, permissions=access, uid=edit.uid, gid=edit.gid)
    return entry


def _list_host_nodes(plan_input: PlanInput) -> list[DeviceNode]:
    nodes = [node for _, node in plan_input.control_nodes]
    nodes += plan_input.gpu_nodes.values()
    return nodes + [
        node for node, _ in (*plan_input.optional_items.nodes, *plan_input.optional_items.best_effort_nodes)
    ]


def _list_driver_files(plan_input: PlanInput) -> list[DriverFile]:
    return [*plan_input.inventory.files, *[file for file, _ in plan_input.optional_items.files]]
