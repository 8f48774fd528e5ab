"""Edits of CDI devices after resolution: what a name stands for, file by file."""

from __future__ import annotations


class ResolvedEdits:
    """One file's word on one name: its common edits, or those of a device.

    Attributes:
        name: the qualified name that it was asked for by.
        path: of the file, in this process, as people know it.
        where: the JSON path of the edits in the file.
        edits: the object `containerEdits`.
        reason: why it goes in, for people.
    """

    __slots__ = ("edits", "name", "path", "reason", "where")

    def __init__(self, name: str, path: str, where: str, edits: dict[str, object], reason: str = "") -> None:
        self.name = name
        self.path = path
        self.where = where
        self.edits = edits
        self.reason = reason
