"""Mount the sockets and directories of the driver's daemons that exist when a container starts.

A mount in a CDI file whose source is gone fails every start. A daemon can end at any time, so these mounts are not in
the file: the hook makes them. It runs in the container's mount namespace, where the host's paths are still visible.
None of them is required, so whatever prevents one is only a note.

Import budget: hook.
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.directory import PATH_FLAGS
from gpu_oci_hook.files.mounts import bind_file_over, read_mount_of_fd
from gpu_oci_hook.files.read_regular import PROC_SELF_FD
from gpu_oci_hook.hook.link_steps import UNWRITABLE_ROOTFS
from gpu_oci_hook.plan.driver_params import SHARED_MOUNTS_REASON

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_oci_hook.files.directory import Directory
    from gpu_oci_hook.hook.called_container import Container


def mount_daemon_sockets(container: Container, sockets: Iterable[tuple[str, str]]) -> None:
    """Mount (path on the host, path in the container) each; what the host lacks is skipped silently."""
    for source, path in sockets:
        try:
            fd = os.open(source, PATH_FLAGS)  # links are not followed: the directory can belong to the daemon's user
        except OSError:
            continue  # the daemon does not run
        try:
            reason = _mount_socket(container, fd, path)
        except Fault as fault:
            reason = str(fault)
        except OSError as error:
            reason = describe_os_error(error, writing=True)
        finally:
            os.close(fd)
        if reason:
            container.notes.append(f"skipped {path}: {reason}")


def _mount_socket(container: Container, source_fd: int, path: str) -> str:
    """Mount one; return why it is left out, "" when it is mounted."""
    source_status = os.fstat(source_fd)
    mode = source_status.st_mode
    if stat.S_ISDIR(mode):
        from gpu_oci_hook.files.trust import describe_foreign_access  # most hosts have no such directory

        # Below /tmp any user can create a daemon's directory once the daemon is gone.
        access = describe_foreign_access(source_status, every_user=True, owner_only=True)
        if access:
            return f"the host's directory {access}"
    if not (stat.S_ISSOCK(mode) or stat.S_ISDIR(mode)):
        return "the host's file is neither a socket nor a directory"
    layout = container.get_layout()
    destination, obstacle = layout.find_mount_point(path, follow=stat.S_ISDIR(mode))
    if not destination:
        return obstacle
    if layout.is_mount_destination(destination):
        return "the container has its own mount there"
    parent, _, name = destination.rpartition("/")
    directory = _make_mount_point(container, parent, name, is_directory=stat.S_ISDIR(mode))
    if directory is None:
        return UNWRITABLE_ROOTFS
    status = directory.stat_name(name)
    if status is None or stat.S_ISLNK(status.st_mode) or stat.S_ISDIR(status.st_mode) != stat.S_ISDIR(mode):
        return "a file of another type is in its place"
    mount = read_mount_of_fd(directory.fd)
    if mount is None or mount.shared:
        return SHARED_MOUNTS_REASON
    bind_file_over(f"{PROC_SELF_FD}/{source_fd}", directory.fd, name, read_only=False)
    return ""


def _make_mount_point(container: Container, parent: str, name: str, *, is_directory: bool) -> Directory | None:
    """Create the file or directory to mount on unless it exists; return its directory, None if that is impossible."""
    rootfs = container.rootfs
    if rootfs.stat_path(f"{parent}/{name}") is None:
        is_fresh = container.get_layout().classify_resolved_path(f"{parent}/{name}") == "fresh"
        if not (is_fresh or container.get_layout().writable):
            return None
        writable = rootfs if is_fresh else container.writable_rootfs
        if is_directory:
            writable.open_directory(f"{parent}/{name}")
        else:
            writable.write_file(f"{parent}/{name}", b"")
    return rootfs.open_directory(parent)  # a look without `create` may still know that it was missing
