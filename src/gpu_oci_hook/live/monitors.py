"""Find the processes that watch containers, containerd's shims and conmon, and what their command lines say.

containerd starts a shim in the bundle of its first container, beside which the bundles of its pod lie. conmon names the
bundle on its command line, for podman and CRI-O (facts: container-monitors). No daemon is asked.

Import budget: cold.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from gpu_oci_hook.files.read_regular import UnusableFileError, read_regular_file
from gpu_oci_hook.live.user_claims import collect_user_claims

PROC = "/proc"
SHIM_PREFIX = "containerd-shim"
CONMON = "conmon"
DOCKER_NAMESPACE = "moby"  # of containerd
_NAMES = (CONMON.encode(), SHIM_PREFIX.encode())
_COMMAND_LINE_LIMIT = 1 << 20
_MAX_ANCESTORS = 64


def is_docker_namespace(namespace: str) -> bool:
    """Tell whether a namespace of containerd is docker's; with userns-remap it has the user's ids at its end."""
    return namespace == DOCKER_NAMESPACE or namespace.startswith(f"{DOCKER_NAMESPACE}-")


class Monitor(NamedTuple):
    """A process that watches a container.

    Attributes:
        pid: its own.
        uid: the user that it runs as.
        namespace: containerd's namespace; "" for conmon.
        container_id: the container's id; with a shim for a whole pod, its first container's.
        name: the container's name; "" if the monitor does not know it.
        bundle: the container's bundle, as the monitor sees it.
        engine: "containerd", "docker", "podman" or "crio".
        pid_file: the file with the number of the container's first process; "" if the monitor does not name it.
    """

    pid: int
    uid: int
    namespace: str
    container_id: str
    name: str
    bundle: str
    engine: str
    pid_file: str = ""

    @property
    def root(self) -> str:
        """The directory below which this process sees the monitor's files; "" if both see the same."""
        own = read_namespace_id(os.getpid(), "mnt")
        is_same = not own or read_namespace_id(self.pid, "mnt") == own
        return "" if is_same else f"{PROC}/{self.pid}/root"


def list_monitors() -> list[Monitor]:
    """List the monitors of this machine that this user may look at, in the order of their numbers."""
    return read_monitors(sorted(int(name) for name in os.listdir(PROC) if name.isdigit()))


def read_monitors(pids: Iterable[int]) -> list[Monitor]:
    """Return the monitors among processes, in the order of their numbers.

    If a user's processes cannot be looked at in time, none of them is returned.
    """
    candidates: dict[int, list[int]] = {}  # by user
    for pid in pids:
        if read_process_file(pid, "comm").startswith(_NAMES):
            candidates.setdefault(_read_uid(pid), []).append(pid)
    found: dict[int, Monitor] = {}
    for uid, own in candidates.items():
        for row in collect_user_claims(uid, partial(_read_monitors_of_user, uid, own)):
            monitor = Monitor(*row)  # type: ignore[arg-type]
            found[monitor.pid] = monitor
    return [found[pid] for pid in sorted(found)]


def _read_monitors_of_user(uid: int, pids: list[int]) -> list[Monitor]:
    monitors = (_read_monitor(pid, uid) for pid in pids)
    return [monitor for monitor in monitors if monitor is not None]


def _read_monitor(pid: int, uid: int) -> Monitor | None:
    """Return what a process watches; None for a process that is not a monitor, or no longer this user's.

    A process in a container can have any name. What has another mount namespace than this process, and in the same user
    namespace fewer capabilities, is such a process: monitors act as root for their containers.
    """
    if _is_confined(pid) or (uid == 0 and _is_other_program_of_root(pid)) or _read_uid(pid) != uid:
        return None
    arguments = _read_command_line(pid)
    program = arguments[0].rpartition("/")[2] if arguments else ""
    try:
        if program.startswith(SHIM_PREFIX):
            namespace, container_id = _find_value(arguments, "-namespace"), _find_value(arguments, "-id")
            bundle = os.readlink(f"{PROC}/{pid}/cwd")
            if not namespace or not container_id:
                return None
            engine = "docker" if is_docker_namespace(namespace) else "containerd"
            return Monitor(pid, uid, namespace, container_id, "", bundle, engine)
        if program == CONMON:
            container_id, bundle = _find_value(arguments, "-c", "--cid"), _find_value(arguments, "-b", "--bundle")
            if not container_id or not bundle.startswith("/") or "--exec" in arguments or "-e" in arguments:
                return None
            name, pid_file = _find_value(arguments, "-n", "--name"), _find_value(arguments, "-p", "--container-pidfile")
            is_crio = "crio" in _find_value(arguments, "--exit-dir").split("/")  # /var/run/crio/exits
            engine = "crio" if is_crio else "podman"
            return Monitor(pid, uid, "", container_id, name, bundle, engine, pid_file)
    except OSError:
        pass  # it has ended, or is another user's
    return None


def list_ancestors(pid: int) -> list[int]:
    """Return a process and its ancestors, nearest first."""
    pids: list[int] = []
    while pid > 0 and len(pids) < _MAX_ANCESTORS:
        pids.append(pid)
        status = read_process_file(pid, "stat")
        fields = status.rpartition(b")")[2].split()  # the program's name can contain spaces and parentheses
        pid = int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else 0
    return pids


def read_start_time(pid: int) -> int:
    """Return when a process started, in clock ticks since boot (proc(5)); 0 if it has ended or is a zombie.

    A number of a process is used again, but not with the same start time.
    """
    fields = read_process_file(pid, "stat").rpartition(b")")[2].split()
    if len(fields) < 20 or fields[0] in (b"Z", b"X") or not fields[19].isdigit():
        return 0
    return int(fields[19])


def read_process_file(pid: int, name: str) -> bytes:
    """Return a file of a process; b"" if the process has ended or is another user's."""
    try:
        return read_regular_file(f"{PROC}/{pid}/{name}", _COMMAND_LINE_LIMIT)
    except (OSError, UnusableFileError):
        return b""


def read_namespace_id(pid: int, kind: str) -> str:
    """Return the identity of a process's namespace, such as "mnt:[4026531832]"; "" if it cannot be read."""
    try:
        return os.readlink(f"{PROC}/{pid}/ns/{kind}")
    except OSError:
        return ""


def _read_uid(pid: int) -> int:
    """Return the effective user of a process; -1 if it has ended."""
    try:
        return os.stat(f"{PROC}/{pid}").st_uid
    except OSError:
        return -1


def _is_other_program_of_root(pid: int) -> bool:
    """Tell whether a process that has root's rights runs another program than a monitor's.

    Every user can start a program with the set-user-ID bit by any name and with any words, such as `sudo`, which then
    waits for a password.
    """
    if os.geteuid() != 0:
        return False  # the kernel does not show this user the program
    try:
        program = os.readlink(f"{PROC}/{pid}/exe")
    except OSError:
        return True
    return not program.rpartition("/")[2].startswith((SHIM_PREFIX, CONMON))


def _is_confined(pid: int) -> bool:
    """Tell whether a process has another mount namespace, and fewer capabilities in this process's user namespace."""
    own = os.getpid()
    if read_namespace_id(pid, "mnt") == read_namespace_id(own, "mnt"):
        return False
    if read_namespace_id(pid, "user") != read_namespace_id(own, "user"):
        return False
    return bool(_read_capabilities(own) & ~_read_capabilities(pid))


def _read_capabilities(pid: int) -> int:
    """Return the effective capabilities of a process, one bit each; 0 if they cannot be read."""
    for line in read_process_file(pid, "status").split(b"\n"):
        if line.startswith(b"CapEff:"):
            return int(line.split()[1], 16)
    return 0


def _read_command_line(pid: int) -> list[str]:
    return [os.fsdecode(argument) for argument in read_process_file(pid, "cmdline").split(b"\0")[:-1]]


def _find_value(arguments: list[str], *flags: str) -> str:
    """Return the value after a flag, or attached to it by "="; "" without one."""
    for position, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag in flags:
            if equals:
                return value
            return arguments[position + 1] if position + 1 < len(arguments) else ""
    return ""
