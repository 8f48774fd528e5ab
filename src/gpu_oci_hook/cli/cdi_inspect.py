"""`gpu-oci-hook cdi list` and `cdi resolve`: which devices CDI files define, and what a name brings, or why nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import click

from gpu_oci_hook.cdi.provenance import build_stale_hint
from gpu_oci_hook.cdi.registry.own_devices import OwnDevices
from gpu_oci_hook.cdi.registry.registry import Registry
from gpu_oci_hook.cdi.registry.scan import SpecFile, SpecScan
from gpu_oci_hook.cdi.registry.spec_dirs import locate_spec_dir
from gpu_oci_hook.cdi.registry.staleness import find_spec_mismatch, list_stale_findings
from gpu_oci_hook.cdi.registry.unresolved import find_unresolved_cause
from gpu_oci_hook.cdi.registry.unresolved_query import CdiNameQuery, describe_searched_dirs
from gpu_oci_hook.cdi.resolved_edits import ResolvedEdits
from gpu_oci_hook.cdi.spec.finding import Finding, find_line_number
from gpu_oci_hook.cdi.spec.reading import read_spec_file
from gpu_oci_hook.cdi.spec.validation import find_unmountable_mounts
from gpu_oci_hook.cdi.spec.versions import find_minimum_version, list_reading_engines
from gpu_oci_hook.cdi.translate import translate_cdi_edits
from gpu_oci_hook.cli.config_overrides import ReadOnlyCache, load_command_config
from gpu_oci_hook.cli.findings_report import print_findings
from gpu_oci_hook.cli.printing import print_heading, print_json, print_line, print_table
from gpu_oci_hook.cli.root_command import config_option, format_option
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.oci import get_member
from gpu_oci_hook.host.gpus import read_driver_version
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.model.cdi_edits import AddCdiHook
from gpu_oci_hook.model.edits import Edit
from gpu_oci_hook.request.cdi_requests import get_own_kinds


def _spec_location_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say whose files: of which host, in which directories."""
    command = click.option(
        "--spec-dir",
        "directories",
        metavar="DIR",
        multiple=True,
        help="A directory with CDI files in the place of the config's, wherever the host root is; more than once, the "
        "one that wins last.",
    )(command)
    text = "Another host root than the config's: a host made by simulate."
    return config_option(click.option("--root", metavar="DIR", default="", help=text)(command))


class CdiInspection:
    """What both commands look at: the configuration, the host, and everything in its spec directories."""

    def __init__(self, config_path: str, root: str, directories: tuple[str, ...]) -> None:
        self.settings: Config = load_command_config(config_path, root, "")
        self.host = Host(self.settings.root)
        # Directories that are named here are this process's, as the files are that `generate` and `validate` name;
        # the configuration's lie below the host root, where the runtime looks.
        self.spec_host = Host() if directories else self.host
        if directories:
            self.settings.spec_dirs = tuple(map(os.path.abspath, directories))
        self.driver_version = read_driver_version(self.host)
        self.scan = SpecScan(self.spec_host, self.settings.spec_dirs)
        self.own_devices = OwnDevices(self.host, self.settings, ReadOnlyCache())

    def collect_findings(self, file: SpecFile) -> list[Finding]:
        """What is wrong with a file, each with its line: as `validate` tells it."""
        found = [*file.findings]
        if file.data is not None:
            found += find_unmountable_mounts(file.data, file.path)
            found += list_stale_findings(file.data, file.path, self.host, self.driver_version)
        if all(one.line or not one.where for one in found):
            return found
        lines = read_spec_file(file.real_path).line_numbers
        found = [one if one.line else one._replace(line=find_line_number(lines, one.where)) for one in found]
        return sorted(found, key=lambda one: one.line)

    def describe_without_file(self, name: str) -> str:
        """What our runtime gives for a name without any file; "" when it needs one."""
        return CdiNameQuery(name, self.scan, self.settings, self.own_devices).describe_without_file()


@click.command("list")
@format_option()
@_spec_location_options
def list_cdi_devices(form: str, config_path: str, root: str, directories: tuple[str, ...]) -> None:
    """Every CDI device, the file that it comes from, which engines read that, and what is wrong."""
    machine = CdiInspection(config_path, root, directories)
    if form == "json":
        print_json("cdi-list", _build_listing(machine))
    else:
        _print_listing(machine)


def _build_listing(inspection: CdiInspection) -> dict[str, object]:
    """The list as data; described by cdi-list.schema.json."""
    scan = inspection.scan
    return {
        "directories": [
            {"path": scan.host.full_path(one), "there": bool(locate_spec_dir(scan.host, one))}
            for one in scan.directories
        ],
        "devices": [
            {"name": name, "file": file.path, "wins_over": [one.path for one in scan.shadowed.get(name, [])]}
            for name, (file, _) in sorted(scan.winners.items())
        ],
        "conflicts": [
            {"name": name, "files": [file.path for file in files]} for name, files in sorted(scan.conflicts.items())
        ],
        "files": [
            {
                "path": file.path,
                "valid": file.data is not None,
                "kind": file.kind or None,
                "devices": file.devices,
                "declares": _read_declared_version(file),
                "needs": find_minimum_version(file.unchecked_data)[0] if file.unchecked_data is not None else None,
                "readers": _list_reading_engines(file),
                "findings": [
                    {"level": one.level, "line": one.line, "where": one.where, "text": one.text, "cure": one.hint}
                    for one in inspection.collect_findings(file)
                ],
            }
            for file in scan.files
        ],
        "problems": [{"path": one.file, "text": one.text, "cure": one.hint} for one in scan.problems],
    }


def _read_declared_version(file: SpecFile) -> str | None:
    found = get_member(file.unchecked_data, "cdiVersion")
    return found if isinstance(found, str) else None


def _list_reading_engines(file: SpecFile) -> list[str]:
    """The engines that read a file, each from which version on."""
    declared = _read_declared_version(file)
    return list_reading_engines(declared.removeprefix("v")) if file.data is not None and declared else []


def _print_listing(inspection: CdiInspection) -> None:
    scan = inspection.scan
    if scan.winners:
        rows = []
        for name, (file, _) in sorted(scan.winners.items()):
            over = ", ".join(one.path for one in scan.shadowed.get(name, []))
            rows.append((name, file.path, f"wins over {over}" if over else ""))
        print_table(("device", "file", ""), rows)
    else:
        print_line(f"no CDI file defines a device; looked in {describe_searched_dirs(scan)}")
    if scan.files:
        print_heading("files")
        print_table(
            ("file", "kind", "devices", "CDI", "read by, from that version on"),
            [
                (
                    file.path,
                    file.kind,
                    str(len(file.devices)),
                    _read_declared_version(file) or "",
                    ", ".join(_list_reading_engines(file)) or "-",
                )
                for file in scan.files
            ],
        )
    problems = [*scan.problems]
    for name, files in sorted(scan.conflicts.items()):
        text = f"conflict: none used, since {' and '.join(file.path for file in files)} define it"
        problems.append(Finding("error", name, "", text))
    for file in scan.files:
        problems += [one for one in inspection.collect_findings(file) if one.level != "info"]
    if problems:
        print_heading("problems")
        print_findings(problems, prefix="- ")


@click.command()
@format_option()
@_spec_location_options
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def resolve(form: str, config_path: str, root: str, directories: tuple[str, ...], names: tuple[str, ...]) -> None:
    """What CDI names bring, or why they bring nothing; exit status 1 when one is not resolved by a file that fits.

    Names of our own kind need no file with gpu-oci-runtime: it plans them in memory, as explain shows.
    """
    machine = CdiInspection(config_path, root, directories)
    answers = [_resolve_name(machine, name) for name in dict.fromkeys(names)]
    if form == "json":
        print_json("cdi-resolve", {"names": answers})
    else:
        for answer in answers:
            _print_resolution(machine, answer)
    if not all(answer["resolved"] and not answer["stale"] for answer in answers):
        sys.exit(1)


def _resolve_name(inspection: CdiInspection, name: str) -> dict[str, Any]:
    """All about one name, as data; described by cdi-resolve.schema.json."""
    scan = inspection.scan
    answer: dict[str, Any] = {"name": name, "resolved": name in scan.winners, "file": None, "wins_over": []}
    answer.update(stale=[], edits=[], readers=[], cause=None, in_memory=inspection.describe_without_file(name) or None)
    if name not in scan.winners:
        cause = find_unresolved_cause(name, scan, inspection.settings, inspection.own_devices)
        answer["cause"] = {"code": cause.code, "files": cause.files, "text": cause.text, "cure": cause.hint}
        return answer
    file = scan.winners[name][0]
    parts = _find_spec_parts(inspection, name)
    found = find_spec_mismatch([(part.where, part.edits) for part in parts], inspection.host, inspection.driver_version)
    misfits = []
    if found:
        misfits.append(
            {
                "text": found.describe(),
                "cure": build_stale_hint(file.kind, file.path, get_own_kinds(inspection.settings)),
            }
        )
    else:
        try:
            _build_edits(inspection, name)
        except Fault as fault:  # the container would not start with it
            misfits.append({"text": f"{fault.where}: {fault.what}", "cure": fault.hint})
    answer.update(
        file=file.path,
        wins_over=[one.path for one in scan.shadowed.get(name, [])],
        stale=misfits,
        edits=[{"where": part.where, "containerEdits": part.edits} for part in parts],
        readers=_list_reading_engines(file),
    )
    return answer


def _find_spec_parts(inspection: CdiInspection, name: str) -> list[ResolvedEdits]:
    return Registry(inspection.spec_host, inspection.settings.spec_dirs, ReadOnlyCache()).resolve_devices([name])


def _build_edits(inspection: CdiInspection, name: str) -> list[Edit]:
    """What a name that a file defines brings.

    Raises:
        Fault: something that cannot be given, with its place.
    """
    return translate_cdi_edits(_find_spec_parts(inspection, name), {}, inspection.host, process_in_user_namespace=False)


def _print_resolution(inspection: CdiInspection, answer: dict[str, Any]) -> None:
    name = answer["name"]
    print_line(name, bold=True)
    cause = answer["cause"]
    if cause is not None:
        print_line(f"  unresolvable: {cause['text']}. {cause['cure']}", colour="red")
    else:
        print_line(f"  file      {answer['file']}")
        for path in answer["wins_over"]:
            print_line(f"  wins over {path}: later directory wins: {answer['file']}")
        print_line(f"  read by   {', '.join(answer['readers'])} or later")
        for one in answer["stale"]:
            sentence = f"{one['text']}. {one['cure']}" if one["cure"] else one["text"]
            print_line(f"  cannot be used: {sentence}", colour="red")
        if not answer["stale"]:
            for edit in _build_edits(inspection, name):
                print_line(f"  {edit.kind:<10}{_describe_edit(edit)}")
    if answer["in_memory"]:
        print_line(f"  gpu-oci-runtime needs no file for it: it gives {answer['in_memory']}")


def _describe_edit(edit: Edit) -> str:
    """An edit in a line that one can read: a hook has up to some hundred arguments, which JSON shows."""
    if not isinstance(edit, AddCdiHook):
        return edit.describe()
    words = edit.args[1:]
    # Programs with several hooks are told which by their first words: `nvidia-ctk hook update-ldcache --folder ...`.
    name = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
    called = [word for word in words[:name] if "/" not in word][:2]
    count = len(words) - len(called)
    more = f" with {count} argument{'' if count == 1 else 's'}" if count else ""
    return " ".join([f"{edit.stage}:", edit.path, *called]) + more
