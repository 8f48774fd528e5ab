"""Make the edits of a plan in a container that runs: its processes can exchange names and mounts at the same time.

Files of the image are written below the root without its mounts, so that a mount of the container is never written by
accident. Nodes and mounts go below the root with its mounts. The mounts' sources were cloned outside.

Import budget: cold.
"""

from __future__ import annotations

import errno
import os
import stat

from gpu_oci_hook.files.directory import PATH_FLAGS, make_os_error, read_mount_id
from gpu_oci_hook.live.container_editor import ContainerEditor, create_mount_point
from gpu_oci_hook.live.mount_api import attach_mount, clone_mount
from gpu_oci_hook.model.edits import AddMount
from gpu_oci_hook.plan.layout import TMPFS_TYPES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpu_oci_hook.files.directory import Directory
    from gpu_oci_hook.files.mounts import MountInfo
    from gpu_oci_hook.live.container_entry import ContainerEntry
    from gpu_oci_hook.model.edits import Edit

_PROBE_NAME = ".gpu-oci-hook"


class RunningContainerEditor(ContainerEditor):
    """A running container, and the operations that edits of a plan make in it.

    Arguments:
        entry: the way into its mount namespace, with its root open.
        generated_dir: the directory for generated files that are bind-mounted.
        classify: tells whether a path lies in a tmpfs of the container by its config.json ("fresh").
    """

    def __init__(self, entry: ContainerEntry, generated_dir: str, classify: Callable[[str], str]) -> None:
        super().__init__(entry.root, generated_dir, entry.layer)
        self._entry = entry
        self._layer = entry.layer
        self._clones: dict[tuple[str, str], int] = {}
        restrict_writes_to_tmpfs(entry, classify)

    def clone_sources(self, edits: Iterable[Edit], scratch: str) -> None:
        """Clone the mounts that the edits are going to attach. The process is in the host's mount namespace.

        Raises:
            OSError: the kernel refuses.
        """
        for edit in edits:
            if isinstance(edit, AddMount):
                clone = clone_mount(edit.source, edit.options, scratch)
                self._clones[edit.source, edit.destination] = clone

    def _open_mount_point(self, destination: str, *, is_directory: bool, clear: bool) -> tuple[Directory, str]:
        parent, _, name = destination.rpartition("/")
        _, is_in_other_mount = self._rootfs.find_nearest_directory(parent)
        if not is_in_other_mount:
            if clear and not is_directory and self._layer.clear_mount_point(destination):
                self.changes.append(f"removed {destination} to make room for a mount point")
                self._rootfs.drop_cached_directories()
            if self._rootfs.stat_path(destination) is None:
                create_mount_point(self._layer.open_directory(parent), name, is_directory=is_directory)
                self._rootfs.drop_cached_directories()
            return self._rootfs.open_directory(parent, create=False), name
        directory = self._rootfs.open_directory(parent)
        if directory.stat_name(name) is None:
            create_mount_point(directory, name, is_directory=is_directory)
        return directory, name

    def _attach_mount(self, source: str, directory: Directory, name: str, options: tuple[str, ...]) -> None:
        path = f"{directory.path.rstrip('/')}/{name}"
        clone = self._clones.pop((source, path), -1)
        if clone < 0:
            raise make_os_error(errno.ESTALE)  # the container has exchanged a directory for a link meanwhile
        try:
            target_fd = os.open(name, PATH_FLAGS, dir_fd=directory.fd)
            try:
                if stat.S_ISLNK(os.fstat(target_fd).st_mode):
                    raise make_os_error(errno.ELOOP)
                attach_mount(clone, target_fd)
            finally:
                os.close(target_fd)
        finally:
            os.close(clone)

    def _find_mount(self, mount_id: bytes) -> MountInfo | None:
        mount = self._entry.find_mount(mount_id)
        if mount is not None:
            mount.shared = self._entry.is_seen_by_host(mount)
        return mount


def restrict_writes_to_tmpfs(entry: ContainerEntry, classify: Callable[[str], str]) -> None:
    """Allow changes below a container's root with its mounts only in file systems that are the container's alone.

    Arguments:
        classify: see `RunningContainerEditor`.
    """

    def may_write(directory: Directory) -> bool:
        mount = entry.find_mount(read_mount_id(directory.fd))
        is_tmpfs = mount is not None and mount.filesystem_type in TMPFS_TYPES
        return (
            is_tmpfs
            and entry.may_change(directory)
            and classify(f"{directory.path.rstrip('/')}/{_PROBE_NAME}") == "fresh"
        )

    entry.root.restrict_writes(may_write)
