"""The edits of a plan applied to a config.json, as a dict; pure.

Unknown keys survive, since nothing but what an edit names is touched. Every edit is a set operation: applied a
second time it changes nothing. Cost rule: hot, no imports of the library.
"""

from __future__ import annotations

from gpu_oci_hook.formats.oci import ensure_list, ensure_object, get_member
from gpu_oci_hook.model.edits import (
    AddDeviceNode,
    AddDeviceRule,
    AddGroup,
    AddHook,
    AddMount,
    DropHook,
    DropMount,
    Edit,
    SetEnvVariable,
)

JsonObject = dict[str, object]

# What a device rule's type is that means every type.
_ANY_TYPE = (None, "", "a")


def apply_to_spec(spec: JsonObject, edits: list[Edit]) -> None:
    """Makes the edits that concern the spec, in place.

    Raises:
        Fault: the spec has something else than the OCI runtime specification says where an edit belongs.
    """
    devices = _DeviceEditor(spec)
    mounts = _MountEditor(spec)
    foreign: list[Edit] = []
    for edit in edits:
        if edit.from_cdi_file:
            foreign.append(edit)
        elif isinstance(edit, AddDeviceNode):
            devices.put_device_node(edit)
        elif isinstance(edit, AddDeviceRule):
            devices.allow_device(edit)
        elif isinstance(edit, AddMount):
            mounts.add_mount(edit)
        elif isinstance(edit, DropMount):
            mounts.remove_mount(edit)
        elif isinstance(edit, AddGroup):
            gids = ensure_list(ensure_object(ensure_object(spec, "process"), "user"), "additionalGids")
            if edit.gid not in gids:
                gids.append(edit.gid)
        elif isinstance(edit, SetEnvVariable):
            _set_env(spec, edit)
        elif isinstance(edit, AddHook):
            _add_hook(spec, edit)
        elif isinstance(edit, DropHook):
            _remove_hooks(spec, edit)
    if foreign:
        from gpu_oci_hook.container.cdi_spec_edits import apply_cdi_edits  # few containers have any

        apply_cdi_edits(spec, foreign)


class _DeviceEditor:
    """The spec's device nodes and device rules, each looked at once: a machine of MIG devices brings hundreds."""

    __slots__ = ("_allowed", "_denied", "_node_positions", "_rules", "_spec")

    def __init__(self, spec: JsonObject) -> None:
        self._spec = spec
        self._node_positions: dict[object, int] | None = None
        self._rules: list[object] | None = None
        # Place and letters of the rules that allow one device; place, type and numbers of those that deny.
        self._allowed: dict[tuple[object, object, object], list[tuple[int, str]]] = {}
        self._denied: list[tuple[int, object, object, object]] = []

    def put_device_node(self, edit: AddDeviceNode) -> None:
        """Puts a node into the spec, or its right numbers."""
        devices = ensure_list(ensure_object(self._spec, "linux"), "devices")
        if self._node_positions is None:
            self._node_positions = {}
            for place, device in enumerate(devices):
                path = get_member(device, "path")
                if isinstance(path, str):
                    self._node_positions.setdefault(path, place)
        wanted: JsonObject = {
            "path": edit.path,
            "type": "c",
            "major": edit.major,
            "minor": edit.minor,
            "fileMode": edit.mode,
            "uid": edit.uid,
            "gid": edit.gid,
        }
        there = self._node_positions.get(edit.path)
        if there is None:
            self._node_positions[edit.path] = len(devices)
            devices.append(wanted)
        elif any(get_member(devices[there], key) != wanted[key] for key in ("type", "major", "minor")):
            devices[there] = wanted  # numbers of an earlier boot or driver (field reports A2-11)

    def allow_device(self, edit: AddDeviceRule) -> None:
        """Allows a device, unless a rule does so already that no later one takes back."""
        if self._rules is None:
            self._rules = ensure_list(ensure_object(ensure_object(self._spec, "linux"), "resources"), "devices")
            for place, rule in enumerate(self._rules):
                self._index_rule(place, rule)
        taken = -1
        for place, kind, major, minor in self._denied:
            # The kernel's -1 and a missing number mean any.
            numbers = major in (None, -1, edit.major) and minor in (None, -1, edit.minor)
            if numbers and (kind == edit.type or kind in _ANY_TYPE):
                taken = place
        for place, access in self._allowed.get((edit.type, edit.major, edit.minor), ()):
            if place > taken and all(letter in access for letter in edit.access):
                return
        wanted: JsonObject = {
            "allow": True,
            "type": edit.type,
            "major": edit.major,
            "minor": edit.minor,
            "access": edit.access,
        }
        self._index_rule(len(self._rules), wanted)
        self._rules.append(wanted)

    def _index_rule(self, place: int, rule: object) -> None:
        access, kind = get_member(rule, "access"), get_member(rule, "type")
        if not isinstance(access, str):
            return
        numbers = get_member(rule, "major"), get_member(rule, "minor")
        if get_member(rule, "allow") is not True:
            self._denied.append((place, kind, *numbers))
        elif kind in ("b", "c") and isinstance(numbers[0], int) and isinstance(numbers[1], int):
            self._allowed.setdefault((kind, *numbers), []).append((place, access))


class _MountEditor:
    """The spec's mounts, each looked at once: a driver brings sixty."""

    __slots__ = ("_destinations", "_spec")

    def __init__(self, spec: JsonObject) -> None:
        self._spec = spec
        self._destinations: set[object] | None = None

    def add_mount(self, edit: AddMount) -> None:
        """Adds a mount, unless there is one on that place: the container's own wins; the plan has said so."""
        mounts = ensure_list(self._spec, "mounts")
        if self._destinations is None:
            found = [get_member(mount, "destination") for mount in mounts]
            self._destinations = {destination for destination in found if isinstance(destination, str)}
        if edit.destination in self._destinations:
            return
        self._destinations.add(edit.destination)
        wanted: JsonObject = {
            "destination": edit.destination,
            "type": "bind",
            "source": edit.source,
            "options": list(edit.options),
        }
        mounts.append(wanted)

    def remove_mount(self, edit: DropMount) -> None:
        """Takes a mount away."""
        self._destinations = None
        mounts = ensure_list(self._spec, "mounts")
        mounts[:] = [
            mount
            for mount in mounts
            if (get_member(mount, "source"), get_member(mount, "destination")) != (edit.source, edit.destination)
        ]


def _set_env(spec: JsonObject, edit: SetEnvVariable) -> None:
    entries = ensure_list(ensure_object(spec, "process"), "env")
    wanted = f"{edit.name}={edit.value}"
    places = [
        place for place, entry in enumerate(entries) if isinstance(entry, str) and entry.startswith(edit.name + "=")
    ]
    if places:
        entries[places[-1]] = wanted  # the last of repeated entries is the one that counts
    else:
        entries.append(wanted)


def _add_hook(spec: JsonObject, edit: AddHook) -> None:
    hooks = ensure_list(ensure_object(spec, "hooks"), edit.stage)
    wanted: JsonObject = {"path": edit.path, "args": list(edit.args), "env": list(edit.env)}
    if wanted not in hooks:
        hooks.append(wanted)


def _remove_hooks(spec: JsonObject, edit: DropHook) -> None:
    hooks = ensure_list(ensure_object(spec, "hooks"), edit.stage)
    hooks[:] = [hook for hook in hooks if get_member(hook, "path") != edit.path]
