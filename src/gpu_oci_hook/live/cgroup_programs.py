"""Change the device programs of cgroups of version 2: all of them, or none.

Each program is replaced in one step, so at no time is anything allowed that both the old and the new program deny.

Import budget: cold.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import ExitStack

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.live import bpf
from gpu_oci_hook.live.device_program import (
    OPEN_PROGRAM,
    UnusableProgramError,
    build_program,
    change_device_rules,
)

# Another process may replace a program in between: the low-level runtime's update, or a second one of ours.
_ATTEMPTS, _LONGEST_PAUSE = 100, 0.01  # seconds
_HINT = "Use gpu-oci-runtime or CDI, which hand the rules to the low-level runtime"

Device = tuple[int, int]


class _ProgramGoneError(Exception):
    """A program has been replaced since it was listed."""


class _Change:
    """What replaces what in a cgroup; descriptors, -1 for no program."""

    __slots__ = ("cgroup_fd", "new_fd", "old_fd", "path", "program_id")

    def __init__(self, path: str, cgroup_fd: int, program_id: int, old_fd: int, new_fd: int) -> None:
        self.path = path
        self.cgroup_fd = cgroup_fd
        self.program_id = program_id
        self.old_fd = old_fd
        self.new_fd = new_fd


def change_cgroup_programs(paths: list[str], *, allow: list[Device], deny: list[Device]) -> None:
    """Allow and deny character devices in the programs of these cgroups.

    Without a program everything is allowed, so a device is denied there by a program that allows the rest. It is
    detached when its last rule is taken back.

    Raises:
        Fault: a program cannot be dumped, loaded or replaced; nothing is changed.
    """
    for _ in range(_ATTEMPTS):
        with ExitStack() as stack:
            try:
                if _carry_out(_prepare_changes(stack, paths, allow, deny)):
                    return
            except _ProgramGoneError:
                pass
        time.sleep(int.from_bytes(os.urandom(2), "little") / 65535 * _LONGEST_PAUSE)
    raise Fault("cannot change the device rules: another process keeps replacing them", where=paths[0])


def _prepare_changes(stack: ExitStack, paths: list[str], allow: list[Device], deny: list[Device]) -> list[_Change]:
    """Load the programs that replace those of the cgroups; descriptors are closed by the stack."""
    changes = []
    has_program = False
    for path in paths:
        try:
            cgroup_fd = _keep(stack, bpf.open_cgroup(path))
        except OSError as error:
            raise Fault(f"cannot open the container's cgroup: {describe_os_error(error)}", where=path) from None
        try:
            for program_id in bpf.list_program_ids(cgroup_fd):
                has_program = True
                old_fd = _keep(stack, _open_program(program_id))
                old = bpf.dump_program(old_fd)
                new = change_device_rules(old, allow=allow, deny=deny)
                if new != old:
                    new_fd = -1 if new == OPEN_PROGRAM else _keep(stack, bpf.load_program(new))
                    changes.append(_Change(path, cgroup_fd, program_id, old_fd, new_fd))
            if path == paths[-1] and deny and not has_program:
                new_fd = _keep(stack, bpf.load_program(build_program(OPEN_PROGRAM, dict.fromkeys(deny, False))))
                changes.append(_Change(path, cgroup_fd, 0, -1, new_fd))
        except OSError as error:
            raise Fault(f"cannot change the device rules: {describe_os_error(error)}", where=path) from None
        except UnusableProgramError as error:
            raise Fault(
                f"cannot change the device rules: the kernel's dump of the program cannot be loaded again: {error}",
                where=path,
                hint=_HINT,
            ) from None
    return changes


def _open_program(program_id: int) -> int:
    try:
        return bpf.open_program(program_id)
    except FileNotFoundError:
        raise _ProgramGoneError from None


def _keep(stack: ExitStack, fd: int) -> int:
    stack.callback(os.close, fd)
    return fd


def _carry_out(changes: list[_Change]) -> bool:
    """Make the changes; return whether they are made. They are not if another process has replaced a program.

    Raises:
        Fault: the kernel refuses one, and those before it are taken back.
    """
    for index, change in enumerate(changes):
        try:
            _swap_program(change.cgroup_fd, change.old_fd, change.new_fd)
        except OSError as error:
            for earlier in reversed(changes[:index]):
                _swap_program(earlier.cgroup_fd, earlier.new_fd, earlier.old_fd)
            if error.errno != errno.ENOENT:
                raise Fault(f"cannot change the device rules: {describe_os_error(error)}", where=change.path) from None
            if change.program_id in bpf.list_program_ids(change.cgroup_fd):
                raise Fault(
                    "cannot change the device rules: a link holds the program, so only the link's owner can replace it",
                    where=change.path,
                    hint=_HINT,
                ) from None
            return False
    return True


def _swap_program(cgroup_fd: int, old_fd: int, new_fd: int) -> None:
    if old_fd < 0:
        bpf.attach_program(cgroup_fd, new_fd)
    elif new_fd < 0:
        bpf.detach_program(cgroup_fd, old_fd)
    else:
        bpf.replace_program(cgroup_fd, old_fd, new_fd)
