"""Print the text form of `explain`.

Import budget: cold.
"""

from __future__ import annotations

from collections import Counter

from gpu_oci_hook.cli.bundle import Bundle
from gpu_oci_hook.cli.explain_facts import detect_host_platform, list_withheld
from gpu_oci_hook.cli.explain_presence import Presence
from gpu_oci_hook.cli.explain_visible_gpus import number_gpus_inside
from gpu_oci_hook.cli.explain_ways import HOOK_WAY, PRECREATE_WAY, RUNTIME_WAY, WAY_TEXTS, format_section_title
from gpu_oci_hook.cli.plan_sections import DEFAULT_MOUNT_OPTIONS, LinesByReason, build_plan_sections
from gpu_oci_hook.cli.printing import print_gpus, print_heading, print_line, print_table
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.container.rootfs_edits import GENERATED_DIR
from gpu_oci_hook.host.platforms.detect import describe_platform_name
from gpu_oci_hook.model.outcome import Outcome
from gpu_oci_hook.model.plan_input import MISSING_CAPABILITY
from gpu_oci_hook.model.request import Request
from gpu_oci_hook.request.require_expressions import parse_requirement
from gpu_oci_hook.request.selectors import format_ranges

# By the value of "state" in the JSON form, with "cdi" for an injection without the NVIDIA driver.
_STATE_TEXTS = {
    "inject": "the driver",
    "cdi": "the devices that CDI files define",
    "nothing": "nothing and starts as with the low-level runtime alone",
    "done": "nothing more: it has what an engine has injected",
}
_HOW_STARTED = {
    RUNTIME_WAY: "started by gpu-oci-runtime",
    PRECREATE_WAY: "started with the precreate hook",
    HOOK_WAY: "started with the prestart hook",
}
# The names, for one and for several, of the kinds of withheld items that are counted and not named.
_KIND_NAMES = {
    "library": ("library", "libraries"),
    "binary": ("program", "programs"),
    "firmware": ("firmware file", "firmware files"),
    "config": ("configuration file", "configuration files"),
    "tree": ("directory", "directories"),
    "link": ("link", "links"),
}


def print_explanation(
    bundle: Bundle,
    outcome: Outcome,
    settings: Config,
    presence: Presence,
    warnings: list[str],
    way: str = RUNTIME_WAY,
    *,
    verbose: bool,
) -> None:
    """Print the request, warnings, devices, edits and withheld items of a plan.

    Arguments:
        verbose: name each withheld driver file instead of counting them.
    """
    _print_request(bundle, outcome, settings, way)
    lacks_edits = bundle.is_running and outcome.plan.state == "inject" and not presence.is_complete
    if lacks_edits:
        print_line(f"{_HOW_STARTED[way]}, the container {_summarize_outcome(outcome, presence, verb='would get')}")
    else:
        print_line(f"the container {_summarize_outcome(outcome, presence)}")
    presence_lines = _describe_presence(bundle, outcome, presence) if way == RUNTIME_WAY else []
    for line in (*presence_lines, *_describe_attachments(bundle)):
        print_line(line)
    if warnings:
        print_heading("warnings")
        for warning in warnings:
            print_line(f"- {warning}", colour="yellow")
    _print_devices(outcome)
    if outcome.plan.find_libcuda:
        print_heading("libcuda.so.1 that programs load")
        for line in outcome.plan.find_libcuda().describe():
            print_line(f"  {line}")
    if outcome.plan.edits:
        heading = "would be injected" if lacks_edits else "injected"
        if presence.is_complete:
            _print_edits(outcome, settings, f"{heading} (already in config.json)", RUNTIME_WAY)
        else:
            _print_edits(outcome, settings, heading, way)
    _print_found(presence)
    _print_withheld(bundle, outcome, settings, verbose=verbose)


def _describe_presence(bundle: Bundle, outcome: Outcome, presence: Presence) -> list[str]:
    """Return whether config.json has the plan's edits, and who has injected, in at most two lines."""
    if bundle.is_assumed or presence.is_complete or outcome.plan.state != "inject":
        return []
    if presence.present == 0:
        not_started = "it was not started by gpu-oci-runtime"
        return [f"config.json has none of this: {'' if bundle.is_running else 'if it runs already, '}{not_started}"]
    if presence.present == presence.total:
        return ["config.json has all nodes, mounts and hooks of this, but not every device rule, group or variable"]
    if presence.is_by_runtime:
        cause = "gpu-oci-runtime made it for another driver, request or configuration"
    else:
        cause = "they are not from gpu-oci-runtime"
    return [f"config.json has {presence.present} of these {presence.total} nodes, mounts and hooks: {cause}"]


def _describe_attachments(bundle: Bundle) -> list[str]:
    """Return which GPUs were attached to a running container and detached from it since its start."""
    lines = [("attached since its start", bundle.attached), ("detached since its start", bundle.detached)]
    return [f"{title}: {', '.join(selectors)}" for title, selectors in lines if selectors]


def _print_found(presence: Presence) -> None:
    """Print what config.json has of GPUs beyond the plan, and who has put it there."""
    evidence = presence.evidence
    if not (evidence.nodes or evidence.mounts or evidence.pending):
        return
    print_heading("already in config.json")
    for injector in evidence.injectors:
        print_line(f"  by {injector}", colour="cyan")
    for name, file in presence.cdi_devices:
        print_line(f"  has every edit of the CDI device {name} ({file})")
    for path, device in evidence.nodes:
        print_line(f"    device    {path:<22} {device}")
    for directory, count in Counter(source.rpartition("/")[0] or "/" for source, _ in evidence.mounts).items():
        print_line(f"    mounts    {count} from {directory}")
    for hook in evidence.pending:
        print_line(f"    hook      injects when the container starts: {hook}")


def _print_withheld(bundle: Bundle, outcome: Outcome, settings: Config, *, verbose: bool) -> None:
    withheld: LinesByReason = {}
    counts: dict[str, Counter[str]] = {}
    for kind, name, reason in list_withheld(bundle, outcome, settings):
        if not verbose and kind in _KIND_NAMES and reason.startswith(MISSING_CAPABILITY):
            counts.setdefault(reason, Counter())[kind] += 1
        else:
            withheld.setdefault(reason, []).append(f"{kind:<9} {name}")
    if not withheld and not counts:
        return
    is_counted = bool(counts)
    print_heading("withheld")
    for reason in withheld.keys() & counts.keys():
        withheld[reason].append(_format_counts(counts.pop(reason)))
    _print_lines_by_reason(withheld, "  ")
    for reason, kinds in counts.items():
        print_line(f"  {reason}: {_format_counts(kinds)}")
    if is_counted:
        print_line("  (-v names the files)")


def _format_counts(kinds: Counter[str]) -> str:
    return ", ".join(f"{count} {_KIND_NAMES[kind][count != 1]}" for kind, count in kinds.items())


def _print_request(bundle: Bundle, outcome: Outcome, settings: Config, way: str) -> None:
    request = outcome.request
    kind, evidence = detect_host_platform(settings)
    if bundle.title:
        print_line(f"container     {bundle.title}")
    if not bundle.is_assumed:
        print_line(f"bundle        {bundle.absolute_directory}")
    if way in WAY_TEXTS:
        print_line(f"way           {WAY_TEXTS[way]}")
    print_line(f"platform      {describe_platform_name(kind)}: {'; '.join(evidence)}")
    print_line(f"request       {request.origin}")
    if request.needs_driver:
        origin = f" ({request.capabilities_origin})" if request.capabilities_origin else ""
        print_line(f"capabilities  {', '.join(request.capabilities)}{origin}")
    for name, expression in request.requirements:
        result = _describe_requirement_check(request, name, expression)
        print_line(f"requirement   {name}: {expression} ({result})")
    if outcome.inventory:
        print_line(f"driver        {outcome.inventory.version or 'version unknown'}")


def _describe_requirement_check(request: Request, name: str, expression: str) -> str:
    """Return the result of checking a requirement of a container that starts."""
    if request.requirements_disabled_by:
        return f"not checked: {request.requirements_disabled_by}"
    unknown_properties: list[str] = []
    if not parse_requirement(name, expression, unknown_properties):
        return "not checked: it names no known property"
    return "met, except for unknown properties" if unknown_properties else "met"


def _summarize_outcome(outcome: Outcome, presence: Presence, verb: str = "gets") -> str:
    state: str = outcome.plan.state
    if state in ("nothing", "done") and presence.evidence.injectors:
        return "gets nothing from gpu-oci-runtime; config.json has what was injected before (below)"
    if state == "inject" and not outcome.request.needs_driver:
        state = "cdi"
    text = f"{verb} {_STATE_TEXTS[state]}"
    if state != "inject":
        return text
    parts = [text]
    whole_gpus, mig_devices = len(outcome.chosen_gpus) - len(outcome.mig_parents), outcome.chosen_mig_devices
    if whole_gpus or not mig_devices:
        parts.append(f"{whole_gpus} of {len(outcome.gpus)} GPU{'' if len(outcome.gpus) == 1 else 's'}")
    if mig_devices:
        parents = format_ranges(sorted({device.gpu.index for device, _ in mig_devices}))
        count = f"{len(mig_devices)} MIG device{'' if len(mig_devices) == 1 else 's'}"
        parts.append(f"{count} of GPU{'' if parents.isdigit() else 's'} {parents}")
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _print_devices(outcome: Outcome) -> None:
    if outcome.chosen_gpus:
        print_heading("GPUs")
        numbers = number_gpus_inside(outcome)
        notes = {index: [f"GPU {number} in the container"] for index, number in numbers.items()}
        print_gpus([gpu for gpu, _ in outcome.chosen_gpus], notes)
    if outcome.chosen_mig_devices:
        print_heading("MIG devices")
        print_table(
            ("index", "gi", "ci", "uuid", "requested by"),
            [
                (device.name, str(device.gi), str(device.ci), device.uuid or device.old_name, origin)
                for device, origin in outcome.chosen_mig_devices
            ],
        )
    if outcome.cdi_devices:
        print_heading("CDI devices")
        print_table(("device", "file", "requested by"), outcome.cdi_devices)


def _print_edits(outcome: Outcome, settings: Config, heading: str, way: str) -> None:
    if all(edit.kind.startswith("drop-") for edit in outcome.plan.edits):
        print_heading("changed")
    else:
        print_heading(heading)
        print_line(f"  default mount options: {DEFAULT_MOUNT_OPTIONS}")
        if settings.root != "/":
            print_line(f"  default source: the same path below {settings.root}")
    generated_dir = f"{outcome.bundle}/{GENERATED_DIR}"
    for title, lines_by_reason in build_plan_sections(outcome.plan.edits, generated_dir, settings.root):
        print_line(f"  {format_section_title(title, way)}", bold=True)
        _print_lines_by_reason(lines_by_reason, "    ")


def _print_lines_by_reason(lines_by_reason: LinesByReason, indent: str) -> None:
    for reason, lines in lines_by_reason.items():
        print_line(f"{indent}{reason}:", colour="cyan")
        for line in lines:
            print_line(f"{indent}  {line}")
