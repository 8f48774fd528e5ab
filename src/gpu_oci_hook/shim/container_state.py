"""Find the state that a low-level runtime keeps of a container, and the runtime that has it.

Containers outlive a change of `[runtime] low-level`. Commands for a container go to the runtime that has created it:
another one does not know it, and `crun delete --force` would even succeed while the container's process lives on.

Import budget: cold.
"""

from __future__ import annotations

import os

from gpu_oci_hook.files import state_dir
from gpu_oci_hook.formats.program_names import get_program_name

# The file in a container's directory that the runtime's own commands read (facts: runtime-state-files).
_CRUN_STATE_FILE, _STATE_FILE = "status", "state.json"

# Flags with a value before the container's id, of commands that have other flags too. All flags of `update` have one.
_VALUE_FLAGS = {
    "exec": (
        "process", "p", "console-socket", "cwd", "env", "e", "user", "u", "additional-gids", "g", "pid-file",
        "process-label", "apparmor", "cap", "c", "preserve-fds", "cgroup",
    ),
    "checkpoint": ("image-path", "work-path", "parent-path", "page-server", "manage-cgroups-mode", "status-fd"),
    "events": ("interval",),
    "ps": ("format", "f"),
}  # fmt: skip


def find_container_id(command: str, arguments: list[str]) -> str:
    """Return the container's id in the arguments after a command; "" if there is none."""
    at = 0
    while at < len(arguments):
        argument = arguments[at]
        at += 1
        if argument == "--":
            return arguments[at] if at < len(arguments) else ""
        if len(argument) < 2 or argument[0] != "-":
            return argument
        name = argument.lstrip("-")
        if "=" not in name and (command == "update" or name in _VALUE_FLAGS.get(command, ())):
            at += 1
    return ""


def find_state_directory(program: str, root: str, container_id: str) -> str:
    """Return the directory with a low-level runtime's state of a container; "" if it has none.

    Arguments:
        program: the runtime's path.
        root: the value of its flag `--root`; "" without one.
    """
    if container_id in ("", ".", "..") or "/" in container_id or "\0" in container_id:
        return ""
    name = get_program_name(program)
    is_crun = "crun" in name
    kind = "crun" if is_crun else "youki" if "youki" in name else "runc"
    roots = [root] if root else [f"/run/{kind}"]
    user_directory = state_dir.get_environment_variable("XDG_RUNTIME_DIR")
    if not root and user_directory:
        roots.insert(0, f"{user_directory}/{kind}")
    for directory in roots:
        path = f"{directory}/{container_id}"
        if os.path.lexists(f"{path}/{_CRUN_STATE_FILE if is_crun else _STATE_FILE}"):
            return path
    return ""


def choose_program(current: str, earlier: tuple[str, ...], root: str, container_id: str) -> str:
    """Return the low-level runtime that has the state of a container, the current one if none has it.

    Arguments:
        current: the runtime that the configuration names now.
        earlier: the runtimes that were used since boot, the last one first.
    """
    for program in (current, *earlier):
        if find_state_directory(program, root, container_id) and os.access(program, os.X_OK):
            return program
    return current
