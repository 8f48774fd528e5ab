"""The edits of a plan applied to a config.json, as a dict; pure.

Unknown keys survive, since nothing but what an edit names is touched. Every edit is a set operation: applied a
second time it changes nothing. Cost rule: hot, no imports of the library.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.oci import member
from gpu_oci_hook.plan.edits import DeviceNode, DeviceRule, DropHook, DropMount, Edit, Env, Gid, Hook, Mount

Object = dict[str, object]

# What a device rule's type is that means every type.
_ANY = (None, "", "a")


def apply(spec: Object, edits: list[Edit]) -> None:
    """Makes the edits that concern the spec, in place.

    Raises:
        Fault: the spec has something else than the OCI runtime specification says where an edit belongs.
    """
    devices = _Devices(spec)
    mounts = _Mounts(spec)
    foreign: list[Edit] = []
    for edit in edits:
        if edit.foreign:
            foreign.append(edit)
        elif isinstance(edit, DeviceNode):
            devices.node(edit)
        elif isinstance(edit, DeviceRule):
            devices.rule(edit)
        elif isinstance(edit, Mount):
            mounts.add(edit)
        elif isinstance(edit, DropMount):
            mounts.drop(edit)
        elif isinstance(edit, Gid):
            gids = list_under(object_under(object_under(spec, "process"), "user"), "additionalGids")
            if edit.gid not in gids:
                gids.append(edit.gid)
        elif isinstance(edit, Env):
            _env(spec, edit)
        elif isinstance(edit, Hook):
            _hook(spec, edit)
        elif isinstance(edit, DropHook):
            _drop(spec, edit)
    if foreign:
        from gpu_oci_hook.cdi import apply as cdi  # few containers have any

        cdi.put(spec, foreign)


def object_under(parent: Object, key: str) -> Object:
    """The object under a key, made when it is missing or null."""
    found = parent.get(key)
    if found is None:
        found = parent[key] = {}
    if not isinstance(found, dict):
        raise Fault(f'"{key}" is not an object', where="config.json")
    return found


def list_under(parent: Object, key: str) -> list[object]:
    """The list under a key, made when it is missing or null."""
    found = parent.get(key)
    if found is None:
        found = parent[key] = []
    if not isinstance(found, list):
        raise Fault(f'"{key}" is not an array', where="config.json")
    return found


class _Devices:
    """The spec's device nodes and device rules, each looked at once: a machine of MIG devices brings hundreds."""

    __slots__ = ("_allowed", "_denied", "_places", "_rules", "_spec")

    def __init__(self, spec: Object) -> None:
        self._spec = spec
        self._places: dict[object, int] | None = None
        self._rules: list[object] | None = None
        # Place and letters of the rules that allow one device; place, type and numbers of those that deny.
        self._allowed: dict[tuple[object, object, object], list[tuple[int, str]]] = {}
        self._denied: list[tuple[int, object, object, object]] = []

    def node(self, edit: DeviceNode) -> None:
        """Puts a node into the spec, or its right numbers."""
        devices = list_under(object_under(self._spec, "linux"), "devices")
        if self._places is None:
            self._places = {}
            for place, device in enumerate(devices):
                path = member(device, "path")
                if isinstance(path, str):
                    self._places.setdefault(path, place)
        wanted: Object = {
            "path": edit.path,
            "type": "c",
            "major": edit.major,
            "minor": edit.minor,
            "fileMode": edit.mode,
            "uid": edit.uid,
            "gid": edit.gid,
        }
        there = self._places.get(edit.path)
        if there is None:
            self._places[edit.path] = len(devices)
            devices.append(wanted)
        elif any(member(devices[there], key) != wanted[key] for key in ("type", "major", "minor")):
            devices[there] = wanted  # numbers of an earlier boot or driver (field reports A2-11)

    def rule(self, edit: DeviceRule) -> None:
        """Allows a device, unless a rule does so already that no later one takes back."""
        if self._rules is None:
            self._rules = list_under(object_under(object_under(self._spec, "linux"), "resources"), "devices")
            for place, rule in enumerate(self._rules):
                self._read(place, rule)
        taken = -1
        for place, kind, major, minor in self._denied:
            # The kernel's -1 and a missing number mean any.
            numbers = major in (None, -1, edit.major) and minor in (None, -1, edit.minor)
            if numbers and (kind == edit.type or kind in _ANY):
                taken = place
        for place, access in self._allowed.get((edit.type, edit.major, edit.minor), ()):
            if place > taken and all(letter in access for letter in edit.access):
                return
        wanted: Object = {
            "allow": True,
            "type": edit.type,
            "major": edit.major,
            "minor": edit.minor,
            "access": edit.access,
        }
        self._read(len(self._rules), wanted)
        self._rules.append(wanted)

    def _read(self, place: int, rule: object) -> None:
        access, kind = member(rule, "access"), member(rule, "type")
        if not isinstance(access, str):
            return
        numbers = member(rule, "major"), member(rule, "minor")
        if member(rule, "allow") is not True:
            self._denied.append((place, kind, *numbers))
        elif kind in ("b", "c") and isinstance(numbers[0], int) and isinstance(numbers[1], int):
            self._allowed.setdefault((kind, *numbers), []).append((place, access))


class _Mounts:
    """The spec's mounts, each looked at once: a driver brings sixty."""

    __slots__ = ("_spec", "_there")

    def __init__(self, spec: Object) -> None:
        self._spec = spec
        self._there: set[object] | None = None

    def add(self, edit: Mount) -> None:
        """Adds a mount, unless there is one on that place: the container's own wins; the plan has said so."""
        mounts = list_under(self._spec, "mounts")
        if self._there is None:
            found = [member(mount, "destination") for mount in mounts]
            self._there = {destination for destination in found if isinstance(destination, str)}
        if edit.destination in self._there:
            return
        self._there.add(edit.destination)
        wanted: Object = {
            "destination": edit.destination,
            "type": "bind",
            "source": edit.source,
            "options": list(edit.options),
        }
        mounts.append(wanted)

    def drop(self, edit: DropMount) -> None:
        """Takes a mount away."""
        self._there = None
        mounts = list_under(self._spec, "mounts")
        mounts[:] = [
            mount
            for mount in mounts
            if (member(mount, "source"), member(mount, "destination")) != (edit.source, edit.destination)
        ]


def _env(spec: Object, edit: Env) -> None:
    entries = list_under(object_under(spec, "process"), "env")
    wanted = f"{edit.name}={edit.value}"
    places = [
        place for place, entry in enumerate(entries) if isinstance(entry, str) and entry.startswith(edit.name + "=")
    ]
    if places:
        entries[places[-1]] = wanted  # the last of repeated entries is the one that counts
    else:
        entries.append(wanted)


def _hook(spec: Object, edit: Hook) -> None:
    hooks = list_under(object_under(spec, "hooks"), edit.stage)
    wanted: Object = {"path": edit.path, "args": list(edit.args), "env": list(edit.env)}
    if wanted not in hooks:
        hooks.append(wanted)


def _drop(spec: Object, edit: DropHook) -> None:
    hooks = list_under(object_under(spec, "hooks"), edit.stage)
    hooks[:] = [hook for hook in hooks if member(hook, "path") != edit.path]
