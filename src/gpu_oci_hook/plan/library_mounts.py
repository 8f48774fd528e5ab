"""Place the driver's libraries in the container, and make its loader find them.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.container.image import BOARD_LIBCUDA_VERSION
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.formats.architectures import ARCHITECTURES_32BIT
from gpu_oci_hook.model.edits import AddMount, Plan, SetEnvVariable, WithheldItem
from gpu_oci_hook.model.file_edits import AddLink, PrepareDirectory
from gpu_oci_hook.model.plan_input import explain_missing_capability
from gpu_oci_hook.plan.loader_files import LIBCUDA, LibrarySearch, is_required_loader_file
from gpu_oci_hook.plan.mounting import LIBRARIES_DIR_PREFIX, READ_ONLY_MOUNT_OPTIONS, add_generated_file
from gpu_oci_hook.request.capabilities import add_implied_capabilities

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.libcuda_choice import LibcudaChoice
    from gpu_oci_hook.model.machine import DriverFile
    from gpu_oci_hook.model.plan_input import PlanInput
    from gpu_oci_hook.plan.compat import CompatDecision
    from gpu_oci_hook.plan.layout import Layout


def add_libraries(plan_input: PlanInput, plan: Plan, layout: Layout, files: list[tuple[DriverFile, str]]) -> None:
    """Add the mounts of the libraries, their links, and the files that make the container's loader find them."""
    if not files:
        return
    host_path_files = [(file, reason) for file, reason in files if file.container_path]
    if host_path_files:
        files = [(file, reason) for file, reason in files if not file.container_path]
    if files and not layout.driver_library_dir:
        raise Fault(
            "the container has no directory for the driver's libraries: its root file system cannot be written, has "
            "no directory /usr/local/nvidia/lib64, and neither /run nor /dev is a tmpfs",
            where=plan_input.container.rootfs_path,
            hint="Mount a tmpfs on /run or make the root file system writable",
        )
    search = LibrarySearch(plan_input.container.image, plan_input.container.rootfs_reader, layout)
    compat = (
        _resolve_compat_preference(plan_input, plan, layout) if plan_input.container.image.compat_libcudas else None
    )
    search.compat_directory = compat.directory if compat else ""
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
    _add_loader_files(plan_input, plan, layout, search, compat.reason if compat else "")
    if search.find_cached_path(LIBCUDA):
        _check_libcuda(plan_input, plan, layout, search, compat)


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
    for file, reason in files:
        if file.arch in ARCHITECTURES_32BIT and search.image.libc == "musl":
            # musl stops at a library of another architecture where LD_LIBRARY_PATH names that directory first.
            plan.withheld.append(WithheldItem("library", format_library_name(file), "a musl image has no use for it"))
            continue
        own_mount = search.find_own_mount(file.arch, file.soname, file.name)
        if own_mount:
            obstacle = f"the container has its own mount on {own_mount}"
            plan.withheld.append(WithheldItem("library", format_library_name(file), obstacle))
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
            AddMount(file.source, destination, READ_ONLY_MOUNT_OPTIONS, reason, clear_mount_point=False)
        )
        if file.soname != file.name:
            names[file.soname] = search.find_compat_library(file.soname, file.arch) or file.name
            if names[file.soname] != file.name:
                # The image chooses that path, and could else fill /run.
                placement.prepared_root = plan_input.container.generated_dir
        search.add_library(file.soname, f"{directory}/{file.soname}", file.arch)
        for name in file.links:
            if "/" in name:  # a plug-in, searched in a subdirectory of the image's own library directory
                image_directory = search.get_image_directory(file.arch)
                link = AddLink(
                    f"{image_directory}/{name}", f"{directory}/{file.soname}", "the name by which programs load it"
                )
                placement.plugin_links.setdefault(image_directory, []).append(link)
            else:
                names[name] = file.soname
                search.add_library(name, f"{directory}/{name}", file.arch)
    if search.compat_directory and layout.driver_library_dir in placement.entries:
        from gpu_oci_hook.plan.compat import list_compat_links

        names = placement.entries[layout.driver_library_dir]
        names.update(list_compat_links(search.compat_directory, plan_input.container.image.compat_names, names))
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
    if not layout.may_write_directory(image_directory):
        reason = f"{image_directory} lies in another mount, or cannot be written"
        plan.withheld += [WithheldItem("link", link.path, reason) for link in plugin_links]
        return
    names = search.choose_image_links(placement.entries.get(directory, {}), image_directory)
    links = [AddLink(f"{image_directory}/{name}", f"{directory}/{name}", reason) for name, reason in names]
    for link in [*links, *plugin_links] if search.may_link_plugins(image_directory) else links:
        if layout.classify_entry(link.path) == "image":
            plan.edits.append(link)
        else:
            plan.withheld.append(WithheldItem("link", link.path, "the container has its own mount there"))


def _resolve_compat_preference(plan_input: PlanInput, plan: Plan, layout: Layout) -> CompatDecision:
    """Decide whether the image's compat libraries come first; withhold them with the reason if not."""
    # Few images have any.
    from gpu_oci_hook.plan.compat import CompatDecision, decide_board_compat, decide_cuda_compat

    image = plan_input.container.image
    if "compute" not in add_implied_capabilities(plan_input.request.capabilities):
        decision = CompatDecision("", explain_missing_capability("compute"))
    elif layout.classify_path(image.compat_dir) != "image":
        decision = CompatDecision("", f"{image.compat_dir} lies in a mount of the container")
    elif image.compat_libcudas[0][1] == BOARD_LIBCUDA_VERSION:
        decision = decide_board_compat(
            image.compat_dir,
            plan_input.request.environment.get("CUDA_VERSION", ""),
            plan_input.container.board_cuda,
            plan_input.config.cuda_compat,
        )
    else:
        decision = decide_cuda_compat(
            image.compat_libcudas,
            plan_input.inventory.version,
            plan_input.config.cuda_compat,
            has_only_datacenter_gpus=lambda: plan_input.container.datacenter_only,
        )
    if not decision.directory:
        plan.withheld.append(WithheldItem("compat", image.compat_libcudas[0][0], decision.reason))
    return decision


def _check_libcuda(
    plan_input: PlanInput, plan: Plan, layout: Layout, search: LibrarySearch, compat: CompatDecision | None
) -> None:
    """Warn if the container's programs will load another libcuda than the one that the plan puts first."""

    def find_libcuda() -> LibcudaChoice:
        from gpu_oci_hook.plan.planned_libcuda import find_planned_libcuda

        return find_planned_libcuda(plan_input, plan, layout, search, compat)

    plan.find_libcuda = find_libcuda
    # In most containers nothing else is named, and their starts shall not pay for the answer.
    if compat is None and not search.may_be_overruled(plan_input.request.environment.get("LD_LIBRARY_PATH", "")):
        return
    choice = find_libcuda()
    plan.warnings += choice.list_warnings()
    if compat is not None and compat.warning and choice.at_start is not None and choice.at_start.owner == "host":
        plan.warnings.append(compat.warning)


def _add_loader_files(
    plan_input: PlanInput, plan: Plan, layout: Layout, search: LibrarySearch, compat_reason: str
) -> None:
    """Add the loader's files; where those that it reads cannot be written, set LD_LIBRARY_PATH instead."""
    result = search.build_files()
    plan.warnings += result.notes
    reason = "lets the container's loader find the libraries"
    if search.compat_directory:
        reason += f"; the image's own libcuda comes first: {compat_reason}"
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
            reason = (
                "the image's loader cache cannot be written, so LD_LIBRARY_PATH is set instead"
                if result.files
                else "the image has no glibc or musl loader, so LD_LIBRARY_PATH is set instead of a loader cache"
            )
            plan.edits.append(SetEnvVariable("LD_LIBRARY_PATH", value, reason))


def format_library_name(file: DriverFile) -> str:
    """Return the SONAME of a library, with the architecture if it is for 32-bit programs."""
    return f"{file.soname} ({file.arch})" if file.arch in ARCHITECTURES_32BIT else file.soname
