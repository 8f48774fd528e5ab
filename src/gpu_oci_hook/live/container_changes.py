"""List what an attachment is going to change in a running container, and take such changes back.

The list is written down before the first change. So whatever has been done of it can be taken back by any later
command: each change names what it leaves behind, and only that is removed.

Import budget: cold.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from typing import NamedTuple

from gpu_oci_hook.container.image import LD_CACHE, LD_CACHE_LIMIT
from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.read_regular import UnusableFileError, read_regular_file
from gpu_oci_hook.files.replace import replace_file
from gpu_oci_hook.formats.ldcache import LoaderCache, dump_ld_cache, parse_ld_cache
from gpu_oci_hook.live.mount_api import detach_mount
from gpu_oci_hook.model.edits import AddDeviceNode, AddMount
from gpu_oci_hook.model.file_edits import AddFile, AddLink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Literal

    from gpu_oci_hook.files.directory import Directory
    from gpu_oci_hook.files.rootfs import Rootfs
    from gpu_oci_hook.model.edits import Edit

    ChangeKind = Literal["node", "mount", "link", "file", "cleared", "file-point", "directory"]


class Change(NamedTuple):
    """One change in a container.

    Attributes:
        kind: "cleared" is a link that gave way to a mount point; "file-point" an empty file and "directory" a
            directory, made for what is put on them or in them.
        path: in the container.
        numbers: a node's major and minor; device and inode of a mounted source.
        content: a link's target, or the digest of a file's content.
        before: the target of the link that was there; the name of the copy of the file that was there; "" for nothing.
        mode: permissions of the file that was there.
    """

    kind: ChangeKind
    path: str
    numbers: tuple[int, int] = (0, 0)
    content: str = ""
    before: str = ""
    mode: int = 0


def list_changes(edits: Iterable[Edit], root: Rootfs, layer: Rootfs, copies: str) -> list[Change]:
    """List the changes of edits that a container lacks, in the order in which the editor makes them.

    Arguments:
        root, layer: the container's root with its mounts, and without them.
        copies: the directory for copies of the files that are replaced.

    Raises:
        Fault: a file cannot be copied, or a source is missing.
    """
    lister = _ChangeLister(root, layer, copies)
    for edit in edits:
        lister.add_edit(edit)
    return lister.changes


class _ChangeLister:
    def __init__(self, root: Rootfs, layer: Rootfs, copies: str) -> None:
        self.changes: list[Change] = []
        self._root = root
        self._layer = layer
        self._copies = copies
        self._made: set[str] = set()
        self._mounted: list[str] = []

    def add_edit(self, edit: Edit) -> None:
        """Add the changes of one edit."""
        match edit:
            case AddDeviceNode():
                self._add_parents(edit.path)
                self.changes.append(Change("node", edit.path, (edit.major, edit.minor)))
            case AddMount():
                self._add_mount(edit.source, edit.destination, clear=edit.clear_mount_point)
            case AddLink():
                self._add_parents(edit.path)
                before = self._layer.readlink(edit.path) or ""
                self.changes.append(Change("link", edit.path, content=edit.target, before=before))
            case AddFile() if not edit.bind_mounted:
                self._add_parents(edit.path)
                before, mode = self._copy_file(edit.path)
                digest = compute_content_digest(edit.content)
                self.changes.append(Change("file", edit.path, content=digest, before=before, mode=mode))

    def _add_mount(self, source: str, destination: str, *, clear: bool) -> None:
        try:
            status = os.stat(source)
        except OSError as error:
            raise Fault(f"cannot mount {source}: {describe_os_error(error)}", where=destination) from None
        is_directory = stat.S_ISDIR(status.st_mode)
        if not any(destination.startswith(f"{top}/") for top in self._mounted):
            self._add_parents(destination)
            target = self._layer.readlink(destination) if clear and not is_directory else None
            if target is not None:
                self.changes.append(Change("cleared", destination, before=target))
            if target is not None or (self._root.stat_path(destination) is None and destination not in self._made):
                self._made.add(destination)
                self.changes.append(Change("directory" if is_directory else "file-point", destination))
        self.changes.append(Change("mount", destination, (status.st_dev, status.st_ino)))
        self._mounted.append(destination)

    def _add_parents(self, path: str) -> None:
        """Add the directories above a path that are missing."""
        missing: list[str] = []
        parent = path.rpartition("/")[0]
        while parent and parent not in self._made and self._root.stat_path(parent, follow=True) is None:
            missing.append(parent)
            parent = parent.rpartition("/")[0]
        self._made.update(missing)
        self.changes += [Change("directory", parent) for parent in reversed(missing)]

    def _copy_file(self, path: str) -> tuple[str, int]:
        """Copy the file that is going to be replaced; return the copy's name and the mode, or "" without a file."""
        status = self._layer.stat_path(path)
        content = self._layer.read_file(path, LD_CACHE_LIMIT)
        if status is None or content is None or not stat.S_ISREG(status.st_mode):
            return "", 0
        name = f"before-{compute_content_digest(content)}"
        os.makedirs(self._copies, 0o700, exist_ok=True)
        replace_file(f"{self._copies}/{name}", content, mode=0o600)
        return name, stat.S_IMODE(status.st_mode)


def compute_content_digest(content: bytes) -> str:
    """Return the digest by which a file of ours is recognised."""
    return hashlib.sha256(content).hexdigest()


class ChangeReverter:
    """Takes changes back. The process is in the container's mount namespace.

    Arguments:
        root, layer: the container's root with its mounts, and without them.
        copies: the directory with the copies of files that were replaced.

    Attributes:
        notes: one sentence for each change that could not be taken back.
        reverted: one line for each that was.
    """

    def __init__(self, root: Rootfs, layer: Rootfs, copies: str) -> None:
        self._root = root
        self._layer = layer
        self._copies = copies
        self._library_directories: list[str] = []
        self.notes: list[str] = []
        self.reverted: list[str] = []

    def revert(self, changes: Iterable[Change]) -> None:
        """Take changes back, the last one first. One that was not made, or is no more, is passed over."""
        changes = list(changes)
        self._library_directories = [change.path for change in changes if change.kind == "mount"]
        operations: dict[str, Callable[[Change], bool]] = {
            "node": self._remove_node,
            "mount": self._detach_mount,
            "link": self._restore_link,
            "file": self._restore_file,
            "cleared": self._restore_cleared_link,
            "file-point": self._remove_mount_point,
            "directory": self._remove_directory,
        }
        for change in reversed(changes):
            self._root.drop_cached_directories()
            self._layer.drop_cached_directories()
            try:
                if operations[change.kind](change):
                    self.reverted.append(f"{change.kind} {change.path}")
            except FileNotFoundError:
                pass  # it is gone already
            except (OSError, Fault) as error:
                reason = describe_os_error(error) if isinstance(error, OSError) else error.what
                self.notes.append(f"{change.path} could not be taken back: {reason}")

    def _remove_node(self, change: Change) -> bool:
        directory, name = _open_parent(self._root, change.path)
        status = directory.stat_name(name)
        if status is None or not stat.S_ISCHR(status.st_mode) or status.st_rdev != os.makedev(*change.numbers):
            return False
        directory.check_write_guard()
        try:
            os.unlink(name, dir_fd=directory.fd)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            detach_mount(directory.fd, name)  # a node of the host's that is bound here
            point = directory.stat_name(name)
            if point is not None and stat.S_ISREG(point.st_mode) and not point.st_size:
                os.unlink(name, dir_fd=directory.fd)
        return True

    def _detach_mount(self, change: Change) -> bool:
        directory, name = _open_parent(self._root, change.path)
        status = directory.stat_name(name)
        if status is None or (status.st_dev, status.st_ino) != change.numbers:
            return False
        detach_mount(directory.fd, name)
        return True

    def _restore_link(self, change: Change) -> bool:
        if self._layer.readlink(change.path) != change.content:
            return False
        if change.before:
            return self._layer.make_symlink(change.path, change.before)
        directory, name = _open_parent(self._layer, change.path)
        directory.check_write_guard()
        os.unlink(name, dir_fd=directory.fd)
        return True

    def _restore_cleared_link(self, change: Change) -> bool:
        if self._layer.stat_path(change.path) is not None:
            return False
        return self._layer.make_symlink(change.path, change.before)

    def _restore_file(self, change: Change) -> bool:
        content = self._layer.read_file(change.path, LD_CACHE_LIMIT)
        if content is None:
            return False
        if compute_content_digest(content) != change.content:
            return change.path == LD_CACHE and self._remove_cache_entries(content)
        if change.before:
            try:
                before = read_regular_file(f"{self._copies}/{change.before}", LD_CACHE_LIMIT, follow_symlinks=False)
            except UnusableFileError as error:
                raise Fault(str(error)) from None
            return self._layer.write_file(change.path, before, change.mode)
        directory, name = _open_parent(self._layer, change.path)
        directory.check_write_guard()
        os.unlink(name, dir_fd=directory.fd)
        return True

    def _remove_cache_entries(self, content: bytes) -> bool:
        """Remove the entries of our directories from a loader cache that was rebuilt in the container meanwhile."""
        tops = tuple(f"{directory}/" for directory in self._library_directories)
        cache = parse_ld_cache(content)
        rows = [row for row in cache.rows if not os.fsdecode(row[2]).startswith(tops)]
        if len(rows) == len(cache.rows):
            return False
        return self._layer.write_file(LD_CACHE, dump_ld_cache(LoaderCache(rows, cache.hwcaps, cache.generator)))

    def _remove_mount_point(self, change: Change) -> bool:
        directory, name = _open_parent(self._choose_view(change.path), change.path)
        status = directory.stat_name(name)
        if status is None or not stat.S_ISREG(status.st_mode) or status.st_size:
            return False
        directory.check_write_guard()
        os.unlink(name, dir_fd=directory.fd)
        return True

    def _remove_directory(self, change: Change) -> bool:
        directory, name = _open_parent(self._choose_view(change.path), change.path)
        directory.check_write_guard()
        try:
            os.rmdir(name, dir_fd=directory.fd)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR):
                return False  # the container uses it, or has removed it
            raise
        return True

    def _choose_view(self, path: str) -> Rootfs:
        """Return the view of the root in which a path's directory can be written: without mounts, unless in one."""
        _, is_in_other_mount = self._root.find_nearest_directory(path.rpartition("/")[0])
        return self._root if is_in_other_mount else self._layer


def _open_parent(rootfs: Rootfs, path: str) -> tuple[Directory, str]:
    """Open the directory of a path.

    Raises:
        FileNotFoundError: it is missing.
    """
    parent, _, name = path.rpartition("/")
    if rootfs.stat_path(parent or "/", follow=True) is None:
        raise FileNotFoundError(path)
    return rootfs.open_directory(parent or "/", create=False), name
