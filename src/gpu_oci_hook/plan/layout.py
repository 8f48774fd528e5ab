"""Where things go in one container: the image's directories under the spec's own mounts; pure.

A path below another mount of the spec is not the image's: what we wrote there would be hidden, and a mount
point made there by the runtime would be a file in somebody else's directory (field reports A5-07).
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.oci import get_list, get_member, is_bind_mount, normalize_destination

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.plan_input import RootfsReader


# Where the driver's libraries are mounted, best first. CUDA images have had the first in LD_LIBRARY_PATH since
# the days of nvidia-docker 1, so their programs find it without any cache. The last two are nearly always a
# tmpfs of the container's: they serve where the image's tree cannot be written.
LIBRARY_ROOTS = ("/usr/local/nvidia", "/usr/lib/gpu-oci-hook", "/run/gpu-oci-hook", "/dev/gpu-oci-hook")

# Where a runtime makes nodes, or refuses mounts. As the root: what it makes would be made in what is mounted there.
_RUNTIME_DIRECTORIES = ("/dev/", "/proc/", "/sys/")

# Runtimes make missing mount points in these at will.
TMPFS_TYPES = ("tmpfs", "devtmpfs", "ramfs")


class Layout:
    """The container's places.

    Arguments:
        own_mounts: (source, destination) of the mounts in the spec that an earlier run of ours has put there.

    Attributes:
        driver_library_dir, driver_library_dir32: the directories for 64-bit and 32-bit libraries; "" when there is no place.
        writable: whether the image's tree can be written by us now.
    """

    __slots__ = ("_mounts", "_rootfs_reader", "driver_library_dir", "driver_library_dir32", "writable")

    def __init__(
        self, spec: object, rootfs_reader: RootfsReader, own_mounts: list[tuple[str, str]], *, writable: bool
    ) -> None:
        self._rootfs_reader = rootfs_reader
        self._mounts: dict[str, bool] = {}  # destination to whether it is a tmpfs of the container's own
        for mount in get_list(spec, "mounts"):
            destination = get_member(mount, "destination")
            if (get_member(mount, "source"), destination) in own_mounts or not isinstance(destination, str):
                continue
            fresh = get_member(mount, "type") in TMPFS_TYPES and not is_bind_mount(mount)
            for place in self._resolve_mount_destination(normalize_destination(destination)):
                self._mounts[place] = fresh
        self.writable = writable
        self.driver_library_dir = self.driver_library_dir32 = ""
        for prefix in LIBRARY_ROOTS:
            if self.classify_path(prefix) != "foreign":
                found = [self._find_library_directory(f"{prefix}/{name}") for name in ("lib64", "lib")]
                if all(found):
                    self.driver_library_dir, self.driver_library_dir32 = found
                    return

    def _resolve_mount_destination(self, destination: str) -> list[str]:
        """Where a runtime may mount what has this destination, free of the image's links."""
        if ".." not in destination:
            return [self._resolve_in_image(destination) or destination]
        # Some go back by the text of the path and some by the links on the way.
        parts: list[str] = []
        for part in destination.split("/")[1:]:
            if part != "..":
                parts.append(part)
            elif parts:
                parts.pop()
        by_text = "/" + "/".join(parts)
        return [self._resolve_in_image(by_text) or by_text, self._resolve_links(destination) or by_text]

    def _resolve_links(self, path: str) -> str:
        """The path free of links; "" when it cannot be walked."""
        try:
            return self._rootfs_reader.resolve_destination(path)
        except Fault:
            return ""

    def _resolve_in_image(self, path: str) -> str:
        """The path free of the image's links, as the runtime will resolve it; "" when it cannot be walked.

        What lies below a mount already is not the image's to redirect.
        """
        return path if self.classify_resolved_path(path) != "image" else self._resolve_links(path)

    def _find_library_directory(self, path: str) -> str:
        """The link-free place for a directory to be mounted on; "" when there can be none."""
        place = self._resolve_in_image(path)
        cover = self.classify_resolved_path(place) if place else "foreign"
        if place != path and _is_misplaced_path(path, place):
            return ""
        if any(destination.startswith(f"{place}/") for destination in self._mounts):
            return ""  # ours would hide a mount of the container's
        if (
            place != path
            and self.classify_resolved_path(path) == "image"
            and (cover != "image" or self._rootfs_reader.list_names(place, 1))
        ):
            return ""  # an image's link into its own libraries, or to /dev/null: ours would hide what is there
        if cover != "image":
            return place if cover == "fresh" else ""
        status = self._rootfs_reader.stat_path(place)
        if status is None:
            return place if self.writable else ""
        return place if status.st_mode & 0o170000 == 0o040000 else ""  # S_ISDIR, without the import

    def _would_hide_content(self, path: str, place: str) -> bool:
        """Whether the very last name of a path is a link of the image's to a directory with something in it."""
        if self.classify_resolved_path(path) != "image":
            return False
        status = self._rootfs_reader.stat_path(path)
        return (
            status is not None
            and status.st_mode & 0o170000 == 0o120000
            and bool(self._rootfs_reader.list_names(place, 1))
        )

    def classify_path(self, path: str) -> str:
        """What a path lies in: "image", "fresh" (a tmpfs of the container's own) or "foreign" (another mount)."""
        place = self._resolve_in_image(path)
        return self.classify_resolved_path(place) if place else "foreign"

    def classify_resolved_path(self, path: str) -> str:
        """The same as `cover` for a path that is free of links already."""
        at = path
        while True:
            fresh = self._mounts.get(at or "/")
            if fresh is not None:
                return "fresh" if fresh and at != path else "foreign"
            if at in ("", "/"):
                return "image"
            at = at.rpartition("/")[0]

    def is_mount_destination(self, path: str) -> bool:
        """Whether the spec itself mounts something exactly there; the path is free of links."""
        return path in self._mounts

    def find_mount_point(self, path: str, *, follow: bool = False) -> tuple[str, str]:
        """The link-free destination for a bind mount, or "" and the reason why there is none.

        Arguments:
            follow: a link at the very end is followed. A file's mount has it removed before: an image's link
                to /etc would else have a file in the place of its /etc.
        """
        if follow:
            place = self._resolve_in_image(path)
            if place and place != path and self._would_hide_content(path, place):
                return "", f"a link of the image leads from {path} to {place}, and ours would hide what is there"
        else:
            above, _, name = path.rpartition("/")
            place = self._resolve_in_image(above or "/")
            if place and self.classify_resolved_path(place) == "image":
                status = self._rootfs_reader.stat_path(place)
                if status is not None and status.st_mode & 0o170000 != 0o040000:  # S_ISDIR, without the import
                    place = ""
            place = place and f"{place.rstrip('/')}/{name}"
        if not place:
            return "", f"the image has something else than a directory on the way to {path}"
        if place != path and _is_misplaced_path(path, place):
            return "", f"a link of the image leads from {path} to {place}, which is the runtime's"
        cover = self.classify_resolved_path(place)
        if cover == "fresh" or (cover == "foreign" and self.is_mount_destination(place)):
            return place, ""
        if cover == "foreign":
            return "", f"{path} lies below another mount of the container"
        if self.writable:
            return place, ""
        found = self._rootfs_reader.resolve_path(path)
        if found is None:
            return "", f"the root file system cannot be written and has no {path}"
        return found, ""


def _is_misplaced_path(path: str, place: str) -> bool:
    """Whether an image's links lead from a path to a place where a runtime's own things would be."""
    return place == "/" or any(f"{place}/".startswith(top) and not path.startswith(top) for top in _RUNTIME_DIRECTORIES)
