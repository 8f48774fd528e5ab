"""Explain which device nodes cannot be given to containers here: missing, other numbers, or denied by the kernel.

Import budget: cold.
"""

from __future__ import annotations

import errno
import os
import stat

from gpu_oci_hook.errors import describe_os_error
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.files.replace import make_temporary_name
from gpu_oci_hook.formats.program_names import SIMULATED_HOST_MARKER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.root import Host

_DENIED_NUMBER = "the device cgroup of this container or session denies {major}:{minor}"


def explain_unusable_nodes(host: Host, nodes: list[tuple[str, int, int]], *, mig: bool) -> dict[str, str]:
    """Explain each node that cannot be given; see `device_nodes.find_unusable_nodes`."""
    is_simulated = host.stat_path(f"/{SIMULATED_HOST_MARKER}") is not None
    missing = {path: reason for path, major, minor in nodes if (reason := _explain_missing(host, path, major, minor))}
    denied: dict[str, str] = {}
    for path, major, minor in nodes:
        if path not in missing:
            reason = _explain_denied(host, path, major, minor, write=not mig)
        elif is_simulated or _may_open_number(major, minor, write=not mig):
            reason = ""
        else:
            reason = _DENIED_NUMBER.format(major=major, minor=minor)
        if reason:
            denied[path] = reason
    if is_simulated and len({**missing, **denied}) == len(nodes):
        # Nothing opens the nodes of a simulated host. In an unprivileged container they can be created and not opened.
        denied = {}
    if mig or len(missing) == len(nodes):
        return denied
    return {**denied, **missing}


def list_uncreated_nodes(host: Host, nodes: list[tuple[str, int, int]]) -> list[str]:
    """List the paths of missing nodes whose numbers the device cgroup allows: nobody has created them."""
    is_simulated = host.stat_path(f"/{SIMULATED_HOST_MARKER}") is not None
    return [
        path
        for path, major, minor in nodes
        if host.stat_path(path, follow=False) is None and (is_simulated or _may_open_number(major, minor, write=True))
    ]


def _explain_missing(host: Host, path: str, major: int, minor: int) -> str:
    """Return why there is no such node, "" if there is one."""
    status, full_path = host.stat_path(path, follow=False), host.full_path(path)
    if status is None:
        return f"{full_path} is missing"
    if stat.S_ISREG(status.st_mode):
        return ""
    if not stat.S_ISCHR(status.st_mode):
        return f"{full_path} is not a character device"
    if status.st_rdev != os.makedev(major, minor):
        numbers = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        return f"{full_path} has the number {numbers} and not the GPU's, {major}:{minor}"
    return ""


def _explain_denied(host: Host, path: str, major: int, minor: int, *, write: bool) -> str:
    """Return why a node may not be opened, "" if it may."""
    if host.can_open_node(path, write=write):
        return ""
    full_path = host.full_path(path)
    try:
        os.close(
            os.open(full_path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK)
        )  # denied before the driver sees it
    except PermissionError as error:
        if error.errno == errno.EACCES:  # EPERM comes from the device cgroup, EACCES from owner and mode
            return f"{full_path} cannot be opened: {describe_os_error(error)}"
    except OSError:
        pass
    return f"{full_path} cannot be opened: " + _DENIED_NUMBER.format(major=major, minor=minor)


def _may_open_number(major: int, minor: int, *, write: bool) -> bool:
    """Tell whether the device cgroup lets this process open a character device, by a node made for this question.

    A process that cannot create the node gets no answer; it counts as allowed, and the runtime finds out.
    """
    fd = -1
    for directory in state_dir.list_state_directories():
        fd = state_dir.open_state_directory(directory, create=True)
        if fd >= 0:
            break
    if fd < 0:
        return True
    name = make_temporary_name()
    try:
        os.mknod(name, stat.S_IFCHR | 0o600, os.makedev(major, minor), dir_fd=fd)
        try:
            return os.access(name, os.R_OK | os.W_OK if write else os.R_OK, dir_fd=fd)
        finally:
            os.unlink(name, dir_fd=fd)
    except OSError:
        return True
    finally:
        os.close(fd)
