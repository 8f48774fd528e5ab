"""`gpu-oci-hook cdi resolve`: show the edits of CDI devices, or why they are unresolvable.

Import budget: cold.
"""

from __future__ import annotations

import shlex
import sys
from typing import Any

import click

from gpu_oci_hook.cdi.provenance import build_stale_hint
from gpu_oci_hook.cdi.registry.registry import Registry
from gpu_oci_hook.cdi.registry.staleness import find_spec_mismatch
from gpu_oci_hook.cdi.registry.unresolved import find_unresolved_cause
from gpu_oci_hook.cdi.resolved_edits import ResolvedEdits, list_part_devices
from gpu_oci_hook.cdi.translate import translate_cdi_edits
from gpu_oci_hook.cli.cdi_inspection import CdiInspection, list_spec_readers, spec_location_options
from gpu_oci_hook.cli.command_config import ReadOnlyCache
from gpu_oci_hook.cli.common_options import format_option, quiet_option, verbose_option
from gpu_oci_hook.cli.printing import DATA_FORMS, print_data, print_line
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.model.cdi_edits import AddCdiHook, SortMounts
from gpu_oci_hook.model.edits import Edit
from gpu_oci_hook.request.cdi_requests import get_own_kinds


@click.command()
@format_option()
@quiet_option
@verbose_option("Print every argument of a hook.")
@spec_location_options
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def resolve(
    form: str,
    verbose: bool,
    config_path: str,
    root: str,
    directories: tuple[str, ...],
    names: tuple[str, ...],
) -> None:
    """Show the edits of CDI devices, or why they are unresolvable.

    Exit status 1 if a name is not resolved by a file that fits this host. Names of the kind in [cdi] default-kind need
    no file with gpu-oci-runtime, which resolves them without a file; see explain.
    """
    inspection = CdiInspection(config_path, root, directories)
    answers = [_resolve_name(inspection, name) for name in dict.fromkeys(names)]
    if form in DATA_FORMS:
        print_data(form, "cdi-resolve", {"names": answers})
    else:
        for answer in answers:
            _print_resolution(inspection, answer, every_argument=verbose)
    if not all(answer["resolved"] and not answer["stale"] for answer in answers):
        sys.exit(1)


def _resolve_name(inspection: CdiInspection, name: str) -> dict[str, Any]:
    """Build the JSON form of one name, which cdi-resolve.schema.json describes."""
    scan = inspection.scan
    answer: dict[str, Any] = {"name": name, "resolved": name in scan.winners, "file": None, "wins_over": []}
    answer.update(stale=[], edits=[], readers=[], cause=None, in_memory=inspection.describe_without_file(name) or None)
    if name not in scan.winners:
        cause = find_unresolved_cause(name, scan, inspection.settings, inspection.own_devices)
        answer["cause"] = {"code": cause.code, "files": cause.files, "text": cause.text, "cure": cause.hint}
        return answer
    file = scan.winners[name][0]
    parts = _find_spec_parts(inspection, name)
    answer.update(
        file=file.path,
        wins_over=[other.path for other in scan.shadowed.get(name, [])],
        stale=_find_misfits(inspection, name, parts),
        edits=[{"where": part.where, "containerEdits": part.edits} for part in parts],
        readers=list_spec_readers(file),
    )
    return answer


def _find_misfits(inspection: CdiInspection, name: str, parts: list[ResolvedEdits]) -> list[dict[str, str]]:
    """Return the reason why a device does not fit this host, with a hint; [] if it does."""
    edits_by_part: list[tuple[str, object]] = [(part.where, part.edits) for part in parts]
    mismatch = find_spec_mismatch(edits_by_part, inspection.host, inspection.driver_version, list_part_devices(parts))
    if mismatch:
        file = inspection.scan.winners[name][0]
        hint = build_stale_hint(
            file.kind, file.path, get_own_kinds(inspection.settings), missing_program=mismatch.missing_program
        )
        return [{"text": mismatch.describe(), "cure": hint}]
    try:
        _build_edits(inspection, name)
    except Fault as fault:  # a container with this device does not start
        return [{"text": f"{fault.where}: {fault.what}", "cure": fault.hint}]
    return []


def _find_spec_parts(inspection: CdiInspection, name: str) -> list[ResolvedEdits]:
    return Registry(inspection.spec_host, inspection.settings.spec_dirs, ReadOnlyCache()).resolve_devices([name])


def _build_edits(inspection: CdiInspection, name: str) -> list[Edit]:
    """Build the edits of a device that a file defines.

    Raises:
        Fault: an edit cannot be made on this host.
    """
    return translate_cdi_edits(_find_spec_parts(inspection, name), {}, inspection.host, process_in_user_namespace=False)


def _print_resolution(inspection: CdiInspection, answer: dict[str, Any], *, every_argument: bool) -> None:
    name = answer["name"]
    print_line(name, bold=True)
    cause = answer["cause"]
    if cause is not None:
        print_line(f"  unresolvable: {cause['text']}. {cause['cure']}", colour="red")
    else:
        print_line(f"  file      {answer['file']}")
        for path in answer["wins_over"]:
            print_line(f"  overrides {path}, because its directory comes later")
        print_line(f"  read by   {', '.join(answer['readers'])} or later")
        for misfit in answer["stale"]:
            sentence = f"{misfit['text']}. {misfit['cure']}" if misfit["cure"] else misfit["text"]
            print_line(f"  cannot be used: {sentence}", colour="red")
        if not answer["stale"]:
            for edit in _build_edits(inspection, name):
                if isinstance(edit, SortMounts):
                    continue  # says nothing about the device
                print_line(f"  {edit.kind:<10}{_describe_edit(edit, every_argument=every_argument)}")
    if answer["in_memory"]:
        print_line(f"  gpu-oci-runtime resolves this name without a CDI file and injects {answer['in_memory']}")


def _describe_edit(edit: Edit, *, every_argument: bool) -> str:
    """Describe an edit in a short line. A hook can have hundreds of arguments, which are only counted."""
    if not isinstance(edit, AddCdiHook):
        return edit.describe()
    arguments = edit.args[1:]
    if every_argument:
        return f"{edit.stage}: {shlex.join((edit.path, *arguments))}"
    # Programs with several hooks select one by their first arguments: `nvidia-ctk hook update-ldcache --folder ...`.
    first_flag = next((index for index, argument in enumerate(arguments) if argument.startswith("-")), len(arguments))
    command = [argument for argument in arguments[:first_flag] if "/" not in argument][:2]
    count = len(arguments) - len(command)
    suffix = f" with {count} argument{'' if count == 1 else 's'}" if count else ""
    return " ".join([f"{edit.stage}:", edit.path, *command]) + suffix
