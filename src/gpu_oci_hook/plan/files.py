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
from gpu_oci_hook.plan.loader_files import build_loader_files, choose_library_links
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
    places = Layout(plan_input.spec, plan_input.rootfs_reader, ours, writable=plan_input.image.writable)
    libraries = [(file, why) for file, why in files if file.kind == "library"]
    _add_libraries(plan_input, plan, places, libraries)
    others = [(file, why) for file, why in files if file.kind != "library"]
    _add_other_files(plan_input, plan, places, others)
    there = {file.container_path for file, _ in others}
    plan.warnings += [
        f"{name} needs {soname}, not found on host"
        for container, name, soname in plan_input.inventory.missing_dependencies
        if container in there
    ]
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
            for top in (plan_input.shared_dir, plan_input.generated_dir)
            for kind in (LIBRARIES_DIR_PREFIX, LINKS_DIR_PREFIX)
        ]
    )
    for mount in get_list(plan_input.spec, "mounts"):
        source, destination = get_member(mount, "source"), get_member(mount, "destination")
        if not isinstance(source, str) or not isinstance(destination, str):
            continue
        if source.startswith(prefixes):
            directories.append(destination + "/")
            found.append((source, destination))
        elif source.startswith(f"{plan_input.generated_dir}/") or destination.startswith(tuple(directories)):
            found.append((source, destination))
    return found


def _check_required_libraries(plan_input: PlanInput, implied_by: dict[str, str]) -> None:
    for capability, soname, why in plan_input.inventory.missing_libraries:
        if capability in implied_by:
            raise Fault(
                f"{soname} is required for capability {capability}, and the host has none that fits: {why}",
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
    """Mounts of the libraries, the links beside them, and what makes the container's loader find them."""
    if not files:
        return
    fixed = [(file, why) for file, why in files if file.container_path]
    if fixed:
        files = [(file, why) for file, why in files if not file.container_path]
    if files and not layout.driver_library_dir:
        raise Fault(
            "the container has no place for the driver's libraries: its root file system cannot be written, has "
            "no directory /usr/local/nvidia/lib64, and neither /run nor /dev is a tmpfs",
            where=plan_input.rootfs_path,
            hint="Mount a tmpfs on /run or make the root file system writable",
        )
    preferred, preference = _choose_compat_directory(plan_input, plan) if plan_input.image.compat_libcudas else ("", "")
    found: list[tuple[str, str, str]] = []
    directories: list[str] = [preferred] if preferred else []
    entries: dict[str, dict[str, str]] = {}
    mounts: list[AddMount] = []
    plugins: dict[str, list[AddLink]] = {}
    prepared = plan_input.shared_dir
    for file, why in files:
        small = file.arch in ARCHITECTURES_32BIT
        directory = layout.driver_library_dir32 if small else layout.driver_library_dir
        own = plan_input.image.library_dir32 if small else plan_input.image.library_dir
        theirs = next(
            (f"{own}/{name}" for name in (file.soname, file.name) if layout.is_mount_destination(f"{own}/{name}")), ""
        )
        if theirs:
            reason = f"the container has its own mount on {theirs}"
            plan.withheld.append(WithheldItem("library", _format_library_name(file), reason))
            found.append((file.soname, theirs, file.arch))
            # Whoever chooses a container's mounts could else fill /run with a directory for every choice.
            prepared = plan_input.generated_dir
            continue
        inside = entries.setdefault(directory, {})
        inside[file.name] = ""
        mounts.append(
            AddMount(file.source, f"{directory}/{file.name}", READ_ONLY_MOUNT_OPTIONS, why, clear_mount_point=False)
        )
        if file.soname != file.name:
            inside[file.soname] = file.name
        names = [file.soname]
        for name in file.links:
            if "/" in name:  # a plug-in, looked for in a subdirectory of the image's own library directory
                link = AddLink(f"{own}/{name}", f"{directory}/{file.soname}", "the name that it is loaded by")
                plugins.setdefault(own, []).append(link)
            else:
                inside[name] = file.soname
                names.append(name)
        for name in names:
            uses = bool(preferred) and not small and name in plan_input.image.compat_names
            found.append((name, f"{preferred if uses else directory}/{name}", file.arch))
    for directory, inside in entries.items():
        if directory not in directories:
            directories.append(directory)
        content = tuple(inside.items())
        source = f"{prepared}/{LIBRARIES_DIR_PREFIX}{state_dir.compute_digest(repr(content).encode())}"
        reason = "a place for the driver's libraries, with their links"
        plan.edits.append(PrepareDirectory(source, directory, content, reason))
        plan.edits.append(AddMount(source, directory, READ_ONLY_MOUNT_OPTIONS, reason, clear_mount_point=False))
    plan.edits += mounts
    # Where a machine has no 32-bit sister the two are one directory, and the 64-bit libraries' one counts.
    for own, directory in {
        plan_input.image.library_dir32: layout.driver_library_dir32,
        plan_input.image.library_dir: layout.driver_library_dir,
    }.items():
        mine = plugins.get(own, [])
        if layout.writable and layout.classify_path(own) == "image":
            plan.edits += _list_image_links(plan_input, own, directory, entries.get(directory, {}), mine)
        else:
            reason = f"{own} lies in another mount, or cannot be written"
            plan.withheld += [WithheldItem("link", link.path, reason) for link in mine]
    if fixed:
        from gpu_oci_hook.plan.host_path_libraries import add_host_path_libraries

        names_there, more = add_host_path_libraries(plan_input, plan, layout, fixed)
        for name, path, arch in names_there:
            uses = bool(preferred) and arch not in ARCHITECTURES_32BIT and name in plan_input.image.compat_names
            found.append((name, f"{preferred}/{name}" if uses else path, arch))
        directories += more
    _add_loader_files(plan_input, plan, layout, found, directories, preference)


def _choose_compat_directory(plan_input: PlanInput, plan: Plan) -> tuple[str, str]:
    """The directory of the image's compat libraries where they come first, and the words for it; else ("", "")."""
    from gpu_oci_hook.plan.compat import decide_cuda_compat  # few images have any

    verdict = decide_cuda_compat(
        plan_input.image.compat_libcudas,
        plan_input.inventory.version,
        plan_input.config.cuda_compat,
        datacenter_only=plan_input.datacenter_only,
    )
    compute = "compute" in add_implied_capabilities(plan_input.request.capabilities)
    if verdict.warning and compute:
        plan.warnings.append(verdict.warning)
    if verdict.directory and compute:
        return verdict.directory, f"; the image's own libcuda comes first: {verdict.reason}"
    reason = verdict.reason if compute else explain_missing_capability("compute")
    plan.withheld.append(WithheldItem("compat", plan_input.image.compat_libcudas[0][0], reason))
    return "", ""


def _list_image_links(
    plan_input: PlanInput, own: str, directory: str, names: dict[str, str], plugins: list[AddLink]
) -> list[AddLink]:
    """The links in one of the image's own library directories, see `loader_files.choose_library_links`.

    An image without a directory for 32-bit libraries has no program that would load a plug-in from there.
    """
    main = own == plan_input.image.library_dir
    found = choose_library_links(names, plan_input.rootfs_reader.stat_names(own, names), native=main)
    links = [AddLink(f"{own}/{name}", f"{directory}/{name}", reason) for name, reason in found]
    if main or plan_input.rootfs_reader.stat_path(own) is not None:
        links += plugins
    return links


def _add_loader_files(
    plan_input: PlanInput,
    plan: Plan,
    layout: Layout,
    found: list[tuple[str, str, str]],
    directories: list[str],
    preferred: str,
) -> None:
    result = build_loader_files(plan_input.image, found, directories)
    plan.warnings += result.notes
    reason = f"lets the container's loader find the libraries{preferred}"
    fallback = result.needs_ld_library_path
    for path, content in result.files:
        needed = path.endswith((".cache", ".path"))
        why = add_generated_file(plan_input, plan, layout, path, content, reason, optional=not needed)
        if why:
            fallback = fallback or needed
            plan.withheld.append(WithheldItem("file", path, why))
    if fallback:
        own = plan_input.request.environment.get("LD_LIBRARY_PATH", "")
        wanted = [directory for directory in directories if directory not in own.split(":")]
        if wanted:
            value = ":".join([*wanted, own] if own else wanted)
            plan.edits.append(
                SetEnvVariable(
                    "LD_LIBRARY_PATH", value, "the loader's cache in the image cannot be written; this stands in"
                )
            )


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
        if own and not has_same_mount(plan_input.spec, destination, file.source):
            if file.kind == "shm":
                plan.edits += _drop_replaced_mounts(plan_input.spec, destination, why)
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
        and plan_input.rootfs_reader.stat_path(_XORG_MODULES64, follow=True) is not None
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
