"""Plan the injection into a bundle that an earlier start has injected into: what no plan has now goes away.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.container.spec_edits import apply_to_spec
from gpu_oci_hook.formats.oci import get_list
from gpu_oci_hook.model.earlier_edits import DropEarlierEntries

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpu_oci_hook.model.edits import Edit, ListChanges
    from gpu_oci_hook.model.outcome import Outcome


def plan_again(
    spec: dict[str, object], earlier: dict[str, ListChanges], plan: Callable[[dict[str, object]], Outcome]
) -> Outcome:
    """Plan for the config.json as it was before an earlier injection.

    If the result has other entries than the present config.json, the plan begins with an edit that undoes the earlier
    one; entries that are planned again come back in the right order.

    Arguments:
        plan: plans the injection into a config.json.
    """
    drop = DropEarlierEntries(earlier, "left from an earlier injection")
    stripped = _copy_with_edits(spec, [drop])
    outcome = plan(stripped)
    planned = _copy_with_edits(stripped, outcome.plan.edits)
    if _sort_lists(planned, earlier) != _sort_lists(spec, earlier):
        for path, (added, _) in earlier.items():
            present = get_list(planned, *path.split("."))
            stale = [entry for entry in added if entry not in present]
            if stale:
                drop.stale[path] = stale
        outcome.plan.edits.insert(0, drop)
    return outcome


def _copy_with_edits(spec: dict[str, object], edits: list[Edit]) -> dict[str, object]:
    copy = {key: _copy_containers(value) for key, value in spec.items()}
    apply_to_spec(copy, edits)
    return copy


def _copy_containers(value: object, depth: int = 3) -> object:
    """Copy objects to the depth at which edits change them, and lists without their entries, which they replace."""
    if isinstance(value, list):
        return list(value)
    if isinstance(value, dict) and depth:
        return {key: _copy_containers(member, depth - 1) for key, member in value.items()}
    return value


def _sort_lists(spec: dict[str, object], paths: Iterable[str]) -> tuple[dict[str, object], list[list[str]]]:
    """Return a config.json for a comparison in which the order in these lists does not count."""
    copy = _copy_with_edits(spec, [])
    lists = [get_list(copy, *path.split(".")) for path in paths]
    contents = [sorted(map(repr, entries)) for entries in lists]
    for entries in lists:
        entries.clear()
    return copy, contents
