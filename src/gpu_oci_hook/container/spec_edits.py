"""Apply the edits of a plan to a config.json, as a dict.

Unknown keys survive, because only what an edit names is touched. Every edit sets something: applied a second time, it
changes nothing.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.formats.fastjson import dump_json
from gpu_oci_hook.formats.oci import ensure_list, ensure_object, get_list, get_member
from gpu_oci_hook.formats.program_names import is_prestart_hook

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_oci_hook.container.cdi_spec_edits import CdiSpecEditor
    from gpu_oci_hook.formats.oci import Object
    from gpu_oci_hook.model.earlier_edits import DropEarlierEntries
    from gpu_oci_hook.model.edits import (
        AddDeviceNode,
        AddDeviceRule,
        AddGroup,
        AddHook,
        AddMount,
        DropHook,
        DropMount,
        Edit,
        ListChanges,
        SetEnvVariable,
    )

    DenyRule = tuple[int, object, object, object]  # position in the list, type, major, minor

# A device rule with one of these types applies to every type.
_ANY_TYPE = (None, "", "a")


def apply_to_spec(spec: Object, edits: Iterable[Edit]) -> None:
    """Apply edits to a config.json, in place.

    Raises:
        Fault: an edit belongs where the config.json does not have what the OCI runtime specification requires.
    """
    editor = SpecEditor(spec)
    for edit in edits:
        edit.apply_to_spec(editor)
    editor.finish()


def undo_earlier_edits(spec: Object, edits: list[Edit], data: bytes) -> tuple[bytes, list[Edit]]:
    """Undo an earlier injection if the plan begins with that; return the bytes without it, and the other edits.

    Arguments:
        data: the bytes of `spec`.
    """
    if edits[0].kind != "drop-earlier":
        return data, edits
    apply_to_spec(spec, edits[:1])
    return dump_json(spec), edits[1:]


class SpecEditor:
    """A config.json, and the operations that edits of a plan make on it.

    Device nodes, device rules and mounts are indexed once: a machine with MIG devices brings hundreds.
    """

    __slots__ = (
        "_allowed", "_cdi", "_denied", "_destinations", "_env", "_env_positions", "_node_positions", "_rules", "spec",
    )  # fmt: skip

    def __init__(self, spec: Object) -> None:
        self.spec = spec
        self._node_positions: dict[object, int] | None = None
        self._rules: list[object] | None = None
        # (position, access) of the rules that allow one device.
        self._allowed: dict[tuple[object, object, object], list[tuple[int, str]]] = {}
        self._denied: list[DenyRule] = []
        self._destinations: set[object] | None = None
        self._env: list[object] = []
        self._env_positions: dict[str, int] | None = None
        self._cdi: CdiSpecEditor | None = None

    def finish(self) -> None:
        """Finish what edits of CDI files have begun."""
        if self._cdi is not None:
            self._cdi.finish()

    @property
    def cdi(self) -> CdiSpecEditor:
        """The operations that only edits of CDI files make."""
        if self._cdi is None:
            from gpu_oci_hook.container.cdi_spec_edits import CdiSpecEditor  # few containers have such edits

            self._cdi = CdiSpecEditor(self.spec)
        return self._cdi

    def put_device_node(self, edit: AddDeviceNode) -> None:
        """Add a device node, or correct the numbers of one with the same path."""
        devices = ensure_list(ensure_object(self.spec, "linux"), "devices")
        if self._node_positions is None:
            self._node_positions = {}
            for position, device in enumerate(devices):
                path = get_member(device, "path")
                if isinstance(path, str):
                    self._node_positions.setdefault(path, position)
        node: Object = {
            "path": edit.path,
            "type": "c",
            "major": edit.major,
            "minor": edit.minor,
            "fileMode": edit.mode,
            "uid": edit.uid,
            "gid": edit.gid,
        }
        existing = self._node_positions.get(edit.path)
        if existing is None:
            self._node_positions[edit.path] = len(devices)
            devices.append(node)
        elif any(get_member(devices[existing], key) != node[key] for key in ("type", "major", "minor")):
            devices[existing] = node  # its numbers are from an earlier boot or driver

    def allow_device(self, edit: AddDeviceRule) -> None:
        """Add the cgroup device rule that allows a device, unless a rule does so that no later rule revokes."""
        if self._rules is None:
            self._rules = ensure_list(ensure_object(ensure_object(self.spec, "linux"), "resources"), "devices")
            for position, rule in enumerate(self._rules):
                self._index_rule(position, rule)
        last_denial = -1
        for position, kind, major, minor in self._denied:
            # The kernel's -1 and a missing number mean any.
            numbers = major in (None, -1, edit.major) and minor in (None, -1, edit.minor)
            if numbers and (kind == edit.type or kind in _ANY_TYPE):
                last_denial = position
        for position, access in self._allowed.get((edit.type, edit.major, edit.minor), ()):
            if position > last_denial and all(letter in access for letter in edit.access):
                return
        new_rule: Object = {
            "allow": True,
            "type": edit.type,
            "major": edit.major,
            "minor": edit.minor,
            "access": edit.access,
        }
        self._index_rule(len(self._rules), new_rule)
        self._rules.append(new_rule)

    def _index_rule(self, position: int, rule: object) -> None:
        access, kind = get_member(rule, "access"), get_member(rule, "type")
        if not isinstance(access, str):
            return
        major, minor = get_member(rule, "major"), get_member(rule, "minor")
        if get_member(rule, "allow") is not True:
            self._denied.append((position, kind, major, minor))
        elif kind in ("b", "c") and isinstance(major, int) and isinstance(minor, int):
            self._allowed.setdefault((kind, major, minor), []).append((position, access))

    def add_mount(self, edit: AddMount) -> None:
        """Add a mount, unless its destination has one: the container's own wins, and the plan says so."""
        mounts = ensure_list(self.spec, "mounts")
        if self._destinations is None:
            destinations = [get_member(mount, "destination") for mount in mounts]
            self._destinations = {destination for destination in destinations if isinstance(destination, str)}
        if edit.destination in self._destinations:
            return
        self._destinations.add(edit.destination)
        mounts.append(
            {"destination": edit.destination, "type": "bind", "source": edit.source, "options": list(edit.options)}
        )

    def remove_mount(self, edit: DropMount) -> None:
        """Remove a mount."""
        self._destinations = None
        mounts = ensure_list(self.spec, "mounts")
        mounts[:] = [
            mount
            for mount in mounts
            if (get_member(mount, "source"), get_member(mount, "destination")) != (edit.source, edit.destination)
        ]

    def undo_changes(self, edit: DropEarlierEntries) -> None:
        """Undo what an earlier injection has changed."""
        self._node_positions = self._rules = self._destinations = None
        self._allowed, self._denied = {}, []
        for path, changes in edit.changes.items():
            undo_changes(get_list(self.spec, *path.split(".")), changes)

    def add_group(self, edit: AddGroup) -> None:
        """Add an additional group to the process."""
        gids = ensure_list(ensure_object(ensure_object(self.spec, "process"), "user"), "additionalGids")
        if edit.gid not in gids:
            gids.append(edit.gid)

    def set_env(self, edit: SetEnvVariable) -> None:
        """Set a variable in the environment of the process."""
        if self._env_positions is None:
            self._env = ensure_list(ensure_object(self.spec, "process"), "env")
            self._env_positions = {
                entry.partition("=")[0]: position  # of repeated entries the last one counts
                for position, entry in enumerate(self._env)
                if isinstance(entry, str) and "=" in entry
            }
        new_entry = f"{edit.name}={edit.value}"
        position = self._env_positions.get(edit.name)
        if position is None:
            self._env_positions[edit.name] = len(self._env)
            self._env.append(new_entry)
        else:
            self._env[position] = new_entry

    def add_hook(self, edit: AddHook) -> None:
        """Add a hook to its stage."""
        hooks = ensure_list(ensure_object(self.spec, "hooks"), edit.stage)
        hook: Object = {"path": edit.path, "args": list(edit.args), "env": list(edit.env)}
        if hook not in hooks:
            hooks.append(hook)

    def remove_hooks(self, edit: DropHook) -> None:
        """Remove the hooks of a stage by which a program injects GPUs; its other hooks stay."""
        hooks = ensure_list(ensure_object(self.spec, "hooks"), edit.stage)
        hooks[:] = [hook for hook in hooks if get_member(hook, "path") != edit.path or not is_prestart_hook(hook)]


def undo_changes(entries: list[object], changes: ListChanges) -> None:
    """Undo the changes of a list: remove what was added, put back what was removed.

    Each entry is removed once; of equal ones the last, since that of a user was there first.
    """
    added, removed = changes
    for entry in added:
        if entry in entries:
            del entries[len(entries) - 1 - entries[::-1].index(entry)]
    for position_and_entry in removed:
        if isinstance(position_and_entry, list) and len(position_and_entry) == 2:
            position, entry = position_and_entry
            entries.insert(position if isinstance(position, int) else len(entries), entry)
