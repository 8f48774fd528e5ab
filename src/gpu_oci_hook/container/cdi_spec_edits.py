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
    """A config.json, and the operations that only edits of CDI files make on it."""

    __slots__ = ("_hook_counts", "_spec")

    def __init__(self, spec: Object) -> None:
        self._spec = spec
        self._hook_counts: dict[str, int] = {}

    def replace_device_node(self, edit: AddCdiDeviceNode) -> None:
        """Add a device node in place of one with the same path."""
        devices = ensure_list(ensure_object(self._spec, "linux"), "devices")
        devices[:] = [device for device in devices if get_member(device, "path") != edit.path]
        node: Object = {"path": edit.path, "type": edit.type, "major": edit.major, "minor": edit.minor}
        for key, value in (("fileMode", edit.mode), ("uid", edit.uid), ("gid", edit.gid)):
            if value is not None:
                node[key] = value
        devices.append(node)

    def replace_mount(self, edit: AddCdiMount) -> None:
        """Add a mount in place of one with the same destination."""
        mounts = ensure_list(self._spec, "mounts")
        for position, mount in enumerate(mounts):
            if get_member(mount, "destination") == edit.destination:
                del mounts[position]
                break
        new_mount: Object = {"destination": edit.destination}
        if edit.type:
            new_mount["type"] = edit.type
        new_mount["source"] = edit.source
        if edit.options:
            new_mount["options"] = list(edit.options)
        mounts.append(new_mount)

    def sort_mounts(self) -> None:
        """Sort all mounts by the depth of their destinations; the order within one depth stays."""
        ensure_list(self._spec, "mounts").sort(key=_count_path_depth)

    def add_hook(self, edit: AddCdiHook) -> None:
        """Add a hook, unless the stage has it as often as the edits so far request it."""
        hooks = ensure_list(ensure_object(self._spec, "hooks"), edit.stage)
        hook = _build_hook_object(edit)
        if _count_hooks(hooks, hook) < _count_request(self._hook_counts, edit, hook):
            hooks.append(hook)

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

    __slots__ = ("_hook_counts", "_spec")

    def __init__(self, spec: object) -> None:
        self._spec = spec
        self._hook_counts: dict[str, int] = {}

    def has_device_node(self, edit: AddCdiDeviceNode) -> bool:
        """Tell whether it has a device node. Engines differ in the mode and owner that they fill in."""
        wanted = (edit.path, edit.type, edit.major, edit.minor)
        return any(
            tuple(get_member(device, key) for key in ("path", "type", "major", "minor")) == wanted
            for device in get_list(self._spec, "linux", "devices")
        )

    def has_mount(self, edit: AddMount) -> bool:
        """Tell whether it mounts a source on a destination."""
        return any(
            get_member(mount, "destination") == edit.destination and get_member(mount, "source") == edit.source
            for mount in get_list(self._spec, "mounts")
        )

    def has_hook(self, edit: AddCdiHook) -> bool:
        """Tell whether it has a hook as often as it has been asked for."""
        hook = _build_hook_object(edit)
        hooks = get_list(self._spec, "hooks", edit.stage)
        return _count_hooks(hooks, hook) >= _count_request(self._hook_counts, edit, hook)

    def has_env(self, edit: SetEnvVariable) -> bool:
        """Tell whether the environment has a variable with this value."""
        return f"{edit.name}={edit.value}" in get_list(self._spec, "process", "env")

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


def _count_hooks(hooks: list[object], wanted: Object) -> int:
    return sum(1 for hook in hooks if _is_same_hook(hook, wanted))


def _is_same_hook(hook: object, wanted: Object) -> bool:
    """Tell whether a hook of the config.json is the wanted one; engines write one without an environment as it is."""
    if not isinstance(hook, dict):
        return False
    return all((hook.get(key) or None) == wanted.get(key) for key in ("path", "args", "timeout")) and (
        hook.get("env") == wanted["env"] or (not hook.get("env") and wanted["env"] == list(DEFAULT_HOOK_ENV))
    )
