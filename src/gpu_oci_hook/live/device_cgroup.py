"""Allow device nodes in the cgroup of a process, in both versions of cgroups.

Version 1 has a file that takes rules (`devices.allow`). Version 2 has eBPF programs, which are replaced by ones that
also allow our devices (`live.device_program`). On a hybrid host version 1 decides, so it is looked for first.

Import budget: cold.
"""

from __future__ import annotations

import os

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.read_regular import UnusableFileError, read_regular_file
from gpu_oci_hook.live import bpf, device_program

_LIMIT = 32 << 20
# crun puts the process into this cgroup below the scope that has the device program.
_CRUN_SUBGROUP = "container"

Device = tuple[int, int]


class DeviceCgroup:
    """The cgroup that decides which devices a process may open.

    Attributes:
        version: 1 or 2.
        paths: its directory; in version 2 also that of the container's scope above it, if there is one.
    """

    __slots__ = ("paths", "version")

    def __init__(self, version: int, paths: list[str]) -> None:
        self.version = version
        self.paths = paths


def find_device_cgroup(pid: int) -> DeviceCgroup | None:
    """Find the device cgroup of a process; None on a machine without device cgroups.

    See cgroups(7) for the formats. Paths are those of this process's mount namespace.

    Raises:
        Fault: /proc does not tell, or the cgroup is outside of what this process sees.
    """
    own_path = {}
    for line in _read_proc(f"/proc/{pid}/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            own_path[controller] = path
    mounts = _list_cgroup_mounts()
    if "devices" in own_path:
        for kind, root, point, options in mounts:
            if kind == "cgroup" and "devices" in options.split(","):
                return DeviceCgroup(1, [_join_cgroup(point, root, own_path["devices"])])
    for kind, root, point, _ in mounts:
        if kind == "cgroup2" and "" in own_path:
            path = _join_cgroup(point, root, own_path[""])
            parent, _, leaf = path.rpartition("/")
            return DeviceCgroup(2, [path, parent] if leaf == _CRUN_SUBGROUP else [path])
    return None


def _read_proc(path: str) -> str:
    try:
        return read_regular_file(path, _LIMIT).decode("utf-8", "surrogateescape")
    except (OSError, UnusableFileError) as error:
        reason = describe_os_error(error) if isinstance(error, OSError) else str(error)
        raise Fault(f"cannot find the container's cgroup: {reason}", where=path) from None


def _list_cgroup_mounts() -> list[tuple[str, str, str, str]]:
    """Return (type, root, mount point, options of the super block) of each cgroup mount: proc(5), mountinfo."""
    mounts = []
    for line in _read_proc("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        kind, _, rest = right.partition(" ")
        if kind in ("cgroup", "cgroup2"):
            fields = left.split(" ")
            mounts.append((kind, fields[3], fields[4], rest.rpartition(" ")[2]))
    return mounts


def _join_cgroup(point: str, root: str, path: str) -> str:
    """Return the directory of a cgroup below a mount that shows the tree from `root` on."""
    if root != "/":
        if path != root and not path.startswith(f"{root}/"):
            raise Fault(
                f"the container's cgroup {path} is outside of the cgroups that are visible here ({root})",
                where=point,
                hint="Run the container engine in the host's cgroup namespace",
            )
        path = path[len(root) :]
    if path.startswith("/.."):
        raise Fault(f"the container's cgroup {path} is outside of this cgroup namespace", where=point)
    return f"{point.rstrip('/')}/{path.strip('/')}".rstrip("/")


def allow_devices(cgroup: DeviceCgroup, devices: list[Device]) -> None:
    """Allow reading and writing character devices; those that are allowed already stay so.

    Raises:
        Fault: the kernel refuses; nothing is changed in version 2.
    """
    if cgroup.version == 1:
        for major, minor in devices:
            _write_rule(f"{cgroup.paths[0]}/devices.allow", f"c {major}:{minor} rw")
        return
    for path in cgroup.paths:
        _extend_programs(path, devices)


def _write_rule(path: str, rule: str) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, rule.encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise Fault(f"cannot allow the device ({rule}): {describe_os_error(error)}", where=path) from None


def _extend_programs(path: str, devices: list[Device]) -> None:
    """Extend each program of a cgroup that denies one of the devices. Without a program everything is allowed.

    Raises:
        Fault: a program cannot be dumped or replaced.
    """
    try:
        cgroup_fd = bpf.open_cgroup(path)
    except OSError as error:
        raise Fault(f"cannot open the container's cgroup: {describe_os_error(error)}", where=path) from None
    try:
        for program_id in bpf.list_program_ids(cgroup_fd):
            _extend_program(cgroup_fd, program_id, devices)
    except OSError as error:
        raise Fault(f"cannot change the device rules: {describe_os_error(error)}", where=path) from None
    except device_program.UnusableProgramError as error:
        raise Fault(
            f"cannot change the device rules: the kernel's dump of the program cannot be loaded again: {error}",
            where=path,
            hint="Use gpu-oci-runtime or CDI, which hand the rules to the low-level runtime",
        ) from None
    finally:
        os.close(cgroup_fd)


def _extend_program(cgroup_fd: int, program_id: int, devices: list[Device]) -> None:
    old_fd = bpf.open_program(program_id)
    try:
        old = bpf.dump_program(old_fd)
        device_program.check_reloadable(old)
        if not device_program.list_denied_devices(old, devices):
            return
        allowed = device_program.list_allowed_devices(old)
        wanted = allowed + [device for device in devices if device not in allowed]
        new_fd = bpf.load_program(device_program.build_allowing_program(old, wanted))
        try:
            bpf.replace_program(cgroup_fd, old_fd, new_fd)
        finally:
            os.close(new_fd)
    finally:
        os.close(old_fd)
