"""Apply the edits of CDI files to a spec, as the CDI reference library does."""

from __future__ import annotations

import os

from gpu_oci_hook.formats.oci import ensure_list, ensure_object, get_list, get_member
from gpu_oci_hook.model.cdi_edits import (
    AddCdiDeviceNode,
    AddCdiHook,
    AddCdiMount,
    AddNetDevice,
    SetIntelRdt,
    SortMounts,
)
from gpu_oci_hook.model.edits import DEFAULT_HOOK_ENV, AddMount, SetEnvVariable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.formats.oci import Object
    from gpu_oci_hook.model.edits import Edit


def apply_cdi_edits(spec: Object, cdi_edits: list[Edit]) -> None:
    """Makes edits that came from CDI files, in place; done again it changes nothing.

    Raises:
        Fault: the spec has something else than the OCI runtime specification says where an edit belongs.
    """
    asked: dict[str, int] = {}
    for edit in cdi_edits:
        if isinstance(edit, AddCdiDeviceNode):
            _replace_device_node(spec, edit)
        elif isinstance(edit, AddCdiMount):
            _replace_mount(spec, edit)
        elif isinstance(edit, SortMounts):
            mounts = ensure_list(spec, "mounts")
            mounts.sort(key=_count_path_depth)
        elif isinstance(edit, AddCdiHook):
            hooks = ensure_list(ensure_object(spec, "hooks"), edit.stage)
            wanted = _build_hook_object(edit)
            key = f"{edit.stage} {wanted!r}"
            asked[key] = asked.get(key, 0) + 1
            if sum(1 for hook in hooks if _is_same_hook(hook, wanted)) < asked[key]:
                hooks.append(wanted)
        elif isinstance(edit, AddNetDevice):
            ensure_object(ensure_object(spec, "linux"), "netDevices")[edit.interface] = {"name": edit.name}
        elif isinstance(edit, SetIntelRdt):
            ensure_object(spec, "linux")["intelRdt"] = dict(edit.values)


def copy_with_cdi_mounts(spec: Object, cdi_edits: list[Edit]) -> Object:
    """A spec with the mounts of CDI files, for who only wants to know what is mounted; `spec` is not changed."""
    placed = [edit for edit in cdi_edits if isinstance(edit, AddCdiMount)]
    mounts = spec.get("mounts")
    if not placed or (mounts is not None and not isinstance(mounts, list)):
        return spec
    seen = {**spec, "mounts": list(mounts or ())}
    for edit in placed:
        _replace_mount(seen, edit)
    return seen


def has_cdi_edits(spec: object, cdi_edits: list[Edit]) -> bool:
    """Whether a spec has these edits already, whoever made them; the order of its mounts does not count.

    Groups, rules and RDT come beside others and are not looked at.
    """
    last: dict[object, Edit] = {}
    for place, edit in enumerate(cdi_edits):  # of two edits of one thing the last is seen
        key: object = place
        if isinstance(edit, AddCdiDeviceNode):
            key = edit.path
        elif isinstance(edit, AddMount):
            key = "mount", edit.destination
        elif isinstance(edit, SetEnvVariable):
            key = "env", edit.name
        elif isinstance(edit, AddNetDevice):
            key = "interface", edit.interface
        last[key] = edit
    hooks: dict[str, int] = {}
    for edit in last.values():
        there = True
        if isinstance(edit, AddCdiDeviceNode):
            # Libraries differ in the mode and the owner that they fill in.
            numbers = (edit.path, edit.type, edit.major, edit.minor)
            there = any(
                tuple(get_member(device, key) for key in ("path", "type", "major", "minor")) == numbers
                for device in get_list(spec, "linux", "devices")
            )
        elif isinstance(edit, AddMount):
            there = any(
                get_member(mount, "destination") == edit.destination and get_member(mount, "source") == edit.source
                for mount in get_list(spec, "mounts")
            )
        elif isinstance(edit, AddCdiHook):
            found = _build_hook_object(edit)
            name = f"{edit.stage} {found!r}"
            hooks[name] = hooks.get(name, 0) + 1
            there = sum(1 for hook in get_list(spec, "hooks", edit.stage) if _is_same_hook(hook, found)) >= hooks[name]
        elif isinstance(edit, SetEnvVariable):
            there = f"{edit.name}={edit.value}" in get_list(spec, "process", "env")
        elif isinstance(edit, AddNetDevice):
            there = get_member(spec, "linux", "netDevices", edit.interface, "name") == edit.name
        if not there:
            return False
    return True


def _build_node_object(edit: AddCdiDeviceNode) -> Object:
    wanted: Object = {"path": edit.path, "type": edit.type, "major": edit.major, "minor": edit.minor}
    for key, value in (("fileMode", edit.mode), ("uid", edit.uid), ("gid", edit.gid)):
        if value is not None:
            wanted[key] = value
    return wanted


def _replace_device_node(spec: Object, edit: AddCdiDeviceNode) -> None:
    devices = ensure_list(ensure_object(spec, "linux"), "devices")
    devices[:] = [device for device in devices if get_member(device, "path") != edit.path]
    devices.append(_build_node_object(edit))


def _replace_mount(spec: Object, edit: AddCdiMount) -> None:
    mounts = ensure_list(spec, "mounts")
    for place, mount in enumerate(mounts):
        if get_member(mount, "destination") == edit.destination:
            del mounts[place]
            break
    wanted: Object = {"destination": edit.destination}
    if edit.type:
        wanted["type"] = edit.type
    wanted["source"] = edit.source
    if edit.options:
        wanted["options"] = list(edit.options)
    mounts.append(wanted)


def _count_path_depth(mount: object) -> int:
    """How many slashes the cleaned destination of a mount has (the library's measure: "/" has one, as "/m" has)."""
    destination = get_member(mount, "destination")
    if not isinstance(destination, str):
        return 0
    clean = os.path.normpath(destination)  # which keeps two slashes at the beginning
    return clean.count("/") - clean.startswith("//")


def _build_hook_object(edit: AddCdiHook) -> Object:
    wanted: Object = {"path": edit.path}
    if edit.args:
        wanted["args"] = list(edit.args)
    wanted["env"] = list(edit.env)
    if edit.timeout is not None:
        wanted["timeout"] = edit.timeout
    return wanted


def _is_same_hook(hook: object, wanted: Object) -> bool:
    """Whether a hook of the spec is the wanted one; an engine writes one without an environment as it is."""
    if not isinstance(hook, dict):
        return False
    return all((hook.get(key) or None) == wanted.get(key) for key in ("path", "args", "timeout")) and (
        hook.get("env") == wanted["env"] or (not hook.get("env") and wanted["env"] == list(DEFAULT_HOOK_ENV))
    )
