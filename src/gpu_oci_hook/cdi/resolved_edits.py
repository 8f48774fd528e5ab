"""Locate the edits in a CDI file: those of a resolved name, and all of them by JSON path.

Import budget: CDI.
"""

from __future__ import annotations

from gpu_oci_hook.formats.oci import get_list, get_member, get_text


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


def list_part_devices(parts: list[ResolvedEdits]) -> list[tuple[str, str, object]]:
    """List (JSON path, qualified name, edits) of those parts that are a device's own."""
    return [(part.where, part.name, part.edits) for part in parts if part.where != "containerEdits"]


def list_named_edits(data: object) -> list[tuple[str, str, object]]:
    """List (JSON path, qualified name, edits) of each device in a parsed CDI file."""
    kind = get_text(data, "kind")
    return [
        (f"devices[{index}].containerEdits", f"{kind}={get_text(device, 'name')}", get_member(device, "containerEdits"))
        for index, device in enumerate(get_list(data, "devices"))
    ]


def list_edits_by_path(data: object) -> list[tuple[str, object]]:
    """List the edits in a parsed CDI file with their JSON paths: the common edits, then those of each device."""
    return [("containerEdits", get_member(data, "containerEdits"))] + [
        (f"devices[{index}].containerEdits", get_member(device, "containerEdits"))
        for index, device in enumerate(get_list(data, "devices"))
    ]
