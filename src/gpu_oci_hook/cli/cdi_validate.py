"""`gpu-oci-hook cdi validate`: every fault of CDI files, before an engine says "unresolvable"."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

import click

from gpu_oci_hook.cdi import finding, origin, reading, stale, validation, versions
from gpu_oci_hook.cdi.finding import Finding, Level
from gpu_oci_hook.cli import findings, output
from gpu_oci_hook.cli.app import config_file, formats
from gpu_oci_hook.cli.common import settings_for
from gpu_oci_hook.errors import Fault, clipped, printable, words
from gpu_oci_hook.formats.oci import member
from gpu_oci_hook.host import gpus
from gpu_oci_hook.host.root import Host


class Limit(NamedTuple):
    """What the engine in question reads.

    version: the greatest CDI version, "" for any. reader: the engine's name. option: of `cdi generate`, for a file
    that this engine reads.
    """

    version: str
    reader: str
    option: str


class Report(NamedTuple):
    """What there is to say of one file. read: whether engines read it at all. data: its content, or None."""

    path: str
    read: bool
    data: object
    findings: list[Finding]

    @property
    def valid(self) -> bool:
        """Whether nothing is an error."""
        return not any(one.level == "error" for one in self.findings)


@click.command()
@formats()
@click.option("--target", metavar="ENGINE-VERSION", default="", help="An engine that must read it, as podman-4.3.")
@click.option("--max-version", metavar="VERSION", default="", help="The greatest CDI version that it may need.")
@click.option("--no-host", "portable", is_flag=True, help="Do not ask whether this host has what a file names.")
@click.option("--root", metavar="DIR", default="", help="Another host root than the config's: one made by simulate.")
@config_file
@click.argument("paths", metavar="FILE|DIR...", nargs=-1, required=True)
def validate(
    form: str, target: str, max_version: str, portable: bool, root: str, config_path: str, paths: tuple[str, ...]
) -> None:
    """Check CDI files, and all those of a directory that engines read; exit status 1 when there is an error.

    An error is what makes engines refuse the whole file, or containers fail that get its devices: a mount that no
    runtime makes, and on this host another driver than it was made for, missing paths, other device numbers. Warnings
    are what older engines stumble over, and what does not do what it seems to say.
    """
    host = None if portable else Host(settings_for(config_path, root, "").root)
    limit = _limit(target, max_version)
    reports = [report for path in paths for report in _reports(path, limit, host)]
    if form == "json":
        told = [_json(report) for report in reports if not os.path.isdir(report.path) or not report.valid]
        valid = all(report.valid for report in reports)
        output.json_document("cdi-validate", {"valid": valid, "max_version": limit.version or None, "files": told})
    else:
        for report in reports:
            _print(report)
    if not all(report.valid for report in reports):
        sys.exit(1)


def _limit(target: str, max_version: str) -> Limit:
    """What the options say; of two the lesser version.

    Raises:
        click.BadParameter: one of them names nothing that is known.
    """
    if max_version and max_version not in versions.KNOWN:
        cure = f"Known are {', '.join(versions.KNOWN)}"
        text = f"{clipped(max_version)!r} is no version of CDI. {cure}"
        raise click.BadParameter(printable(text), param_hint="--max-version")
    if not target:
        return Limit(max_version, "", f"--max-version {max_version}")
    try:
        greatest = versions.greatest(target)
    except Fault as fault:
        raise click.BadParameter(str(fault), param_hint="--target") from fault
    if max_version and versions.greater(greatest, max_version):
        return Limit(max_version, "", f"--max-version {max_version}")
    return Limit(greatest, target.lower().replace("-", " ", 1), f"--target {target.lower()}")


def _reports(path: str, limit: Limit, host: Host | None) -> list[Report]:
    """The reports on a file, or on everything in a directory."""
    if not os.path.isdir(path):
        report = _report(path, limit, host)
        if path.endswith(reading.SUFFIXES) or report.data is None:
            return [report]
        return [report._replace(read=False, findings=[_ignored(path, "warning"), *report.findings])]
    try:
        with os.scandir(path) as found:
            # pkg/cdi, scanSpecDirs: by name, flat; what is a link to a directory is read and fails.
            entries = sorted((one for one in found if not one.is_dir(follow_symlinks=False)), key=lambda one: one.name)
    except OSError as error:
        return [Report(path, False, None, [Finding("error", path, "", f"cannot be read: {words(error)}")])]
    reports = [
        _report(entry.path, limit, host)
        if entry.name.endswith(reading.SUFFIXES)
        else Report(entry.path, False, None, [_ignored(entry.path, "info")])
        for entry in entries
    ]
    if not any(report.read for report in reports):
        reports.append(Report(path, False, None, [Finding("info", path, "", "no .yaml or .json in it")]))
    return reports


def _ignored(path: str, level: Level) -> Finding:
    stem = path.removesuffix(".yml")
    cure = f"Call it {os.path.basename(stem)}.yaml" if stem != path else ""
    return Finding(level, path, "", "is ignored by engines, which read .json and .yaml only", cure)


def _report(path: str, limit: Limit, host: Host | None) -> Report:
    """Reads one file and says everything about it."""
    document = reading.read(path)
    found = document.findings
    if document.data is not None:
        found += validation.findings(
            document.data,
            path,
            maximum=limit.version,
            reader=limit.reader,
            anew=_anew(document.data, path, limit),
            lines=document.lines,
        )
        found += validation.unmade(document.data, path, lines=document.lines)
        found += _access(path) + _incomplete(document.data, path)
        if host is not None:
            found += [
                one._replace(line=finding.line_of(document.lines, one.where))
                for one in stale.findings(document.data, path, host, gpus.version(host))
            ]
    return Report(path, True, document.data, sorted(found, key=lambda one: one.line))


def _incomplete(data: object, path: str) -> list[Finding]:
    """What the file was written without, since somebody insisted: engines take it, and CUDA fails in the container."""
    lacking = origin.lacking(data, path)
    if not lacking:
        return []
    cure = f"When the machine has it: gpu-oci-hook cdi refresh --output {path}"
    return [Finding("warning", path, "", f"is incomplete, written with --allow-incomplete: {lacking}", cure)]


def _anew(data: object, path: str, limit: Limit) -> str:
    """How a file is written for the engine in question; "" for one that our generator has not written."""
    kind = member(data, "kind")
    if not limit.version or not isinstance(kind, str) or not origin.is_ours(path):
        return ""
    return stale.anew(kind, path, limit.option)


def _access(path: str) -> list[Finding]:
    """Who cannot read it: some generators leave files at 0600, and rootless engines then say "unresolvable"."""
    try:
        mode = os.stat(path).st_mode & 0o7777
    except OSError:
        return []
    if mode & 0o004:
        return []
    text = f"has the mode {mode:04o}: rootless engines of other users cannot read it"
    return [Finding("info", path, "", text, "chmod 0644")]


def _print(report: Report) -> None:
    findings.show(report.findings)
    if report.valid and report.data is not None:
        facts = _facts(report.data)
        devices = "1 device" if facts["devices"] == 1 else f"{facts['devices']} devices"
        needs = "" if facts["declares"] == facts["needs"] else f" (needs {facts['needs']})"
        readers = ", ".join(versions.readers(str(facts["declares"]).removeprefix("v")))
        read = f", read by {readers} or later" if report.read else ""
        output.line(f"{report.path}: valid: {devices} of {facts['kind']}, CDI {facts['declares']}{needs}{read}")


def _facts(data: object) -> dict[str, object]:
    """What a file is, whatever it is."""
    spec = data if isinstance(data, dict) else {}
    needs, why = versions.needed(data)
    devices = spec.get("devices")
    return {
        "kind": _text(spec.get("kind")),
        "devices": len(devices) if isinstance(devices, list) else 0,
        "declares": _text(spec.get("cdiVersion")),
        "needs": needs,
        "needs_because": why,
    }


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _json(report: Report) -> dict[str, object]:
    said = [
        {"level": one.level, "line": one.line, "where": one.where, "text": one.text, "cure": one.cure}
        for one in report.findings
    ]
    facts = _facts(report.data) if report.data is not None else None
    return {"path": report.path, "read": report.read, "valid": report.valid, "file": facts, "findings": said}
