"""Join the mount namespace in which an engine set up a container, so that the paths of its bundle count.

Rootless engines, and daemons with a private mount namespace, mount the container's root file system where no other
process sees it.

From then on this process imports its modules from the files of that namespace. So it joins none that a container could
have made, and another user's only without its terminal and its descriptors.

Import budget: cold.
"""

from __future__ import annotations

import fcntl
import os

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.live.monitors import read_namespace_id, read_process_file
from gpu_oci_hook.live.mount_api import CLONE_NEWNS, CLONE_NEWUSER, set_namespace
from gpu_oci_hook.live.untrusted_child import continue_in_untrusted_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_NS_GET_USERNS = 0xB701  # ioctl_ns(2)
_RUN_DIRECTORY = "XDG_RUNTIME_DIR"
# What this process keeps of its environment as another user's root, who decides there which files it loads.
_KEPT_VARIABLES = ("COLUMNS", "GPU_OCI_HOOK_CONFIG", "LANG", "LC_ALL", "NO_COLOR", "PATH", "TERM", _RUN_DIRECTORY)


def join_mount_namespace(pid: int) -> None:
    """Join the mount namespace of a container's monitor, if it is another one.

    If the monitor is in another user namespace, that is joined as well and this process becomes its root: the mounts
    are a user's, and nothing there may act with more than that user's rights. The decisions are then those of the
    runtime, which runs there too.

    Raises:
        Fault: the kernel refuses, or the namespace has another root directory than this process, as a container's has.
    """
    mount_namespace = read_namespace_id(pid, "mnt")
    if not mount_namespace or mount_namespace == read_namespace_id(os.getpid(), "mnt"):
        return
    try:
        user_fd, mount_fd = (os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("user", "mnt"))
        # The mounts' owner counts: between two looks at a process, it can enter other namespaces.
        joins_user_namespace = not _is_own_user_namespace(user_fd)
        _require_owner(pid, mount_fd, user_fd)
        fds = [(user_fd, CLONE_NEWUSER)] if joins_user_namespace else []
        fds.append((mount_fd, CLONE_NEWNS))
        _require_same_root(pid, fds)
        if joins_user_namespace:
            continue_in_untrusted_child([fd for fd, _ in fds])
        _take_run_directory(pid)
        _enter_namespaces(fds)
        for fd, _ in fds:
            os.close(fd)
    except OSError as error:
        raise Fault(
            f"the mount namespace of the container's monitor cannot be joined: {describe_os_error(error)}",
            where=f"process {pid}",
            hint="Run this as root, or as the user whose container it is",
        ) from error


def _is_own_user_namespace(fd: int) -> bool:
    return os.path.samestat(os.fstat(fd), os.stat("/proc/self/ns/user"))


def _require_owner(pid: int, mount_fd: int, user_fd: int) -> None:
    """Check that a mount namespace belongs to a user namespace: whoever is root there has made its mounts.

    Raises:
        Fault: it belongs to another one.
        OSError: the kernel refuses, as for a namespace above this process's own.
    """
    owner_fd = fcntl.ioctl(mount_fd, _NS_GET_USERNS)
    try:
        is_owner = os.path.samestat(os.fstat(owner_fd), os.fstat(user_fd))
    finally:
        os.close(owner_fd)
    if not is_owner:
        raise Fault(
            "the mount namespace of the container's monitor belongs to another user namespace than the monitor's",
            where=f"process {pid}",
            hint="Name the bundle with --bundle DIR",
        )


def _enter_namespaces(fds: Iterable[tuple[int, int]]) -> None:
    for fd, flag in fds:
        set_namespace(fd, flag)
        if flag == CLONE_NEWUSER:
            _become_root()
    os.chdir("/")


def _require_same_root(pid: int, fds: Iterable[tuple[int, int]]) -> None:
    """Check that namespaces have this process's root directory, in a child process that does nothing else there.

    A process in a container can have any name, also that of a monitor. The files of its mount namespace are the
    container's, and this process would run them as its modules.

    Raises:
        Fault: it is another one.
        OSError: the namespaces cannot be entered.
    """
    root = os.stat("/")
    child = os.fork()
    if child == 0:
        try:
            _enter_namespaces(fds)
            os._exit(0 if os.path.samestat(root, os.stat("/")) else 1)
        except OSError as error:
            os._exit(min(error.errno or 0, 250) + 2)
        finally:
            os._exit(2)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status > 2:
        raise OSError(status - 2, os.strerror(status - 2))
    if status != 0:
        raise Fault(
            "the process that calls itself the container's monitor has another root directory than this machine's",
            where=f"process {pid}",
            hint="Run explain where the container engine runs, or name the bundle with --bundle DIR",
        )


def _become_root() -> None:
    """Become root of the user namespace just joined, without the groups and the environment of before."""
    for name in os.environ.keys() - set(_KEPT_VARIABLES):
        del os.environ[name]
    try:
        os.setgroups([])
    except OSError:
        pass  # the namespace does not permit it, and then its groups are the user's own
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def _take_run_directory(pid: int) -> None:
    """Take over the monitor's run directory, in which the runtime keeps its state."""
    prefix = f"{_RUN_DIRECTORY}=".encode()
    for entry in read_process_file(pid, "environ").split(b"\0"):
        if entry.startswith(prefix):
            os.environ[_RUN_DIRECTORY] = os.fsdecode(entry.removeprefix(prefix))
