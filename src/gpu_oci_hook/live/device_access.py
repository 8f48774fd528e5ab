"""Ask the kernel's own rules whether the processes of a cgroup may open devices.

Nothing is opened and no process is started: the rules are read (version 1), or the programs are fetched from the kernel
and evaluated (version 2).

Import budget: cold.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.read_regular import UnusableFileError, read_regular_file
from gpu_oci_hook.live import bpf
from gpu_oci_hook.live.device_cgroup import DeviceCgroup, find_device_cgroup
from gpu_oci_hook.live.device_list import ALLOW_ALL_LINE, find_allowing_line
from gpu_oci_hook.live.device_program import (
    CHAR,
    READ,
    WRITE,
    UnusableProgramError,
    decode_program,
    evaluate_program,
    list_rules,
)

_LIMIT = 1 << 20
_ATTEMPTS = 10
_BITS = {"r": READ, "w": WRITE}


class DeviceAccess(NamedTuple):
    """What the kernel's rules say about an access.

    Attributes:
        major, minor: of the character device.
        access: letters of "rw".
        allowed: whether it is allowed; None if that is not known.
        reason: which rule decides, or why it is not known.
    """

    major: int
    minor: int
    access: str
    allowed: bool | None
    reason: str


class DeviceRules:
    """The rules of a cgroup as they were when they were read.

    Attributes:
        path: the cgroup's directory; "" on a machine without device cgroups.
        problem: why they are not known; "" if they are.
        lines: of version 1; None for version 2.
        programs: of version 2.
    """

    __slots__ = ("lines", "path", "problem", "programs")

    def __init__(
        self, path: str = "", *, problem: str = "", lines: str | None = None, programs: tuple[bytes, ...] = ()
    ) -> None:
        self.path = path
        self.problem = problem
        self.lines = lines
        self.programs = programs

    def query(self, devices: list[tuple[int, int, str]]) -> list[DeviceAccess]:
        """Return what the rules say about each access, as `query_device_access`."""
        return [self._query_device(*device) for device in devices]

    def _query_device(self, major: int, minor: int, access: str) -> DeviceAccess:
        if self.problem:
            return DeviceAccess(major, minor, access, None, self.problem)
        if self.lines is not None:
            return _query_list(self.path, self.lines, major, minor, access)
        if not self.programs:
            reason = "the cgroup has no device program" if self.path else "this machine has no device cgroups"
            return DeviceAccess(major, minor, access, True, reason)
        return _evaluate_programs(self.programs, self.path, major, minor, access)


def query_device_access(cgroup: DeviceCgroup | int, devices: list[tuple[int, int, str]]) -> list[DeviceAccess]:
    """Return what the rules of a container that runs say about each access, in the order of the accesses.

    Arguments:
        cgroup: of the container; or a process of it, by its pid.
        devices: (major, minor, letters of "rw") of each access to a character device.
    """
    return read_device_rules(cgroup).query(devices)


def read_device_rules(cgroup: DeviceCgroup | int) -> DeviceRules:
    """Read the rules of a container that runs.

    Arguments:
        cgroup: of the container; or a process of it, by its pid.
    """
    if isinstance(cgroup, int):
        try:
            found = find_device_cgroup(cgroup)
        except Fault as fault:
            return DeviceRules(problem=str(fault))
        if found is None:
            return DeviceRules()
        cgroup = found
    # The kernel asks the process's own cgroup in version 1, which never allows more than the one above it.
    path = f"{cgroup.paths[0]}/devices.list" if cgroup.version == 1 else cgroup.paths[0]
    try:
        if cgroup.version == 1:
            return DeviceRules(path, lines=read_regular_file(path, _LIMIT).decode())
        return DeviceRules(path, programs=tuple(_dump_programs(path)))
    except (OSError, UnusableFileError, ValueError) as error:
        reason = describe_os_error(error) if isinstance(error, OSError) else str(error)
        return DeviceRules(path, problem=f"{path}: {reason}")


def _query_list(path: str, lines: str, major: int, minor: int, access: str) -> DeviceAccess:
    """Answer from the rules of a cgroup of version 1."""
    line = find_allowing_line(lines, access, major, minor)
    reason = f'the rule "{line}" allows it' if line else f"no rule in {path} allows it"
    if line == ALLOW_ALL_LINE:
        reason += "; the kernel does not list exceptions from it"
    return DeviceAccess(major, minor, access, bool(line), reason)


def _dump_programs(path: str) -> list[bytes]:
    """Fetch the programs of a cgroup and of those above it.

    Raises:
        OSError: the kernel refuses, the cgroup is gone, or its programs are replaced again and again.
    """
    cgroup_fd = bpf.open_cgroup(path)
    try:
        for _ in range(_ATTEMPTS - 1):
            try:
                return [_dump_program(number) for number in bpf.list_program_ids(cgroup_fd, effective=True)]
            except FileNotFoundError:
                continue  # replaced since it was listed
        return [_dump_program(number) for number in bpf.list_program_ids(cgroup_fd, effective=True)]
    finally:
        os.close(cgroup_fd)


def _dump_program(program_id: int) -> bytes:
    program_fd = bpf.open_program(program_id)
    try:
        return bpf.dump_program(program_fd)
    finally:
        os.close(program_fd)


def _evaluate_programs(programs: tuple[bytes, ...], path: str, major: int, minor: int, access: str) -> DeviceAccess:
    """Return the decision of several programs: each of them must allow the access."""
    bits = sum(_BITS[letter] for letter in set(access))
    reason, unknown = "the device program allows it", ""
    for program in programs:
        try:
            instructions = decode_program(program)
            rule = list_rules(program).get((major, minor))
            if not evaluate_program(instructions, CHAR, bits, major, minor):
                whose = "a rule that gpu-oci-hook has added" if rule is False else f"a device program for {path}"
                return DeviceAccess(major, minor, access, False, f"{whose} denies it")
        except UnusableProgramError as error:
            unknown = f"a device program for {path} cannot be read: {error}"
            continue
        if rule:
            reason = "a rule that gpu-oci-hook has added allows it"
    return DeviceAccess(major, minor, access, None if unknown else True, unknown or reason)
