"""`explain` and `apply`: the way of the shim on a bundle, without the container's start at its end.

Both take `pipeline`'s plan as it is: what explain prints is what the shim does.
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

from gpu_oci_hook import pipeline, runtime, state, supply
from gpu_oci_hook.cli import explanation, output
from gpu_oci_hook.cli.app import config_file, formats, host_roots
from gpu_oci_hook.cli.common import Silent, settings_for
from gpu_oci_hook.config import Config
from gpu_oci_hook.container import spec as spec_edits
from gpu_oci_hook.container.apply import generated_name
from gpu_oci_hook.errors import Fault, printable
from gpu_oci_hook.formats.oci import items, member
from gpu_oci_hook.host import platform
from gpu_oci_hook.host.mig import Mig
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.pipeline import Outcome
from gpu_oci_hook.plan.edits import Edit, File, Link, Mount
from gpu_oci_hook.request import Request, read, requirements

_bundle = click.option(
    "--bundle",
    "-b",
    metavar="PATH",
    default=".",
    show_default=True,
    help="The OCI bundle: the directory with config.json, or that file.",
)

_NOT_ASKED = "this MIG device was not asked for"
# What became of a request, for people; the keys are the values of "state" in the JSON form, and "cdi" for an "inject"
# without the driver.
_STATES = {
    "inject": "gets the driver",
    "cdi": "gets what CDI files say",
    "nothing": "gets nothing: it starts as with the plain runtime",
    "done": "has everything already: nothing is added",
    "refused": "does not start",
}


class Bundle:
    """A bundle's config.json, as bytes and as an object.

    Arguments:
        place: the bundle, or the config.json in it.

    Raises:
        Fault: there is none, or it is no JSON object.
    """

    def __init__(self, place: str) -> None:
        self.directory = place
        self.path = os.path.join(place, "config.json")
        if os.path.isfile(place):
            self.directory, self.path = os.path.dirname(place) or ".", place
        data = runtime.read_config_json(self.path)
        if data is None:
            what = "there is no config.json in it" if os.path.isdir(place) else "there is no such directory"
            raise Fault(what, where=place, cure="Name a bundle with --bundle DIR")
        self.data = data
        self.spec = pipeline.parse(data, self.path)


@click.command()
@_bundle
@formats("diff")
@config_file
@host_roots
def explain(bundle: str, form: str, config_path: str, root: str, driver_root: str) -> None:
    """Say what a container would get, from whose word, and what not, each with its reason.

    Changes nothing. Exit status 1 when the container would not start.
    """
    made = Bundle(bundle)
    settings = settings_for(config_path, root, driver_root)
    settings.load_modules = False  # looking at a bundle must not change the machine
    try:
        outcome = pipeline.prepare(made.spec, settings, made.directory, Silent())
    except Fault as fault:
        if form != "json":
            raise
        output.json_document("explain", _refused(made, settings, fault))
        sys.exit(1)
    after = copy.deepcopy(made.spec)
    spec_edits.apply(after, outcome.plan.edits)
    if form == "diff":
        _print_diff(made, after, outcome)
    elif form == "json":
        output.json_document("explain", document(made, outcome, settings, _warnings(made, outcome)))
    else:
        _print_text(made, outcome, settings, changed=after != made.spec)


@click.command()
@_bundle
@config_file
@host_roots
def apply(bundle: str, config_path: str, root: str, driver_root: str) -> None:
    """Make the edits that explain shows, in the bundle and below its root file system, and say what was done.

    Doing it again changes nothing. The shim does the same by itself.
    """
    made = Bundle(bundle)
    settings = settings_for(config_path, root, driver_root)
    outcome = pipeline.prepare(made.spec, settings, made.directory, state.Memory())
    done = pipeline.perform(outcome, made.spec, made.path, made.data)
    for sentence in outcome.plan.warnings:
        output.warning(sentence)
    for what in done:
        output.line(what)
    if not done:
        output.line(f"nothing to do: {outcome.request.origin if outcome.plan.state != 'inject' else 'all is there'}")


def document(made: Bundle, outcome: Outcome, settings: Config, warnings: list[str]) -> dict[str, object]:
    """The explanation as data; described by explain.schema.json."""
    chosen = {gpu.index: origin for gpu, origin in outcome.chosen}
    parts = _parts(outcome, settings)
    return {
        "bundle": str(Path(made.directory).absolute()),
        "config": settings.path or None,
        "state": outcome.plan.state,
        "reason": outcome.request.origin,
        "platform": _platform(settings),
        "driver": (outcome.inventory.version or None) if outcome.inventory else None,
        "request": _request(outcome.request),
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
                        "reason": origin or _NOT_ASKED,
                    }
                    for one, origin in parts
                    if one.gpu.index == gpu.index
                ],
            }
            for gpu in outcome.gpus
        ],
        "cdi": [{"name": name, "file": file, "reason": origin} for name, file, origin in outcome.cdi],
        "edits": [
            {"kind": edit.kind, "reason": edit.reason, "text": edit.describe(), **edit.data()}
            for edit in outcome.plan.edits
        ],
        "withheld": [
            {"kind": kind, "name": name, "reason": reason} for kind, name, reason in _withheld(outcome, settings)
        ],
        "warnings": warnings,
    }


def _refused(made: Bundle, settings: Config, fault: Fault) -> dict[str, object]:
    """The explanation of a container that does not start; without the request when that itself is the fault."""
    try:
        request: Request | None = read(made.spec, settings)
    except Fault:
        request = None
    return {
        "bundle": str(Path(made.directory).absolute()),
        "config": settings.path or None,
        "state": "refused",
        "reason": str(fault),
        "platform": _platform(settings),
        "driver": None,
        "request": _request(request) if request else None,
        "gpus": [],
        "cdi": [],
        "edits": [],
        "withheld": [],
        "warnings": request.warnings if request else [],
    }


def _platform(settings: Config) -> dict[str, object]:
    kind, evidence = platform.detect(Host(settings.root), settings.platform)
    return {"name": kind, "evidence": list(evidence)}


def _request(request: Request) -> dict[str, object]:
    return {
        "driver": request.driver,
        "origin": request.origin,
        "devices": [{"word": ask.word, "origin": ask.origin} for ask in request.asks],
        "cdi": [{"word": ask.word, "origin": ask.origin} for ask in request.foreign],
        "capabilities": list(request.capabilities),
        "capabilities_origin": request.capabilities_origin,
        "requirements": [{"variable": name, "expression": text} for name, text in request.requirements],
        "requirements_off": request.requirements_off,
        "channels": [{"word": one.word, "origin": one.origin} for one in request.channels],
        "features": [{"feature": one.key, "origin": one.origin} for one in request.features],
        "management": request.management or None,
        "privileged": not request.unprivileged,
        "legacy": request.legacy,
    }


def _parts(outcome: Outcome, settings: Config) -> list[tuple[Mig, str]]:
    """Every MIG device of the machine, with the origin of the word that named it; "" for one that does not go in.

    A start looks at those that it gives; here is time to look at all. NVML is not asked.
    """
    if outcome.inventory is None:
        return []
    instances = outcome.instances or supply.mig_instances(
        outcome, Host(settings.root), settings, outcome.inventory.version, Silent()
    )
    given = {(one.gpu.index, one.gi, one.ci): origin for one, origin in outcome.mig}
    # Who may configure or watch MIG opens every part of the GPUs that go in.
    wide = next((origin for _, origin in outcome.request.mig_rights), outcome.request.management)
    chosen = {gpu.index for gpu, _ in outcome.chosen}
    return [
        (one, given.get((gpu.index, one.gi, one.ci), wide if gpu.index in chosen else ""))
        for gpu in outcome.gpus
        for one in instances.of(gpu)
    ]


def _withheld(outcome: Outcome, settings: Config) -> list[tuple[str, str, str]]:
    """Everything that does not go in: the request's own part is in the plan only if it came as far as a plan."""
    found = [("request", name, reason) for name, reason in outcome.request.withheld]
    found += [(one.kind, one.name, one.reason) for one in outcome.plan.withheld]
    if outcome.plan.state == "inject":
        found += [
            ("device", f"MIG device {one.name} ({one.uuid or one.old_name})", _NOT_ASKED)
            for one, origin in _parts(outcome, settings)
            if not origin
        ]
    return list(dict.fromkeys(found))


def _warnings(made: Bundle, outcome: Outcome) -> list[str]:
    """The plan's warnings, and what only a look into the image can tell."""
    from gpu_oci_hook.container import lint

    warnings = [*outcome.plan.warnings, *lint.misspelt(outcome.request.environment)]
    if outcome.rootfs is None or outcome.image is None or outcome.inventory is None:
        return warnings
    sources = {edit.source for edit in outcome.plan.edits if isinstance(edit, Mount)}
    files = [file for file in outcome.inventory.files if file.source in sources]
    mounted = [place for mount in items(made.spec, "mounts") if isinstance(place := member(mount, "destination"), str)]
    warnings += lint.findings(outcome.rootfs, outcome.image, files, outcome.request.environment, mounted)
    if not outcome.image.writable and os.geteuid() != 0:
        warnings.append(
            "this user cannot write the root file system, so this is the plan for a read-only one; "
            "ask as the user that the engine runs as"
        )
    return warnings


def _print_text(made: Bundle, outcome: Outcome, settings: Config, *, changed: bool) -> None:
    request, plan = outcome.request, outcome.plan
    kind, evidence = platform.detect(Host(settings.root), settings.platform)
    output.line(f"bundle        {Path(made.directory).absolute()}")
    output.line(f"platform      {kind}: {'; '.join(evidence)}")
    output.line(f"asked         {request.origin}")
    if request.driver:
        origin = f" ({request.capabilities_origin})" if request.capabilities_origin else ""
        output.line(f"capabilities  {', '.join(request.capabilities)}{origin}")
    for name, text in request.requirements:
        output.line(f"requirement   {name}: {text} ({_checked(request, name, text)})")
    if outcome.inventory:
        output.line(f"driver        {outcome.inventory.version or 'of a version that nothing tells'}")
    counted = ""
    state = plan.state
    if state == "inject" and not request.driver:
        state = "cdi"
    if state == "inject":
        counted = f", {len(outcome.chosen)} of {len(outcome.gpus)} GPU{'' if len(outcome.gpus) == 1 else 's'}"
    if outcome.mig:
        counted += f" ({len(outcome.parents)} of them for {len(outcome.mig)} MIG devices)"
    output.line(f"the container {_STATES.get(state, state)}{counted}")
    warnings = _warnings(made, outcome)
    if warnings:
        output.heading("warnings")
        for sentence in warnings:
            output.line(f"- {sentence}", colour="yellow")
    if outcome.chosen:
        output.heading("GPUs")
        output.gpus([gpu for gpu, _ in outcome.chosen])
    if outcome.mig:
        output.heading("MIG devices")
        output.table(
            ("index", "gi", "ci", "uuid", "asked for by"),
            [(one.name, str(one.gi), str(one.ci), one.uuid or one.old_name, origin) for one, origin in outcome.mig],
        )
    if outcome.cdi:
        output.heading("CDI devices")
        output.table(("device", "file", "asked for by"), outcome.cdi)
    if plan.edits:
        output.heading("goes in" + ("" if changed else " (config.json has it already)"))
        output.line(f"  mount options, where not said otherwise: {explanation.USUAL}")
        if settings.root != "/":
            output.line(f"  sources, where not said otherwise, lie below {settings.root}")
        generated = f"{outcome.bundle}/{pipeline.GENERATED}"
        for title, group in explanation.sections(plan.edits, generated, settings.root):
            output.line(f"  {title}", bold=True)
            _print_group(group, "    ")
    withheld: dict[str, list[str]] = {}
    for kind, name, reason in _withheld(outcome, settings):
        withheld.setdefault(reason, []).append(f"{kind:<9} {name}")
    if withheld:
        output.heading("withheld")
        _print_group(withheld, "  ")


def _print_group(group: explanation.Group, indent: str) -> None:
    for reason, lines in group.items():
        output.line(f"{indent}{reason}:", colour="cyan")
        for text in lines:
            output.line(f"{indent}  {text}")


def _checked(request: Request, name: str, text: str) -> str:
    """What became of a requirement of a container that starts."""
    if request.requirements_off:
        return f"not checked: {request.requirements_off}"
    strangers: list[str] = []
    if not requirements.parse(name, text, strangers):
        return "not checked: it names nothing that we know"
    return "met, as far as we know its words" if strangers else "met"


def _print_diff(made: Bundle, after: dict[str, Any], outcome: Outcome) -> None:
    """The change of config.json as a unified diff, and what is done below the root as lines that patch skips."""
    before = json.dumps(made.spec, indent=2).splitlines()
    planned = json.dumps(after, indent=2).splitlines()
    name = printable(made.path.lstrip("/"))
    for line in difflib.unified_diff(before, planned, f"a/{name}", f"b/{name}", lineterm=""):
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
        output.line(line, colour=colour)
    for edit in outcome.plan.edits:
        if _due(edit, outcome):
            output.line(f"# {edit.kind} {edit.describe()}  ({edit.reason})")


def _due(edit: Edit, outcome: Outcome) -> bool:
    """Whether an edit is one below the root that is not made yet."""
    if outcome.rootfs is None:
        return False
    try:
        if isinstance(edit, Link):
            return outcome.rootfs.readlink(edit.path) != edit.target
        if isinstance(edit, File):
            if edit.mounted:
                place = Path(outcome.bundle, pipeline.GENERATED, generated_name(edit.path))
                return not place.is_file() or place.read_bytes() != edit.content
            return outcome.rootfs.read(edit.path, len(edit.content)) != edit.content
    except (Fault, OSError):
        return True
    return False
