"""Where things go in one container: the image's directories under the spec's own mounts; pure.

A path below another mount of the spec is not the image's: what we wrote there would be hidden, and a mount
point made there by the runtime would be a file in somebody else's directory (field reports A5-07).
"""

from __future__ import annotations

from gpu_oci_hook.request import items, member

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Target(Protocol):
        """The questions that a plan has about a container's root; `container.rootfs.Rootfs` answers them."""

        def destination(self, path: str) -> str:
            """See `Rootfs.destination`."""

        def resolve(self, path: str) -> str | None:
            """See `Rootfs.resolve`."""


# Where libraries go when the image's own directory is hidden or cannot be written: the last two are nearly
# always a tmpfs of the container's, where the runtime makes the mount points.
_ELSEWHERE = ("/usr/local/lib/gpu-oci-hook", "/run/gpu-oci-hook", "/dev/gpu-oci-hook")

# Runtimes make missing mount points in these at will.
_FRESH = ("tmpfs", "devtmpfs", "ramfs")


class Places:
    """The container's places.

    Attributes:
        libraries: the directory for libraries; "" when there is none.
        own: whether it lies in the image's tree, so that links can be written beside the libraries.
        writable: whether the image's tree can be written by us now.
    """

    __slots__ = ("_mounts", "_target", "libraries", "own", "writable")

    def __init__(self, spec: object, target: Target, library_dir: str, *, writable: bool) -> None:
        self._target = target
        self._mounts: list[tuple[str, bool]] = []
        for mount in items(spec, "mounts"):
            destination, kind = member(mount, "destination"), member(mount, "type")
            if isinstance(destination, str) and destination.startswith("/"):
                self._mounts.append((destination.rstrip("/") or "/", kind in _FRESH))
        self.writable = writable
        self.libraries = ""
        self.own = False
        for directory in (library_dir, *_ELSEWHERE):
            cover = self.cover(directory)
            if cover == "image" and writable:
                self.libraries, self.own = self._target.destination(directory), True
                return
            if cover == "fresh":
                self.libraries = directory
                return

    def cover(self, path: str) -> str:
        """What a path lies in: "image", "fresh" (a tmpfs of the container's own) or "foreign" (another mount)."""
        best, answer = -1, "image"
        for destination, fresh in self._mounts:
            inside = path == destination or path.startswith(destination + "/") or destination == "/"
            if inside and len(destination) >= best:
                best = len(destination)
                answer = "fresh" if fresh and path != destination else "foreign"
        return answer

    def mounted(self, path: str) -> bool:
        """Whether the spec itself mounts something exactly there."""
        return any(destination == path for destination, _ in self._mounts)

    def mount_point(self, path: str) -> tuple[str, str]:
        """The link-free destination for a bind mount of one file, or "" and the reason why there is none."""
        cover = self.cover(path)
        if cover == "fresh":
            return path, ""
        if cover == "foreign":
            return "", f"{path} lies below another mount of the container"
        if self.writable:
            return self._target.destination(path), ""
        found = self._target.resolve(path)
        if found is None:
            return "", f"the root file system cannot be written and has no {path}"
        return found, ""
