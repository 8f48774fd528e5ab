"""Turn a plan's edits into lines for people, grouped by kind and then by reason, each fact once. No I/O.

Import budget: cold.
"""

from __future__ import annotations

from collections.abc import Iterable
from posixpath import dirname, split

from gpu_oci_hook.model.earlier_edits import DropEarlierEntries, name_entry
from gpu_oci_hook.model.edits import AddDeviceNode, AddDeviceRule, AddMount, Edit
from gpu_oci_hook.model.file_edits import PrepareDirectory
from gpu_oci_hook.plan.devices import NODE_MOUNT_OPTIONS
from gpu_oci_hook.plan.mounting import READ_ONLY_MOUNT_OPTIONS

# Lines by reason, both in the order of the edits.
LinesByReason = dict[str, list[str]]

DEFAULT_MOUNT_OPTIONS = ",".join(READ_ONLY_MOUNT_OPTIONS)
"""The mount options that the line of a mount leaves out."""

_MAX_NAMED_ENTRIES = 4
_DEVICES = "devices"
_LIBRARY_DIRECTORY = "library directory"
_LIBRARIES = "libraries"
_OTHER_FILES = "programs and other files"
_GENERATED = "generated files"
_LINKS = "links"
_OTHER_EDITS = "environment, groups and hooks"
_REMOVED = "removed"
_HOST_LINKS = "links on the host"
_SECTION_ORDER = (
    _DEVICES, _LIBRARY_DIRECTORY, _LIBRARIES, _OTHER_FILES, _GENERATED, _LINKS, _OTHER_EDITS, _REMOVED, _HOST_LINKS,
)  # fmt: skip
_SECTION_BY_KIND = {
    "directory": _LIBRARY_DIRECTORY,
    "file": _GENERATED,
    "link": _LINKS,
    "drop-earlier": _REMOVED,
    "drop-hook": _REMOVED,
    "drop-mount": _REMOVED,
    "host-link": _HOST_LINKS,
}


def build_plan_sections(
    edits: Iterable[Edit], generated_dir: str, host_root: str = "/"
) -> list[tuple[str, LinesByReason]]:
    """Group edits into sections, each with a title and its lines by reason.

    Arguments:
        generated_dir: the bundle's directory for bind-mounted generated files. Their mounts get no line of their own.
        host_root: paths below it are shown as seen from the host root.
    """
    edits = list(edits)
    sections: dict[str, LinesByReason] = {title: {} for title in _SECTION_ORDER}
    builder = _LineBuilder(edits, generated_dir, host_root.rstrip("/"))
    for previous, edit, following in zip([None, *edits], edits, [*edits[1:], None], strict=False):
        line = builder.build_line(edit, previous, following)
        if line is None:
            continue
        title, reason, text = line
        lines = sections[title].setdefault(reason, [])
        lines.append(text)
        if isinstance(edit, PrepareDirectory):
            lines.append(f"prepared in {edit.source}")
    return [(title, group) for title, group in sections.items() if group]


class _LineBuilder:
    """Builds the line of each edit, knowing which edits the lines of others cover.

    Arguments:
        prefix: the host root without a final slash.
    """

    def __init__(self, edits: list[Edit], generated_dir: str, prefix: str) -> None:
        self.generated_dir = generated_dir
        self.prefix = prefix
        self.prepared_directories = {edit.destination for edit in edits if isinstance(edit, PrepareDirectory)}

    def build_line(self, edit: Edit, previous: Edit | None, following: Edit | None) -> tuple[str, str, str] | None:
        """Build (section, reason, text) for an edit, or None if another edit's line covers it.

        Arguments:
            previous, following: its neighbours, since a device node and its cgroup device rule share a line.
        """
        rule = following if isinstance(following, AddDeviceRule) else None
        if isinstance(edit, AddDeviceNode):
            return _DEVICES, edit.reason, _format_device_node(edit, rule)
        if isinstance(edit, AddDeviceRule):
            bound_node = isinstance(previous, AddMount) and previous.options == NODE_MOUNT_OPTIONS
            if bound_node or isinstance(previous, AddDeviceNode):
                return None
            return _DEVICES, edit.reason, edit.describe()
        if isinstance(edit, AddMount):
            return self._build_mount_line(edit, rule)
        text = _format_earlier_entries(edit) if isinstance(edit, DropEarlierEntries) else edit.describe()
        return _SECTION_BY_KIND.get(edit.kind, _OTHER_EDITS), edit.reason, text

    def _build_mount_line(self, edit: AddMount, rule: AddDeviceRule | None) -> tuple[str, str, str] | None:
        if edit.destination in self.prepared_directories or dirname(edit.source) == self.generated_dir:
            return None
        directory, name = split(edit.destination)
        if edit.options == NODE_MOUNT_OPTIONS:
            return _DEVICES, edit.reason, _format_bound_node(edit, rule, self.prefix)
        if directory in self.prepared_directories:
            source_directory, source_name = split(_to_host_path(edit.source, self.prefix))
            target = f" to {directory}" if len(self.prepared_directories) > 1 else ""
            text = name if name == source_name else f"{name} <- {source_name}"
            return _LIBRARIES, f"{edit.reason}, from {source_directory}{target}", text
        return _OTHER_FILES, edit.reason, _format_mount(edit, self.prefix)


def _format_earlier_entries(edit: DropEarlierEntries) -> str:
    """Return the names of the entries that an edit removes from each list, or how many there are if they are many."""
    parts = [
        f"{len(entries)} of {path}"
        if len(entries) > _MAX_NAMED_ENTRIES
        else f"{path}: {', '.join(map(name_entry, entries))}"
        for path, entries in edit.stale.items()
    ]
    return "; ".join(parts) or edit.describe()


def _format_device_node(edit: AddDeviceNode, rule: AddDeviceRule | None) -> str:
    mode = "" if edit.mode in (0o666, None) else f"  mode {edit.mode:04o}"
    owner = f"  owner {edit.uid}:{edit.gid}" if edit.uid or edit.gid else ""
    access = f" {rule.access}" if rule else ""
    return f"{edit.path:<22} {edit.type} {edit.major}:{edit.minor}{access}{mode}{owner}"


def _to_host_path(path: str, prefix: str) -> str:
    """Return a path as seen from the host root."""
    return path.removeprefix(prefix) if path.startswith(f"{prefix}/") else path


def _format_mount_source(edit: AddMount, prefix: str) -> str:
    """Return the mount's source if it differs from its destination, else ""."""
    source = _to_host_path(edit.source, prefix)
    return "" if source == edit.destination else f" <- {source}"


def _format_bound_node(edit: AddMount, rule: AddDeviceRule | None, prefix: str) -> str:
    numbers = f" {rule.type} {rule.major}:{rule.minor} {rule.access}" if rule else ""
    return f"{edit.destination:<22}{numbers}{_format_mount_source(edit, prefix)}".rstrip()


def _format_mount(edit: AddMount, prefix: str) -> str:
    """Return destination, source and options of a mount, the last two only if they are not the defaults."""
    options = ",".join(edit.options)
    shown_options = "" if options == DEFAULT_MOUNT_OPTIONS else f" ({options})"
    return edit.destination + _format_mount_source(edit, prefix) + shown_options
