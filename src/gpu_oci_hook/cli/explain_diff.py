"""Print a plan as a unified diff of config.json, with the edits below the root as comment lines.

Import budget: cold.
"""

from __future__ import annotations

import difflib
import json
from typing import Any

from gpu_oci_hook.cli.bundle import Bundle
from gpu_oci_hook.cli.printing import print_line
from gpu_oci_hook.container.rootfs_edits import GENERATED_DIR, RootfsEditor
from gpu_oci_hook.errors import Fault, make_printable
from gpu_oci_hook.model.edits import Edit
from gpu_oci_hook.model.outcome import Outcome


def print_diff(bundle: Bundle, planned_spec: dict[str, Any], outcome: Outcome) -> None:
    """Print the change of config.json, then pending edits below the root as lines that patch(1) skips."""
    before = json.dumps(bundle.spec, indent=2).splitlines()
    after = json.dumps(planned_spec, indent=2).splitlines()
    name = make_printable(bundle.config_json_path.lstrip("/"))
    for line in difflib.unified_diff(before, after, f"a/{name}", f"b/{name}", lineterm=""):
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
        print_line(line, colour=colour)
    if outcome.rootfs is None:
        return
    editor = RootfsEditor(outcome.rootfs, f"{outcome.bundle}/{GENERATED_DIR}")
    for edit in outcome.plan.edits:
        if not _is_made(edit, editor):
            print_line(f"# {edit.kind} {edit.describe()}  ({edit.reason})")


def _is_made(edit: Edit, editor: RootfsEditor) -> bool:
    """Return whether an edit changes nothing below the root, or has been made there already."""
    try:
        return edit.is_in_rootfs(editor)
    except (Fault, OSError):
        return False
