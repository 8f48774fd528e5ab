"""`gpu-oci-hook config`: what holds, what could be said, and whether a file says it right."""

from __future__ import annotations

import json
import os
import stat
import sys
import textwrap
from importlib import resources
from typing import Any

import click

from gpu_oci_hook.cli.common_options import config_option, format_option
from gpu_oci_hook.cli.printing import format_toml, print_document, print_json, print_line, print_warning
from gpu_oci_hook.config.check import check_config_document, find_key_lines, parse_toml_document
from gpu_oci_hook.config.keys import KEYS, USER_FILE_KEYS, Config
from gpu_oci_hook.config.load import find_config_path, parse_config, read_config_file, read_named_config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.inject.gather import get_driver_host
from gpu_oci_hook.shim.low_level_runtime import find_low_level_runtime

_HEADER_COMMENT = """\
Configuration of gpu-oci-hook: /etc/gpu-oci-hook/config.toml, or the file that GPU_OCI_HOOK_CONFIG names.

The first may be missing, and every key may be left out. The values below are the defaults; take the "#" away \
where you want another. `gpu-oci-hook config validate` checks a file, `gpu-oci-hook config show` prints what holds.\
"""


@click.group()
def config() -> None:
    """Show, check and document the configuration."""


@config.command()
@format_option()
@config_option
def show(form: str, config_path: str) -> None:
    """Print the values that hold, and where each comes from.

    The text form is itself a config file.
    """
    path = config_path or find_config_path()
    data = read_named_config(path)
    where: dict[tuple[str, ...], int] = {}
    effective = Config()
    if data is not None:
        effective = parse_config(data, path)
        where = find_key_lines(parse_toml_document(data, path)[1])
    for sentence in effective.warnings:
        print_warning(sentence)
    rows: dict[str, list[tuple[str, object, str]]] = {}
    for table, key, default, rule in KEYS:
        value = getattr(effective, key.replace("-", "_"))
        if value and rule == "files":
            value = [_select_non_default_keys(entry) for entry in value]
        number = where.get((table, key)) or (where.get((table,)) if value != default else 0)
        rows.setdefault(table, []).append((key, value, f"{path}:{number}" if number else "default"))
    if form == "json":
        values = {
            table: {key: {"value": value, "origin": origin} for key, value, origin in entries}
            for table, entries in rows.items()
        }
        print_json("config", {"path": path if data is not None else None, "values": values})
        return
    print_line(f"# {path}" + ("" if data is not None else " is missing: the defaults hold"))
    for table, entries in rows.items():
        print_line("")
        print_line(f"[{table}]")
        for key, value, origin in entries:
            colour = "green" if origin != "default" else None
            print_line(f"{f'{key} = {format_toml(value)}':<50}  # {origin}", colour=colour)


@config.command()
def default() -> None:
    """Print the commented default file: every key, its meaning and its default."""
    print_document(render_default_config())


@config.command()
@format_option()
@click.argument("file", required=False, default="")
def validate(form: str, file: str) -> None:
    """Check FILE, or the config file that holds; exit status 1 when something is wrong with it.

    What the file says rightly and this machine does not have is a warning.
    """
    path = file or find_config_path()
    findings: list[dict[str, object]] = []
    doubts: list[str] = []
    fault: Fault | None = None
    missing = False
    try:
        data = read_config_file(path) if file else read_named_config(path)
        missing = data is None
        if missing and file:
            raise Fault("there is no such file", where=file)
        found = check_config_document(*parse_toml_document(data, path)) if data is not None else []
        if not any(one.kind == "wrong" for one in found):
            doubts = _check_against_machine(parse_config(data, path) if data is not None else Config())
        findings = [
            {"key": one.key, "line": one.line, "column": 0, "kind": one.kind, "what": one.what} for one in found
        ]
    except Fault as error:
        if form == "text":
            raise
        fault = error
        place = {"line": getattr(error, "line", 0), "column": getattr(error, "column", 0)}
        findings = [{"key": "", **place, "kind": "unreadable", "what": str(error)}]
    if form == "json":
        print_json("config-findings", {"path": path, "valid": not findings, "findings": findings, "warnings": doubts})
    elif fault is None:
        for one in found:
            print_line(f"{path}: {one}", colour="red")
        if not found:
            print_line(f"{path} is missing: the defaults hold" if missing else f"{path}: valid")
        for sentence in doubts:
            print_warning(sentence)
    if findings:
        sys.exit(1)


def _check_against_machine(settings: Config) -> list[str]:
    """What a valid configuration names and this machine does not have, one sentence each."""
    host = Host(settings.root)
    driver = get_driver_host(host, settings)
    found = []
    if not _is_directory(host, "/"):
        found.append(f"host.root: {settings.root} is not a directory")
    elif not _is_directory(driver, "/"):
        found.append(f"host.driver-root: {driver.root} is not a directory (now)")
    else:
        for path in settings.library_paths:
            if not _is_directory(driver, path):
                found.append(f"host.library-paths: {driver.full_path(path)} is not a directory")
    for place, values in enumerate(settings.extra):
        path = str(values[0])
        if host.stat_path(path) is None:
            found.append(f"inject.extra[{place}].path: {host.full_path(path)} is missing")
    usual = Config()  # what it names is on few machines
    named = [
        ("inject.mps-pipe-directory", settings.mps_pipe_directory),
        ("inject.mps-log-directory", settings.mps_log_directory),
        ("inject.mps-shm", settings.mps_shm),
        ("host.csv-directory", settings.csv_directory if settings.csv_directory != usual.csv_directory else ""),
        *(("cdi.spec-dirs", path) for path in settings.spec_dirs if path not in usual.spec_dirs),
    ]
    for key, path in named:
        if path and not _is_directory(host, path):
            found.append(f"{key}: {host.full_path(path)} is not a directory")
    try:
        find_low_level_runtime(settings.low_level)
    except Fault as fault:
        found.append(f"runtime.low-level: {fault.what}")
    above = os.path.dirname(settings.log_file)
    if above and not os.path.isdir(above):
        found.append(f"runtime.log-file: there is no directory {above}")
    supported = settings.supported_capabilities
    if "all" not in supported:
        refused = [word for word in settings.default_capabilities if word != "all" and word not in supported]
        if refused:
            found.append(f"request.default-capabilities: {', '.join(refused)} not among request.supported-capabilities")
    return found


def _is_directory(host: Host, path: str) -> bool:
    status = host.stat_path(path)
    return status is not None and stat.S_ISDIR(status.st_mode)


def _select_non_default_keys(values: tuple[object, ...]) -> dict[str, object]:
    """What a table of [[inject.extra]] says beside the defaults."""
    rows = zip(USER_FILE_KEYS, values, strict=True)
    return {key: value for (key, default, _), value in rows if value != default}


def load_config_schema() -> dict[str, Any]:
    """The JSON schema of config.toml."""
    text = resources.files("gpu_oci_hook.config").joinpath("config.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def render_default_config() -> str:
    """The commented default file, written out of the schema; config/config.toml is this text."""
    document = load_config_schema()
    words = document["$defs"]["capability"]["enum"]
    text = _format_comment(_HEADER_COMMENT)
    for table, content in document["properties"].items():
        text += f"\n{_format_comment(content['description'])}[{table}]\n"
        for key, rule in content["properties"].items():
            capabilities = rule.get("items") == {"$ref": "#/$defs/capability"}
            choices = words if capabilities else rule.get("enum", [])
            quoted = [format_toml(word) for word in choices]
            offer = f" One of {', '.join(quoted[:-1])} or {quoted[-1]}." if quoted else ""
            text += f"\n{_format_comment(rule['description'] + offer)}#{key} = {format_toml(rule['default'])}\n"
    return text


def _format_comment(text: str) -> str:
    """The text as comment lines; an empty line stays a comment."""
    paragraphs = text.split("\n\n")
    wrapped = ["\n".join(textwrap.wrap(part, 104, break_on_hyphens=False)) for part in paragraphs]
    return "".join(f"# {one}".rstrip() + "\n" for one in "\n\n".join(wrapped).split("\n"))
