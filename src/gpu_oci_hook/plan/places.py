"""Where things go in one container: the image's directories under the spec's own mounts; pure.

A path below another mount of the spec is not the image's: what we wrote there would be hidden, and a mount
point made there by the runtime would be a file in somebody else's directory (field reports A5-07).
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.oci import clean, is_bind, items, member

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Iterable
    from typing import Protocol

    class Target(Protocol):
        """The questions that a plan has about a container's root; `container.rootfs.Rootfs` answers them."""

        def destination(self, path: str) -> str:
            """See `Rootfs.destination`."""

        def resolve(self, path: str) -> str | None:
            """See `Rootfs.resolve`."""

        def names(self, path: str, limit: int = ...) -> list[str]:
            """See `Rootfs.names`."""

        def status(self, path: str, *, follow: bool = False) -> os.stat_result | None:
            """See `Rootfs.status`."""

        def statuses(self, path: str, names: Iterable[str]) -> dict[str, os.stat_result]:
            """See `Rootfs.statuses`."""


# Where the driver's libraries are mounted, best first. CUDA images have had the first in LD_LIBRARY_PATH since
# the days of nvidia-docker 1, so their programs find it without any cache. The last two are nearly always a
# tmpfs of the container's: they serve where the image's tree cannot be written.
PREFIXES = ("/usr/local/nvidia", "/usr/lib/gpu-oci-hook", "/run/gpu-oci-hook", "/dev/gpu-oci-hook")

# Where a runtime makes nodes, or refuses mounts. As the root: what it makes would be made in what is mounted there.
_RUNTIMES = ("/dev/", "/proc/", "/sys/")

# Runtimes make missing mount points in these at will.
FRESH = ("tmpfs", "devtmpfs", "ramfs")


class Places:
    """The container's places.

    Arguments:
        ours: (source, destination) of the mounts in the spec that an earlier run of ours has put there.

    Attributes:
        libraries, libraries32: the directories for 64-bit and 32-bit libraries; "" when there is no place.
        writable: whether the image's tree can be written by us now.
    """

    __slots__ = ("_mounts", "_target", "libraries", "libraries32", "writable")

    def __init__(self, spec: object, target: Target, ours: list[tuple[str, str]], *, writable: bool) -> None:
        self._target = target
        self._mounts: dict[str, bool] = {}  # destination to whether it is a tmpfs of the container's own
        for mount in items(spec, "mounts"):
            destination = member(mount, "destination")
            if (member(mount, "source"), destination) in ours or not isinstance(destination, str):
                continue
            fresh = member(mount, "type") in FRESH and not is_bind(mount)
            for place in self._landings(clean(destination)):
                self._mounts[place] = fresh
        self.writable = writable
        self.libraries = self.libraries32 = ""
        for prefix in PREFIXES:
            if self.cover(prefix) != "foreign":
                found = [self._directory(f"{prefix}/{name}") for name in ("lib64", "lib")]
                if all(found):
                    self.libraries, self.libraries32 = found
                    return

    def _landings(self, destination: str) -> list[str]:
        """Where a runtime may mount what has this destination, free of the image's links."""
        if ".." not in destination:
            return [self._place(destination) or destination]
        # Some go back by the text of the path and some by the links on the way.
        parts: list[str] = []
        for part in destination.split("/")[1:]:
            if part != "..":
                parts.append(part)
            elif parts:
                parts.pop()
        by_text = "/" + "/".join(parts)
        return [self._place(by_text) or by_text, self._walked(destination) or by_text]

    def _walked(self, path: str) -> str:
        """The path free of links; "" when it cannot be walked."""
        try:
            return self._target.destination(path)
        except Fault:
            return ""

    def _place(self, path: str) -> str:
        """The path free of the image's links, as the runtime will resolve it; "" when it cannot be walked.

        What lies below a mount already is not the image's to redirect.
        """
        return path if self.covered(path) != "image" else self._walked(path)

    def _directory(self, path: str) -> str:
        """The link-free place for a directory to be mounted on; "" when there can be none."""
        place = self._place(path)
        cover = self.covered(place) if place else "foreign"
        if place != path and _astray(path, place):
            return ""
        if any(destination.startswith(f"{place}/") for destination in self._mounts):
            return ""  # ours would hide a mount of the container's
        if place != path and self.covered(path) == "image" and (cover != "image" or self._target.names(place, 1)):
            return ""  # an image's link into its own libraries, or to /dev/null: ours would hide what is there
        if cover != "image":
            return place if cover == "fresh" else ""
        status = self._target.status(place)
        if status is None:
            return place if self.writable else ""
        return place if status.st_mode & 0o170000 == 0o040000 else ""  # S_ISDIR, without the import

    def _hides(self, path: str, place: str) -> bool:
        """Whether the very last name of a path is a link of the image's to a directory with something in it."""
        if self.covered(path) != "image":
            return False
        status = self._target.status(path)
        return status is not None and status.st_mode & 0o170000 == 0o120000 and bool(self._target.names(place, 1))

    def cover(self, path: str) -> str:
        """What a path lies in: "image", "fresh" (a tmpfs of the container's own) or "foreign" (another mount)."""
        place = self._place(path)
        return self.covered(place) if place else "foreign"

    def covered(self, path: str) -> str:
        """The same as `cover` for a path that is free of links already."""
        at = path
        while True:
            fresh = self._mounts.get(at or "/")
            if fresh is not None:
                return "fresh" if fresh and at != path else "foreign"
            if at in ("", "/"):
                return "image"
            at = at.rpartition("/")[0]

    def mounted(self, path: str) -> bool:
        """Whether the spec itself mounts something exactly there; the path is free of links."""
        return path in self._mounts

    def mount_point(self, path: str, *, follow: bool = False) -> tuple[str, str]:
        """The link-free destination for a bind mount, or "" and the reason why there is none.

        Arguments:
            follow: a link at the very end is followed. A file's mount has it removed before: an image's link
                to /etc would else have a file in the place of its /etc.
        """
        if follow:
            place = self._place(path)
            if place and place != path and self._hides(path, place):
                return "", f"a link of the image leads from {path} to {place}, and ours would hide what is there"
        else:
            above, _, name = path.rpartition("/")
            place = self._place(above or "/")
            if place and self.covered(place) == "image":
                status = self._target.status(place)
                if status is not None and status.st_mode & 0o170000 != 0o040000:  # S_ISDIR, without the import
                    place = ""
            place = place and f"{place.rstrip('/')}/{name}"
        if not place:
            return "", f"the image has something else than a directory on the way to {path}"
        if place != path and _astray(path, place):
            return "", f"a link of the image leads from {path} to {place}, which is the runtime's"
        cover = self.covered(place)
        if cover == "fresh" or (cover == "foreign" and self.mounted(place)):
            return place, ""
        if cover == "foreign":
            return "", f"{path} lies below another mount of the container"
        if self.writable:
            return place, ""
        found = self._target.resolve(path)
        if found is None:
            return "", f"the root file system cannot be written and has no {path}"
        return found, ""


def _astray(path: str, place: str) -> bool:
    """Whether an image's links lead from a path to a place where a runtime's own things would be."""
    return place == "/" or any(f"{place}/".startswith(top) and not path.startswith(top) for top in _RUNTIMES)
