"""Refuse or withhold what a config.json cannot name: its path is not UTF-8 (facts: config-json-utf8).

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.oci import is_utf8_text
from gpu_oci_hook.model.edits import WithheldItem
from gpu_oci_hook.plan.library_mounts import format_library_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.edits import Plan
    from gpu_oci_hook.model.machine import DriverFile

_PROBLEM = "is not UTF-8, so config.json cannot name it"
_HINT = "Rename the directory, or bind-mount it at a path in UTF-8"


def withhold_unnameable_files(
    plan: Plan, files: list[tuple[DriverFile, str]], capabilities: dict[str, str]
) -> list[tuple[DriverFile, str]]:
    """Withhold the driver files that a config.json cannot name; return the others.

    Arguments:
        files: each with the reason for which it is injected.
        capabilities: those that the container gets.

    Raises:
        Fault: one of them is required.
    """
    nameable = []
    for file, reason in files:
        if is_utf8_text(file.source):
            nameable.append((file, reason))
            continue
        name = format_library_name(file) if file.kind == "library" else file.container_path or file.name
        if file.required and (not file.capability or file.capability in capabilities):
            purpose = f" for capability {file.capability}" if file.capability else ""
            raise Fault(
                f"{name} is required{purpose}, but its path on the host {_PROBLEM}", where=file.source, hint=_HINT
            )
        obstacle = f"its path on the host {_PROBLEM}: {file.source}"
        plan.withheld.append(WithheldItem(file.kind, name, obstacle))
    return nameable


def make_unnameable_path_fault(path: str) -> Fault:
    """Return the fault of a path that the plan would have to write into config.json."""
    return Fault(f"the path {_PROBLEM}", where=path, hint=_HINT)
