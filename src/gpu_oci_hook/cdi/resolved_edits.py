"""Hold the edits that a CDI file has for one resolved name.

Import budget: CDI.
"""

from __future__ import annotations


class ResolvedEdits:
    """Edits that one file has for one name: its common edits, or those of a device.

    Attributes:
        name: the qualified name that was requested.
        path: path of the file in this process, for people.
        where: JSON path of the edits in the file.
        edits: the `containerEdits` object.
        reason: why the edits apply, for people.
    """

    __slots__ = ("edits", "name", "path", "reason", "where")

    def __init__(self, name: str, path: str, where: str, edits: dict[str, object], reason: str = "") -> None:
        self.name = name
        self.path = path
        self.where = where
        self.edits = edits
        self.reason = reason
