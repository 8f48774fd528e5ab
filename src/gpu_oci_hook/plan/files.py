"""Driver files: which go in, where they lie in the container, and what makes its loader find them; pure.

Cost rule: hot, no imports of the library.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.formats.architectures import ARCHITECTURES_32BIT
from gpu_oci_hook.formats.oci import get_list, get_member
from gpu_oci_hook.model.edits import AddLink, AddMount, DropMount, Plan, PrepareDirectory, SetEnvVariable, WithheldItem
from gpu_oci_hook.model.plan_input import explain_missing_capability
from gpu_oci_hook.plan.layout import Layout
from gpu_oci_hook.plan.loader_files import LibrarySearch, is_required_loader_file
from gpu_oci_hook.plan.mounting import (
    DIRECTORY_KINDS,
    LIBRARIES_DIR_PREFIX,
    LINKS_DIR_PREFIX,
    READ_ONLY_MOUNT_OPTIONS,
    SOCKET_MOUNT_OPTIONS,
    add_generated_file,
    has_same_mount,
)
from gpu_oci_hook.request.capabilities import add_implied_capabilities

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import DriverFile
    from gpu_oci_hook.model.plan_input import PlanInput


# Where X servers have their modules: Debian's and Arch's, and Fedora's.
_XORG_MODULES, _XORG_MODULES64 = "/usr/lib/xorg/modules", "/usr/lib64/xorg/modules"


def add_driver_files(plan_input: PlanInput, plan: Plan, implied_by: dict[str, str]) -> None:
    """Puts the driver files of the request into the plan.

    Arguments:
        implied_by: see `capabilities.add_implied_capabilities`.

    Raises:
        Fault: a file that a capability cannot work without is not there, or there is no place for it.
    """
    _check_required_libraries(plan_input, implied_by)
    files = _select_driver_files(plan_input, plan, implied_by) + plan_input.optional_items.files
    ours = _find_own_mounts(plan_input)
    places = Layout(
        plan_input.container.spec,
        plan_input.container.rootfs_reader,
        ours,
        writable=plan_input.container.image.writable,
    )
    libraries = [(file, why) for file, why in files if file.kind == "library"]
    _add_libraries(plan_input, plan, places, libraries)
    others = [(file, why) for file, why in files if file.kind != "library"]
    _add_other_files(plan_input, plan, places, others)
    there = {file.container_path for file, _ in others}
    if plan_input.inventory.missing_dependencies:
        from gpu_oci_hook.plan.driver_problems import describe_missing_dependencies

        plan.warnings += describe_missing_dependencies(plan_input.inventory, there)
    by_path = [file for file, _ in others if file.kind == "config" and any("/" in name for name in file.needs)]
    if by_path or plan_input.optional_items.links or plan_input.optional_items.generated_files:
        from gpu_oci_hook.plan.links import add_optional_files, add_optional_links, link_misplaced_libraries

        link_misplaced_libraries(plan_input, plan, places, by_path, [file for file, _ in libraries])
        add_optional_files(plan_input, plan, places)
        add_optional_links(plan_input, plan, places)
    wanted = {(edit.source, edit.destination) for edit in plan.edits if isinstance(edit, AddMount)}
    plan.edits[:0] = [
        DropMount(source, destination, "left from another driver")
        for source, destination in ours
        if (source, destination) not in wanted
    ]


def _find_own_mounts(plan_input: PlanInput) -> list[tuple[str, str]]:
    """The mounts in the spec that an earlier run of ours has made: of generated files, of the libraries' directories
    and of what is in them.
    """
    found: list[tuple[str, str]] = []
    directories: list[str] = []
    prefixes = tuple(
        [
            f"{top}/{kind}"
            for top in (plan_input.container.shared_dir, plan_input.container.generated_dir)
            for kind in (LIBRARIES_DIR_PREFIX, LINKS_DIR_PREFIX)
        ]
    )
    for mount in get_list(plan_input.container.spec, "mounts"):
        source, destination = get_member(mount, "source"), get_member(mount, "destination")
        if not isinstance(source, str) or not isinstance(destination, str):
            continue
        if source.startswith(prefixes):
            directories.append(destination + "/")
            found.append((source, destination))
        elif source.startswith(f"{plan_input.container.generated_dir}/") or destination.startswith(tuple(directories)):
            found.append((source, destination))
    return found


def _check_required_libraries(plan_input: PlanInput, implied_by: dict[str, str]) -> None:
    for capability, soname, other_version in plan_input.inventory.missing_libraries:
        if capability in implied_by:
            from gpu_oci_hook.plan.driver_problems import describe_missing_library

            reason = describe_missing_library(other_version)
            raise Fault(
                f"{soname} is required for capability {capability}, and the host has none that fits: {reason}",
                where=f"driver {plan_input.inventory.version}",
                hint="Install the driver's libraries, or set [host] driver-root or library-paths to where they are; "
                "gpu-oci-hook list shows every place that was looked at",
            )


def _select_driver_files(plan_input: PlanInput, plan: Plan, implied_by: dict[str, str]) -> list[tuple[DriverFile, str]]:
    """The driver files that go in, each with its reason; the others are withheld with theirs."""
    chosen = plan_input.request.capabilities
    taken: dict[tuple[str, str], tuple[DriverFile, str]] = {}
    left: list[DriverFile] = []
    for file in plan_input.inventory.files:
        refused = plan_input.optional_items.excluded_files.get(file.source)
        if refused:
            name = _format_library_name(file) if file.kind == "library" else file.container_path or file.name
            plan.withheld.append(WithheldItem(file.kind, name, refused))
            continue
        why = _decide_driver_file(file, chosen, implied_by, plan_input)
        if why[0]:
            taken[file.container_path or file.soname or file.path, file.arch] = (file, why[1])
        else:
            left.append(file)
            if file.kind != "library":
                plan.withheld.append(WithheldItem(file.kind, file.container_path or file.name, why[1]))
    # What a chosen library needs from the driver comes along, whatever its own capability.
    libraries = {(file.soname, file.arch): file for file in left if file.kind == "library"}
    queue = [file for file, _ in taken.values() if file.needs]
    for file in queue:
        for soname in file.needs:
            soname = soname.rpartition("/")[2]  # a manifest may name its library by a path
            needed = libraries.pop((soname, file.arch), None)
            if needed is not None:
                taken[soname, file.arch] = (needed, f"needed by {file.soname or file.name}")
                queue.append(needed)
    for file in libraries.values():
        reason = _decide_driver_file(file, chosen, implied_by, plan_input)[1]
        plan.withheld.append(WithheldItem("library", _format_library_name(file), reason))
    return list(taken.values())


def _format_library_name(file: DriverFile) -> str:
    return f"{file.soname} ({file.arch})" if file.arch in ARCHITECTURES_32BIT else file.soname


def _decide_driver_file(
    file: DriverFile, chosen: tuple[str, ...], implied_by: dict[str, str], plan_input: PlanInput
) -> tuple[bool, str]:
    if file.kind in ("socket", "directory") and not plan_input.config.sockets:
        return False, "[inject] sockets is off"
    if file.kind == "firmware" and not plan_input.config.firmware:
        return False, "[inject] firmware is off"
    if file.arch in ARCHITECTURES_32BIT and "compat32" not in chosen:
        return False, "needs capability compat32"
    capability = file.capability
    if not capability:
        listed = file.found_in.partition(".csv:")[1]  # of a Jetson, where a list decides
        return True, f"listed in {file.found_in}" if listed else "every GPU container needs it"
    if capability not in implied_by:
        return False, explain_missing_capability(capability)
    by = implied_by[capability]
    if by != capability and file.kind not in ("library", "config"):
        return False, f"{explain_missing_capability(capability)} ({by} brings its libraries only)"
    return True, f"capability {capability}" + ("" if by == capability else f", brought by {by}")


def _add_libraries(plan_input: PlanInput, plan: Plan, layout: Layout, files: list[tuple[DriverFile, str]]) -> None:
    """Add the mounts of the libraries, their links, and the files that make the container's loader find them."""
    if not files:
        return
    host_path_files = [(file, why) for file, why in files if file.container_path]
    if host_path_files:
        files = [(file, why) for file, why in files if not file.container_path]
    if files and not layout.driver_library_dir:
        raise Fault(
            "the container has no directory for the driver's libraries: its root file system cannot be written, has "
            "no directory /usr/local/nvidia/lib64, and neither /run nor /dev is a tmpfs",
            where=plan_input.container.rootfs_path,
            hint="Mount a tmpfs on /run or make the root file system writable",
        )
    search = LibrarySearch(plan_input.container.image, plan_input.container.rootfs_reader, layout)
    compat_reason = ""
    if plan_input.container.image.compat_libcudas:
        search.compat_directory, compat_reason = _resolve_compat_preference(plan_input, plan)
    placement = _place_libraries(plan_input, plan, layout, search, files)
    _add_library_directories(plan_input, plan, placement)
    # Where a machine has no 32-bit sister the two are one directory, and the 64-bit libraries' one counts.
    for image_directory, directory in {
        plan_input.container.image.library_dir32: layout.driver_library_dir32,
        plan_input.container.image.library_dir: layout.driver_library_dir,
    }.items():
        _add_image_links(plan, layout, search, placement, image_directory, directory)
    if host_path_files:
        from gpu_oci_hook.plan.host_path_libraries import add_host_path_libraries

        add_host_path_libraries(plan_input, plan, layout, search, host_path_files)
    _add_loader_files(plan_input, plan, layout, search, compat_reason)


class _Placement:
    """Where the libraries lie in the container.

    Attributes:
        entries: directory in the container to the names in it, each with its link target, "" for a mounted file.
        mounts: the mounts of the libraries in these directories.
        plugin_links: the image's own library directory to the links to plug-ins below it.
        prepared_root: the directory on the host in which the directories are prepared.
    """

    __slots__ = ("entries", "mounts", "plugin_links", "prepared_root")

    def __init__(self, prepared_root: str) -> None:
        self.entries: dict[str, dict[str, str]] = {}
        self.mounts: list[AddMount] = []
        self.plugin_links: dict[str, list[AddLink]] = {}
        self.prepared_root = prepared_root


def _place_libraries(
    plan_input: PlanInput, plan: Plan, layout: Layout, search: LibrarySearch, files: list[tuple[DriverFile, str]]
) -> _Placement:
    """Give each library its path in the container, and its names to the loader."""
    placement = _Placement(plan_input.container.shared_dir)
    for file, why in files:
        own_mount = search.find_own_mount(file.arch, file.soname, file.name)
        if own_mount:
            reason = f"the container has its own mount on {own_mount}"
            plan.withheld.append(WithheldItem("library", _format_library_name(file), reason))
            search.add_library(file.soname, own_mount, file.arch, own_mount=True)
            # Whoever chooses a container's mounts could else fill /run with a directory for every choice.
            placement.prepared_root = plan_input.container.generated_dir
            continue
        directory = layout.driver_library_dir32 if file.arch in ARCHITECTURES_32BIT else layout.driver_library_dir
        search.add_directory(directory)
        names = placement.entries.setdefault(directory, {})
        names[file.name] = ""
        destination = f"{directory}/{file.name}"
        placement.mounts.append(
            AddMount(file.source, destination, READ_ONLY_MOUNT_OPTIONS, why, clear_mount_point=False)
        )
        if file.soname != file.name:
            names[file.soname] = file.name
        search.add_library(file.soname, f"{directory}/{file.soname}", file.arch)
        for name in file.links:
            if "/" in name:  # a plug-in, searched in a subdirectory of the image's own library directory
                image_directory = search.get_image_directory(file.arch)
                link = AddLink(
                    f"{image_directory}/{name}", f"{directory}/{file.soname}", "the name that it is loaded by"
                )
                placement.plugin_links.setdefault(image_directory, []).append(link)
            else:
                names[name] = file.soname
                search.add_library(name, f"{directory}/{name}", file.arch)
    return placement


def _add_library_directories(plan_input: PlanInput, plan: Plan, placement: _Placement) -> None:
    """Add the prepared directories with their links, then the mounts of the libraries in them."""
    for directory, names in placement.entries.items():
        content = tuple(names.items())
        digest = state_dir.compute_digest(repr(content).encode())
        source = f"{placement.prepared_root}/{LIBRARIES_DIR_PREFIX}{digest}"
        reason = "a directory for the driver's libraries, with their links"
        plan.edits.append(PrepareDirectory(source, directory, content, reason))
        plan.edits.append(AddMount(source, directory, READ_ONLY_MOUNT_OPTIONS, reason, clear_mount_point=False))
    plan.edits += placement.mounts


def _add_image_links(
    plan: Plan, layout: Layout, search: LibrarySearch, placement: _Placement, image_directory: str, directory: str
) -> None:
    """Add the links in one of the image's own library directories to the libraries in `directory`."""
    plugin_links = placement.plugin_links.get(image_directory, [])
    if not layout.writable or layout.classify_path(image_directory) != "image":
        reason = f"{image_directory} lies in another mount, or cannot be written"
        plan.withheld += [WithheldItem("link", link.path, reason) for link in plugin_links]
        return
    for name, reason in search.choose_image_links(placement.entries.get(directory, {}), image_directory):
        plan.edits.append(AddLink(f"{image_directory}/{name}", f"{directory}/{name}", reason))
    if search.may_link_plugins(image_directory):
        plan.edits += plugin_links


def _resolve_compat_preference(plan_input: PlanInput, plan: Plan) -> tuple[str, str]:
    """Return the directory of the image's compat libraries if they come first, and the text for it; else ("", "")."""
    from gpu_oci_hook.plan.compat import decide_cuda_compat  # few images have any

    decision = decide_cuda_compat(
        plan_input.container.image.compat_libcudas,
        plan_input.inventory.version,
        plan_input.config.cuda_compat,
        has_only_datacenter_gpus=lambda: plan_input.container.datacenter_only,
    )
    compute = "compute" in add_implied_capabilities(plan_input.request.capabilities)
    if decision.warning and compute:
        plan.warnings.append(decision.warning)
    if decision.directory and compute:
        return decision.directory, f"; the image's own libcuda comes first: {decision.reason}"
    reason = decision.reason if compute else explain_missing_capability("compute")
    plan.withheld.append(WithheldItem("compat", plan_input.container.image.compat_libcudas[0][0], reason))
    return "", ""


def _add_loader_files(
    plan_input: PlanInput, plan: Plan, layout: Layout, search: LibrarySearch, compat_reason: str
) -> None:
    """Add the loader's files; where those that it reads cannot be written, set LD_LIBRARY_PATH instead."""
    result = search.build_files()
    plan.warnings += result.notes
    reason = f"lets the container's loader find the libraries{compat_reason}"
    needs_variable = result.needs_ld_library_path
    for path, content in result.files:
        required = is_required_loader_file(path)
        obstacle = add_generated_file(plan_input, plan, layout, path, content, reason, optional=not required)
        if obstacle:
            needs_variable = needs_variable or required
            plan.withheld.append(WithheldItem("file", path, obstacle))
    if needs_variable:
        current = plan_input.request.environment.get("LD_LIBRARY_PATH", "")
        added = [directory for directory in search.directories if directory not in current.split(":")]
        if added:
            value = ":".join([*added, current] if current else added)
            reason = "the loader's cache in the image cannot be written; this stands in"
            plan.edits.append(SetEnvVariable("LD_LIBRARY_PATH", value, reason))


def _add_other_files(plan_input: PlanInput, plan: Plan, layout: Layout, files: list[tuple[DriverFile, str]]) -> None:
    """Programs, sockets, firmware and configuration: each optional, each at its fixed place.

    An image's links can bring two of them to one place, or one below another, where the runtime would fail.
    """
    taken = {edit.destination for edit in plan.edits if isinstance(edit, AddMount)}
    above = {place for destination in taken for place in _list_parent_directories(destination)}
    for file, why in files:
        if not file.container_path:
            continue
        directory = file.kind in DIRECTORY_KINDS
        destination, reason = layout.find_mount_point(_choose_destination(plan_input, file), follow=directory)
        own = bool(destination) and layout.is_mount_destination(destination)
        if own and not has_same_mount(plan_input.container.spec, destination, file.source):
            if file.kind == "shm":
                plan.edits += _drop_replaced_mounts(plan_input.container.spec, destination, why)
            else:
                destination, reason = "", f"the container has its own mount on {file.container_path}"
        way = _list_parent_directories(destination)
        if destination in taken or destination in above or not taken.isdisjoint(way):
            destination, reason = "", f"links of the image bring it to the place of another driver file, {destination}"
        if not destination:
            plan.withheld.append(WithheldItem(file.kind, file.container_path, reason))
            continue
        taken.add(destination)
        above.update(way)
        options = SOCKET_MOUNT_OPTIONS if file.kind in ("socket", "directory", "shm") else READ_ONLY_MOUNT_OPTIONS
        make_way = layout.writable and layout.classify_resolved_path(destination) == "image" and not directory
        plan.edits.append(AddMount(file.source, destination, options, why, clear_mount_point=make_way))


def _list_parent_directories(path: str) -> list[str]:
    """The directories above a path, the root left out."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(2, len(parts))]


def _choose_destination(plan_input: PlanInput, file: DriverFile) -> str:
    """Where a file goes. An X server has its modules in its distribution's library directory."""
    if (
        file.container_path.startswith(_XORG_MODULES)
        and plan_input.container.rootfs_reader.stat_path(_XORG_MODULES64, follow=True) is not None
    ):
        return _XORG_MODULES64 + file.container_path[len(_XORG_MODULES) :]
    return file.container_path


def _drop_replaced_mounts(spec: object, destination: str, why: str) -> list[DropMount]:
    """The engine's own mounts on a place that is somebody else's by configuration."""
    found = [(get_member(mount, "source"), get_member(mount, "destination")) for mount in get_list(spec, "mounts")]
    return [
        DropMount(source, place, f"{why} takes its place")
        for source, place in found
        if isinstance(source, str) and isinstance(place, str) and place.rstrip("/") == destination
    ]
