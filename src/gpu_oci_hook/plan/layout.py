"""Decide where files go in one container: the image's directories, seen under the mounts of config.json.

A path below another mount of config.json is not the image's. A file that we write there would be hidden. A mount point
that the runtime creates there would be left in the mounted directory, which can be a host's or another container's.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.oci import get_list, get_member, is_bind_mount, is_utf8_text, normalize_destination

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from gpu_oci_hook.model.plan_input import RootfsReader

    PathOwner = Literal["image", "fresh", "foreign"]


# Where the driver's libraries are mounted, best first. CUDA images have the first in LD_LIBRARY_PATH since
# nvidia-docker 1, so their programs find it without a loader cache. The last two are nearly always in a tmpfs of the
# container: they serve where the image's tree cannot be written.
LIBRARY_ROOTS = ("/usr/local/nvidia", "/usr/lib/gpu-oci-hook", "/run/gpu-oci-hook", "/dev/gpu-oci-hook")

# Where a runtime creates nodes, or refuses mounts. A mount there would be in its way.
_RUNTIME_DIRECTORIES = ("/dev/", "/proc/", "/sys/")

_PROBE_NAME = ".gpu-oci-hook"  # a name that nothing is mounted on

# In these file systems runtimes create missing mount points.
TMPFS_TYPES = ("tmpfs", "devtmpfs", "ramfs")


class Layout:
    """The paths of a container, classified by what is mounted over them.

    Arguments:
        own_mounts: (source, destination) of the mounts in config.json that an earlier run of this program has added.

    Attributes:
        driver_library_dir, driver_library_dir32: the directories for 64-bit and 32-bit libraries; "" if the container
            has none.
        writable: whether this process can write the image's tree now.
    """

    __slots__ = (
        "_in_other_mount",
        "_mounts",
        "_rootfs_reader",
        "driver_library_dir",
        "driver_library_dir32",
        "writable",
    )

    def __init__(
        self, spec: object, rootfs_reader: RootfsReader, own_mounts: list[tuple[str, str]], *, writable: bool
    ) -> None:
        self._rootfs_reader = rootfs_reader
        # Directory to whether it lies in a mount that is there already, and whether it is missing.
        self._in_other_mount: dict[str, tuple[bool, bool]] = {}
        self._mounts: dict[str, bool] = {}  # destination to whether it is a tmpfs of the container
        for mount in get_list(spec, "mounts"):
            destination = get_member(mount, "destination")
            if (get_member(mount, "source"), destination) in own_mounts or not isinstance(destination, str):
                continue
            fresh = get_member(mount, "type") in TMPFS_TYPES and not is_bind_mount(mount)
            for resolved in self._resolve_mount_destination(normalize_destination(destination)):
                self._mounts[resolved] = fresh
        self.writable = writable
        self.driver_library_dir = self.driver_library_dir32 = ""
        for prefix in LIBRARY_ROOTS:
            if self.classify_directory(prefix) != "foreign":
                directories = [self._find_library_directory(f"{prefix}/{name}") for name in ("lib64", "lib")]
                if all(directories):
                    self.driver_library_dir, self.driver_library_dir32 = directories
                    return

    def _resolve_mount_destination(self, destination: str) -> list[str]:
        """Return the link-free paths on which runtimes can mount a destination of config.json."""
        if ".." not in destination:
            return [self._resolve_in_image(destination) or destination]
        # Some runtimes resolve ".." by the text of the path, others by the links on the way.
        parts: list[str] = []
        for part in destination.split("/")[1:]:
            if part != "..":
                parts.append(part)
            elif parts:
                parts.pop()
        by_text = "/" + "/".join(parts)
        return [self._resolve_in_image(by_text) or by_text, self._resolve_links(destination) or by_text]

    def _resolve_links(self, path: str) -> str:
        """Return the path without links; "" if it cannot be walked."""
        try:
            return self._rootfs_reader.resolve_destination(path)
        except Fault:
            return ""

    def _resolve_in_image(self, path: str) -> str:
        """Return the path without links of the image, as the runtime resolves it; "" if it cannot be walked.

        The image cannot redirect a path below a mount.
        """
        return path if self.classify_resolved_path(path) != "image" else self._resolve_links(path)

    def _find_library_directory(self, path: str) -> str:
        """Return the link-free path on which a library directory can be mounted; "" if there is none."""
        resolved = self._resolve_in_image(path)
        owner = self.classify_resolved_path(resolved) if resolved else "foreign"
        if resolved != path and (_is_misplaced_path(path, resolved) or not is_utf8_text(resolved)):
            return ""
        if any(destination.startswith(f"{resolved}/") for destination in self._mounts):
            return ""  # ours would hide a mount of the container's
        if (
            resolved != path
            and self.classify_resolved_path(path) == "image"
            and (owner != "image" or self._rootfs_reader.list_names(resolved, 1))
        ):
            return ""  # an image's link into its own libraries, or to /dev/null: ours would hide what is there
        if owner != "image":
            return resolved if owner == "fresh" else ""
        status = self._rootfs_reader.stat_path(resolved)
        if status is None:
            return resolved if self.writable and self._rootfs_reader.can_replace(resolved) else ""
        return resolved if status.st_mode & 0o170000 == 0o040000 else ""  # S_ISDIR, without the import

    def _would_hide_content(self, path: str, resolved: str) -> bool:
        """Tell whether the last name of a path is a link of the image to a directory that is not empty."""
        if self.classify_resolved_path(path) != "image":
            return False
        status = self._rootfs_reader.stat_path(path)
        return (
            status is not None
            and status.st_mode & 0o170000 == 0o120000
            and bool(self._rootfs_reader.list_names(resolved, 1))
        )

    def classify_path(self, path: str) -> PathOwner:
        """Return what a path lies in: "image", "fresh" (a tmpfs of the container) or "foreign" (another mount)."""
        resolved = self._resolve_in_image(path)
        return self.classify_resolved_path(resolved) if resolved else "foreign"

    def classify_entry(self, path: str) -> PathOwner:
        """Return the same as `classify_path`, but do not follow a link at the end of the path.

        For links to make: after a start the path is such a link, and leads to a mount.
        """
        parent, _, name = path.rpartition("/")
        resolved = self._resolve_in_image(parent or "/")
        return self.classify_resolved_path(f"{resolved.rstrip('/')}/{name}") if resolved else "foreign"

    def classify_resolved_path(self, path: str) -> PathOwner:
        """Return the same as `classify_path` for a path without links."""
        at = path
        while True:
            fresh = self._mounts.get(at or "/")
            if fresh is not None:
                return "fresh" if fresh and at != path else "foreign"
            if at in ("", "/"):
                return "foreign" if self._is_in_other_mount(path.rpartition("/")[0]) else "image"
            at = at.rpartition("/")[0]

    def classify_directory(self, path: str) -> PathOwner:
        """Return what the entries of a directory lie in, which can be a mount of its own: see `classify_path`."""
        return self.classify_path(f"{path}/{_PROBE_NAME}")

    def may_write_directory(self, path: str) -> bool:
        """Tell whether entries of a directory can be changed before the container's mounts are made."""
        probe = f"{path}/{_PROBE_NAME}"
        return self.writable and self.classify_path(probe) == "image" and self._rootfs_reader.can_replace(probe)

    def _is_in_other_mount(self, directory: str) -> bool:
        """Tell whether a directory lies in a mount below the root that is there before the container's own."""
        # Twenty files lie in directories that are missing below a few that exist: the first missing one is remembered.
        at = directory
        while at:
            if at in self._in_other_mount and (at == directory or self._in_other_mount[at][1]):
                return self._in_other_mount[at][0]
            at = at.rpartition("/")[0]
        nearest, in_other_mount = self._rootfs_reader.find_nearest_directory(directory)
        nearest = nearest.rstrip("/")
        missing = directory[len(nearest) :].split("/")[1:2] if directory.startswith(f"{nearest}/") else []
        first = f"{nearest}/{missing[0]}" if missing else directory
        self._in_other_mount[first] = in_other_mount, bool(missing)
        return in_other_mount

    def is_mount_destination(self, path: str) -> bool:
        """Tell whether config.json mounts something on exactly this link-free path."""
        return path in self._mounts

    def find_mount_point(self, path: str, *, follow: bool = False) -> tuple[str, str]:
        """Return the link-free destination for a bind mount, or "" and the reason why there is none.

        Arguments:
            follow: follow a link at the end of the path. Otherwise such a link is removed before the mount: with an
                image's link to /etc a file would be mounted over /etc.
        """
        if follow:
            resolved = self._resolve_in_image(path)
            if resolved and resolved != path and self._would_hide_content(path, resolved):
                return "", f"a link of the image leads from {path} to {resolved}, and ours would hide what is there"
        else:
            parent, _, name = path.rpartition("/")
            resolved = self._resolve_in_image(parent or "/")
            if resolved and self.classify_resolved_path(resolved) == "image":
                status = self._rootfs_reader.stat_path(resolved)
                if status is not None and status.st_mode & 0o170000 != 0o040000:  # S_ISDIR, without the import
                    resolved = ""
            resolved = resolved and f"{resolved.rstrip('/')}/{name}"
        if not resolved:
            return "", f"the image has something other than a directory on the way to {path}"
        if resolved != path and _is_misplaced_path(path, resolved):
            return "", f"a link of the image leads from {path} to {resolved}, which is the runtime's"
        if not is_utf8_text(resolved):
            return "", f"a link of the image leads from {path} to {resolved}, which is not UTF-8"
        owner = self.classify_resolved_path(resolved)
        if owner == "fresh" or (owner == "foreign" and self.is_mount_destination(resolved)):
            return resolved, ""
        if owner == "foreign":
            return "", f"{path} lies below another mount of the container"
        if self.writable:
            return resolved, ""
        existing = self._rootfs_reader.resolve_path(path)
        if existing is None:
            return "", f"the root file system cannot be written and has no {path}"
        if not is_utf8_text(existing):
            return "", f"a link of the image leads from {path} to {existing}, which is not UTF-8"
        return existing, ""


def _is_misplaced_path(path: str, resolved: str) -> bool:
    """Tell whether links of an image lead from a path into a directory of the runtime."""
    return resolved == "/" or any(
        f"{resolved}/".startswith(top) and not path.startswith(top) for top in _RUNTIME_DIRECTORIES
    )
