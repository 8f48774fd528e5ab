"""Make symbolic links in the container that a hook was called for."""

from __future__ import annotations

from gpu_oci_hook.files.directory import CrossMountError
from gpu_oci_hook.formats.oci import get_list, get_member
from gpu_oci_hook.hook.called_container import PROBE_NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_oci_hook.files.rootfs import Rootfs
    from gpu_oci_hook.hook.called_container import Container


UNWRITABLE_ROOTFS = "the root file system cannot be written"


def create_links(container: Container, links: Iterable[tuple[str, str]]) -> None:
    """Makes symbolic links, (text, path) each; one that lies in somebody else's mount is left out with a note.

    Raises:
        Fault: one cannot be made though its place can be written.
    """
    places = container.get_layout()
    lost = []
    # What holds for one name in a directory holds for all; a driver has fifty links in one.
    ways: dict[str, tuple[str, str, Rootfs]] = {}
    for text, path in links:
        above, _, name = path.rpartition("/")
        if above not in ways:
            place, why = places.find_mount_point(f"{above}/{PROBE_NAME}")
            fresh = not why and places.classify_resolved_path(place) == "fresh"
            if not (why or fresh or places.writable):
                why = UNWRITABLE_ROOTFS
            ways[above] = place.rpartition("/")[0], why, container.rootfs if fresh else container.writable_rootfs
        place, why, root = ways[above]
        if not why and places.is_mount_destination(f"{place}/{name}"):
            why = "the container has its own mount there"
        if not why:
            try:
                root.make_symlink(f"{place}/{name}", text)
            except CrossMountError:
                container.notes.append(f"the link {path} is left out: it lies in another mount")
        elif places.writable:
            container.notes.append(f"the link {path} is left out: {why}")
        else:
            lost.append(path)
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        container.notes.append(f"the link {lost[0]}{more} cannot be made: {UNWRITABLE_ROOTFS}")


def list_mount_destinations(container: Container) -> list[tuple[str, str]]:
    """(directory, name) of what the spec mounts."""
    found = []
    for mount in get_list(container.spec, "mounts"):
        path = get_member(mount, "destination")
        if isinstance(path, str) and path.startswith("/"):
            above, _, name = path.rpartition("/")
            found.append((above, name))
    return found
