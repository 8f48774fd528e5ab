"""Plan the injection into a bundle that an earlier start has injected into: what no plan has now goes away.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.container.injection_record import RECORD_NAME
from gpu_oci_hook.container.spec_edits import apply_to_spec
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files.read_regular import CONFIG_JSON_LIMIT, read_regular_file
from gpu_oci_hook.formats.fastjson import parse_json
from gpu_oci_hook.formats.oci import get_list, get_member
from gpu_oci_hook.model.earlier_edits import DropEarlierEntries

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpu_oci_hook.model.edits import Edit, ListChanges
    from gpu_oci_hook.model.outcome import Outcome


# The lists of config.json that edits change.
_LISTS = (
    "mounts", "linux.devices", "linux.resources.devices", "process.user.additionalGids", "process.env",
    "hooks.prestart", "hooks.createRuntime", "hooks.createContainer", "hooks.startContainer", "hooks.poststart",
    "hooks.poststop",
)  # fmt: skip


def plan_again(spec: dict[str, object], generated_dir: str, plan: Callable[[dict[str, object]], Outcome]) -> Outcome:
    """Plan for the config.json as it was before an earlier injection, if that is certain.

    If the result has other entries than the present config.json, the plan begins with an edit that undoes the earlier
    one; entries that are planned again come back in the right order.

    Arguments:
        generated_dir: the bundle's directory with the record.
        plan: plans the injection into a config.json.
    """
    earlier = _find_earlier_changes(generated_dir, spec)
    if not earlier:
        return plan(spec)
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


def strip_earlier_injection(spec: dict[str, object], generated_dir: str) -> dict[str, object] | None:
    """Return a config.json as it was before an earlier injection; None if there was none, or that is not certain."""
    earlier = _find_earlier_changes(generated_dir, spec)
    return _copy_with_edits(spec, [DropEarlierEntries(earlier, "")]) if earlier else None


def _find_earlier_changes(generated_dir: str, spec: dict[str, object]) -> dict[str, ListChanges]:
    """Return what an earlier injection has changed in the lists of a config.json; nothing if that is not certain.

    All that it has added must still be there: a config.json that was written anew may have an entry of the user that
    only looks like ours. Variables do not count, as the user changes the request there.
    """
    try:
        data = read_regular_file(f"{generated_dir}/{RECORD_NAME}", 2 * CONFIG_JSON_LIMIT, follow_symlinks=False)
        record = parse_json(data)
    except (OSError, ValueError, Fault):
        return {}
    original, injected = record if isinstance(record, list) and len(record) == 2 else (None, None)
    if not get_member(original, "root") or get_member(original, "root") != get_member(injected, "root"):
        return {}  # damaged
    changes: dict[str, ListChanges] = {}
    is_certain = False
    for path in _LISTS:
        keys = path.split(".")
        added, removed = _compare_lists(get_list(original, *keys), get_list(injected, *keys))
        present = get_list(spec, *keys)
        if all(entry in present for entry in added):
            if added or removed:
                changes[path] = [added, removed]
            is_certain = is_certain or (bool(added) and path != "process.env")
        elif path != "process.env":
            return {}
    return changes if is_certain else {}


def _compare_lists(before: list[object], after: list[object]) -> tuple[list[object], list[object]]:
    """Return the entries that were added to a list, and [position, entry] of those that were removed."""
    rest = list(enumerate(before))
    added: list[object] = []
    for entry in after:
        for at, (_, old) in enumerate(rest):
            if old == entry:
                del rest[at]
                break
        else:
            added.append(entry)
    return added, [list(pair) for pair in rest]


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
