"""`gpu-oci-hook config`: show the effective configuration, print the default file, and check a file.

Import budget: cold.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import click

from gpu_oci_hook.cli.command_config import require_config_file
from gpu_oci_hook.cli.common_options import config_option, format_option, quiet_option, strict_option
from gpu_oci_hook.cli.config_host_check import check_config_against_host
from gpu_oci_hook.cli.lazy_group import SuggestingGroup
from gpu_oci_hook.cli.printing import (
    DATA_FORMS,
    is_quiet,
    print_data,
    print_document,
    print_line,
    print_progress,
    print_warning,
)
from gpu_oci_hook.config.findings import ConfigFinding, locate_findings
from gpu_oci_hook.config.keys import KEYS, USER_FILE_KEYS, Config
from gpu_oci_hook.config.load import find_config_path, parse_config, read_config_file, read_named_config
from gpu_oci_hook.config.toml_document import TomlFault, find_key_lines, parse_toml_document
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.toml_values import format_toml

_MISSING_FILE = "is missing; using defaults"


@click.group(cls=SuggestingGroup)
def config() -> None:
    """Show, check and document the configuration."""


class _ConfigValue(NamedTuple):
    """An effective value, and the line that sets it or "default"."""

    table: str
    key: str
    value: object
    origin: str


@config.command()
@format_option()
@quiet_option
@config_option
def show(form: str, config_path: str) -> None:
    """Print the effective values and where each comes from.

    The text form is itself a config file.
    """
    require_config_file(config_path)
    path = config_path or find_config_path()
    data = read_named_config(path)
    values, warnings = _list_config_values(data, path)
    for warning in warnings:
        print_warning(warning)
    if form in DATA_FORMS:
        tables: dict[str, dict[str, object]] = {}
        for row in values:
            tables.setdefault(row.table, {})[row.key] = {"value": row.value, "origin": row.origin}
        print_data(form, "config", {"path": path if data is not None else None, "values": tables})
        return
    print_line(f"# {path}" + ("" if data is not None else f" {_MISSING_FILE}"))
    table = ""
    for row in values:
        if row.table != table:
            table = row.table
            print_line("")
            print_line(f"[{table}]")
        colour = "green" if row.origin != "default" else None
        print_line(f"{f'{row.key} = {format_toml(row.value)}':<50}  # {row.origin}", colour=colour)


def _list_config_values(data: bytes | None, path: str) -> tuple[list[_ConfigValue], tuple[str, ...]]:
    """List the effective values of a config file, and its warnings.

    Arguments:
        data: the bytes of the file, None for the defaults.
    """
    settings, key_lines = Config(), {}
    if data is not None:
        settings = parse_config(data, path)
        key_lines = find_key_lines(parse_toml_document(data, path)[1])
    values = []
    for table, key, default, rule in KEYS:
        value = getattr(settings, key.replace("-", "_"))
        line = key_lines.get((table, key)) or (key_lines.get((table,)) if value != default else 0)
        if rule == "user files":
            value = [_select_non_default_keys(file) for file in value]
        values.append(_ConfigValue(table, key, value, f"{path}:{line}" if line else "default"))
    return values, settings.warnings


def _select_non_default_keys(values: tuple[object, ...]) -> dict[str, object]:
    """Return the keys of a table of [[inject.extra]] that differ from their defaults."""
    rows = zip(USER_FILE_KEYS, values, strict=True)
    return {key: value for (key, default, _), value in rows if value != default}


@config.command()
def default() -> None:
    """Print a commented config file with every key."""
    from gpu_oci_hook.config.reference import render_default_config

    print_document(render_default_config())


@config.command()
@format_option()
@quiet_option
@strict_option
@config_option
@click.argument("file", required=False, default="")
def validate(form: str, strict: bool, config_path: str, file: str) -> None:
    """Check a config file.

    Default: the config file in effect. Exit status 1 if there is an error. Unknown keys, and valid values that do not
    fit this host, are warnings.
    """
    if file and config_path and file != config_path:
        raise click.UsageError(f"two files are named, {config_path} and {file}")
    named = file or config_path
    path = named or find_config_path()
    try:
        data = read_config_file(path) if named else read_named_config(path)
        if data is None and named:
            raise Fault("no such file", where=file or f"--config {config_path}")
    except Fault as fault:
        if form not in DATA_FORMS:
            raise
        _print_findings_data(form, path, [_fault_to_data(fault)], [])
        sys.exit(1)
    try:
        findings = _check_config(data, path)
    except Fault as fault:  # a file that is not valid TOML
        if form in DATA_FORMS:
            _print_findings_data(form, path, [_fault_to_data(fault)], [])
        else:
            _print_syntax_error(fault)
        sys.exit(1)
    if form in DATA_FORMS:
        of_file = [_finding_to_data(finding) for finding in findings if finding.kind != "host"]
        _print_findings_data(form, path, of_file, [str(finding) for finding in findings if finding.kind == "host"])
    else:
        _print_findings_text(findings, path, missing=data is None, with_warnings=strict or not is_quiet())
    if any(strict or finding.level == "error" for finding in findings):
        sys.exit(1)


def _check_config(data: bytes | None, path: str) -> list[ConfigFinding]:
    """Return the findings about a config file, and those about this host if no value is wrong."""
    if data is None:
        return locate_findings(check_config_against_host(Config()), "")
    from gpu_oci_hook.config.schema_findings import find_schema_findings

    document, text = parse_toml_document(data, path)
    findings = find_schema_findings(document, text)
    if any(finding.level == "error" for finding in findings):
        return findings
    host_findings = locate_findings(check_config_against_host(parse_config(data, path)), text)
    return sorted([*findings, *host_findings], key=lambda finding: finding.line)


def _print_syntax_error(fault: Fault) -> None:
    """Print a file that cannot be parsed as a finding, with the line and the column if they are known."""
    what = f"{fault.what}. {fault.hint}" if fault.hint else fault.what
    print_line(f"{fault.where}: error: {what}", colour="red")
    if isinstance(fault, TomlFault):
        print_document(f"{fault.format_caret()}\n")


def _print_findings_text(findings: list[ConfigFinding], path: str, *, missing: bool, with_warnings: bool) -> None:
    for finding in findings:
        if finding.level == "error" or with_warnings:
            line = f"{finding.format_place(path)}: {finding.level}: {finding}"
            print_line(line, colour="red" if finding.level == "error" else "yellow")
    if missing:
        print_progress(f"{path} {_MISSING_FILE}")
    elif all(finding.level != "error" for finding in findings):
        print_progress(f"{path}: valid")


def _print_findings_data(form: str, path: str, findings: list[dict[str, object]], warnings: list[str]) -> None:
    valid = all(finding["level"] != "error" for finding in findings)
    content = {"path": path, "valid": valid, "findings": findings, "warnings": warnings}
    print_data(form, "config-findings", content)


def _finding_to_data(finding: ConfigFinding) -> dict[str, object]:
    return {
        "level": finding.level,
        "key": finding.key,
        "line": finding.line,
        "column": 0,
        "kind": finding.kind,
        "what": finding.what,
    }


def _fault_to_data(fault: Fault) -> dict[str, object]:
    """Return a file that cannot be read or parsed as a finding. Only a TomlFault has a position."""
    position = {"line": getattr(fault, "line", 0), "column": getattr(fault, "column", 0)}
    return {"level": "error", "key": "", **position, "kind": "unreadable", "what": str(fault)}
