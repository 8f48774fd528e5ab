"""Add optional links and generated files, and links for manifests that name a library by its path.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.files import state_dir
from gpu_oci_hook.formats.architectures import ARCHITECTURES_32BIT
from gpu_oci_hook.model.edits import AddDeviceNode, AddMount, Plan, WithheldItem
from gpu_oci_hook.model.file_edits import AddLink, PrepareDirectory
from gpu_oci_hook.plan.mounting import LINKS_DIR_PREFIX, READ_ONLY_MOUNT_OPTIONS, add_generated_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import DriverFile
    from gpu_oci_hook.model.plan_input import PlanInput
    from gpu_oci_hook.plan.layout import Layout


def add_optional_links(plan_input: PlanInput, plan: Plan, layout: Layout) -> None:
    """Add the optional links.

    A link in a tmpfs of the container cannot be made before the tmpfs is mounted. There the links' directory is a
    prepared one, mounted as a whole. It has real links, so that their targets name the nodes as on a host.
    """
    groups: dict[str, list[tuple[str, str]]] = {}
    reasons: dict[str, str] = {}
    for path, target, reason in plan_input.optional_items.links:
        if layout.writable and layout.classify_entry(path) == "image":
            plan.edits.append(AddLink(path, target, reason))
        else:
            directory, _, name = path.rpartition("/")
            groups.setdefault(directory, []).append((name, target))
            reasons.setdefault(directory, reason)
    for directory, entries in groups.items():
        destination, obstacle = layout.find_mount_point(directory, follow=True)
        if destination and layout.is_mount_destination(destination):
            obstacle = f"the container has its own mount on {directory}"
        elif destination and layout.classify_resolved_path(destination) != "fresh":
            obstacle = "the root file system cannot be written"
        elif destination and _has_edits_below(plan, destination):
            obstacle = f"{directory} has other files or nodes of this container"
        if obstacle:
            plan.withheld += [WithheldItem("link", f"{directory}/{name}", obstacle) for name, _ in entries]
            continue
        content = tuple(sorted(entries))
        # In the bundle: each choice of GPUs has its own links, and the state directory would have them all.
        digest = state_dir.compute_digest(repr(content).encode())
        source = f"{plan_input.container.generated_dir}/{LINKS_DIR_PREFIX}{digest}"
        reason = reasons[directory] if len(entries) == 1 else "by-path links to the nodes"
        plan.edits.append(PrepareDirectory(source, destination, content, reason))
        plan.edits.append(AddMount(source, destination, READ_ONLY_MOUNT_OPTIONS, reason, clear_mount_point=False))


def _has_edits_below(plan: Plan, directory: str) -> bool:
    """Tell whether the runtime has to create something in a directory that would be read-only."""
    paths = [edit.path for edit in plan.edits if isinstance(edit, AddDeviceNode)]
    paths += [edit.destination for edit in plan.edits if isinstance(edit, AddMount)]
    return any(path.startswith(f"{directory}/") for path in paths)


def add_optional_files(plan_input: PlanInput, plan: Plan, layout: Layout) -> None:
    """Add the optional generated files; a failure to write one does not stop a start."""
    for path, content, reason, always in plan_input.optional_items.generated_files:
        if not always and (
            layout.classify_path(path) != "image" or plan_input.container.rootfs_reader.stat_path(path) is None
        ):
            continue
        obstacle = add_generated_file(plan_input, plan, layout, path, content, reason, optional=True)
        if obstacle:
            plan.withheld.append(WithheldItem("file", path, obstacle))


def link_misplaced_libraries(
    plan_input: PlanInput, plan: Plan, layout: Layout, manifests: list[DriverFile], libraries: list[DriverFile]
) -> None:
    """Add a link for each manifest that names a library by a host path, from there to its path in the container.

    A path with a slash that does not begin with one is relative to the manifest's directory (Vulkan-Loader).
    """
    known = {(library.soname, library.arch): library for library in libraries}
    for manifest in manifests:
        for path in manifest.needs:
            name = path.rpartition("/")[2]
            if "/" not in path or (name, manifest.arch) not in known:
                continue
            named = path if path.startswith("/") else f"{manifest.container_path.rpartition('/')[0]}/{path}"
            named = _normalize_path(named)
            is_32bit = manifest.arch in ARCHITECTURES_32BIT
            directory = layout.driver_library_dir32 if is_32bit else layout.driver_library_dir
            actual = f"{directory}/{name}"
            if named == actual:
                continue
            warning = f"{manifest.name} names {path}, but in the container that library lies at {actual}"
            status = plan_input.container.rootfs_reader.stat_path(named)
            replaceable = status is None or status.st_mode & 0o170000 == 0o120000 or status.st_size == 0
            if replaceable and layout.writable and layout.classify_entry(named) == "image":
                plan.edits.append(AddLink(named, actual, f"{manifest.name} names the library so"))
                warning += "; a link leads there"
            plan.warnings.append(warning)


def _normalize_path(path: str) -> str:
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)
