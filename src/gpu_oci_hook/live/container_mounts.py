"""Describe the mounts below a container's root as its config.json would, from the kernel's mount table.

Some programs set a container up without a config.json. The mount table, which no image can influence, then tells what
is mounted in it (proc(5), mountinfo). No I/O.

Import budget: cold.
"""

from __future__ import annotations

from typing import NamedTuple

from gpu_oci_hook.files.mounts import unescape_mount_path
from gpu_oci_hook.formats.oci import Object

# File systems with one instance for the whole machine, or for each process namespace: never a container's own tmpfs.
_PSEUDO_FILESYSTEMS = ("proc", "sysfs", "mqueue", "cgroup", "cgroup2", "devpts")


DELETED_SUFFIX = "//deleted"
"""The mount table has it after the path of a mounted file that was deleted (fs/d_path.c)."""


class TableEntry(NamedTuple):
    """A mount.

    Attributes:
        device: of the file system, "major:minor"; equal for all mounts of one file system.
        root: the directory or file of the file system that is mounted.
        mount_point: where it is mounted.
        filesystem_type: such as "tmpfs".
        source: as the file system shows it.
    """

    device: str
    root: str
    mount_point: str
    filesystem_type: str
    source: str


def parse_mount_table(table: bytes) -> list[TableEntry]:
    """Parse the content of a mountinfo file; lines of another shape are left out."""
    entries: list[TableEntry] = []
    for line in table.split(b"\n"):
        left, _, right = line.partition(b" - ")
        fields, kinds = left.split(b" "), right.split(b" ")
        if len(fields) >= 6 and len(kinds) >= 2:
            root, mount_point, source = (unescape_mount_path(field) for field in (fields[3], fields[4], kinds[1]))
            device, kind = fields[2].decode("latin-1"), kinds[0].decode("latin-1")
            entries.append(TableEntry(device, root, mount_point, kind, source))
    return entries


def find_mounts_from(entries: list[TableEntry], rootfs: str, source: str) -> list[str]:
    """Return the paths below a root on which a file system with this source is mounted."""
    return [path for path, entry in _find_visible_mounts(entries, rootfs).items() if entry.source == source]


def describe_container_mounts(entries: list[TableEntry], rootfs: str) -> list[object]:
    """Return the mounts below a root as entries of config.json, in the order of their paths.

    A tmpfs counts as the container's own if it is mounted nowhere else, as a whole. Everything else is a bind mount,
    with the path at which the same file or directory is mounted outside the root.

    Arguments:
        rootfs: the container's root, without links.
    """
    prefix = f"{rootfs}/"
    outside = _index_mounts(
        [entry for entry in entries if entry.mount_point != rootfs and not entry.mount_point.startswith(prefix)]
    )
    mounts: list[object] = []
    for path, entry in sorted(_find_visible_mounts(entries, rootfs).items()):
        source = _find_path_outside(entry, outside)
        if entry.filesystem_type in _PSEUDO_FILESYSTEMS and entry.root == "/":
            mount: Object = {"type": entry.filesystem_type, "source": entry.filesystem_type, "options": []}
        elif entry.root == "/" and not source:
            mount = {"type": entry.filesystem_type, "source": entry.source, "options": []}
        else:
            mount = {"type": "bind", "source": source or entry.source, "options": ["bind"]}
        mounts.append({"destination": path, **mount})
    return mounts


def locate_mounted_files(entries: list[TableEntry], own_entries: list[TableEntry]) -> list[TableEntry]:
    """Return the mounts of a container with the path that what they show has for this process in place of `root`.

    The kernel's path begins at the top of the file system, of which a machine may have mounted a part alone, such as a
    subvolume. What this process has mounted nowhere keeps that path.

    Arguments:
        own_entries: the mounts of this process.
    """
    own = _index_mounts(own_entries)
    located = []
    for entry in entries:
        root = entry.root.removesuffix(DELETED_SUFFIX)
        path = _find_path_outside(entry._replace(root=root), own)
        located.append(entry._replace(root=(path or root) + entry.root[len(root) :]))
    return located


def _find_visible_mounts(entries: list[TableEntry], rootfs: str) -> dict[str, TableEntry]:
    """Return the topmost mount on each path below the root; paths are the container's."""
    prefix = f"{rootfs}/"
    return {
        entry.mount_point[len(rootfs) :]: entry for entry in entries if entry.mount_point.startswith(prefix)
    }  # later lines of the table are on top


def _index_mounts(entries: list[TableEntry]) -> dict[tuple[str, str], tuple[int, str]]:
    """Return position and mount point of the first mount of each directory, by its device and path there."""
    index: dict[tuple[str, str], tuple[int, str]] = {}
    for position, entry in enumerate(entries):
        index.setdefault((entry.device, entry.root.rstrip("/")), (position, entry.mount_point))
    return index


def _find_path_outside(entry: TableEntry, outside: dict[tuple[str, str], tuple[int, str]]) -> str:
    """Return the path outside the root of what a mount shows; "" if its file system is mounted nowhere there."""
    found: list[tuple[int, str]] = []
    top = entry.root.rstrip("/")
    while True:
        if (entry.device, top) in outside:
            position, mount_point = outside[entry.device, top]
            found.append((position, f"{mount_point.rstrip('/')}{entry.root[len(top) :].rstrip('/')}" or "/"))
        if not top.startswith("/"):  # the root of the file system, or of one without paths, such as net:[4026531840]
            return min(found)[1] if found else ""
        top = top.rpartition("/")[0]
