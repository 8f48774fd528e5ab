"""The ways in which `explain` can show a plan: as gpu-oci-runtime carries it out, or as one of our hooks does.

The precreate hook writes the config.json that gpu-oci-runtime would write. The prestart hook works in the container
that exists, by the decisions of `plan.live_edits`.

Import budget: cold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from gpu_oci_hook.model.edits import Edit, Plan, WithheldItem
from gpu_oci_hook.plan.live_edits import list_comparable_edits, plan_live_edit

RUNTIME_WAY, PRECREATE_WAY, HOOK_WAY = "runtime", "precreate", "hook"
WAYS = (RUNTIME_WAY, PRECREATE_WAY, HOOK_WAY)

WAY_TEXTS = {
    PRECREATE_WAY: "gpu-oci-hook precreate: as gpu-oci-runtime, in the config.json that the engine is about to write",
    HOOK_WAY: "gpu-oci-hook prestart: in the container that the low-level runtime has set up",
}
"""The line about each way but the default one."""

_PLACES = {
    "devices": "nodes in the container, rules in the container's cgroup",
    "libraries": "mounted in the container",
    "programs and other files": "mounted in the container",
    "links on the host": "",
}


def way_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option that chooses the way."""
    return click.option(
        "--way",
        type=click.Choice(WAYS),
        default=RUNTIME_WAY,
        show_default=True,
        help="Who carries out the plan: gpu-oci-runtime, or our precreate or prestart (hook) hook.",
    )(command)


def list_spec_edits(plan: Plan, way: str) -> list[Edit]:
    """Return the edits whose absence from config.json shows that there is something to do for this way."""
    return list_comparable_edits(plan.edits) if way == HOOK_WAY else plan.edits


def follow_way(plan: Plan, way: str) -> None:
    """Change a plan to what this way makes of it; what it cannot make becomes withheld.

    Raises:
        Fault: the container would not start.
    """
    if way != HOOK_WAY:
        return
    live_edits = [plan_live_edit(edit) for edit in plan.edits]
    plan.edits[:] = [live.edit for live in live_edits if live.place]
    plan.withheld += [
        WithheldItem(live.edit.kind, live.edit.describe(), live.obstacle) for live in live_edits if live.obstacle
    ]


def find_place(edit: Edit, way: str) -> dict[str, object]:
    """Return where an edit is made, as JSON-able data; nothing for the ways through config.json."""
    return {"place": plan_live_edit(edit).place} if way == HOOK_WAY else {}


def format_section_title(title: str, way: str) -> str:
    """Return the title of a section of edits, with the place where they are made."""
    place = _PLACES.get(title, "in the container") if way == HOOK_WAY else ""
    return f"{title} ({place})" if place else title
