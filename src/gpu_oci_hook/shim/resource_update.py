"""Keep `update --resources` from taking its devices away from a container that has requested some.

podman's updates have the device rule "deny all" and no other, whatever else is updated. crun replaces the container's
rules by it, and runc ignores it (facts: update-devices).

Import budget: cold.
"""

from __future__ import annotations

import os
import posix

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files.read_regular import has_trigger, read_config_json, read_fd, read_regular_file
from gpu_oci_hook.formats.fastjson import dump_json, parse_config_json
from gpu_oci_hook.formats.oci import get_list, get_member
from gpu_oci_hook.shim.container_state import find_container_id, find_state_directory

_RESOURCES_LIMIT = 32 << 20


def keep_devices(program: str, root: str, arguments: list[str], triggers: tuple[bytes, ...]) -> list[str]:
    """Return the arguments after `update`, with resources that leave the container its devices.

    Arguments:
        program: the low-level runtime.
        root: the value of its flag `--root`; "" without one.
        triggers: one of these is in the config.json of a container that may have requested devices.
    """
    at, path = _find_resources_flag(arguments)
    state = find_state_directory(program, root, find_container_id("update", arguments))
    if not path or not state:
        return arguments
    try:
        own_rules = _read_own_rules(f"{state}/config.json", triggers)
        if not own_rules:
            return arguments
        data = read_fd(0, _RESOURCES_LIMIT) if path == "-" else read_regular_file(path, _RESOURCES_LIMIT)
        fd = _open_memory_file(_replace_devices(data, own_rules))
    except (Fault, OSError, ValueError):
        return arguments  # for the low-level runtime to report
    if path == "-":
        os.dup2(fd, 0)
        return arguments
    return [*arguments[:at], f"--resources=/proc/self/fd/{fd}", *arguments[at + _count_flag_words(arguments[at]) :]]


def _find_resources_flag(arguments: list[str]) -> tuple[int, str]:
    """Return the position and value of `--resources`, in the spellings of runc and crun; the value is "" without it."""
    at = 0
    found = 0, ""
    while at < len(arguments) and arguments[at] != "--":
        argument = arguments[at]
        if len(argument) < 2 or argument[0] != "-":
            break
        name, equals, value = argument.lstrip("-").partition("=")
        words = _count_flag_words(argument)
        if name == "r" or (name.startswith("re") and "resources".startswith(name)):
            found = at, value if equals else "".join(arguments[at + 1 : at + 2])
        elif argument.startswith("-r") and argument[2:] and not argument.startswith("--"):
            found = at, argument[2:]
        at += words
    return found


def _count_flag_words(argument: str) -> int:
    """Return of how many words a flag of `update` consists, with its value."""
    is_attached = "=" in argument or (argument[:2] == "-r" and argument[2:] not in ("", "esources"))
    return 1 if is_attached else 2


def _read_own_rules(path: str, triggers: tuple[bytes, ...]) -> list[object]:
    """Return the rules of a container's config.json that allow single devices; none if it has requested no device."""
    data = read_config_json(path)
    if data is None or not has_trigger(data, triggers):
        return []
    return [
        rule
        for rule in get_list(parse_config_json(data, path), "linux", "resources", "devices")
        if get_member(rule, "allow") is True and isinstance(get_member(rule, "minor"), int)
    ]


def _replace_devices(data: bytes, own_rules: list[object]) -> bytes:
    """Return resources without device rules; with the container's own at the end if they allow other devices."""
    try:
        resources = parse_config_json(data, "resources")
    except Fault:
        return data
    rules = get_list(resources, "devices")
    if not rules:
        return data
    if any(get_member(rule, "allow") is True for rule in rules):
        resources["devices"] = [*rules, *own_rules]
    else:
        del resources["devices"]
    return dump_json(resources)


def _open_memory_file(data: bytes) -> int:
    """Return a descriptor of a file in memory with this content, which the low-level runtime inherits."""
    fd = posix.memfd_create("resources", 0)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
