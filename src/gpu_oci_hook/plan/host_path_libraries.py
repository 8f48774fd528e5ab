"""Add libraries mounted at their host path because they load each other by absolute path (WSL, Jetson).

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.formats.architectures import ARCHITECTURES_32BIT
from gpu_oci_hook.model.edits import AddMount, Plan, WithheldItem
from gpu_oci_hook.model.file_edits import AddLink
from gpu_oci_hook.plan.loader_files import MAIN_LIBRARIES
from gpu_oci_hook.plan.mounting import READ_ONLY_MOUNT_OPTIONS, has_same_mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import DriverFile
    from gpu_oci_hook.model.plan_input import PlanInput
    from gpu_oci_hook.plan.layout import Layout
    from gpu_oci_hook.plan.loader_files import LibrarySearch


def add_host_path_libraries(
    plan_input: PlanInput, plan: Plan, layout: Layout, search: LibrarySearch, files: list[tuple[DriverFile, str]]
) -> None:
    """Add the mounts of the libraries, and the links that the loader and programs use; tell the loader of them."""
    mounted_trees = tuple([f"{file.container_path}/" for file in plan_input.inventory.files if file.kind == "tree"])
    taken = {file.container_path for file in plan_input.inventory.files}
    taken |= {path for path, _, _ in plan_input.optional_items.links}
    for file, reason in files:
        directory, _, name = file.container_path.rpartition("/")
        in_tree = file.container_path.startswith(mounted_trees) if mounted_trees else False
        if not in_tree and not _add_library_mount(plan_input, plan, layout, file, reason):
            continue
        if not search.is_default_directory(directory):
            search.add_directory(directory)
        image_directory = search.get_image_directory(file.arch)
        for alias in (file.soname, *file.links):
            search.add_library(alias, file.container_path, file.arch)
            links = [] if in_tree or alias == name else [(f"{directory}/{alias}", name)]
            if alias in MAIN_LIBRARIES and file.arch not in ARCHITECTURES_32BIT and directory != image_directory:
                links.append((f"{image_directory}/{alias}", file.container_path))
            for path, target in links:
                if path in taken:
                    continue
                taken.add(path)
                if layout.writable and layout.classify_entry(path) == "image":
                    plan.edits.append(AddLink(path, target, "the name by which programs load it"))
                else:
                    obstacle = "it would lie in another mount, or the root cannot be written"
                    plan.withheld.append(WithheldItem("link", path, obstacle))


def _add_library_mount(plan_input: PlanInput, plan: Plan, layout: Layout, file: DriverFile, reason: str) -> bool:
    """Add the mount of one library; tell whether it is mounted."""
    destination, obstacle = layout.find_mount_point(file.container_path)
    if (
        destination
        and layout.is_mount_destination(destination)
        and not has_same_mount(plan_input.container.spec, destination, file.source)
    ):
        destination, obstacle = "", f"the container has its own mount on {file.container_path}"
    if not destination:
        plan.withheld.append(WithheldItem("library", file.container_path, obstacle))
        return False
    in_image = layout.writable and layout.classify_resolved_path(destination) == "image"
    plan.edits.append(AddMount(file.source, destination, READ_ONLY_MOUNT_OPTIONS, reason, clear_mount_point=in_image))
    return True
