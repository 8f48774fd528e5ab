"""Open a running container for a change: its config.json, its first process and its mount namespace.

Import budget: cold.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import cast

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files.read_regular import read_config_json
from gpu_oci_hook.files.user_namespace import is_process_in_user_namespace
from gpu_oci_hook.formats.fastjson import parse_config_json
from gpu_oci_hook.formats.oci import Object, get_member
from gpu_oci_hook.live.found_container import FoundContainer
from gpu_oci_hook.live.monitors import PROC, read_namespace_id, read_process_file, read_start_time
from gpu_oci_hook.live.namespace_process import open_mount_namespace, run_with_deadline
from gpu_oci_hook.live.user_claims import is_container_process_of

_READ_DEADLINE = 10.0  # seconds; a user's bundle can lie in a file system of his


class RunningContainer:
    """A container that runs, with its mount namespace held open. It is a context manager.

    Arguments:
        found: where it is.

    Attributes:
        title: what it is, for people.
        reference: how the command line names it.
        pid: its first process.
        monitor_pid: the process that watches it; 0 if there is none.
        owner: the user who has written its config.json.
        bundle: its bundle as this process sees it.
        spec: the bundle's config.json.
        namespace_fd: its mount namespace.
        in_user_namespace: it runs in another user namespace than this process.
        uid_map: the users of that namespace, see `user_namespace.parse_uid_map`.

    Raises:
        Fault: it is stopped, cannot be looked at, or has no mounts of its own.
    """

    def __init__(self, found: FoundContainer) -> None:
        require_root()
        if not found.is_running or not found.init_pid:
            what = "its first process is unknown" if found.is_running else "the container is not running"
            hint = "Name a process of it: --pid PID" if found.is_running else "Start it first"
            raise Fault(what, where=found.title, hint=hint)
        self.title = found.title.removesuffix(", running")
        self.reference = found.reference or f"--pid {found.init_pid}"
        self.pid = found.init_pid
        self.monitor_pid = found.monitor_pid
        self.owner = found.owner
        start_time = read_start_time(self.pid)
        self._monitor_root = _find_monitor_root(found.monitor_pid)
        self.bundle = f"{self._monitor_root}{found.bundle}"
        self.spec = cast("Object", run_with_deadline(self._read_spec, deadline=_READ_DEADLINE))
        self.in_user_namespace = read_namespace_id(self.pid, "user") != read_namespace_id(os.getpid(), "user")
        self.uid_map = read_process_file(self.pid, "uid_map")
        self.namespace_fd = open_mount_namespace(self.pid)
        try:
            if found.owner:
                self._require_owner(found.owner)
            if not start_time or read_start_time(self.pid) != start_time:
                raise Fault("the container's first process has ended", where=self.title)
        except BaseException:
            os.close(self.namespace_fd)
            raise

    def __enter__(self) -> RunningContainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.namespace_fd)

    def _read_spec(self) -> Object:
        path = f"{self.bundle}/config.json"
        data = read_config_json(path)
        if data is None:
            raise Fault("the bundle has no config.json", where=path)
        return parse_config_json(data, path)

    def _require_owner(self, uid: int) -> None:
        """Check that a user's container is in a user namespace of that user: he could name any process as his.

        Raises:
            Fault: it is not.
        """
        if not is_container_process_of(self.pid, uid, PROC):
            raise Fault(
                f"user {uid} says that process {self.pid} is the container's, and the process is not that user's",
                where=self.title,
                hint=f"Name the process instead: --pid {self.pid}",
            )

    def has_writable_image(self) -> bool:
        """Tell whether only the low-level runtime has made the root read-only, after the point where GPUs go in.

        The directory itself, as the engine has mounted it, says whether an administrator wants it read-only.
        """
        path = get_member(self.spec, "root", "path")
        if get_member(self.spec, "root", "readonly") is not True or not isinstance(path, str) or "\0" in path:
            return False
        full_path = f"{self._monitor_root}{path}" if path.startswith("/") else f"{self.bundle}/{path}"
        try:
            return not os.statvfs(full_path).f_flag & os.ST_RDONLY
        except OSError:
            return False


def require_root() -> None:
    """Check that this process may change containers that run.

    Raises:
        Fault: it may not.
    """
    if os.geteuid() == 0 and not is_process_in_user_namespace():
        return
    raise Fault(
        "only the machine's root can change a container that runs: it takes the right to enter its mounts, to create "
        "device nodes and to change device rules",
        hint="Run this as root, or start the container with the GPU",
    )


def _find_monitor_root(monitor_pid: int) -> str:
    """Return the directory below which this process sees a monitor's files; "" if both see the same."""
    if not monitor_pid:
        return ""
    own = read_namespace_id(os.getpid(), "mnt")
    return "" if not own or read_namespace_id(monitor_pid, "mnt") == own else f"{PROC}/{monitor_pid}/root"
