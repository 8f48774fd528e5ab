"""Print a plan as a unified diff of config.json, with the edits below the root as comment lines.

Values of variables that neither NVIDIA's interface nor the plan defines are hidden: people paste the diff into reports.

Import budget: cold.
"""

from __future__ import annotations

import difflib
import json
from typing import Any

from gpu_oci_hook.cli.bundle import Bundle
from gpu_oci_hook.cli.printing import print_line
from gpu_oci_hook.container.lint import CONTAINER_VARIABLES
from gpu_oci_hook.container.rootfs_edits import GENERATED_DIR, RootfsEditor
from gpu_oci_hook.errors import Fault, make_printable
from gpu_oci_hook.model.edits import Edit, SetEnvVariable
from gpu_oci_hook.model.outcome import Outcome

_HIDDEN_VALUE = "…"
_OWN_PREFIXES = ("NVIDIA_REQUIRE_", "CUDA_")
_OWN_VARIABLES = frozenset({*CONTAINER_VARIABLES, "LD_LIBRARY_PATH"})


def print_diff(bundle: Bundle, planned_spec: dict[str, Any], outcome: Outcome) -> None:
    """Print the change of config.json, then pending edits below the root as lines that patch(1) skips."""
    own_variables = _OWN_VARIABLES | {edit.name for edit in outcome.plan.edits if isinstance(edit, SetEnvVariable)}
    before, after = (
        json.dumps(_hide_values(spec, own_variables), indent=2, ensure_ascii=False).split("\n")
        for spec in (bundle.spec, planned_spec)
    )
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


def _hide_values(value: Any, own_variables: frozenset[str], key: str = "") -> Any:
    """Return a copy of a JSON value with the values of foreign variables hidden, in every list with the key `env`."""
    if isinstance(value, dict):
        return {name: _hide_values(member, own_variables, name) for name, member in value.items()}
    if isinstance(value, list):
        return [_hide_values(member, own_variables, key) for member in value]
    if key == "env" and isinstance(value, str):
        name, equals, _ = value.partition("=")
        if not equals:
            return _HIDDEN_VALUE
        return value if name in own_variables or name.startswith(_OWN_PREFIXES) else f"{name}={_HIDDEN_VALUE}"
    return value


def _is_made(edit: Edit, editor: RootfsEditor) -> bool:
    """Return whether an edit changes nothing below the root, or has been made there already."""
    try:
        return edit.is_in_rootfs(editor)
    except (Fault, OSError):
        return False
