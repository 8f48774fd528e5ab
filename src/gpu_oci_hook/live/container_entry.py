"""Enter the mount namespace of a container that runs, and keep the host's tree as this process's root.

A running container has changed its root, so "/" in its namespace is its own: a module imported from there, or a path
such as /proc/self/fd, would be the container's. This process therefore holds the host's root open and goes back to it
right after it has entered. Everything of the container is then reached below a descriptor of its root.

Import budget: cold.
"""

from __future__ import annotations

import errno
import os

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.mounts import MOUNTINFO_LIMIT, MountInfo, find_mount_info, list_receiving_groups
from gpu_oci_hook.files.read_regular import read_regular_file
from gpu_oci_hook.files.rootfs import Rootfs
from gpu_oci_hook.files.user_namespace import has_uid
from gpu_oci_hook.live.mount_api import CLONE_NEWNS, clone_root, set_namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.files.directory import Directory

_DIRECTORY_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class ContainerEntry:
    """The way into one container's mount namespace and back. The process must have one thread.

    Arguments:
        namespace_fd: of the container's mount namespace; owned by the caller.
        uid_map: the users of the container's user namespace. Only their directories are changed: with a namespace of
            his own every user can have any directory of the host as a container's root, or below it.

    Attributes:
        root: the container's root with its mounts; below it names can change at any moment.
        layer: the same root without the mounts below it, as a low-level runtime finds it.
    """

    def __init__(self, namespace_fd: int, uid_map: bytes) -> None:
        self._uid_map = uid_map
        self._namespace_fd = namespace_fd
        self._own_namespace_fd = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self._host_root_fd = os.open("/", _DIRECTORY_FLAGS)
        self._mount_table_fd = -1
        self._host_groups = list_receiving_groups(read_regular_file("/proc/self/mountinfo", MOUNTINFO_LIMIT))
        self.root: Rootfs
        self.layer: Rootfs

    def open_root(self, *, writable_layer: bool) -> None:
        """Open the container's root, with its mounts and without them; this process ends in the host's namespace.

        Arguments:
            writable_layer: the root without mounts shall be writable where the container's own is read-only.

        Raises:
            Fault: the kernel refuses.
        """
        root_fd = layer_fd = -1
        try:
            self._switch(self._namespace_fd)
            root_fd = os.open("/", _DIRECTORY_FLAGS)  # of the namespace, whatever root the container's processes have
            # The kernel lists the mounts below the root of the process that opens the file.
            self._mount_table_fd = os.open("proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._host_root_fd)
            self._return_to_host_root()
            layer_fd = clone_root(root_fd, writable=writable_layer)
            self._switch(self._own_namespace_fd)
            self._return_to_host_root()
        except OSError as error:
            self._return_to_host_root()
            what = "the container's mounts cannot be entered"
            if error.errno == errno.ENOSYS:
                raise Fault(f"{what}: this kernel lacks open_tree, which Linux 5.2 has") from None
            raise Fault(f"{what}: {describe_os_error(error)}") from None
        self.root, self.layer = _open_rootfs(root_fd), _open_rootfs(layer_fd)
        owner = os.fstat(root_fd).st_uid
        os.close(root_fd)
        os.close(layer_fd)
        if not has_uid(self._uid_map, owner):
            raise Fault(
                f"the container's root directory belongs to user {owner}, whom its user namespace does not have, so "
                "nothing is changed in it",
                hint="Start the container with the GPU",
            )
        self.layer.restrict_writes(lambda directory: directory.is_in_root_mount and self.may_change(directory))

    def enter(self) -> None:
        """Enter the container's mount namespace, to attach and detach mounts.

        Raises:
            Fault: the kernel refuses.
        """
        try:
            self._switch(self._namespace_fd)
        except OSError as error:
            raise Fault(f"the container's mounts cannot be entered: {describe_os_error(error)}") from None
        finally:
            self._return_to_host_root()
        if not os.path.samestat(os.stat("/"), os.fstat(self._host_root_fd)):
            raise Fault("this process could not go back to the host's root")

    def _switch(self, namespace_fd: int) -> None:
        """Change the mount namespace. Until `_return_to_host_root`, nothing may be imported or opened by a path."""
        set_namespace(namespace_fd, CLONE_NEWNS)

    def _return_to_host_root(self) -> None:
        os.fchdir(self._host_root_fd)
        os.chroot(".")

    def may_change(self, directory: Directory) -> bool:
        """Tell whether a directory belongs to a user of the container."""
        return has_uid(self._uid_map, os.fstat(directory.fd).st_uid)

    def find_mount(self, mount_id: bytes) -> MountInfo | None:
        """Return a mount of the container by the kernel's number; None if it is not below its root."""
        table = b""
        while len(table) < MOUNTINFO_LIMIT and (part := os.pread(self._mount_table_fd, 1 << 20, len(table))):
            table += part
        return find_mount_info(table, mount_id)

    def is_seen_by_host(self, mount: MountInfo) -> bool:
        """Tell whether what is mounted in a mount of the container would appear on the host.

        A container with systemd in it shares its mounts too, among its own namespaces.
        """
        return mount.peer_group in self._host_groups


def _open_rootfs(fd: int) -> Rootfs:
    rootfs = Rootfs(f"/proc/self/fd/{fd}")
    rootfs.path = "/"
    return rootfs
