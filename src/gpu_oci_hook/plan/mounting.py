"""Mount options, and files generated for the container.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.container.rootfs_edits import generated_file_name
from gpu_oci_hook.formats.oci import get_list, get_member
from gpu_oci_hook.model.edits import AddMount
from gpu_oci_hook.model.file_edits import AddFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.edits import Plan
    from gpu_oci_hook.model.plan_input import PlanInput
    from gpu_oci_hook.plan.layout import Layout


# Mount options. Every source and destination is absolute, so the low-level runtime resolves nothing.
READ_ONLY_MOUNT_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")


SOCKET_MOUNT_OPTIONS = ("nosuid", "nodev", "noexec", "rbind", "rprivate")


# Kinds of files that are directories: a daemon's, a read-only one, and one that replaces /dev/shm.
DIRECTORY_KINDS = ("directory", "tree", "shm")


# Prefixes of the names of prepared directories.
LIBRARIES_DIR_PREFIX = "libraries-"


LINKS_DIR_PREFIX = "links-"


def add_generated_file(
    plan_input: PlanInput, plan: Plan, layout: Layout, path: str, content: bytes, reason: str, *, optional: bool
) -> str:
    """Add a file that is written below the root, or into the bundle and mounted; return why neither is possible, or
    "".
    """
    if layout.classify_path(path) == "image" and layout.writable:
        if plan_input.container.rootfs_reader.can_replace(path):
            plan.edits.append(AddFile(path, content, reason, optional=optional))
            return ""
        if plan_input.container.rootfs_reader.resolve_path(path) is None:
            return f"{path} cannot be created: its directory is immutable or append-only"
    destination, obstacle = layout.find_mount_point(path)
    if destination and layout.classify_path(path) == "image":
        plan.edits.append(AddFile(path, content, reason, bind_mounted=True))
        source = f"{plan_input.container.generated_dir}/{generated_file_name(path)}"
        plan.edits.append(AddMount(source, destination, READ_ONLY_MOUNT_OPTIONS, reason, clear_mount_point=False))
        return ""
    return obstacle or f"{path} lies in another mount"


def has_same_mount(spec: object, destination: str, source: str) -> bool:
    """Tell whether config.json mounts this source on this destination."""
    return any(
        get_member(mount, "destination") == destination and get_member(mount, "source") == source
        for mount in get_list(spec, "mounts")
    )
