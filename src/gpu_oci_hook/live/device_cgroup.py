"""Allow and deny device nodes in the cgroup of a process, in both versions of cgroups.

Version 1 has files that take rules (`devices.allow`, `devices.deny`). Version 2 has eBPF programs, which are replaced
by ones that have our rules in front (`live.cgroup_programs`). On a hybrid host version 1 decides, so it is looked for
first.

Import budget: cold.
"""

from __future__ import annotations

import os

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.read_regular import UnusableFileError, read_regular_file
from gpu_oci_hook.live.device_list import ALLOW_ALL_LINE, find_allowing_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_oci_hook.live.cgroup_programs import Device

_LIMIT = 32 << 20
# crun puts the process into this cgroup below the scope that has the device program.
_CRUN_SUBGROUP = "container"


class DeviceCgroup:
    """The cgroup that decides which devices a process may open.

    Attributes:
        version: 1 or 2.
        paths: the directories whose rules are the container's own: that of the process, then those above it up to the
            container's cgroup, and in version 2 the scope above that, if there is one.
        name: path of the last of them in the hierarchy.
    """

    __slots__ = ("name", "paths", "version")

    def __init__(self, version: int, paths: list[str], name: str = "") -> None:
        self.version = version
        self.paths = paths
        self.name = name


def is_unit_cgroup(cgroup: str) -> bool:
    """Return whether a cgroup has the name of a systemd unit that processes run in."""
    return cgroup.endswith((".scope", ".service"))


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
    for version, kind, controller in ((1, "cgroup", "devices"), (2, "cgroup2", "")):
        mounts = _list_cgroup_mounts("self", kind, controller) if controller in own_path else []
        if not mounts:
            continue
        path = own_path[controller]
        chain = [path]
        top = _find_container_cgroup(path, _list_cgroup_mounts(str(pid), kind, controller))
        while chain[-1] != top:
            chain.append(chain[-1].rpartition("/")[0])
        if version == 2 and top.endswith(f"/{_CRUN_SUBGROUP}"):
            chain.append(top.rpartition("/")[0])
        root, point = mounts[0]
        return DeviceCgroup(version, [_join_cgroup(point, root, path) for path in chain], chain[-1])
    return None


def _find_container_cgroup(path: str, mounts: list[tuple[str, str]]) -> str:
    """Return the cgroup that was made for the container of a process; its own one, `path`, if nothing else is known.

    A container that has divided its cgroup, as with systemd inside, still has a mount of the whole one. Of several,
    the innermost counts: a container may be able to add mounts, and must not choose a cgroup above its own.
    """
    roots = [root for root, _ in mounts if root != "/" and f"{path}/".startswith(f"{root}/")]
    return max(roots, key=len, default=path)


def _read_proc(path: str) -> str:
    try:
        return read_regular_file(path, _LIMIT).decode("utf-8", "surrogateescape")
    except (OSError, UnusableFileError) as error:
        reason = describe_os_error(error) if isinstance(error, OSError) else str(error)
        raise Fault(f"cannot find the container's cgroup: {reason}", where=path) from None


def _list_cgroup_mounts(process: str, kind: str, controller: str) -> list[tuple[str, str]]:
    """Return (root, mount point) of each mount of a cgroup hierarchy that a process has: proc(5), mountinfo.

    Arguments:
        process: a pid, or "self".
        kind: type of the file system.
        controller: that the hierarchy has; "" for any.
    """
    mounts = []
    for line in _read_proc(f"/proc/{process}/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        found_kind, _, rest = right.partition(" ")
        if found_kind == kind and (not controller or controller in rest.rpartition(" ")[2].split(",")):
            fields = left.split(" ")
            mounts.append((fields[3], fields[4]))
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


def allow_devices(cgroup: DeviceCgroup, devices: list[Device]) -> list[str]:
    """Allow reading and writing character devices; those that are allowed already stay so.

    If systemd manages the cgroup, it is told as well.

    Returns:
        Notes for a person, such as that systemd could not be told.

    Raises:
        Fault: the kernel refuses; nothing is changed in version 2.
    """
    return _change_devices(cgroup, allow=devices, deny=[])


def deny_devices(cgroup: DeviceCgroup, devices: list[Device]) -> list[str]:
    """Deny reading and writing character devices; whether nodes of them can be created is not changed.

    Returns:
        Notes for a person, such as that systemd could not be told.

    Raises:
        Fault: the kernel refuses, and nothing is changed in version 2; or a rule for many devices allows one of them,
            from which version 1 cannot except it.
    """
    return _change_devices(cgroup, allow=[], deny=devices)


def _change_devices(cgroup: DeviceCgroup, *, allow: list[Device], deny: list[Device]) -> list[str]:
    # systemd comes first: it replaces its program then, or all rules of version 1, and must find what it made.
    notes, undo = _tell_systemd(cgroup.name, allow=allow, deny=deny)
    try:
        if cgroup.version == 2:
            from gpu_oci_hook.live.cgroup_programs import change_cgroup_programs  # not needed for version 1

            change_cgroup_programs(cgroup.paths, allow=allow, deny=deny)
        else:
            _change_list(cgroup.paths, allow=allow, deny=deny)
    except Fault:
        undo()
        raise
    return notes


def _tell_systemd(cgroup: str, *, allow: list[Device], deny: list[Device]) -> tuple[list[str], Callable[[], None]]:
    """Tell systemd about the devices if the cgroup is a unit's; return notes for a person, and what undoes it."""
    if not is_unit_cgroup(cgroup):
        return [], lambda: None
    # Not at the top: it brings D-Bus.
    try:
        from gpu_oci_hook.live.systemd_unit import change_unit_devices
    except ImportError as error:
        note = f"systemd was not told about the devices, so systemctl daemon-reload will take the change back: {error}"
        return [note], lambda: None
    return change_unit_devices(cgroup, allow=allow, deny=deny)


def _change_list(paths: list[str], *, allow: list[Device], deny: list[Device]) -> None:
    """Change the rules of cgroups of version 1."""
    for path in reversed(paths):  # a cgroup cannot allow what the one above it denies
        for major, minor in allow:
            _write_rule(f"{path}/devices.allow", f"c {major}:{minor} rw")
    for major, minor in deny:
        _write_rule(f"{paths[-1]}/devices.deny", f"c {major}:{minor} rw")  # the kernel denies it below, too
    text = _read_proc(f"{paths[0]}/devices.list") if deny else ""
    for major, minor in deny:
        for access in ("r", "w"):
            line = find_allowing_line(text, access, major, minor)
            if line not in ("", ALLOW_ALL_LINE):  # below the latter, the kernel does not list what is excepted
                raise Fault(
                    f'the device {major}:{minor} cannot be denied: the container\'s rule "{line}" allows it, '
                    "and cgroup version 1 knows no exception from such a rule",
                    where=paths[0],
                    hint="Start the container again without that rule",
                )


def _write_rule(path: str, rule: str) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, rule.encode())
        finally:
            os.close(fd)
    except OSError as error:
        word = path.rpartition(".")[2]
        raise Fault(f"cannot {word} the device ({rule}): {describe_os_error(error)}", where=path) from None
