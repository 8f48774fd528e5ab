"""Add driver files: select those of the request, and mount each at its path in the container.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.formats.architectures import ARCHITECTURES_32BIT
from gpu_oci_hook.formats.oci import get_list, get_member, is_utf8_text
from gpu_oci_hook.model.edits import AddMount, DropMount, Plan, WithheldItem
from gpu_oci_hook.model.plan_input import explain_absent_file, explain_missing_capability
from gpu_oci_hook.plan.layout import Layout
from gpu_oci_hook.plan.library_mounts import add_libraries, format_library_name
from gpu_oci_hook.plan.mounting import (
    DIRECTORY_KINDS,
    LIBRARIES_DIR_PREFIX,
    LINKS_DIR_PREFIX,
    READ_ONLY_MOUNT_OPTIONS,
    SOCKET_MOUNT_OPTIONS,
    has_same_mount,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import DriverFile
    from gpu_oci_hook.model.plan_input import ContainerFacts, PlanInput


# Where X servers have their modules: on Debian and Arch, and on Fedora.
_XORG_MODULES, _XORG_MODULES64 = "/usr/lib/xorg/modules", "/usr/lib64/xorg/modules"


def add_driver_files(plan_input: PlanInput, plan: Plan, implied_by: dict[str, str]) -> None:
    """Add the driver files of the request to the plan.

    Arguments:
        implied_by: see `request.capabilities.add_implied_capabilities`.

    Raises:
        Fault: a file that a capability cannot work without is missing, or the container has no directory for it.
    """
    _check_required_libraries(plan_input, implied_by)
    container, optional_items = plan_input.container, plan_input.optional_items
    files = _select_driver_files(plan_input, plan, implied_by) + optional_items.files
    if not all(is_utf8_text(file.source) for file, _ in files):
        from gpu_oci_hook.plan.unnameable_paths import withhold_unnameable_files

        files = withhold_unnameable_files(plan, files, implied_by)
    plan.withheld += [
        WithheldItem("library" if ".so" in name else "file", name, explain_absent_file(capability))
        for capability, name in plan_input.inventory.missing_expected
        if capability in implied_by
    ]
    own_mounts = _find_own_mounts(container)
    layout = Layout(container.spec, container.rootfs_reader, own_mounts, writable=container.image.writable)
    libraries = [(file, reason) for file, reason in files if file.kind == "library"]
    add_libraries(plan_input, plan, layout, libraries)
    others = [(file, reason) for file, reason in files if file.kind != "library"]
    _add_other_files(plan_input, plan, layout, others)
    if plan_input.inventory.missing_dependencies:
        from gpu_oci_hook.plan.driver_problems import describe_missing_dependencies

        container_paths = {file.container_path for file, _ in others}
        plan.warnings += describe_missing_dependencies(plan_input.inventory, container_paths)
    manifests = [file for file, _ in others if file.kind == "config" and any("/" in name for name in file.needs)]
    if manifests or optional_items.links or optional_items.generated_files:
        from gpu_oci_hook.plan.links import add_optional_files, add_optional_links, link_misplaced_libraries

        link_misplaced_libraries(plan_input, plan, layout, manifests, [file for file, _ in libraries])
        add_optional_files(plan_input, plan, layout)
        add_optional_links(plan_input, plan, layout)
    planned = {(edit.source, edit.destination) for edit in plan.edits if isinstance(edit, AddMount)}
    if not planned.issuperset(own_mounts):
        # All of them: those that are planned again have to come after the new mount of their directory.
        plan.edits[:0] = [DropMount(source, path, "left from an earlier injection") for source, path in own_mounts]


def _find_own_mounts(container: ContainerFacts) -> list[tuple[str, str]]:
    """Return (source, destination) of the mounts in config.json that an earlier run of this program has added.

    They are the mounts of generated files, of prepared directories, and of the libraries in these.
    """
    own_mounts: list[tuple[str, str]] = []
    directories: list[str] = []
    prefixes = tuple(
        [
            f"{top}/{prefix}"
            for top in (container.shared_dir, container.generated_dir, state_dir.DIRECTORY)
            for prefix in (LIBRARIES_DIR_PREFIX, LINKS_DIR_PREFIX)
        ]
    )
    for mount in get_list(container.spec, "mounts"):
        source, destination = get_member(mount, "source"), get_member(mount, "destination")
        if not isinstance(source, str) or not isinstance(destination, str):
            continue
        if source.startswith(prefixes):
            directories.append(destination + "/")
            own_mounts.append((source, destination))
        elif source.startswith(f"{container.generated_dir}/") or destination.startswith(tuple(directories)):
            own_mounts.append((source, destination))
    return own_mounts


def _check_required_libraries(plan_input: PlanInput, implied_by: dict[str, str]) -> None:
    for capability, soname, other_version in plan_input.inventory.missing_libraries:
        if capability in implied_by:
            from gpu_oci_hook.plan.driver_problems import describe_missing_library

            reason = describe_missing_library(other_version)
            raise Fault(
                f"{soname} is required for capability {capability}, and the host has none that fits: {reason}",
                where=f"driver {plan_input.inventory.version}",
                hint="Install the driver's libraries, or set [host] driver-root or library-paths to where they are; "
                "gpu-oci-hook list shows every searched directory",
            )


def _select_driver_files(plan_input: PlanInput, plan: Plan, implied_by: dict[str, str]) -> list[tuple[DriverFile, str]]:
    """Select the driver files to inject, each with its reason; withhold the others with theirs."""
    selected: dict[tuple[str, str], tuple[DriverFile, str]] = {}
    unselected_libraries: dict[tuple[str, str], tuple[DriverFile, str]] = {}
    for file in plan_input.inventory.files:
        excluded = plan_input.optional_items.excluded_files.get(file.source)
        if excluded:
            name = format_library_name(file) if file.kind == "library" else file.container_path or file.name
            plan.withheld.append(WithheldItem(file.kind, name, excluded))
            continue
        is_selected, reason = _decide_driver_file(file, implied_by, plan_input)
        if is_selected:
            selected[file.container_path or file.soname or file.path, file.arch] = (file, reason)
        elif file.kind == "library":
            unselected_libraries[file.soname, file.arch] = (file, reason)
        else:
            plan.withheld.append(WithheldItem(file.kind, file.container_path or file.name, reason))
    # A library that a selected file needs is injected too, whatever its own capability.
    queue = [file for file, _ in selected.values() if file.needs]
    for file in queue:
        for needed_name in file.needs:
            soname = needed_name.rpartition("/")[2]  # a manifest can name its library by a path
            library, _ = unselected_libraries.pop((soname, file.arch), (None, ""))
            if library is not None:
                selected[soname, file.arch] = (library, f"needed by {file.soname or file.name}")
                queue.append(library)
    for file, reason in unselected_libraries.values():
        plan.withheld.append(WithheldItem("library", format_library_name(file), reason))
    return list(selected.values())


def _decide_driver_file(file: DriverFile, implied_by: dict[str, str], plan_input: PlanInput) -> tuple[bool, str]:
    """Decide whether a driver file is injected; return that, and the reason.

    A library that is refused here is still injected if a selected file needs it; a file that must never be injected is
    excluded in `_select_driver_files`.
    """
    if file.kind in ("socket", "directory") and not plan_input.config.sockets:
        return False, "[inject] sockets is off"
    if file.kind == "firmware" and not plan_input.config.firmware:
        return False, "[inject] firmware is off"
    if file.arch in ARCHITECTURES_32BIT and "compat32" not in plan_input.request.capabilities:
        return False, explain_missing_capability("compat32")
    capability = file.capability
    if not capability:
        is_listed = ".csv:" in file.found_in  # on a Jetson, where CSV lists decide
        return True, f"listed in {file.found_in}" if is_listed else "every GPU container gets it"
    if capability not in implied_by:
        return False, explain_missing_capability(capability)
    origin = implied_by[capability]
    if origin != capability and file.kind not in ("library", "config"):
        return False, f"{explain_missing_capability(capability)} ({origin} brings its libraries only)"
    return True, f"capability {capability}" + ("" if origin == capability else f", brought by {origin}")


def _add_other_files(plan_input: PlanInput, plan: Plan, layout: Layout, files: list[tuple[DriverFile, str]]) -> None:
    """Add programs, sockets, firmware and configuration: each is optional and has a fixed path.

    Links of the image can bring two of them to one path, or one below another. Runtimes would fail then, so the later
    one is withheld.
    """
    taken = {edit.destination for edit in plan.edits if isinstance(edit, AddMount)}
    parents_of_taken = {parent for destination in taken for parent in _list_parent_directories(destination)}
    for file, reason in files:
        if not file.container_path:
            continue
        is_directory = file.kind in DIRECTORY_KINDS
        destination, obstacle = layout.find_mount_point(_choose_destination(plan_input, file), follow=is_directory)
        has_own_mount = bool(destination) and layout.is_mount_destination(destination)
        if has_own_mount and not has_same_mount(plan_input.container.spec, destination, file.source):
            if file.kind == "shm":
                plan.edits += _drop_replaced_mounts(plan_input.container.spec, destination, reason)
            else:
                destination, obstacle = "", f"the container has its own mount on {file.container_path}"
        parents = _list_parent_directories(destination)
        if destination in taken or destination in parents_of_taken or not taken.isdisjoint(parents):
            obstacle = f"links of the image bring it to the path of another driver file, {destination}"
            destination = ""
        if not destination:
            plan.withheld.append(WithheldItem(file.kind, file.container_path, obstacle))
            continue
        taken.add(destination)
        parents_of_taken.update(parents)
        options = SOCKET_MOUNT_OPTIONS if file.kind in ("socket", "directory", "shm") else READ_ONLY_MOUNT_OPTIONS
        in_image = layout.writable and layout.classify_resolved_path(destination) == "image"
        plan.edits.append(
            AddMount(file.source, destination, options, reason, clear_mount_point=in_image and not is_directory)
        )


def _list_parent_directories(path: str) -> list[str]:
    """Return the directories above a path, without the root."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(2, len(parts))]


def _choose_destination(plan_input: PlanInput, file: DriverFile) -> str:
    """Return the path of a file in the container; an X server's modules are in its distribution's library directory."""
    if (
        file.container_path.startswith(_XORG_MODULES)
        and plan_input.container.rootfs_reader.stat_path(_XORG_MODULES64, follow=True) is not None
    ):
        return _XORG_MODULES64 + file.container_path[len(_XORG_MODULES) :]
    return file.container_path


def _drop_replaced_mounts(spec: object, destination: str, reason: str) -> list[DropMount]:
    """Return the edits that remove the engine's own mounts from a path which configuration gives to another file."""
    mounts = [(get_member(mount, "source"), get_member(mount, "destination")) for mount in get_list(spec, "mounts")]
    return [
        DropMount(source, path, f"{reason} replaces it")
        for source, path in mounts
        if isinstance(source, str) and isinstance(path, str) and path.rstrip("/") == destination
    ]
