"""Make the edits of a plan in a container that exists, from inside its mount namespace.

The process has entered the namespace, and "/" is still the host's tree: low-level runtimes call prestart hooks before
they change the root. Everything below the container's root goes through `Rootfs`, and mounts are attached to held
descriptors. Every change can be taken back until the container starts.

Import budget: cold.
"""

from __future__ import annotations

import errno
import os
import stat

from gpu_oci_hook.container.rootfs_edits import RootfsEditor
from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.directory import PATH_FLAGS, CrossMountError, read_mount_id
from gpu_oci_hook.files.mounts import read_mount_info
from gpu_oci_hook.live.mount_api import bind_mount, detach_mount
from gpu_oci_hook.model.edits import AddDeviceNode, AddMount
from gpu_oci_hook.plan.live_edits import RUNTIME_HINT, plan_live_edit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpu_oci_hook.files.directory import Directory
    from gpu_oci_hook.files.mounts import MountInfo
    from gpu_oci_hook.files.rootfs import Rootfs
    from gpu_oci_hook.model.edits import Edit


class ContainerEditor:
    """A container that exists, and the operations that edits of a plan make in it.

    Arguments:
        rootfs: the container's root with its mounts, opened in its mount namespace.
        generated_dir: the bundle's directory for generated files that are bind-mounted.
        layer: the root without its mounts, where files of the image are written; None for the root itself.

    Attributes:
        changes: one line for each change so far.
        notes: one sentence for each edit that a container which exists cannot get.
    """

    def __init__(self, rootfs: Rootfs, generated_dir: str, layer: Rootfs | None = None) -> None:
        self._rootfs = rootfs
        self._files = RootfsEditor(layer or rootfs, generated_dir)
        self._undo: list[Callable[[], None]] = []
        # The kernel's list of mounts is long, and there are many mount points.
        self._mounts: dict[bytes, MountInfo] = {}
        self._unshared_directories: set[Directory] = set()
        self.changes: list[str] = []
        self.notes: list[str] = []

    def apply_edits(self, edits: Iterable[Edit]) -> None:
        """Make the edits in their order; after a failure take back nodes and mounts.

        Raises:
            Fault: one of them failed.
        """
        try:
            for edit in edits:
                self._apply_edit(edit)
        except BaseException:
            self.undo()
            raise
        self.changes += self._files.changes

    def undo(self) -> None:
        """Take back the device nodes and mounts, the last one first."""
        while self._undo:
            try:
                self._undo.pop()()
            except OSError:
                pass  # the container or its runtime has removed it already

    def _apply_edit(self, edit: Edit) -> None:
        live = plan_live_edit(edit)
        if live.obstacle:
            self.notes.append(live.obstacle)
        match live.edit:
            case AddDeviceNode() as node:
                self._create_device_node(node)
            case AddMount() as mount:
                self._bind_mount(mount.source, mount.destination, mount.options, clear=mount.clear_mount_point)
            case _ if live.place == "container":
                live.edit.apply_to_rootfs(self._files)

    def _create_device_node(self, edit: AddDeviceNode) -> None:
        """Create a device node by its numbers, as the low-level runtime would."""
        try:
            directory, name = self._open_parent(edit.path)
        except CrossMountError:
            raise _make_mounted_directory_fault(edit) from None
        number = os.makedev(edit.major, edit.minor)
        status = directory.stat_name(name)
        if status is not None and stat.S_ISCHR(status.st_mode) and status.st_rdev == number:
            return
        old_umask = os.umask(0)
        try:
            directory.check_write_guard()
            if status is not None:
                os.unlink(name, dir_fd=directory.fd)
            os.mknod(name, stat.S_IFCHR | edit.mode, number, dir_fd=directory.fd)
            self._undo.append(lambda: os.unlink(name, dir_fd=directory.fd))
            os.chown(name, edit.uid, edit.gid, dir_fd=directory.fd, follow_symlinks=False)
        except OSError as error:
            if error.errno == errno.EXDEV:
                raise _make_mounted_directory_fault(edit) from None
            raise Fault(f"cannot create the device node: {describe_os_error(error)}", where=edit.path) from None
        finally:
            os.umask(old_umask)
        self.changes.append(f"device {edit.describe()}")

    def _bind_mount(self, source: str, destination: str, options: tuple[str, ...], *, clear: bool) -> None:
        """Bind-mount a file or directory of the host."""
        try:
            if self._is_mounted(source, destination):
                return
            is_directory = stat.S_ISDIR(os.stat(source).st_mode)
            directory, name = self._open_mount_point(destination, is_directory=is_directory, clear=clear)
            self._refuse_shared_mount(directory, destination)
            self._attach_mount(source, directory, name, options)
        except OSError as error:
            raise Fault(f"cannot mount {source}: {describe_os_error(error)}", where=destination) from None
        self._undo.append(lambda: detach_mount(directory.fd, name))
        if is_directory:  # no path leads through a file
            self._rootfs.drop_cached_directories()
        self.changes.append(f"mount {destination} <- {source}")

    def _open_mount_point(self, destination: str, *, is_directory: bool, clear: bool) -> tuple[Directory, str]:
        """Make the mount point if it is missing; return its directory and its name in it."""
        if clear and not is_directory and self._rootfs.clear_mount_point(destination):
            self.changes.append(f"removed {destination} to make room for a mount point")
        directory, name = self._open_parent(destination)
        if directory.stat_name(name) is None:
            create_mount_point(directory, name, is_directory=is_directory)
        return directory, name

    def _attach_mount(self, source: str, directory: Directory, name: str, options: tuple[str, ...]) -> None:
        """Attach the mount of a source to an entry of a directory."""
        bind_mount(source, directory.fd, name, options)

    def _find_mount(self, mount_id: bytes) -> MountInfo | None:
        """Return the mount with the kernel's number."""
        return read_mount_info(mount_id)

    def _is_mounted(self, source: str, destination: str) -> bool:
        """Tell whether an earlier call has made the mount: docker calls the hook once for each of several `--gpus`."""
        parent, _, name = destination.rpartition("/")
        try:
            directory = self._rootfs.open_directory(parent or "/", create=False)
            fd = os.open(name, PATH_FLAGS, dir_fd=directory.fd)
        except (OSError, Fault):
            return False
        try:
            is_same = os.path.samestat(os.fstat(fd), os.stat(source))
            return is_same and read_mount_id(fd) != read_mount_id(directory.fd)
        finally:
            os.close(fd)

    def _refuse_shared_mount(self, directory: Directory, destination: str) -> None:
        """Refuse a mount point in a shared mount: the new mount would appear on the host, too.

        Raises:
            Fault: it is one.
        """
        if directory in self._unshared_directories:
            return
        mount_id = read_mount_id(directory.fd)
        mount = self._mounts.get(mount_id) or self._find_mount(mount_id)
        if mount is not None and mount.shared:
            raise Fault(
                "the container shares this mount with the host, where the new mount would appear too",
                where=destination,
                hint=RUNTIME_HINT,
            )
        self._unshared_directories.add(directory)
        if mount is not None:
            self._mounts[mount_id] = mount

    def _open_parent(self, path: str) -> tuple[Directory, str]:
        parent, _, name = path.rpartition("/")
        return self._rootfs.open_directory(parent or "/"), name


def _make_mounted_directory_fault(edit: AddDeviceNode) -> Fault:
    """Return the fault of a node for a directory of the host, as with `docker run -v /dev:/dev`."""
    return Fault(
        "the directory that the container mounts there lacks this node, and nothing is created in a mount",
        where=edit.path,
        hint="Start the container without that mount, or create the node in the mounted directory first",
    )


def create_mount_point(directory: Directory, name: str, *, is_directory: bool) -> None:
    """Create an empty directory or file to mount on; an existing entry is kept."""
    if is_directory:
        directory.mkdir(name)
    else:
        directory.create_empty_file(name)
