"""`gpu-oci-hook cdi list` and `cdi resolve`: which devices CDI files define, and what a name brings, or why nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from gpu_oci_hook.cdi import apply, causes, stale, versions
from gpu_oci_hook.cdi.finding import Finding
from gpu_oci_hook.cdi.registry import Part, Registry, location
from gpu_oci_hook.cdi.scan import File, Scan
from gpu_oci_hook.cli import output
from gpu_oci_hook.cli.app import config_file, formats
from gpu_oci_hook.cli.common import Silent, settings_for
from gpu_oci_hook.config import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.oci import member
from gpu_oci_hook.host import gpus as host_gpus
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.request import Ask, devices
from gpu_oci_hook.request.cdi import own_kinds, sort


def _places(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say whose files: of which host, in which directories."""
    command = click.option(
        "--spec-dir",
        "directories",
        metavar="DIR",
        multiple=True,
        help="A directory with CDI files in the place of the config's; more than once, the one that wins last.",
    )(command)
    text = "Another host root than the config's: a host made by simulate."
    return config_file(click.option("--root", metavar="DIR", default="", help=text)(command))


class Machine:
    """What both commands look at: the configuration, the host, and everything in its spec directories."""

    def __init__(self, config_path: str, root: str, directories: tuple[str, ...]) -> None:
        self.settings: Config = settings_for(config_path, root, "")
        if directories:
            wrong = next((one for one in directories if not one.startswith("/")), "")
            if wrong:
                raise Fault("the directory is not an absolute path", where=wrong, cure="Name it from the host root")
            self.settings.spec_dirs = directories
        self.host = Host(self.settings.root)
        self.version = host_gpus.version(self.host)
        self.scan = Scan(self.host, self.settings.spec_dirs)

    def stale(self, file: File) -> list[Finding]:
        """What in a file does not fit the host."""
        return stale.findings(file.data, file.path, self.host, self.version)

    def in_memory(self, name: str) -> str:
        """What our runtime gives for a name without any file; "" when it needs one."""
        if causes.kind_of(name) not in own_kinds(self.settings):
            return ""
        asks, _ = sort([Ask(name, name)], self.settings)
        word = asks[0].word
        if word == "none":
            return "the driver's files without a GPU"
        gpus, _ = host_gpus.gpus(self.host)
        try:
            found = devices.matching(asks[0], gpus)
        except Fault:
            return ""
        return ", ".join(f"GPU {gpu.index} ({gpu.uuid})" for gpu in found)


@click.command("list")
@formats()
@_places
def list_(form: str, config_path: str, root: str, directories: tuple[str, ...]) -> None:
    """Every CDI device, the file that it comes from, which engines read that, and what is wrong."""
    machine = Machine(config_path, root, directories)
    if form == "json":
        output.json_document("cdi-list", _listing(machine))
    else:
        _print_listing(machine)


def _listing(machine: Machine) -> dict[str, object]:
    """The list as data; described by cdi-list.schema.json."""
    scan = machine.scan
    return {
        "directories": [
            {"path": machine.host.path(one), "there": bool(location(machine.host, one))} for one in scan.directories
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
                "declares": _declared(file),
                "needs": versions.needed(file.raw)[0] if file.raw is not None else None,
                "readers": _readers(file),
                "findings": [
                    {"level": one.level, "where": one.where, "text": one.text, "cure": one.cure}
                    for one in [*file.findings, *machine.stale(file)]
                ],
            }
            for file in scan.files
        ],
        "problems": [{"path": one.file, "text": one.text, "cure": one.cure} for one in scan.problems],
    }


def _declared(file: File) -> str | None:
    found = member(file.raw, "cdiVersion")
    return found if isinstance(found, str) else None


def _readers(file: File) -> list[str]:
    """The engines that read a file, each from which version on."""
    declared = _declared(file)
    return versions.readers(declared.removeprefix("v")) if file.data is not None and declared else []


def _print_listing(machine: Machine) -> None:
    scan = machine.scan
    if scan.winners:
        rows = []
        for name, (file, _) in sorted(scan.winners.items()):
            over = ", ".join(one.path for one in scan.shadowed.get(name, []))
            rows.append((name, file.path, f"wins over {over}" if over else ""))
        output.table(("device", "file", ""), rows)
    else:
        looked = ", ".join(machine.host.path(one) for one in scan.directories)
        output.line(f"no CDI file defines a device; looked in {looked}")
    if scan.files:
        output.heading("files")
        output.table(
            ("file", "kind", "devices", "CDI", "read by, from that version on"),
            [
                (file.path, file.kind, str(len(file.devices)), _declared(file) or "", ", ".join(_readers(file)) or "-")
                for file in scan.files
            ],
        )
    problems = [str(one) for one in scan.problems]
    for name, files in sorted(scan.conflicts.items()):
        problems.append(f"{name}: conflict: none used, since {' and '.join(file.path for file in files)} define it")
    for file in scan.files:
        problems += [str(one) for one in [*file.findings, *machine.stale(file)] if one.level != "info"]
    if problems:
        output.heading("problems")
        for sentence in problems:
            output.line(f"- {sentence}", colour="yellow")


@click.command()
@formats()
@_places
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def resolve(form: str, config_path: str, root: str, directories: tuple[str, ...], names: tuple[str, ...]) -> None:
    """What CDI names bring, or why they bring nothing; exit status 1 when one is not resolved by a file that fits.

    Names of our own kind need no file with gpu-oci-runtime: it plans them in memory, as explain shows.
    """
    machine = Machine(config_path, root, directories)
    answers = [_answer(machine, name) for name in dict.fromkeys(names)]
    if form == "json":
        output.json_document("cdi-resolve", {"names": answers})
    else:
        for answer in answers:
            _print_answer(machine, answer)
    if not all(answer["resolved"] and not answer["stale"] for answer in answers):
        sys.exit(1)


def _answer(machine: Machine, name: str) -> dict[str, Any]:
    """All about one name, as data; described by cdi-resolve.schema.json."""
    scan = machine.scan
    answer: dict[str, Any] = {"name": name, "resolved": name in scan.winners, "file": None, "wins_over": []}
    answer.update(stale=[], edits=[], readers=[], cause=None, in_memory=machine.in_memory(name) or None)
    if name not in scan.winners:
        answer["cause"] = causes.find(name, scan, machine.settings)._asdict()
        return answer
    file = scan.winners[name][0]
    parts = _parts(machine, name)
    found = stale.look([(part.where, part.edits) for part in parts], machine.host, machine.version)
    answer.update(
        file=file.path,
        wins_over=[one.path for one in scan.shadowed.get(name, [])],
        stale=[{"text": found.text(), "cure": stale.cure(file.kind, file.path)}] if found else [],
        edits=[{"where": part.where, "containerEdits": part.edits} for part in parts],
        readers=_readers(file),
    )
    return answer


def _parts(machine: Machine, name: str) -> list[Part]:
    return Registry(machine.host, machine.settings.spec_dirs, Silent()).resolve([name])


def _print_answer(machine: Machine, answer: dict[str, Any]) -> None:
    name = answer["name"]
    output.line(name, bold=True)
    cause = answer["cause"]
    if cause is not None:
        output.line(f"  unresolvable: {cause['text']}. {cause['cure']}", colour="red")
    else:
        output.line(f"  file      {answer['file']}")
        for path in answer["wins_over"]:
            output.line(f"  wins over {path}: later directory wins: {answer['file']}")
        output.line(f"  read by   {', '.join(answer['readers'])} or later")
        for one in answer["stale"]:
            output.line(f"  does not fit this host: {one['text']}. {one['cure']}", colour="red")
        _print_edits(machine, name)
    if answer["in_memory"]:
        output.line(f"  gpu-oci-runtime needs no file for it: it gives {answer['in_memory']}")


def _print_edits(machine: Machine, name: str) -> None:
    try:
        made = apply.edits(_parts(machine, name), {}, machine.host, inside=False)
    except Fault as fault:
        output.line(f"  cannot be applied: {fault}", colour="red")
        return
    for edit in made:
        output.line(f"  {edit.kind:<10}{edit.describe()}")
