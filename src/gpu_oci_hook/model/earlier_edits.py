"""The edit that takes away what an earlier injection has added to a config.json.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.model.edits import Edit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.container.spec_edits import SpecEditor
    from gpu_oci_hook.model.edits import ListChanges


class DropEarlierEntries(Edit):
    """What an earlier injection has changed in config.json is undone; the plan then adds some of it again.

    Attributes:
        changes: dotted path of a list in config.json to what was changed in it.
        stale: the entries that the plan does not add again, by the same paths.
    """

    __slots__ = ("changes", "stale")
    kind = "drop-earlier"

    def __init__(self, changes: dict[str, ListChanges], reason: str) -> None:
        super().__init__(reason)
        self.changes = changes
        self.stale: dict[str, list[object]] = {}

    def describe(self) -> str:
        """See `Edit.describe`."""
        shown = [f"{path}: {', '.join(map(name_entry, entries))}" for path, entries in self.stale.items()]
        return "; ".join(shown) or "the order of entries"

    def to_data(self) -> dict[str, object]:
        """See `Edit.to_data`."""
        return {"entries": self.stale}

    def apply_to_spec(self, editor: SpecEditor) -> None:
        """See `Edit.apply_to_spec`."""
        editor.undo_changes(self)


def name_entry(entry: object) -> str:
    """Return the name of an entry of config.json: a mount's destination, a node's or hook's path, a rule's numbers."""
    if not isinstance(entry, dict):
        return str(entry).partition("=")[0]
    name = entry.get("destination") or entry.get("path")
    return name if isinstance(name, str) else f"{entry.get('type')} {entry.get('major')}:{entry.get('minor')}"
