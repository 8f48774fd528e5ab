"""Libraries that stay at the path that they have on the host: where they look for each other by it (WSL, Jetson).

Cost rule: imported only on such machines.
"""

from __future__ import annotations

from gpu_oci_hook.formats.architectures import ARCHITECTURES_32BIT
from gpu_oci_hook.model.edits import AddLink, AddMount, Plan, WithheldItem
from gpu_oci_hook.plan.loader_files import MAIN_LIBRARIES
from gpu_oci_hook.plan.mounting import READ_ONLY_MOUNT_OPTIONS, has_same_mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import DriverFile
    from gpu_oci_hook.model.plan_input import PlanInput
    from gpu_oci_hook.plan.layout import Layout


def add_host_path_libraries(
    plan_input: PlanInput, plan: Plan, layout: Layout, files: list[tuple[DriverFile, str]]
) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Mounts of the libraries, and the links that the loader and programs ask for.

    Returns:
        (SONAME, path, architecture) for the loader's cache, and the directories for its other files.
    """
    found: list[tuple[str, str, str]] = []
    directories: dict[str, None] = {}
    trees = tuple([f"{file.container_path}/" for file in plan_input.inventory.files if file.kind == "tree"])
    named = {file.container_path for file in plan_input.inventory.files} | {
        path for path, _, _ in plan_input.optional_items.links
    }
    for file, why in files:
        above, _, name = file.container_path.rpartition("/")
        whole = file.container_path.startswith(trees) if trees else False
        if not whole and not _add_library_mount(plan_input, plan, layout, file, why):
            continue
        own = plan_input.image.library_dir32 if file.arch in ARCHITECTURES_32BIT else plan_input.image.library_dir
        if above not in (own, "/usr/lib", "/lib"):  # there the loader looks anyway
            directories[above] = None
        for alias in (file.soname, *file.links):
            found.append((alias, file.container_path, file.arch))
            wanted = [] if whole or alias == name else [(f"{above}/{alias}", name)]
            if alias in MAIN_LIBRARIES and file.arch not in ARCHITECTURES_32BIT and above != own:
                wanted.append((f"{own}/{alias}", file.container_path))
            for path, target in wanted:
                if path in named:
                    continue
                named.add(path)
                if layout.writable and layout.classify_path(path) == "image":
                    plan.edits.append(AddLink(path, target, "the name that it is loaded by"))
                else:
                    reason = "it would lie in another mount, or the root cannot be written"
                    plan.withheld.append(WithheldItem("link", path, reason))
    return found, list(directories)


def _add_library_mount(plan_input: PlanInput, plan: Plan, layout: Layout, file: DriverFile, why: str) -> bool:
    destination, reason = layout.find_mount_point(file.container_path)
    if (
        destination
        and layout.is_mount_destination(destination)
        and not has_same_mount(plan_input.spec, destination, file.source)
    ):
        destination, reason = "", f"the container has its own mount on {file.container_path}"
    if not destination:
        plan.withheld.append(WithheldItem("library", file.container_path, reason))
        return False
    make_way = layout.writable and layout.classify_resolved_path(destination) == "image"
    plan.edits.append(AddMount(file.source, destination, READ_ONLY_MOUNT_OPTIONS, why, clear_mount_point=make_way))
    return True
