"""Check CDI files and directories for `cdi validate`.

Import budget: cold.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from gpu_oci_hook.cdi.provenance import (
    build_generate_hint,
    build_refresh_command,
    is_own_spec_file,
    read_incomplete_reason,
)
from gpu_oci_hook.cdi.registry.spec_dirs import SPEC_SUFFIXES, locate_spec_dir
from gpu_oci_hook.cdi.registry.staleness import list_stale_findings
from gpu_oci_hook.cdi.spec.finding import Finding, Level, find_line_number
from gpu_oci_hook.cdi.spec.reading import read_spec_file
from gpu_oci_hook.cdi.spec.validation import find_unmountable_mounts, validate_spec
from gpu_oci_hook.errors import describe_os_error
from gpu_oci_hook.formats.oci import get_member
from gpu_oci_hook.host.gpus import read_driver_version
from gpu_oci_hook.host.root import Host


class EngineLimit(NamedTuple):
    """What the engine that must read a file supports.

    Attributes:
        max_version: the greatest CDI version, "" for any.
        engine: the engine's name and version, "" if only a version is given.
        generate_option: the option of `cdi generate` that writes a file for this engine.
    """

    max_version: str
    engine: str
    generate_option: str


class FileReport(NamedTuple):
    """The findings about one file.

    Attributes:
        is_read: whether engines read a file of this name.
        data: the file's content, None if it cannot be parsed.
    """

    path: str
    is_read: bool
    data: object
    findings: list[Finding]

    @property
    def is_valid(self) -> bool:
        """Whether no finding is an error."""
        return not any(finding.level == "error" for finding in self.findings)


def validate_path(path: str, limit: EngineLimit, host: Host | None) -> list[FileReport]:
    """Check a file, or every entry of a directory.

    Arguments:
        host: the host that must have what the files name, None to skip that check.
    """
    if os.path.isdir(path):
        return _validate_directory(path, limit, host)
    report = _validate_file(path, limit, host)
    if path.endswith(SPEC_SUFFIXES) or report.data is None:
        return [report]
    return [report._replace(is_read=False, findings=[build_ignored_finding(path, "warning"), *report.findings])]


def validate_spec_dirs(
    spec_host: Host, directories: tuple[str, ...], limit: EngineLimit, host: Host | None
) -> list[FileReport]:
    """Check every file in the configured directories. One that does not exist is no error: engines skip it.

    Arguments:
        spec_host: the host below whose root the directories lie.
        host: see `validate_path`.
    """
    reports: list[FileReport] = []
    for directory in directories:
        path = spec_host.full_path(directory)
        if locate_spec_dir(spec_host, directory):
            reports += validate_path(path, limit, host)
        elif spec_host.stat_path(directory, follow=False) is None:
            reports.append(FileReport(path, False, None, [Finding("info", path, "", "does not exist")]))
        else:
            text = "is not a directory, or is a symbolic link: engines do not read it"
            reports.append(FileReport(path, False, None, [Finding("warning", path, "", text)]))
    return reports


def _validate_directory(path: str, limit: EngineLimit, host: Host | None) -> list[FileReport]:
    try:
        with os.scandir(path) as directory:
            # scanSpecDirs of pkg/cdi reads a directory by name and without subdirectories. A link to a directory is
            # read as a file and fails.
            entries = sorted(
                (entry for entry in directory if not entry.is_dir(follow_symlinks=False)), key=lambda entry: entry.name
            )
    except OSError as error:
        finding = Finding("error", path, "", f"cannot be read: {describe_os_error(error)}")
        return [FileReport(path, False, None, [finding])]
    reports = [
        _validate_file(entry.path, limit, host)
        if entry.name.endswith(SPEC_SUFFIXES)
        else FileReport(entry.path, False, None, [build_ignored_finding(entry.path, "info")])
        for entry in entries
    ]
    if not any(report.is_read for report in reports):
        reports.append(FileReport(path, False, None, [Finding("info", path, "", "has no .yaml or .json file")]))
    return reports


def list_ignored_files(directory: str) -> list[str]:
    """List the names in a spec directory that engines do not read, without subdirectories."""
    try:
        with os.scandir(directory) as entries:
            return sorted(
                entry.name
                for entry in entries
                if not entry.name.endswith(SPEC_SUFFIXES) and not entry.is_dir(follow_symlinks=False)
            )
    except OSError:
        return []


def build_ignored_finding(path: str, level: Level) -> Finding:
    """Build the finding about a file whose name no engine reads."""
    stem = path.removesuffix(".yml")
    hint = f"Rename it to {os.path.basename(stem)}.yaml" if stem != path else ""
    return Finding(level, path, "", "is ignored by engines, which read only .json and .yaml", hint)


def _validate_file(path: str, limit: EngineLimit, host: Host | None) -> FileReport:
    document = read_spec_file(path)
    findings = document.findings
    if document.data is not None:
        findings += validate_spec(
            document.data,
            path,
            maximum=limit.max_version,
            reader=limit.engine,
            rewrite_hint=_suggest_rewrite_command(document.data, path, limit),
            line_numbers=document.line_numbers,
        )
        findings += find_unmountable_mounts(document.data, path, line_numbers=document.line_numbers)
        findings += _check_readability(path) + _check_completeness(document.data, path)
        if host is not None:
            findings += [
                finding._replace(line=find_line_number(document.line_numbers, finding.where))
                for finding in list_stale_findings(document.data, path, host, read_driver_version(host))
            ]
    return FileReport(path, True, document.data, sorted(findings, key=lambda finding: finding.line))


def _check_completeness(data: object, path: str) -> list[Finding]:
    """Warn about a file that was written with --allow-incomplete. Engines accept it, but CUDA fails in containers."""
    reason = read_incomplete_reason(data, path)
    if not reason:
        return []
    hint = f"When the host has them, run: {build_refresh_command(path)}"
    return [Finding("warning", path, "", f"is incomplete, written with --allow-incomplete: {reason}", hint)]


def _suggest_rewrite_command(data: object, path: str, limit: EngineLimit) -> str:
    """Return the command that writes the file for the engine, "" for a file that gpu-oci-hook did not write."""
    kind = get_member(data, "kind")
    if not limit.max_version or not isinstance(kind, str) or not is_own_spec_file(path):
        return ""
    return build_generate_hint(kind, path, limit.generate_option)


def _check_readability(path: str) -> list[Finding]:
    """Report a file that other users cannot read. Rootless engines then call its devices unresolvable.

    Some generators write their files with mode 0600.
    """
    try:
        mode = os.stat(path).st_mode & 0o7777
    except OSError:
        return []
    if mode & 0o004:
        return []
    text = f"has mode {mode:04o}, so rootless engines of other users cannot read it"
    return [Finding("info", path, "", text, "Run chmod 0644")]
