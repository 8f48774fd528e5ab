"""A plan as lines for people: what goes in by what it is, then by its reason; no line says what another has said.

Pure: `bundle` prints it.
"""

from __future__ import annotations

from collections.abc import Iterable
from posixpath import dirname, split

from gpu_oci_hook.plan.devices import NODE
from gpu_oci_hook.plan.edits import (
    DeviceNode,
    DeviceRule,
    Directory,
    DropHook,
    DropMount,
    Edit,
    File,
    Link,
    Mount,
)
from gpu_oci_hook.plan.files import READ_ONLY

# Reason to lines, both in the order in which they come up.
Group = dict[str, list[str]]

USUAL = ",".join(READ_ONLY)
"""The mount options that a line does not repeat."""

_DEVICES, _PLACE, _LIBRARIES, _OTHERS = "devices", "directory of the libraries", "libraries", "programs and other files"
_GENERATED, _LINKS, _REST, _DROPPED = "generated files", "links", "environment, groups and hooks", "taken out"
_ORDER = (_DEVICES, _PLACE, _LIBRARIES, _OTHERS, _GENERATED, _LINKS, _REST, _DROPPED)


def sections(edits: Iterable[Edit], generated: str, root: str = "/") -> list[tuple[str, Group]]:
    """The edits in sections of one kind, each a title and its lines by their reason.

    Arguments:
        generated: the bundle's directory for files that are bind-mounted; their mounts belong to their files.
        root: the host's; what lies below it is named as it is seen from there.
    """
    prefix = root.rstrip("/")
    edits = list(edits)
    found: dict[str, Group] = {title: {} for title in _ORDER}
    places = {edit.destination for edit in edits if isinstance(edit, Directory)}
    for before, edit, after in zip([None, *edits], edits, [*edits[1:], None], strict=False):
        rule = after if isinstance(after, DeviceRule) else None
        reason, text = edit.reason, edit.describe()
        if isinstance(edit, DeviceNode):
            title, text = _DEVICES, _node(edit, rule)
        elif isinstance(edit, DeviceRule):
            if isinstance(before, DeviceNode) or (isinstance(before, Mount) and before.options == NODE):
                continue  # the node's line has it
            title = _DEVICES
        elif isinstance(edit, Mount):
            if edit.destination in places or dirname(edit.source) == generated:
                continue  # the line of the directory, or of the file, has it
            above, name = split(edit.destination)
            if edit.options == NODE:
                title, text = _DEVICES, _bound(edit, rule, prefix)
            elif above in places:
                origin, own = split(_seen(edit.source, prefix))
                title, text = _LIBRARIES, name if name == own else f"{name} <- {own}"
                reason += f", from {origin}" + (f" to {above}" if len(places) > 1 else "")
            else:
                title, text = _OTHERS, _mount(edit, prefix)
        else:
            title = _title(edit)
        lines = found[title].setdefault(reason, [])
        lines.append(text)
        if isinstance(edit, Directory):
            lines.append(f"prepared in {edit.source}")
    return [(title, group) for title, group in found.items() if group]


def _title(edit: Edit) -> str:
    if isinstance(edit, Directory):
        return _PLACE
    if isinstance(edit, File):
        return _GENERATED
    if isinstance(edit, Link):
        return _LINKS
    return _DROPPED if isinstance(edit, DropHook | DropMount) else _REST


def _node(edit: DeviceNode, rule: DeviceRule | None) -> str:
    mode = "" if edit.mode in (0o666, None) else f"  mode {edit.mode:04o}"
    owner = f"  owner {edit.uid}:{edit.gid}" if edit.uid or edit.gid else ""
    access = f" {rule.access}" if rule else ""
    return f"{edit.path:<22} {edit.type} {edit.major}:{edit.minor}{access}{mode}{owner}"


def _seen(path: str, prefix: str) -> str:
    """A path of this process as it is seen from the host's root."""
    return path.removeprefix(prefix) if path.startswith(f"{prefix}/") else path


def _source(edit: Mount, prefix: str) -> str:
    """A mount's source, where it is another path than its destination."""
    source = _seen(edit.source, prefix)
    return "" if source == edit.destination else f" <- {source}"


def _bound(edit: Mount, rule: DeviceRule | None, prefix: str) -> str:
    numbers = f" {rule.type} {rule.major}:{rule.minor} {rule.access}" if rule else ""
    return f"{edit.destination:<22}{numbers}{_source(edit, prefix)}".rstrip()


def _mount(edit: Mount, prefix: str) -> str:
    """A mount, its options only where they are not the usual ones."""
    options = ",".join(edit.options)
    return edit.destination + _source(edit, prefix) + ("" if options == USUAL else f" ({options})")
