"""`gpu-oci-hook cdi validate`: every fault of CDI files, before an engine says "unresolvable"."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

import click

from gpu_oci_hook.cdi.provenance import (
    build_generate_hint,
    build_refresh_command,
    is_own_spec_file,
    read_incomplete_reason,
)
from gpu_oci_hook.cdi.registry.spec_dirs import SPEC_SUFFIXES
from gpu_oci_hook.cdi.registry.staleness import list_stale_findings
from gpu_oci_hook.cdi.spec.finding import Finding, Level, find_line_number
from gpu_oci_hook.cdi.spec.reading import read_spec_file
from gpu_oci_hook.cdi.spec.validation import find_unmountable_mounts, validate_spec
from gpu_oci_hook.cdi.spec.versions import (
    KNOWN_VERSIONS,
    find_engine_max_version,
    find_minimum_version,
    is_newer_version,
    list_reading_engines,
)
from gpu_oci_hook.cli.config_overrides import load_command_config
from gpu_oci_hook.cli.findings_report import print_findings
from gpu_oci_hook.cli.printing import print_json, print_line
from gpu_oci_hook.cli.root_command import config_option, format_option
from gpu_oci_hook.errors import Fault, clip_text, describe_os_error, make_printable
from gpu_oci_hook.formats.oci import get_member
from gpu_oci_hook.host.gpus import read_driver_version
from gpu_oci_hook.host.root import Host


class EngineLimit(NamedTuple):
    """What the engine in question reads.

    max_version: the greatest CDI version, "" for any. engine: the engine's name. generate_option: of `cdi generate`, for a file
    that this engine reads.
    """

    max_version: str
    engine: str
    generate_option: str


class FileReport(NamedTuple):
    """What there is to say of one file. is_read: whether engines read it at all. data: its content, or None."""

    path: str
    is_read: bool
    data: object
    findings: list[Finding]

    @property
    def is_valid(self) -> bool:
        """Whether nothing is an error."""
        return not any(one.level == "error" for one in self.findings)


@click.command()
@format_option()
@click.option("--target", metavar="ENGINE-VERSION", default="", help="An engine that must read it, as podman-4.3.")
@click.option("--max-version", metavar="VERSION", default="", help="The greatest CDI version that it may need.")
@click.option("--no-host", "portable", is_flag=True, help="Do not ask whether this host has what a file names.")
@click.option("--root", metavar="DIR", default="", help="Another host root than the config's: one made by simulate.")
@config_option
@click.argument("paths", metavar="FILE|DIR...", nargs=-1, required=True)
def validate(
    form: str, target: str, max_version: str, portable: bool, root: str, config_path: str, paths: tuple[str, ...]
) -> None:
    """Check CDI files, and all those of a directory that engines read; exit status 1 when there is an error.

    An error is what makes engines refuse the whole file, or containers fail that get its devices: a mount that no
    runtime makes, and on this host another driver than it was made for, missing paths, other device numbers. Warnings
    are what older engines stumble over, and what does not do what it seems to say.
    """
    host = None if portable else Host(load_command_config(config_path, root, "").root)
    limit = _parse_limit(target, max_version)
    reports = [report for path in paths for report in _validate_path(path, limit, host)]
    if form == "json":
        told = [_report_to_json(report) for report in reports if not os.path.isdir(report.path) or not report.is_valid]
        valid = all(report.is_valid for report in reports)
        print_json("cdi-validate", {"valid": valid, "max_version": limit.max_version or None, "files": told})
    else:
        for report in reports:
            _print_report(report)
    if not all(report.is_valid for report in reports):
        sys.exit(1)


def _parse_limit(target: str, max_version: str) -> EngineLimit:
    """What the options say; of two the lesser version.

    Raises:
        click.BadParameter: one of them names nothing that is known.
    """
    if max_version and max_version not in KNOWN_VERSIONS:
        cure = f"Known are {', '.join(KNOWN_VERSIONS)}"
        text = f"{clip_text(max_version)!r} is no version of CDI. {cure}"
        raise click.BadParameter(make_printable(text), param_hint="--max-version")
    if not target:
        return EngineLimit(max_version, "", f"--max-version {max_version}")
    try:
        greatest = find_engine_max_version(target)
    except Fault as fault:
        raise click.BadParameter(str(fault), param_hint="--target") from fault
    if max_version and is_newer_version(greatest, max_version):
        return EngineLimit(max_version, "", f"--max-version {max_version}")
    return EngineLimit(greatest, target.lower().replace("-", " ", 1), f"--target {target.lower()}")


def _validate_path(path: str, limit: EngineLimit, host: Host | None) -> list[FileReport]:
    """The reports on a file, or on everything in a directory."""
    if not os.path.isdir(path):
        report = _validate_file(path, limit, host)
        if path.endswith(SPEC_SUFFIXES) or report.data is None:
            return [report]
        return [report._replace(is_read=False, findings=[_ignored_finding(path, "warning"), *report.findings])]
    try:
        with os.scandir(path) as found:
            # pkg/cdi, scanSpecDirs: by name, flat; what is a link to a directory is read and fails.
            entries = sorted((one for one in found if not one.is_dir(follow_symlinks=False)), key=lambda one: one.name)
    except OSError as error:
        return [
            FileReport(path, False, None, [Finding("error", path, "", f"cannot be read: {describe_os_error(error)}")])
        ]
    reports = [
        _validate_file(entry.path, limit, host)
        if entry.name.endswith(SPEC_SUFFIXES)
        else FileReport(entry.path, False, None, [_ignored_finding(entry.path, "info")])
        for entry in entries
    ]
    if not any(report.is_read for report in reports):
        reports.append(FileReport(path, False, None, [Finding("info", path, "", "no .yaml or .json in it")]))
    return reports


def _ignored_finding(path: str, level: Level) -> Finding:
    stem = path.removesuffix(".yml")
    cure = f"Call it {os.path.basename(stem)}.yaml" if stem != path else ""
    return Finding(level, path, "", "is ignored by engines, which read .json and .yaml only", cure)


def _validate_file(path: str, limit: EngineLimit, host: Host | None) -> FileReport:
    """Reads one file and says everything about it."""
    document = read_spec_file(path)
    found = document.findings
    if document.data is not None:
        found += validate_spec(
            document.data,
            path,
            maximum=limit.max_version,
            reader=limit.engine,
            rewrite_hint=_suggest_rewrite_command(document.data, path, limit),
            line_numbers=document.line_numbers,
        )
        found += find_unmountable_mounts(document.data, path, line_numbers=document.line_numbers)
        found += _check_readability(path) + _check_completeness(document.data, path)
        if host is not None:
            found += [
                one._replace(line=find_line_number(document.line_numbers, one.where))
                for one in list_stale_findings(document.data, path, host, read_driver_version(host))
            ]
    return FileReport(path, True, document.data, sorted(found, key=lambda one: one.line))


def _check_completeness(data: object, path: str) -> list[Finding]:
    """What the file was written without, since somebody insisted: engines take it, and CUDA fails in the container."""
    lacking = read_incomplete_reason(data, path)
    if not lacking:
        return []
    cure = f"When the machine has it: {build_refresh_command(path)}"
    return [Finding("warning", path, "", f"is incomplete, written with --allow-incomplete: {lacking}", cure)]


def _suggest_rewrite_command(data: object, path: str, limit: EngineLimit) -> str:
    """How a file is written for the engine in question; "" for one that our generator has not written."""
    kind = get_member(data, "kind")
    if not limit.max_version or not isinstance(kind, str) or not is_own_spec_file(path):
        return ""
    return build_generate_hint(kind, path, limit.generate_option)


def _check_readability(path: str) -> list[Finding]:
    """Who cannot read it: some generators leave files at 0600, and rootless engines then say "unresolvable"."""
    try:
        mode = os.stat(path).st_mode & 0o7777
    except OSError:
        return []
    if mode & 0o004:
        return []
    text = f"has the mode {mode:04o}: rootless engines of other users cannot read it"
    return [Finding("info", path, "", text, "chmod 0644")]


def _print_report(report: FileReport) -> None:
    print_findings(report.findings)
    if report.is_valid and report.data is not None:
        facts = _summarize_spec(report.data)
        devices = "1 device" if facts["devices"] == 1 else f"{facts['devices']} devices"
        needs = "" if facts["declares"] == facts["needs"] else f" (needs {facts['needs']})"
        readers = ", ".join(list_reading_engines(str(facts["declares"]).removeprefix("v")))
        read = f", read by {readers} or later" if report.is_read else ""
        print_line(f"{report.path}: valid: {devices} of {facts['kind']}, CDI {facts['declares']}{needs}{read}")


def _summarize_spec(data: object) -> dict[str, object]:
    """What a file is, whatever it is."""
    spec = data if isinstance(data, dict) else {}
    needs, why = find_minimum_version(data)
    devices = spec.get("devices")
    return {
        "kind": _text_or_none(spec.get("kind")),
        "devices": len(devices) if isinstance(devices, list) else 0,
        "declares": _text_or_none(spec.get("cdiVersion")),
        "needs": needs,
        "needs_because": why,
    }


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _report_to_json(report: FileReport) -> dict[str, object]:
    said = [
        {"level": one.level, "line": one.line, "where": one.where, "text": one.text, "cure": one.hint}
        for one in report.findings
    ]
    facts = _summarize_spec(report.data) if report.data is not None else None
    return {"path": report.path, "read": report.is_read, "valid": report.is_valid, "file": facts, "findings": said}
