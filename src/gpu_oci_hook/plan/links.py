"""Links and generated files beside the driver's own, and manifests that name a library by its path; pure.

Cost rule: imported only where there is one of these.
"""

from __future__ import annotations

from gpu_oci_hook.files import state_dir
from gpu_oci_hook.formats.architectures import ARCHITECTURES_32BIT
from gpu_oci_hook.model.edits import AddDeviceNode, AddLink, AddMount, Plan, PrepareDirectory, WithheldItem
from gpu_oci_hook.plan.mounting import LINKS_DIR_PREFIX, READ_ONLY_MOUNT_OPTIONS, add_generated_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import DriverFile
    from gpu_oci_hook.model.plan_input import PlanInput
    from gpu_oci_hook.plan.layout import Layout


def add_optional_links(plan_input: PlanInput, plan: Plan, layout: Layout) -> None:
    """The links of the extras.

    What lies below a tmpfs of the container's cannot be written before it is mounted: there the directory that has
    the links is one of ours, mounted as a whole. Real links, so that their text tells the node's name as on a host.
    """
    groups: dict[str, list[tuple[str, str]]] = {}
    reasons: dict[str, str] = {}
    for path, target, why in plan_input.optional_items.links:
        if layout.writable and layout.classify_path(path) == "image":
            plan.edits.append(AddLink(path, target, why))
        else:
            directory, _, name = path.rpartition("/")
            groups.setdefault(directory, []).append((name, target))
            reasons.setdefault(directory, why)
    for directory, entries in groups.items():
        place, reason = layout.find_mount_point(directory, follow=True)
        if place and layout.is_mount_destination(place):
            reason = f"the container has its own mount on {directory}"
        elif place and layout.classify_resolved_path(place) != "fresh":
            reason = "the root file system cannot be written"
        elif place and _has_edits_below(plan, place):
            reason = f"{directory} has other things of this container in it"
        if reason:
            plan.withheld += [WithheldItem("link", f"{directory}/{name}", reason) for name, _ in entries]
            continue
        content = tuple(sorted(entries))
        source = (
            f"{plan_input.container.shared_dir}/{LINKS_DIR_PREFIX}{state_dir.compute_digest(repr(content).encode())}"
        )
        why = reasons[directory] if len(entries) == 1 else "names by path of the nodes"
        plan.edits.append(PrepareDirectory(source, place, content, why))
        plan.edits.append(AddMount(source, place, READ_ONLY_MOUNT_OPTIONS, why, clear_mount_point=False))


def _has_edits_below(plan: Plan, directory: str) -> bool:
    """Whether the runtime has to make something in a directory that would be read-only."""
    made = [edit.path for edit in plan.edits if isinstance(edit, AddDeviceNode)]
    made += [edit.destination for edit in plan.edits if isinstance(edit, AddMount)]
    return any(path.startswith(f"{directory}/") for path in made)


def add_optional_files(plan_input: PlanInput, plan: Plan, layout: Layout) -> None:
    """The generated files of the extras; each is optional."""
    for path, content, why, always in plan_input.optional_items.generated_files:
        if not always and (
            layout.classify_path(path) != "image" or plan_input.container.rootfs_reader.stat_path(path) is None
        ):
            continue
        reason = add_generated_file(plan_input, plan, layout, path, content, why, optional=True)
        if reason:
            plan.withheld.append(WithheldItem("file", path, reason))


def link_misplaced_libraries(
    plan_input: PlanInput, plan: Plan, layout: Layout, manifests: list[DriverFile], libraries: list[DriverFile]
) -> None:
    """Manifests that name a library by a path of the host's: a link there leads to where it lies in the container.

    A path that does not begin with a slash but has one is meant from the manifest's directory (Vulkan-Loader).
    """
    known = {(library.soname, library.arch): library for library in libraries}
    for manifest in manifests:
        for path in manifest.needs:
            name = path.rpartition("/")[2]
            if "/" not in path or (name, manifest.arch) not in known:
                continue
            wanted = path if path.startswith("/") else f"{manifest.container_path.rpartition('/')[0]}/{path}"
            wanted = _normalize_path(wanted)
            place = f"{layout.driver_library_dir32 if manifest.arch in ARCHITECTURES_32BIT else layout.driver_library_dir}/{name}"
            if wanted == place:
                continue
            text = f"{manifest.name} names {path}, but in the container that library lies at {place}"
            status = plan_input.container.rootfs_reader.stat_path(wanted)
            free = status is None or status.st_mode & 0o170000 == 0o120000 or status.st_size == 0
            if free and layout.writable and layout.classify_path(wanted) == "image":
                plan.edits.append(AddLink(wanted, place, f"{manifest.name} names the library so"))
                text += "; a link leads there"
            plan.warnings.append(text)


def _normalize_path(path: str) -> str:
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)
