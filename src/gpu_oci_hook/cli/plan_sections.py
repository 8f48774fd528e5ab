"""A plan as lines for people: what goes in by what it is, then by its reason; no line says what another has said.

Pure: `bundle` prints it.
"""

from __future__ import annotations

from collections.abc import Iterable
from posixpath import dirname, split

from gpu_oci_hook.model.edits import (
    AddDeviceNode,
    AddDeviceRule,
    AddFile,
    AddLink,
    AddMount,
    DropHook,
    DropMount,
    Edit,
    PrepareDirectory,
)
from gpu_oci_hook.plan.devices import NODE_MOUNT_OPTIONS
from gpu_oci_hook.plan.mounting import READ_ONLY_MOUNT_OPTIONS

# Reason to lines, both in the order in which they come up.
LinesByReason = dict[str, list[str]]

DEFAULT_MOUNT_OPTIONS = ",".join(READ_ONLY_MOUNT_OPTIONS)
"""The mount options that a line does not repeat."""

_DEVICES, _LIBRARY_DIRECTORY, _LIBRARIES, _OTHER_FILES = (
    "devices",
    "directory of the libraries",
    "libraries",
    "programs and other files",
)
_GENERATED, _LINKS, _OTHER_EDITS, _REMOVED = "generated files", "links", "environment, groups and hooks", "taken out"
_SECTION_ORDER = (_DEVICES, _LIBRARY_DIRECTORY, _LIBRARIES, _OTHER_FILES, _GENERATED, _LINKS, _OTHER_EDITS, _REMOVED)


def build_plan_sections(
    edits: Iterable[Edit], generated_dir: str, host_root: str = "/"
) -> list[tuple[str, LinesByReason]]:
    """The edits in sections of one kind, each a title and its lines by their reason.

    Arguments:
        generated_dir: the bundle's directory for files that are bind-mounted; their mounts belong to their files.
        host_root: the host's; what lies below it is named as it is seen from there.
    """
    prefix = host_root.rstrip("/")
    edits = list(edits)
    found: dict[str, LinesByReason] = {title: {} for title in _SECTION_ORDER}
    places = {edit.destination for edit in edits if isinstance(edit, PrepareDirectory)}
    for before, edit, after in zip([None, *edits], edits, [*edits[1:], None], strict=False):
        rule = after if isinstance(after, AddDeviceRule) else None
        reason, text = edit.reason, edit.describe()
        if isinstance(edit, AddDeviceNode):
            title, text = _DEVICES, _format_device_node(edit, rule)
        elif isinstance(edit, AddDeviceRule):
            if isinstance(before, AddDeviceNode) or (
                isinstance(before, AddMount) and before.options == NODE_MOUNT_OPTIONS
            ):
                continue  # the node's line has it
            title = _DEVICES
        elif isinstance(edit, AddMount):
            if edit.destination in places or dirname(edit.source) == generated_dir:
                continue  # the line of the directory, or of the file, has it
            above, name = split(edit.destination)
            if edit.options == NODE_MOUNT_OPTIONS:
                title, text = _DEVICES, _format_bound_node(edit, rule, prefix)
            elif above in places:
                origin, own = split(_to_host_path(edit.source, prefix))
                title, text = _LIBRARIES, name if name == own else f"{name} <- {own}"
                reason += f", from {origin}" + (f" to {above}" if len(places) > 1 else "")
            else:
                title, text = _OTHER_FILES, _format_mount(edit, prefix)
        else:
            title = _select_section(edit)
        lines = found[title].setdefault(reason, [])
        lines.append(text)
        if isinstance(edit, PrepareDirectory):
            lines.append(f"prepared in {edit.source}")
    return [(title, group) for title, group in found.items() if group]


def _select_section(edit: Edit) -> str:
    if isinstance(edit, PrepareDirectory):
        return _LIBRARY_DIRECTORY
    if isinstance(edit, AddFile):
        return _GENERATED
    if isinstance(edit, AddLink):
        return _LINKS
    return _REMOVED if isinstance(edit, DropHook | DropMount) else _OTHER_EDITS


def _format_device_node(edit: AddDeviceNode, rule: AddDeviceRule | None) -> str:
    mode = "" if edit.mode in (0o666, None) else f"  mode {edit.mode:04o}"
    owner = f"  owner {edit.uid}:{edit.gid}" if edit.uid or edit.gid else ""
    access = f" {rule.access}" if rule else ""
    return f"{edit.path:<22} {edit.type} {edit.major}:{edit.minor}{access}{mode}{owner}"


def _to_host_path(path: str, prefix: str) -> str:
    """A path of this process as it is seen from the host's root."""
    return path.removeprefix(prefix) if path.startswith(f"{prefix}/") else path


def _format_mount_source(edit: AddMount, prefix: str) -> str:
    """A mount's source, where it is another path than its destination."""
    source = _to_host_path(edit.source, prefix)
    return "" if source == edit.destination else f" <- {source}"


def _format_bound_node(edit: AddMount, rule: AddDeviceRule | None, prefix: str) -> str:
    numbers = f" {rule.type} {rule.major}:{rule.minor} {rule.access}" if rule else ""
    return f"{edit.destination:<22}{numbers}{_format_mount_source(edit, prefix)}".rstrip()


def _format_mount(edit: AddMount, prefix: str) -> str:
    """A mount, its options only where they are not the usual ones."""
    options = ",".join(edit.options)
    return (
        edit.destination
        + _format_mount_source(edit, prefix)
        + ("" if options == DEFAULT_MOUNT_OPTIONS else f" ({options})")
    )
