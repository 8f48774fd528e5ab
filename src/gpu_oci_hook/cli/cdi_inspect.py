"""`gpu-oci-hook cdi list` and `cdi resolve`: which devices CDI files define, and what a name brings, or why nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import click

from gpu_oci_hook.cdi import apply, causes, reading, stale, validation, versions
from gpu_oci_hook.cdi.edits import TimedHook
from gpu_oci_hook.cdi.finding import Finding, line_of
from gpu_oci_hook.cdi.ours import Asked, Here, looked
from gpu_oci_hook.cdi.registry import Part, Registry, location
from gpu_oci_hook.cdi.scan import File, Scan
from gpu_oci_hook.cli import findings, output
from gpu_oci_hook.cli.app import config_file, formats
from gpu_oci_hook.cli.common import Silent, settings_for
from gpu_oci_hook.config import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.oci import member
from gpu_oci_hook.host import gpus as host_gpus
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.plan.edits import Edit
from gpu_oci_hook.request.cdi import own_kinds


def _places(command: Callable[..., Any]) -> Callable[..., Any]:
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
    return config_file(click.option("--root", metavar="DIR", default="", help=text)(command))


class Machine:
    """What both commands look at: the configuration, the host, and everything in its spec directories."""

    def __init__(self, config_path: str, root: str, directories: tuple[str, ...]) -> None:
        self.settings: Config = settings_for(config_path, root, "")
        self.host = Host(self.settings.root)
        # Directories that are named here are this process's, as the files are that `generate` and `validate` name;
        # the configuration's lie below the host root, where the runtime looks.
        self.place = Host() if directories else self.host
        if directories:
            self.settings.spec_dirs = tuple(map(os.path.abspath, directories))
        self.version = host_gpus.version(self.host)
        self.scan = Scan(self.place, self.settings.spec_dirs)
        self.here = Here(self.host, self.settings, Silent())

    def findings(self, file: File) -> list[Finding]:
        """What is wrong with a file, each with its line: as `validate` tells it."""
        found = [*file.findings]
        if file.data is not None:
            found += validation.unmade(file.data, file.path)
            found += stale.findings(file.data, file.path, self.host, self.version)
        if all(one.line or not one.where for one in found):
            return found
        lines = reading.read(file.real).lines
        found = [one if one.line else one._replace(line=line_of(lines, one.where)) for one in found]
        return sorted(found, key=lambda one: one.line)

    def in_memory(self, name: str) -> str:
        """What our runtime gives for a name without any file; "" when it needs one."""
        return Asked(name, self.scan, self.settings, self.here).gives()


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
            {"path": scan.host.path(one), "there": bool(location(scan.host, one))} for one in scan.directories
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
                    {"level": one.level, "line": one.line, "where": one.where, "text": one.text, "cure": one.cure}
                    for one in machine.findings(file)
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
        output.line(f"no CDI file defines a device; looked in {looked(scan)}")
    if scan.files:
        output.heading("files")
        output.table(
            ("file", "kind", "devices", "CDI", "read by, from that version on"),
            [
                (file.path, file.kind, str(len(file.devices)), _declared(file) or "", ", ".join(_readers(file)) or "-")
                for file in scan.files
            ],
        )
    problems = [*scan.problems]
    for name, files in sorted(scan.conflicts.items()):
        text = f"conflict: none used, since {' and '.join(file.path for file in files)} define it"
        problems.append(Finding("error", name, "", text))
    for file in scan.files:
        problems += [one for one in machine.findings(file) if one.level != "info"]
    if problems:
        output.heading("problems")
        findings.show(problems, mark="- ")


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
        answer["cause"] = causes.find(name, scan, machine.settings, machine.here)._asdict()
        return answer
    file = scan.winners[name][0]
    parts = _parts(machine, name)
    found = stale.look([(part.where, part.edits) for part in parts], machine.host, machine.version)
    misfits = []
    if found:
        misfits.append({"text": found.text(), "cure": stale.cure(file.kind, file.path, own_kinds(machine.settings))})
    else:
        try:
            _edits(machine, name)
        except Fault as fault:  # the container would not start with it
            misfits.append({"text": f"{fault.where}: {fault.what}", "cure": fault.cure})
    answer.update(
        file=file.path,
        wins_over=[one.path for one in scan.shadowed.get(name, [])],
        stale=misfits,
        edits=[{"where": part.where, "containerEdits": part.edits} for part in parts],
        readers=_readers(file),
    )
    return answer


def _parts(machine: Machine, name: str) -> list[Part]:
    return Registry(machine.place, machine.settings.spec_dirs, Silent()).resolve([name])


def _edits(machine: Machine, name: str) -> list[Edit]:
    """What a name that a file defines brings.

    Raises:
        Fault: something that cannot be given, with its place.
    """
    return apply.edits(_parts(machine, name), {}, machine.host, inside=False)


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
            sentence = f"{one['text']}. {one['cure']}" if one["cure"] else one["text"]
            output.line(f"  cannot be used: {sentence}", colour="red")
        if not answer["stale"]:
            for edit in _edits(machine, name):
                output.line(f"  {edit.kind:<10}{_described(edit)}")
    if answer["in_memory"]:
        output.line(f"  gpu-oci-runtime needs no file for it: it gives {answer['in_memory']}")


def _described(edit: Edit) -> str:
    """An edit in a line that one can read: a hook has up to some hundred arguments, which JSON shows."""
    if not isinstance(edit, TimedHook):
        return edit.describe()
    words = edit.args[1:]
    # Programs with several hooks are told which by their first words: `nvidia-ctk hook update-ldcache --folder ...`.
    name = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
    called = [word for word in words[:name] if "/" not in word][:2]
    count = len(words) - len(called)
    more = f" with {count} argument{'' if count == 1 else 's'}" if count else ""
    return " ".join([f"{edit.stage}:", edit.path, *called]) + more
