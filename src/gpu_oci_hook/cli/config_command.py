"""`gpu-oci-hook config`: show the effective configuration, print the default file, and check a file.

Import budget: cold.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import click

from gpu_oci_hook.cli.common_options import config_option, format_option, quiet_option
from gpu_oci_hook.cli.config_host_check import check_config_against_host
from gpu_oci_hook.cli.lazy_group import SuggestingGroup
from gpu_oci_hook.cli.printing import DATA_FORMS, print_data, print_document, print_line, print_warning
from gpu_oci_hook.config.findings import ConfigFinding
from gpu_oci_hook.config.keys import KEYS, USER_FILE_KEYS, Config
from gpu_oci_hook.config.load import find_config_path, parse_config, read_config_file, read_named_config
from gpu_oci_hook.config.toml_document import find_key_lines, parse_toml_document
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
@click.argument("file", required=False, default="")
def validate(form: str, file: str) -> None:
    """Check a config file.

    Default: the config file in effect. Exit status 1 if it has an error. Valid values that do not fit this host are
    warnings.
    """
    path = file or find_config_path()
    try:
        data = read_config_file(path) if file else read_named_config(path)
        if data is None and file:
            raise Fault("there is no such file", where=file)
        findings, warnings = _check_config(data, path)
    except Fault as fault:
        if form not in DATA_FORMS:
            raise
        _print_findings_data(form, path, [_fault_to_data(fault)], [])
        sys.exit(1)
    if form in DATA_FORMS:
        _print_findings_data(form, path, [_finding_to_data(finding) for finding in findings], warnings)
    else:
        for finding in findings:
            print_line(f"{path}: {finding}", colour="red")
        if not findings:
            print_line(f"{path}: valid" if data is not None else f"{path} {_MISSING_FILE}")
        for warning in warnings:
            print_warning(warning)
    if findings:
        sys.exit(1)


def _check_config(data: bytes | None, path: str) -> tuple[list[ConfigFinding], list[str]]:
    """Return the findings about a config file, and the warnings about this host if no value is wrong."""
    if data is None:
        return [], check_config_against_host(Config())
    from gpu_oci_hook.config.schema_findings import find_schema_findings

    findings = find_schema_findings(*parse_toml_document(data, path))
    if any(finding.kind == "wrong" for finding in findings):
        return findings, []
    return findings, check_config_against_host(parse_config(data, path))


def _print_findings_data(form: str, path: str, findings: list[dict[str, object]], warnings: list[str]) -> None:
    content = {"path": path, "valid": not findings, "findings": findings, "warnings": warnings}
    print_data(form, "config-findings", content)


def _finding_to_data(finding: ConfigFinding) -> dict[str, object]:
    return {"key": finding.key, "line": finding.line, "column": 0, "kind": finding.kind, "what": finding.what}


def _fault_to_data(fault: Fault) -> dict[str, object]:
    """Return a file that cannot be read or parsed as a finding. Only a TomlFault has a position."""
    position = {"line": getattr(fault, "line", 0), "column": getattr(fault, "column", 0)}
    return {"key": "", **position, "kind": "unreadable", "what": str(fault)}
