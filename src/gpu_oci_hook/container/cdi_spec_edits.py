"""Apply the edits of CDI files to a config.json as the CDI reference library does, and recognise them there.

Import budget: CDI.
"""

from __future__ import annotations

import os

from gpu_oci_hook.formats.oci import ensure_list, ensure_object, get_list, get_member
from gpu_oci_hook.model.cdi_edits import AddCdiMount
from gpu_oci_hook.model.edits import DEFAULT_HOOK_ENV

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.formats.oci import Object
    from gpu_oci_hook.model.cdi_edits import AddCdiDeviceNode, AddCdiHook, AddNetDevice, SetIntelRdt
    from gpu_oci_hook.model.edits import AddMount, Edit, SetEnvVariable


class CdiSpecEditor:
    """A config.json, and the operations that only edits of CDI files make on it.

    Nodes, mounts and hooks are indexed once, and replaced entries are dropped together by `finish`: a file can have
    thousands of each.
    """

    __slots__ = ("_devices", "_hook_counts", "_hooks", "_mounts", "_spec")

    def __init__(self, spec: Object) -> None:
        self._spec = spec
        self._hook_counts: dict[str, int] = {}
        self._hooks: dict[str, _HookIndex] = {}
        self._devices: _ReplacingList | None = None
        self._mounts: _ReplacingList | None = None

    def replace_device_node(self, edit: AddCdiDeviceNode) -> None:
        """Add a device node in place of one with the same path."""
        if self._devices is None:
            self._devices = _ReplacingList(ensure_list(ensure_object(self._spec, "linux"), "devices"), "path")
        node: Object = {"path": edit.path, "type": edit.type, "major": edit.major, "minor": edit.minor}
        for key, value in (("fileMode", edit.mode), ("uid", edit.uid), ("gid", edit.gid)):
            if value is not None:
                node[key] = value
        self._devices.replace(node, every=True)

    def replace_mount(self, edit: AddCdiMount) -> None:
        """Add a mount in place of one with the same destination."""
        if self._mounts is None:
            self._mounts = _ReplacingList(ensure_list(self._spec, "mounts"), "destination")
        new_mount: Object = {"destination": edit.destination}
        if edit.type:
            new_mount["type"] = edit.type
        new_mount["source"] = edit.source
        if edit.options:
            new_mount["options"] = list(edit.options)
        self._mounts.replace(new_mount, every=False)

    def finish(self) -> None:
        """Drop the entries that were replaced."""
        for entries in (self._devices, self._mounts):
            if entries is not None:
                entries.drop_replaced()

    def sort_mounts(self) -> None:
        """Sort all mounts by the depth of their destinations; the order within one depth stays."""
        self.finish()
        ensure_list(self._spec, "mounts").sort(key=_count_path_depth)

    def add_hook(self, edit: AddCdiHook) -> None:
        """Add a hook, unless the stage has it as often as the edits so far request it."""
        if edit.stage not in self._hooks:
            self._hooks[edit.stage] = _HookIndex(ensure_list(ensure_object(self._spec, "hooks"), edit.stage))
        hook = _build_hook_object(edit)
        if self._hooks[edit.stage].count(hook) < _count_request(self._hook_counts, edit, hook):
            self._hooks[edit.stage].append(hook)

    def set_net_device(self, edit: AddNetDevice) -> None:
        """Move a network interface into the container."""
        ensure_object(ensure_object(self._spec, "linux"), "netDevices")[edit.interface] = {"name": edit.name}

    def set_intel_rdt(self, edit: SetIntelRdt) -> None:
        """Replace `linux.intelRdt`."""
        ensure_object(self._spec, "linux")["intelRdt"] = dict(edit.values)


class SpecChecker:
    """A config.json, and the questions whether it has what edits would make.

    The order of mounts does not count. Groups, device rules and RDT can have entries of others, so nothing asks for
    them.
    """

    __slots__ = ("_env", "_hook_counts", "_hooks", "_mounts", "_nodes", "_spec")

    def __init__(self, spec: object) -> None:
        self._spec = spec
        self._hook_counts: dict[str, int] = {}
        self._hooks: dict[str, _HookIndex] = {}
        self._nodes: set[str] | None = None
        self._mounts: set[str] | None = None
        self._env: set[str] | None = None

    def has_device_node(self, edit: AddCdiDeviceNode) -> bool:
        """Tell whether it has a device node. Engines differ in the mode and owner that they fill in."""
        if self._nodes is None:
            keys = ("path", "type", "major", "minor")
            self._nodes = _index_entries(get_list(self._spec, "linux", "devices"), keys)
        return repr((edit.path, edit.type, edit.major, edit.minor)) in self._nodes

    def has_mount(self, edit: AddMount) -> bool:
        """Tell whether it mounts a source on a destination."""
        if self._mounts is None:
            self._mounts = _index_entries(get_list(self._spec, "mounts"), ("destination", "source"))
        return repr((edit.destination, edit.source)) in self._mounts

    def has_hook(self, edit: AddCdiHook) -> bool:
        """Tell whether it has a hook as often as it has been asked for."""
        if edit.stage not in self._hooks:
            self._hooks[edit.stage] = _HookIndex(get_list(self._spec, "hooks", edit.stage))
        hook = _build_hook_object(edit)
        return self._hooks[edit.stage].count(hook) >= _count_request(self._hook_counts, edit, hook)

    def has_env(self, edit: SetEnvVariable) -> bool:
        """Tell whether the environment has a variable with this value."""
        if self._env is None:
            self._env = {entry for entry in get_list(self._spec, "process", "env") if isinstance(entry, str)}
        return f"{edit.name}={edit.value}" in self._env

    def has_net_device(self, edit: AddNetDevice) -> bool:
        """Tell whether a network interface moves into the container."""
        return get_member(self._spec, "linux", "netDevices", edit.interface, "name") == edit.name


def copy_with_cdi_mounts(spec: Object, edits: list[Edit]) -> Object:
    """Return a config.json with the mounts of CDI files, for a look at what is mounted; `spec` is not changed."""
    mount_edits = [edit for edit in edits if isinstance(edit, AddCdiMount)]
    mounts = spec.get("mounts")
    if not mount_edits or (mounts is not None and not isinstance(mounts, list)):
        return spec
    copy = {**spec, "mounts": list(mounts or ())}
    editor = CdiSpecEditor(copy)
    for edit in mount_edits:
        editor.replace_mount(edit)
    editor.finish()
    return copy


def has_cdi_edits(spec: object, edits: list[Edit]) -> bool:
    """Tell whether a config.json has these edits already, from this program or another; see `SpecChecker`."""
    effective: dict[object, Edit] = {}
    for position, edit in enumerate(edits):
        target = edit.get_spec_target()
        effective[position if target is None else target] = edit
    checker = SpecChecker(spec)
    return all(edit.is_in_spec(checker) for edit in effective.values())


def _count_path_depth(mount: object) -> int:
    """Count the slashes in the cleaned destination of a mount, as the reference library does: "/" has one, as "/m"."""
    destination = get_member(mount, "destination")
    if not isinstance(destination, str):
        return 0
    clean = os.path.normpath(destination)  # keeps two slashes at the beginning
    return clean.count("/") - clean.startswith("//")


def _build_hook_object(edit: AddCdiHook) -> Object:
    hook: Object = {"path": edit.path}
    if edit.args:
        hook["args"] = list(edit.args)
    hook["env"] = list(edit.env)
    if edit.timeout is not None:
        hook["timeout"] = edit.timeout
    return hook


def _count_request(counts: dict[str, int], edit: AddCdiHook, hook: Object) -> int:
    """Count one more request for a hook, and return how many there are so far."""
    key = f"{edit.stage} {hook!r}"
    counts[key] = counts.get(key, 0) + 1
    return counts[key]


def _index_entries(entries: list[object], keys: tuple[str, ...]) -> set[str]:
    """Return the values under some keys of each entry, as text: values of any type can be compared that way."""
    return {repr(tuple([get_member(entry, key) for key in keys])) for entry in entries}


class _ReplacingList:
    """A list of objects in which a new one takes the place of those with the same value under a key.

    Arguments:
        entries: the list; changed in place.
    """

    __slots__ = ("_by_value", "_key", "_replaced", "entries")

    def __init__(self, entries: list[object], key: str) -> None:
        self.entries = entries
        self._key = key
        self._by_value: dict[str, list[object]] = {}
        self._replaced: set[int] = set()
        for entry in entries:
            value = get_member(entry, key)
            if isinstance(value, str):
                self._by_value.setdefault(value, []).append(entry)

    def replace(self, new_entry: Object, *, every: bool) -> None:
        """Append an entry; the first one with its value, or every one, goes with the next `drop_replaced`."""
        same = self._by_value.setdefault(str(new_entry[self._key]), [])
        count = len(same) if every else 1
        self._replaced.update(map(id, same[:count]))
        same[:count] = []
        same.append(new_entry)
        self.entries.append(new_entry)

    def drop_replaced(self) -> None:
        """Remove the replaced entries from the list."""
        if self._replaced:
            self.entries[:] = [entry for entry in self.entries if id(entry) not in self._replaced]
            self._replaced.clear()


class _HookIndex:
    """The hooks of a stage, counted by content; engines write one without an environment as it is."""

    __slots__ = ("_counts", "_hooks")

    def __init__(self, hooks: list[object]) -> None:
        self._hooks = hooks
        self._counts: dict[str, int] = {}
        for hook in hooks:
            if isinstance(hook, dict):
                self._add(hook)

    def append(self, hook: Object) -> None:
        """Add a hook to the stage."""
        self._hooks.append(hook)
        self._add(hook)

    def count(self, hook: Object) -> int:
        """Return how often the stage has a hook."""
        return self._counts.get(_format_hook(hook), 0)

    def _add(self, hook: Object) -> None:
        key = _format_hook(hook)
        self._counts[key] = self._counts.get(key, 0) + 1


def _format_hook(hook: Object) -> str:
    values = [hook.get(key) or None for key in ("path", "args", "timeout")]
    return repr((*values, hook.get("env") or list(DEFAULT_HOOK_ENV)))
