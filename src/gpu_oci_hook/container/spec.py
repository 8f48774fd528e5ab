"""The edits of a plan applied to a config.json, as a dict; pure.

Unknown keys survive, since nothing but what an edit names is touched. Every edit is a set operation: applied a
second time it changes nothing. Cost rule: hot, no imports of the library.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.plan.edits import DeviceNode, DeviceRule, DropHook, DropMount, Edit, Env, Gid, Hook, Mount
from gpu_oci_hook.request import member

Object = dict[str, object]


def apply(spec: Object, edits: list[Edit]) -> None:
    """Makes the edits that concern the spec, in place.

    Raises:
        Fault: the spec has something else than the OCI runtime specification says where an edit belongs.
    """
    for edit in edits:
        if isinstance(edit, DeviceNode):
            _device(spec, edit)
        elif isinstance(edit, DeviceRule):
            _rule(spec, edit)
        elif isinstance(edit, Mount):
            _mount(spec, edit)
        elif isinstance(edit, DropMount):
            mounts = _list(spec, "mounts")
            mounts[:] = [
                mount
                for mount in mounts
                if (member(mount, "source"), member(mount, "destination")) != (edit.source, edit.destination)
            ]
        elif isinstance(edit, Gid):
            gids = _list(_object(_object(spec, "process"), "user"), "additionalGids")
            if edit.gid not in gids:
                gids.append(edit.gid)
        elif isinstance(edit, Env):
            _env(spec, edit)
        elif isinstance(edit, Hook):
            _hook(spec, edit)
        elif isinstance(edit, DropHook):
            _drop(spec, edit)


def _object(parent: Object, key: str) -> Object:
    """The object under a key, made when it is missing or null."""
    found = parent.get(key)
    if found is None:
        found = parent[key] = {}
    if not isinstance(found, dict):
        raise Fault(f'"{key}" is not an object', where="config.json")
    return found


def _list(parent: Object, key: str) -> list[object]:
    """The list under a key, made when it is missing or null."""
    found = parent.get(key)
    if found is None:
        found = parent[key] = []
    if not isinstance(found, list):
        raise Fault(f'"{key}" is not an array', where="config.json")
    return found


def _device(spec: Object, edit: DeviceNode) -> None:
    devices = _list(_object(spec, "linux"), "devices")
    wanted: Object = {
        "path": edit.path,
        "type": "c",
        "major": edit.major,
        "minor": edit.minor,
        "fileMode": edit.mode,
        "uid": edit.uid,
        "gid": edit.gid,
    }
    for place, device in enumerate(devices):
        if member(device, "path") != edit.path:
            continue
        same = all(member(device, key) == wanted[key] for key in ("type", "major", "minor"))
        if not same:  # numbers of an earlier boot or driver (field reports A2-11)
            devices[place] = wanted
        return
    devices.append(wanted)


def _rule(spec: Object, edit: DeviceRule) -> None:
    rules = _list(_object(_object(spec, "linux"), "resources"), "devices")
    there = False
    for rule in rules:
        access = member(rule, "access")
        if not isinstance(access, str):
            continue
        if member(rule, "allow") is not True:
            # A later rule takes back what an earlier one allowed. The kernel's -1 and a missing number mean any.
            same = [member(rule, key) in (None, -1, number) for key, number in
                    (("major", edit.major), ("minor", edit.minor))]  # fmt: skip
            there = there and not (member(rule, "type") in (None, "", "a", "c") and all(same))
        elif member(rule, "type") == "c" and (member(rule, "major"), member(rule, "minor")) == (edit.major, edit.minor):
            there = there or all(letter in access for letter in edit.access)
    if there:
        return
    rules.append(
        {"allow": True, "type": "c", "major": edit.major, "minor": edit.minor, "access": edit.access}
    )


def _mount(spec: Object, edit: Mount) -> None:
    mounts = _list(spec, "mounts")
    wanted: Object = {
        "destination": edit.destination,
        "type": "bind",
        "source": edit.source,
        "options": list(edit.options),
    }
    for mount in mounts:
        if member(mount, "destination") == edit.destination:
            return  # the container's own mount wins; the plan has said so
    mounts.append(wanted)


def _env(spec: Object, edit: Env) -> None:
    entries = _list(_object(spec, "process"), "env")
    wanted = f"{edit.name}={edit.value}"
    places = [
        place for place, entry in enumerate(entries) if isinstance(entry, str) and entry.startswith(edit.name + "=")
    ]
    if places:
        entries[places[-1]] = wanted  # the last of repeated entries is the one that counts
    else:
        entries.append(wanted)


def _hook(spec: Object, edit: Hook) -> None:
    hooks = _list(_object(spec, "hooks"), edit.stage)
    wanted: Object = {"path": edit.path, "args": list(edit.args), "env": list(edit.env)}
    if wanted not in hooks:
        hooks.append(wanted)


def _drop(spec: Object, edit: DropHook) -> None:
    hooks = _list(_object(spec, "hooks"), edit.stage)
    hooks[:] = [hook for hook in hooks if member(hook, "path") != edit.path]
