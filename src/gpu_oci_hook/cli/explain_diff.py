"""Print a plan as a unified diff of config.json, with the edits below the root as comment lines.

Import budget: cold.
"""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

from gpu_oci_hook.cli.bundle import Bundle
from gpu_oci_hook.cli.printing import print_line
from gpu_oci_hook.container.rootfs_edits import GENERATED_DIR, generated_file_name
from gpu_oci_hook.errors import Fault, make_printable
from gpu_oci_hook.model.edits import AddFile, AddLink, Edit
from gpu_oci_hook.model.outcome import Outcome


def print_diff(bundle: Bundle, planned_spec: dict[str, Any], outcome: Outcome) -> None:
    """Print the change of config.json, then pending edits below the root as lines that patch(1) skips."""
    before = json.dumps(bundle.spec, indent=2).splitlines()
    after = json.dumps(planned_spec, indent=2).splitlines()
    name = make_printable(bundle.config_json_path.lstrip("/"))
    for line in difflib.unified_diff(before, after, f"a/{name}", f"b/{name}", lineterm=""):
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
        print_line(line, colour=colour)
    for edit in outcome.plan.edits:
        if _is_pending(edit, outcome):
            print_line(f"# {edit.kind} {edit.describe()}  ({edit.reason})")


def _is_pending(edit: Edit, outcome: Outcome) -> bool:
    """Return whether an edit changes the root file system and has not been made yet."""
    if outcome.rootfs is None:
        return False
    try:
        if isinstance(edit, AddLink):
            return outcome.rootfs.readlink(edit.path) != edit.target
        if isinstance(edit, AddFile):
            if edit.bind_mounted:
                path = Path(outcome.bundle, GENERATED_DIR, generated_file_name(edit.path))
                return not path.is_file() or path.read_bytes() != edit.content
            return outcome.rootfs.read_file(edit.path, len(edit.content)) != edit.content
    except (Fault, OSError):
        return True
    return False
