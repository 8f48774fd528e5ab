"""Create symbolic links in the container that a hook is called for.

Import budget: hook.
"""

from __future__ import annotations

from gpu_oci_hook.files.directory import CrossMountError
from gpu_oci_hook.formats.oci import get_list, get_member
from gpu_oci_hook.hook.called_container import PROBE_NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_oci_hook.files.rootfs import Rootfs
    from gpu_oci_hook.hook.called_container import Container

    # Resolved directory, the reason why no link can be made in it ("" for none), and the root to make links through.
    LinkDirectory = tuple[str, str, Rootfs]

UNWRITABLE_ROOTFS = "the root file system cannot be written"


def create_links(container: Container, links: Iterable[tuple[str, str]]) -> None:
    """Create symbolic links, (target, path) each. A link inside another mount is skipped with a note.

    Raises:
        Fault: a link cannot be created although its directory is writable.
    """
    layout = container.get_layout()
    unwritable: list[str] = []
    # The result for one name in a directory holds for all, and a driver has fifty links in one directory.
    directories: dict[str, LinkDirectory] = {}
    for target, path in links:
        parent, _, name = path.rpartition("/")
        if parent not in directories:
            directories[parent] = _resolve_link_directory(container, parent)
        directory, reason, root = directories[parent]
        if not reason and layout.is_mount_destination(f"{directory}/{name}"):
            reason = "the container has its own mount there"
        if not reason:
            try:
                root.make_symlink(f"{directory}/{name}", target)
            except CrossMountError:
                container.notes.append(f"skipped the link {path}: it is in another mount")
        elif layout.writable:
            container.notes.append(f"skipped the link {path}: {reason}")
        else:
            unwritable.append(path)
    if unwritable:
        more = f" and {len(unwritable) - 1} more" if len(unwritable) > 1 else ""
        container.notes.append(f"cannot create the link {unwritable[0]}{more}: {UNWRITABLE_ROOTFS}")


def _resolve_link_directory(container: Container, parent: str) -> LinkDirectory:
    layout = container.get_layout()
    path, reason = layout.find_mount_point(f"{parent}/{PROBE_NAME}")
    is_fresh = not reason and layout.classify_resolved_path(path) == "fresh"
    if not (reason or is_fresh or layout.writable):
        reason = UNWRITABLE_ROOTFS
    reason = reason.replace(f"{parent}/{PROBE_NAME}", parent)
    return path.rpartition("/")[0], reason, container.rootfs if is_fresh else container.writable_rootfs


def list_mount_destinations(container: Container) -> list[tuple[str, str]]:
    """Return (directory, name) of each mount destination in the spec."""
    destinations = []
    for mount in get_list(container.spec, "mounts"):
        path = get_member(mount, "destination")
        if isinstance(path, str) and path.startswith("/"):
            parent, _, name = path.rpartition("/")
            destinations.append((parent, name))
    return destinations
