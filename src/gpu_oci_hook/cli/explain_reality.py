"""Compare the plan for a running container with what is in it, and say what differs.

Import budget: cold.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from gpu_oci_hook.cli.bundle import Bundle
from gpu_oci_hook.cli.explain_presence import Presence
from gpu_oci_hook.cli.printing import print_heading, print_line
from gpu_oci_hook.container.rootfs_edits import GENERATED_DIR
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.oci import get_list, get_member, get_text
from gpu_oci_hook.live.container_reality import Difference, Expectation, compare_container
from gpu_oci_hook.live.device_access import DeviceRules
from gpu_oci_hook.model.edits import AddDeviceNode, AddDeviceRule, AddMount
from gpu_oci_hook.model.file_edits import AddFile, AddLink
from gpu_oci_hook.model.outcome import Outcome

_KINDS = {"device": "device nodes", "rule": "device rules", "mount": "mounts", "link": "links", "file": "files"}
_READ_WRITE = "rw"

Device = tuple[int, int]


class Reality(NamedTuple):
    """What a running container has of what it should have.

    Attributes:
        totals: how many things of each kind it should have.
        differences: what it lacks.
        problems: why something is not known.
        rules_known: whether the device rules are known.
    """

    totals: dict[str, int]
    differences: list[Difference]
    problems: list[str]
    rules_known: bool

    def count_present(self, kind: str) -> int:
        """Return how many things of a kind the container has."""
        return self.totals[kind] - sum(difference.kind == kind for difference in self.differences)


def compare_with_container(
    bundle: Bundle, planned_spec: dict[str, Any], outcome: Outcome, presence: Presence
) -> Reality | None:
    """Compare a running container with its plan, and with what its config.json has of GPUs beyond the plan.

    Arguments:
        planned_spec: the config.json with the plan's edits.

    Returns:
        None if the container does not run, or should have nothing.
    """
    if not bundle.init_pid:
        return None
    found_nodes = _list_found_nodes(planned_spec, presence)
    expected = _list_expected(bundle, outcome, presence, found_nodes)
    rules = _list_rules(bundle, planned_spec, outcome, found_nodes)
    mounts = len(expected.mounts) + len(expected.attached)
    totals = Counter({"device": len(expected.nodes), "rule": len(rules), "mount": mounts})
    for edit in expected.edits:
        if isinstance(edit, (AddMount, AddLink)) or (isinstance(edit, AddFile) and not edit.bind_mounted):
            totals[edit.kind] += 1
    if not sum(totals.values()):
        return None
    names = {path for _, path in expected.mounts} | {path for path, _ in expected.attached}
    names |= {edit.destination for edit in expected.edits if isinstance(edit, AddMount)}
    differences, problems = _compare_rules(bundle.device_rules, rules)
    rules_known = not problems
    try:
        found = compare_container(bundle.init_pid, expected)
        totals["mount"] += sum(difference.kind == "mount" for difference in found if difference.name not in names)
        differences = [*found, *differences]
    except Fault as fault:
        problems.append(f"the container's files are not known: {fault}")
        totals = Counter({"rule": totals["rule"]})
    detached = _list_detached(bundle, outcome)
    differences = [
        difference._replace(text=f"{difference.text} (detached)") if difference.name in detached else difference
        for difference in differences
    ]
    return Reality({kind: totals[kind] for kind in _KINDS}, differences, problems, rules_known)


def _list_found_nodes(planned_spec: dict[str, Any], presence: Presence) -> dict[str, Device]:
    """Return the numbers of the GPU nodes that config.json has beyond the plan, by their paths."""
    paths = {path for path, _ in presence.evidence.nodes}
    nodes = {}
    for node in get_list(planned_spec, "linux", "devices"):
        path, major, minor = get_text(node, "path"), get_member(node, "major"), get_member(node, "minor")
        is_character = get_text(node, "type") in ("c", "u")
        if path in paths and is_character and isinstance(major, int) and isinstance(minor, int):
            nodes[path] = (major, minor)
    return nodes


def _list_expected(bundle: Bundle, outcome: Outcome, presence: Presence, found_nodes: dict[str, Device]) -> Expectation:
    edits = list(outcome.plan.edits)
    planned = [edit for edit in edits if isinstance(edit, AddDeviceNode) and edit.type == "c"]
    attached = [change for change in bundle.attached_changes if change.kind == "node"]
    nodes = {edit.path: (edit.major, edit.minor) for edit in planned} | found_nodes
    nodes |= {change.path: change.numbers for change in attached}
    return Expectation(
        [(path, *numbers) for path, numbers in nodes.items()],
        presence.evidence.mounts,
        [(change.path, change.numbers) for change in bundle.attached_changes if change.kind == "mount"],
        edits,
        f"{outcome.bundle}/{GENERATED_DIR}",
    )


def _list_rules(
    bundle: Bundle, planned_spec: dict[str, Any], outcome: Outcome, found_nodes: dict[str, Device]
) -> list[tuple[int, int, str]]:
    """List the accesses that the plan, attach, or config.json for its own nodes allow, each device once."""
    wanted: dict[Device, str] = {}
    for edit in outcome.plan.edits:
        if isinstance(edit, AddDeviceRule) and edit.type == "c":
            wanted[edit.major, edit.minor] = edit.access
    for rule in get_list(planned_spec, "linux", "resources", "devices"):
        allowed = (get_member(rule, "major"), get_member(rule, "minor")) if get_member(rule, "allow") is True else None
        for numbers in (numbers for numbers in found_nodes.values() if numbers == allowed):
            wanted[numbers] = get_text(rule, "access") or _READ_WRITE
    wanted |= {change.numbers: _READ_WRITE for change in bundle.attached_changes if change.kind == "node"}
    return [
        (major, minor, "".join(letter for letter in _READ_WRITE if letter in access))
        for (major, minor), access in wanted.items()
    ]


def _compare_rules(rules: DeviceRules, accesses: list[tuple[int, int, str]]) -> tuple[list[Difference], list[str]]:
    differences, problems = [], []
    for answer in rules.query(accesses):
        if answer.allowed is None:
            problems.append(f"the device rules are not known: {answer.reason}")
        elif not answer.allowed:
            name = f"{answer.major}:{answer.minor} {answer.access}"
            differences.append(Difference("rule", name, f"it is denied: {answer.reason}"))
    return differences, list(dict.fromkeys(problems))


def _list_detached(bundle: Bundle, outcome: Outcome) -> set[str]:
    """Return the names of the nodes and rules that belong to detached GPUs."""
    names = set()
    for edit in outcome.plan.edits:
        if isinstance(edit, AddDeviceNode) and any(selector in edit.reason for selector in bundle.detached):
            names |= {edit.path, *(f"{edit.major}:{edit.minor} {access}" for access in ("r", "w", _READ_WRITE))}
    return names


def print_reality(reality: Reality) -> None:
    """Print what a running container has, and in detail only what differs from the plan."""
    print_heading("in the container now")
    counts = [
        f"{reality.count_present(kind)} of {reality.totals[kind]} {title}"
        for kind, title in _KINDS.items()
        if reality.totals[kind] and (kind != "rule" or reality.rules_known)
    ]
    if counts:
        print_line(f"  {', '.join(counts)}")
    for problem in reality.problems:
        print_line(f"  {problem}", colour="yellow")
    total = sum(reality.totals.values())
    if len(reality.differences) == total and not reality.problems:
        return  # it has nothing of the plan: naming everything again says no more
    for difference in reality.differences:
        print_line(f"  {difference.kind:<9} {difference.name}: {difference.text}", colour="yellow")


def build_reality_data(reality: Reality | None) -> dict[str, object] | None:
    """Build the JSON form."""
    if reality is None:
        return None
    return {
        "counts": {
            kind: {
                "expected": reality.totals[kind],
                "present": reality.count_present(kind) if kind != "rule" or reality.rules_known else None,
            }
            for kind in _KINDS
        },
        "differences": [
            {"kind": difference.kind, "name": difference.name, "text": difference.text}
            for difference in reality.differences
        ],
        "problems": reality.problems,
    }
