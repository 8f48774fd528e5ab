"""Mount options, and files generated for the container."""

from __future__ import annotations

from gpu_oci_hook.container.rootfs_edits import generated_file_name
from gpu_oci_hook.formats.oci import get_list, get_member
from gpu_oci_hook.model.edits import AddFile, AddMount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.edits import Plan
    from gpu_oci_hook.model.plan_input import PlanInput
    from gpu_oci_hook.plan.layout import Layout


# Mount options (design 5). The runtime resolves nothing more: every source and destination is absolute.
READ_ONLY_MOUNT_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")


SOCKET_MOUNT_OPTIONS = ("nosuid", "nodev", "noexec", "rbind", "rprivate")


# Kinds of files that are directories: a daemon's, one that is read-only, and one in the place of /dev/shm.
DIRECTORY_KINDS = ("directory", "tree", "shm")


# How the names of prepared directories begin.
LIBRARIES_DIR_PREFIX = "libraries-"


LINKS_DIR_PREFIX = "links-"


def add_generated_file(
    plan_input: PlanInput, plan: Plan, layout: Layout, path: str, content: bytes, reason: str, *, optional: bool
) -> str:
    """A file that is written below the root, or in the bundle and mounted; why it is neither, "" when it is one."""
    if layout.classify_path(path) == "image" and layout.writable:
        plan.edits.append(AddFile(path, content, reason, optional=optional))
        return ""
    destination, why = layout.find_mount_point(path)
    if destination and layout.classify_path(path) == "image":
        plan.edits.append(AddFile(path, content, reason, bind_mounted=True))
        source = f"{plan_input.container.generated_dir}/{generated_file_name(path)}"
        plan.edits.append(AddMount(source, destination, READ_ONLY_MOUNT_OPTIONS, reason, clear_mount_point=False))
        return ""
    return why or f"{path} lies in another mount"


def has_same_mount(spec: object, destination: str, source: str) -> bool:
    """Whether the spec mounts this very source there."""
    return any(
        get_member(mount, "destination") == destination and get_member(mount, "source") == source
        for mount in get_list(spec, "mounts")
    )
