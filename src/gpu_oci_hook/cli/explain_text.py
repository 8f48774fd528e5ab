"""Print the text form of `explain`.

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.cli.bundle import Bundle
from gpu_oci_hook.cli.explain_facts import detect_host_platform, list_withheld
from gpu_oci_hook.cli.plan_sections import DEFAULT_MOUNT_OPTIONS, LinesByReason, build_plan_sections
from gpu_oci_hook.cli.printing import print_gpus, print_heading, print_line, print_table
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.container.rootfs_edits import GENERATED_DIR
from gpu_oci_hook.model.outcome import Outcome
from gpu_oci_hook.model.request import Request
from gpu_oci_hook.request.require_expressions import parse_requirement
from gpu_oci_hook.request.selectors import format_ranges

# By the value of "state" in the JSON form, with "cdi" for an injection without the NVIDIA driver.
_STATE_TEXTS = {
    "inject": "gets the driver",
    "cdi": "gets the devices that CDI files define",
    "nothing": "gets nothing and starts as with the plain runtime",
    "done": "has every edit already; nothing is added",
}


def print_explanation(
    bundle: Bundle, outcome: Outcome, settings: Config, warnings: list[str], *, changed: bool
) -> None:
    """Print the request, warnings, devices, edits and withheld items of a plan.

    Arguments:
        changed: whether the plan changes config.json.
    """
    _print_request(bundle, outcome, settings)
    print_line(f"the container {_summarize_outcome(outcome)}")
    if warnings:
        print_heading("warnings")
        for warning in warnings:
            print_line(f"- {warning}", colour="yellow")
    _print_devices(outcome)
    if outcome.plan.edits:
        _print_edits(outcome, settings, changed=changed)
    withheld: LinesByReason = {}
    for kind, name, reason in list_withheld(outcome, settings):
        withheld.setdefault(reason, []).append(f"{kind:<9} {name}")
    if withheld:
        print_heading("withheld")
        _print_lines_by_reason(withheld, "  ")


def _print_request(bundle: Bundle, outcome: Outcome, settings: Config) -> None:
    request = outcome.request
    kind, evidence = detect_host_platform(settings)
    print_line(f"bundle        {bundle.absolute_directory}")
    print_line(f"platform      {kind}: {'; '.join(evidence)}")
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


def _summarize_outcome(outcome: Outcome) -> str:
    state: str = outcome.plan.state
    if state == "inject" and not outcome.request.needs_driver:
        state = "cdi"
    if state != "inject":
        return _STATE_TEXTS[state]
    parts = [_STATE_TEXTS[state]]
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
        print_gpus([gpu for gpu, _ in outcome.chosen_gpus])
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


def _print_edits(outcome: Outcome, settings: Config, *, changed: bool) -> None:
    print_heading("injected" if changed else "injected (already in config.json)")
    print_line(f"  default mount options: {DEFAULT_MOUNT_OPTIONS}")
    if settings.root != "/":
        print_line(f"  default source: the same path below {settings.root}")
    generated_dir = f"{outcome.bundle}/{GENERATED_DIR}"
    for title, lines_by_reason in build_plan_sections(outcome.plan.edits, generated_dir, settings.root):
        print_line(f"  {title}", bold=True)
        _print_lines_by_reason(lines_by_reason, "    ")


def _print_lines_by_reason(lines_by_reason: LinesByReason, indent: str) -> None:
    for reason, lines in lines_by_reason.items():
        print_line(f"{indent}{reason}:", colour="cyan")
        for line in lines:
            print_line(f"{indent}  {line}")
