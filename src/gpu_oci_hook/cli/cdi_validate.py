"""`gpu-oci-hook cdi validate`: report every problem of CDI files before an engine calls a device unresolvable.

Import budget: cold.
"""

from __future__ import annotations

import os
import sys

import click

from gpu_oci_hook.cdi.spec.versions import (
    HOOKLESS_CLIENTS,
    find_engine_max_version,
    find_minimum_version,
    is_newer_version,
    list_reading_engines,
    parse_known_version,
)
from gpu_oci_hook.cli.cdi_file_report import EngineLimit, FileReport, validate_path, validate_spec_dirs
from gpu_oci_hook.cli.command_config import load_command_config
from gpu_oci_hook.cli.common_options import (
    config_option,
    format_option,
    quiet_option,
    root_option,
    strict_option,
    verbose_option,
)
from gpu_oci_hook.cli.engine_target import EngineTarget
from gpu_oci_hook.cli.findings_report import finding_to_json, print_findings
from gpu_oci_hook.cli.printing import DATA_FORMS, is_quiet, print_data, print_progress
from gpu_oci_hook.cli.usage_errors import raise_usage_faults
from gpu_oci_hook.host.root import Host


@click.command()
@format_option()
@quiet_option
@verbose_option("Print every finding, not only the first one of each cause.")
@strict_option
@click.option(
    "--target",
    type=EngineTarget(),
    metavar="ENGINE[-VERSION]",
    help="Engine that must read the files, for example podman-4.3. Without a version, that of the installed engine.",
)
@click.option("--max-version", metavar="VERSION", default="", help="Greatest CDI version that the files may need.")
@click.option("--no-host", "portable", is_flag=True, help="Do not check that this host has what the files name.")
@root_option
@config_option
@click.argument("paths", metavar="[FILE|DIR...]", nargs=-1)
def validate(
    form: str,
    verbose: bool,
    strict: bool,
    target: str | None,
    max_version: str,
    portable: bool,
    root: str,
    config_path: str,
    paths: tuple[str, ...],
) -> None:
    """Check CDI files, and all files of a directory that engines read; exit status 1 if there is an error.

    Default: the directories in [cdi] spec-dirs.

    An error makes engines refuse the whole file, or makes containers with its devices fail: a mount without bind or
    rbind, a file for another driver version, missing paths, other device numbers on this host. A warning is something
    that older engines reject or that has another effect than it seems.
    """
    limit = _parse_limit(target or "", max_version)
    settings = None if portable and paths else load_command_config(config_path, root, "")
    host = None if portable or settings is None else Host(settings.root)
    if paths or settings is None:
        reports = [report for path in paths for report in validate_path(path, limit, host)]
    else:
        reports = validate_spec_dirs(Host(settings.root), settings.spec_dirs, limit, host)
    valid = all(report.is_valid for report in reports)
    if form in DATA_FORMS:
        files = [report for report in reports if not os.path.isdir(report.path) or not report.is_valid]
        content: dict[str, object] = {
            "valid": valid,
            "max_version": limit.max_version or None,
            "target": target or None,
            "files": [_report_to_json(report) for report in files],
        }
        print_data(form, "cdi-validate", content)
    else:
        for report in reports:
            _print_report(report, every_finding=verbose, with_warnings=strict or not is_quiet())
    if not valid or (strict and any(finding.level == "warning" for report in reports for finding in report.findings)):
        sys.exit(1)


def _parse_limit(target: str, max_version: str) -> EngineLimit:
    """Return the limit that the options set, the lesser one if both are given.

    Raises:
        UsageFault: an option names an unknown engine or version.
    """
    if max_version:
        with raise_usage_faults():
            max_version = parse_known_version(max_version, "--max-version")
    if not target or target in HOOKLESS_CLIENTS:
        return EngineLimit(max_version, "", f"--max-version {max_version}")
    with raise_usage_faults("--target"):
        engine_version = find_engine_max_version(target)
    if max_version and is_newer_version(engine_version, max_version):
        return EngineLimit(max_version, "", f"--max-version {max_version}")
    return EngineLimit(engine_version, target.lower().replace("-", " ", 1), f"--target {target.lower()}")


def _print_report(report: FileReport, *, every_finding: bool, with_warnings: bool) -> None:
    levels = ("error", "warning") if with_warnings else ("error",)
    shown = [finding for finding in report.findings if finding.level in levels or not is_quiet()]
    print_findings(shown, every_finding=every_finding)
    if report.is_valid and report.data is not None:
        summary = _summarize_spec(report.data)
        devices = "1 device" if summary["devices"] == 1 else f"{summary['devices']} devices"
        needs = "" if summary["declares"] == summary["needs"] else f" (needs {summary['needs']})"
        readers = ", ".join(list_reading_engines(str(summary["declares"]).removeprefix("v")))
        read_by = f", read by {readers} or later" if report.is_read else ""
        print_progress(
            f"{report.path}: valid: {devices} of {summary['kind']}, CDI {summary['declares']}{needs}{read_by}"
        )


def _report_to_json(report: FileReport) -> dict[str, object]:
    """Return the JSON form of one file, which cdi-validate.schema.json describes."""
    return {
        "path": report.path,
        "read": report.is_read,
        "valid": report.is_valid,
        "file": _summarize_spec(report.data) if report.data is not None else None,
        "findings": [finding_to_json(finding) for finding in report.findings],
    }


def _summarize_spec(data: object) -> dict[str, object]:
    """Return kind, number of devices and versions of a file, whatever its content."""
    spec = data if isinstance(data, dict) else {}
    needs, reason = find_minimum_version(data)
    devices = spec.get("devices")
    return {
        "kind": _text_or_none(spec.get("kind")),
        "devices": len(devices) if isinstance(devices, list) else 0,
        "declares": _text_or_none(spec.get("cdiVersion")),
        "needs": needs,
        "needs_because": reason,
    }


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None
