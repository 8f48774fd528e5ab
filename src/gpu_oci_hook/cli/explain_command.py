"""`explain` and `apply`: the way of the shim on a bundle, without the container's start at its end.

Both take `inject.pipeline`'s plan as it is: what explain prints is what the shim does.
"""

from __future__ import annotations

import copy
import difflib
import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from gpu_oci_hook.cli.config_overrides import ReadOnlyCache, load_command_config
from gpu_oci_hook.cli.plan_sections import DEFAULT_MOUNT_OPTIONS, LinesByReason, build_plan_sections
from gpu_oci_hook.cli.printing import print_gpus, print_heading, print_json, print_line, print_table, print_warning
from gpu_oci_hook.cli.root_command import config_option, format_option, host_root_options
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.container.rootfs_edits import GENERATED_DIR, generated_file_name
from gpu_oci_hook.container.spec_edits import apply_to_spec
from gpu_oci_hook.errors import Fault, make_printable
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.files.read_regular import read_config_json
from gpu_oci_hook.formats.oci import get_list, get_member
from gpu_oci_hook.host.gpus import read_gpus
from gpu_oci_hook.host.platforms.detect import detect_platform
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.inject.gather import gather_mig_devices
from gpu_oci_hook.inject.pipeline import apply_plan, parse_bundle_spec, prepare_injection
from gpu_oci_hook.model.edits import AddFile, AddLink, AddMount, Edit
from gpu_oci_hook.model.mig import MigDevice
from gpu_oci_hook.model.outcome import Outcome
from gpu_oci_hook.model.request import Request
from gpu_oci_hook.request.read import read_request
from gpu_oci_hook.request.require_expressions import parse_requirement

_bundle_option = click.option(
    "--bundle",
    "-b",
    metavar="PATH",
    default=".",
    show_default=True,
    help="The OCI bundle: the directory with config.json, or that file.",
)

_MIG_NOT_REQUESTED = "this MIG device was not asked for"
# What became of a request, for people; the keys are the values of "state" in the JSON form, and "cdi" for an "inject"
# without the driver.
_STATE_TEXTS = {
    "inject": "gets the driver",
    "cdi": "gets what CDI files say",
    "nothing": "gets nothing: it starts as with the plain runtime",
    "done": "has everything already: nothing is added",
    "refused": "does not start",
}


class Bundle:
    """A bundle's config.json, as bytes and as an object.

    Arguments:
        path: the bundle, or the config.json in it.

    Raises:
        Fault: there is none, or it is no JSON object.
    """

    def __init__(self, path: str) -> None:
        self.directory = path
        self.config_json_path = os.path.join(path, "config.json")
        if os.path.isfile(path):
            self.directory, self.config_json_path = os.path.dirname(path) or ".", path
        data = read_config_json(self.config_json_path)
        if data is None:
            what = "there is no config.json in it" if os.path.isdir(path) else "there is no such directory"
            raise Fault(what, where=path, hint="Name a bundle with --bundle DIR")
        self.config_json_bytes = data
        self.spec = parse_bundle_spec(data, self.config_json_path)


@click.command()
@_bundle_option
@format_option("diff")
@config_option
@host_root_options
def explain(bundle: str, form: str, config_path: str, root: str, driver_root: str) -> None:
    """Say what a container would get, from whose word, and what not, each with its reason.

    Changes nothing. Exit status 1 when the container would not start.
    """
    made = Bundle(bundle)
    settings = load_command_config(config_path, root, driver_root)
    settings.load_modules = False  # looking at a bundle must not change the machine
    try:
        outcome = prepare_injection(made.spec, settings, made.directory, ReadOnlyCache())
    except Fault as fault:
        if form != "json":
            raise
        print_json("explain", _build_refusal(made, settings, fault))
        sys.exit(1)
    after = copy.deepcopy(made.spec)
    apply_to_spec(after, outcome.plan.edits)
    if form == "diff":
        _print_diff(made, after, outcome)
    elif form == "json":
        print_json("explain", build_explanation(made, outcome, settings, _collect_warnings(made, outcome)))
    else:
        _print_explanation(made, outcome, settings, changed=after != made.spec)


@click.command()
@_bundle_option
@config_option
@host_root_options
def apply(bundle: str, config_path: str, root: str, driver_root: str) -> None:
    """Make the edits that explain shows, in the bundle and below its root file system, and say what was done.

    Doing it again changes nothing. The shim does the same by itself.
    """
    made = Bundle(bundle)
    settings = load_command_config(config_path, root, driver_root)
    outcome = prepare_injection(made.spec, settings, made.directory, state_dir.StateCache())
    done = apply_plan(outcome, made.spec, made.config_json_path, made.config_json_bytes)
    for sentence in outcome.plan.warnings:
        print_warning(sentence)
    for what in done:
        print_line(what)
    if not done:
        print_line(f"nothing to do: {outcome.request.origin if outcome.plan.state != 'inject' else 'all is there'}")


def build_explanation(bundle: Bundle, outcome: Outcome, settings: Config, warnings: list[str]) -> dict[str, object]:
    """The explanation as data; described by explain.schema.json."""
    chosen = {gpu.index: origin for gpu, origin in outcome.chosen_gpus}
    parts = _list_mig_devices(outcome, settings)
    return {
        "bundle": str(Path(bundle.directory).absolute()),
        "config": settings.path or None,
        "state": outcome.plan.state,
        "reason": outcome.request.origin,
        "platform": _describe_platform(settings),
        "driver": (outcome.inventory.version or None) if outcome.inventory else None,
        "request": _describe_request(outcome.request),
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "pci": gpu.pci,
                "minor": gpu.minor if gpu.minor >= 0 else None,
                "model": gpu.model,
                "given": gpu.index in chosen,
                "reason": chosen.get(gpu.index, "this GPU was not asked for"),
                "mig": [
                    {
                        "index": one.name,
                        "gi": one.gi,
                        "ci": one.ci,
                        "uuid": one.uuid or None,
                        "given": bool(origin),
                        "reason": origin or _MIG_NOT_REQUESTED,
                    }
                    for one, origin in parts
                    if one.gpu.index == gpu.index
                ],
            }
            for gpu in outcome.gpus
        ],
        "cdi": [{"name": name, "file": file, "reason": origin} for name, file, origin in outcome.cdi_devices],
        "edits": [
            {"kind": edit.kind, "reason": edit.reason, "text": edit.describe(), **edit.to_data()}
            for edit in outcome.plan.edits
        ],
        "withheld": [
            {"kind": kind, "name": name, "reason": reason} for kind, name, reason in _list_withheld(outcome, settings)
        ],
        "warnings": warnings,
    }


def _build_refusal(bundle: Bundle, settings: Config, fault: Fault) -> dict[str, object]:
    """The explanation of a container that does not start; without the request when that itself is the fault."""
    try:
        request: Request | None = read_request(bundle.spec, settings)
    except Fault:
        request = None
    return {
        "bundle": str(Path(bundle.directory).absolute()),
        "config": settings.path or None,
        "state": "refused",
        "reason": str(fault),
        "platform": _describe_platform(settings),
        "driver": None,
        "request": _describe_request(request) if request else None,
        "gpus": [],
        "cdi": [],
        "edits": [],
        "withheld": [],
        "warnings": request.warnings if request else [],
    }


def _detect_platform(settings: Config) -> tuple[str, tuple[str, ...]]:
    host = Host(settings.root)
    return detect_platform(host, read_gpus(host)[0], settings.platform)


def _describe_platform(settings: Config) -> dict[str, object]:
    kind, evidence = _detect_platform(settings)
    return {"name": kind, "evidence": list(evidence)}


def _describe_request(request: Request) -> dict[str, object]:
    return {
        "driver": request.needs_driver,
        "origin": request.origin,
        "devices": [{"word": ask.selector, "origin": ask.origin} for ask in request.device_requests],
        "cdi": [{"word": ask.selector, "origin": ask.origin} for ask in request.cdi_devices],
        "capabilities": list(request.capabilities),
        "capabilities_origin": request.capabilities_origin,
        "requirements": [{"variable": name, "expression": text} for name, text in request.requirements],
        "requirements_off": request.requirements_disabled_by,
        "channels": [{"word": one.selector, "origin": one.origin} for one in request.imex_channels],
        "features": [{"feature": one.key, "origin": one.origin} for one in request.features],
        "management": request.management_origin or None,
        "privileged": not request.unprivileged_reason,
        "legacy": request.is_legacy_image,
    }


def _list_mig_devices(outcome: Outcome, settings: Config) -> list[tuple[MigDevice, str]]:
    """Every MIG device of the machine, with the origin of the word that named it; "" for one that does not go in.

    A start looks at those that it gives; here is time to look at all. NVML is not asked.
    """
    if outcome.inventory is None:
        return []
    instances = outcome.mig_devices or gather_mig_devices(
        outcome, Host(settings.root), settings, outcome.inventory.version, ReadOnlyCache()
    )
    given = {(one.gpu.index, one.gi, one.ci): origin for one, origin in outcome.chosen_mig_devices}
    # Who may configure or watch MIG opens every part of the GPUs that go in.
    wide = next((origin for _, origin in outcome.request.mig_rights), outcome.request.management_origin)
    chosen = {gpu.index for gpu, _ in outcome.chosen_gpus}
    return [
        (one, given.get((gpu.index, one.gi, one.ci), wide if gpu.index in chosen else ""))
        for gpu in outcome.gpus
        for one in instances.list_for_gpu(gpu)
    ]


def _list_withheld(outcome: Outcome, settings: Config) -> list[tuple[str, str, str]]:
    """Everything that does not go in: the request's own part is in the plan only if it came as far as a plan."""
    found = [("request", name, reason) for name, reason in outcome.request.withheld]
    found += [(one.kind, one.name, one.reason) for one in outcome.plan.withheld]
    if outcome.plan.state == "inject":
        found += [
            ("device", f"MIG device {one.name} ({one.uuid or one.old_name})", _MIG_NOT_REQUESTED)
            for one, origin in _list_mig_devices(outcome, settings)
            if not origin
        ]
    return list(dict.fromkeys(found))


def _collect_warnings(bundle: Bundle, outcome: Outcome) -> list[str]:
    """The plan's warnings, and what only a look into the image can tell."""
    from gpu_oci_hook.container.lint import find_misspelt_variables, lint_image

    warnings = [*outcome.plan.warnings, *find_misspelt_variables(outcome.request.environment)]
    if outcome.rootfs is None or outcome.image is None or outcome.inventory is None:
        return warnings
    sources = {edit.source for edit in outcome.plan.edits if isinstance(edit, AddMount)}
    files = [file for file in outcome.inventory.files if file.source in sources]
    mounted = [
        place for mount in get_list(bundle.spec, "mounts") if isinstance(place := get_member(mount, "destination"), str)
    ]
    warnings += lint_image(outcome.rootfs, outcome.image, files, outcome.request.environment, mounted)
    if not outcome.image.writable and os.geteuid() != 0:
        warnings.append(
            "this user cannot write the root file system, so this is the plan for a read-only one; "
            "ask as the user that the engine runs as"
        )
    return warnings


def _print_explanation(bundle: Bundle, outcome: Outcome, settings: Config, *, changed: bool) -> None:
    request, plan = outcome.request, outcome.plan
    kind, evidence = _detect_platform(settings)
    print_line(f"bundle        {Path(bundle.directory).absolute()}")
    print_line(f"platform      {kind}: {'; '.join(evidence)}")
    print_line(f"asked         {request.origin}")
    if request.needs_driver:
        origin = f" ({request.capabilities_origin})" if request.capabilities_origin else ""
        print_line(f"capabilities  {', '.join(request.capabilities)}{origin}")
    for name, text in request.requirements:
        print_line(f"requirement   {name}: {text} ({_describe_requirement_check(request, name, text)})")
    if outcome.inventory:
        print_line(f"driver        {outcome.inventory.version or 'of a version that nothing tells'}")
    counted = ""
    state = plan.state
    if state == "inject" and not request.needs_driver:
        state = "cdi"
    if state == "inject":
        counted = f", {len(outcome.chosen_gpus)} of {len(outcome.gpus)} GPU{'' if len(outcome.gpus) == 1 else 's'}"
    if outcome.chosen_mig_devices:
        counted += f" ({len(outcome.mig_parents)} of them for {len(outcome.chosen_mig_devices)} MIG devices)"
    print_line(f"the container {_STATE_TEXTS.get(state, state)}{counted}")
    warnings = _collect_warnings(bundle, outcome)
    if warnings:
        print_heading("warnings")
        for sentence in warnings:
            print_line(f"- {sentence}", colour="yellow")
    if outcome.chosen_gpus:
        print_heading("GPUs")
        print_gpus([gpu for gpu, _ in outcome.chosen_gpus])
    if outcome.chosen_mig_devices:
        print_heading("MIG devices")
        print_table(
            ("index", "gi", "ci", "uuid", "asked for by"),
            [
                (one.name, str(one.gi), str(one.ci), one.uuid or one.old_name, origin)
                for one, origin in outcome.chosen_mig_devices
            ],
        )
    if outcome.cdi_devices:
        print_heading("CDI devices")
        print_table(("device", "file", "asked for by"), outcome.cdi_devices)
    if plan.edits:
        print_heading("goes in" + ("" if changed else " (config.json has it already)"))
        print_line(f"  mount options, where not said otherwise: {DEFAULT_MOUNT_OPTIONS}")
        if settings.root != "/":
            print_line(f"  sources, where not said otherwise, lie below {settings.root}")
        generated = f"{outcome.bundle}/{GENERATED_DIR}"
        for title, group in build_plan_sections(plan.edits, generated, settings.root):
            print_line(f"  {title}", bold=True)
            _print_lines_by_reason(group, "    ")
    withheld: dict[str, list[str]] = {}
    for kind, name, reason in _list_withheld(outcome, settings):
        withheld.setdefault(reason, []).append(f"{kind:<9} {name}")
    if withheld:
        print_heading("withheld")
        _print_lines_by_reason(withheld, "  ")


def _print_lines_by_reason(group: LinesByReason, indent: str) -> None:
    for reason, lines in group.items():
        print_line(f"{indent}{reason}:", colour="cyan")
        for text in lines:
            print_line(f"{indent}  {text}")


def _describe_requirement_check(request: Request, name: str, text: str) -> str:
    """What became of a requirement of a container that starts."""
    if request.requirements_disabled_by:
        return f"not checked: {request.requirements_disabled_by}"
    strangers: list[str] = []
    if not parse_requirement(name, text, strangers):
        return "not checked: it names nothing that we know"
    return "met, as far as we know its words" if strangers else "met"


def _print_diff(bundle: Bundle, after: dict[str, Any], outcome: Outcome) -> None:
    """The change of config.json as a unified diff, and what is done below the root as lines that patch skips."""
    before = json.dumps(bundle.spec, indent=2).splitlines()
    planned = json.dumps(after, indent=2).splitlines()
    name = make_printable(bundle.config_json_path.lstrip("/"))
    for line in difflib.unified_diff(before, planned, f"a/{name}", f"b/{name}", lineterm=""):
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
        print_line(line, colour=colour)
    for edit in outcome.plan.edits:
        if _is_pending(edit, outcome):
            print_line(f"# {edit.kind} {edit.describe()}  ({edit.reason})")


def _is_pending(edit: Edit, outcome: Outcome) -> bool:
    """Whether an edit is one below the root that is not made yet."""
    if outcome.rootfs is None:
        return False
    try:
        if isinstance(edit, AddLink):
            return outcome.rootfs.readlink(edit.path) != edit.target
        if isinstance(edit, AddFile):
            if edit.bind_mounted:
                place = Path(outcome.bundle, GENERATED_DIR, generated_file_name(edit.path))
                return not place.is_file() or place.read_bytes() != edit.content
            return outcome.rootfs.read_file(edit.path, len(edit.content)) != edit.content
    except (Fault, OSError):
        return True
    return False
