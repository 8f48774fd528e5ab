"""Check CDI files for the cause of an unresolvable name: conflicts, invalid, unreadable and ignored files.

`unresolved` has the table of these checks.

Import budget: cold.
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook.cdi.registry.scan import SpecScan
from gpu_oci_hook.cdi.registry.spec_dirs import MAX_SPEC_FILES, SPEC_SUFFIXES, locate_spec_dir
from gpu_oci_hook.cdi.registry.unresolved_query import CdiNameQuery, UnresolvedCause
from gpu_oci_hook.cdi.spec.finding import Finding
from gpu_oci_hook.cdi.spec.reading import read_spec_file
from gpu_oci_hook.errors import clip_text
from gpu_oci_hook.formats.oci import get_list, get_member
from gpu_oci_hook.host.root import Host

# Directories that hold CDI files on some hosts and may not be scanned: they are not configured, or /run/cdi is not
# /var/run/cdi because /var/run is not a link to /run.
_UNSCANNED_SPEC_DIRS = ("/etc/cdi", "/var/run/cdi", "/run/cdi", "/usr/local/etc/cdi", "/usr/share/cdi")

# Subdirectories of one spec directory that are searched.
_MAX_SUBDIRECTORIES = 64


def check_conflict(query: CdiNameQuery) -> UnresolvedCause | None:
    """Check whether two files of one directory define the name."""
    name, scan = query.name, query.scan
    files = scan.conflicts.get(name)
    if files is None:
        return None
    paths = tuple(file.path for file in files)
    text = f"{' and '.join(paths)} both define it, so neither is used"
    later_paths = [
        file.path for file in scan.files if name in file.list_qualified_names() and file.path not in paths and file.data
    ]
    if later_paths:
        text += f", nor {later_paths[-1]} in a later directory"
    return UnresolvedCause("conflict", paths, text, f"Keep only one of them: rm {paths[0]}")


def check_empty_device(query: CdiNameQuery) -> UnresolvedCause | None:
    """Check whether a file is invalid because a device in it has no edits."""
    for file in query.list_invalid_definitions():
        for index, device in enumerate(get_list(file.unchecked_data, "devices")):
            if isinstance(device, dict) and not device.get("containerEdits"):
                device_name = clip_text(str(device.get("name", index)))
                where = f"{file.path}: devices[{index}].containerEdits"
                text = f"{where}: device {device_name} has no containerEdits, which makes the whole file invalid"
                return UnresolvedCause(
                    "no-edits", (file.path,), text, "Add an edit to the device, or remove the device"
                )
    return None


def check_invalid_file(query: CdiNameQuery) -> UnresolvedCause | None:
    """Check whether an invalid file would define the name."""
    for file in query.list_invalid_definitions():
        error = file.errors[0]
        more = f" and {len(file.errors) - 1} more errors" if len(file.errors) > 1 else ""
        where = f"{error.where}: " if error.where else ""
        text = f"{file.path}, which would define it, is invalid: {where}{error.text}{more}"
        return UnresolvedCause("invalid", (file.path,), text, _hint_of_error(error, file.path))
    return None


def check_ignored_suffix(query: CdiNameQuery) -> UnresolvedCause | None:
    """Check whether a file defines the name, and engines ignore it because of its suffix."""
    scan = query.scan
    for directory in scan.directories:
        local_directory = locate_spec_dir(scan.host, directory)
        if not local_directory:
            continue
        for entry in scan.host.list_names(directory)[:MAX_SPEC_FILES]:
            suffix = next((known for known in (".yml", ".yaml", ".json") if known in entry), "")
            if not suffix or entry.endswith(SPEC_SUFFIXES):
                continue
            if not _is_defined_in_file(f"{local_directory}/{entry}", query.name):
                continue
            path = scan.host.full_path(f"{directory}/{entry}")
            new_path = f"{path[: path.rindex(suffix)]}{'.json' if suffix == '.json' else '.yaml'}"
            text = f"{path} defines it and is ignored: only .json and .yaml are read"
            return UnresolvedCause("suffix", (path,), text, f"Run: mv {path} {new_path}")
    return None


def check_unscanned_directory(query: CdiNameQuery) -> UnresolvedCause | None:
    """Check whether a file defines the name in a directory that is not scanned."""
    scan, host = query.scan, query.scan.host
    seen = {host.resolve_path(directory) or directory for directory in _list_scanned_directories(scan)}
    for directory in (*scan.directories, *_UNSCANNED_SPEC_DIRS, *_list_subdirectories(scan)):
        real_path = host.resolve_path(directory)
        if real_path is None or real_path in seen:
            continue
        seen.add(real_path)
        for file in SpecScan(host, (real_path,)).files:
            if query.name in file.list_qualified_names():
                reason = _explain_unscanned(directory, scan)
                text = f"{file.path} defines it: directory not scanned{f' ({reason})' if reason else ''}"
                return UnresolvedCause("directory", (file.path,), text, _suggest_scanned_directory(directory, scan))
    return None


def _list_scanned_directories(scan: SpecScan) -> list[str]:
    return [directory for directory in scan.directories if locate_spec_dir(scan.host, directory)]


def _list_subdirectories(scan: SpecScan) -> list[str]:
    """List the directories below the spec directories, which engines do not read."""
    return [
        f"{directory}/{entry}"
        for directory in _list_scanned_directories(scan)
        for entry in scan.host.list_names(directory)[:_MAX_SUBDIRECTORIES]
        if os.path.isdir(f"{locate_spec_dir(scan.host, directory)}/{entry}")
    ]


def _explain_unscanned(directory: str, scan: SpecScan) -> str:
    """Explain why a directory is not scanned; "" if it just is not configured."""
    if directory == "/run/cdi" and "/var/run/cdi" in scan.directories:
        return "/var/run is not a link to /run here"
    if directory in scan.directories:
        return "it is a symbolic link, and engines read real directories only"
    return ""


def _suggest_scanned_directory(directory: str, scan: SpecScan) -> str:
    host = scan.host
    if directory in scan.directories:
        return f"Replace the symbolic link {host.full_path(directory)} by a directory"
    configured = ", ".join(f'"{known}"' for known in (*scan.directories, directory))
    return f"Move it to {_last_directory(host, scan)}, or set [cdi] spec-dirs = [{configured}]"


def _last_directory(host: Host, scan: SpecScan) -> str:
    return host.full_path(scan.directories[-1])


def check_unreadable_file(query: CdiNameQuery) -> UnresolvedCause | None:
    """Check whether this user cannot read a directory or file that may define the name."""
    for problem in query.scan.problems:
        if problem.hint.startswith("Run: chmod"):
            return UnresolvedCause("unreadable", (problem.file,), f"{problem.file}: {problem.text}", problem.hint)
    unreadable = [file for file in query.scan.files if not os.access(file.real_path, os.R_OK)]
    for file in query.sort_by_file_name(unreadable):
        if file.status is None:
            continue  # a dangling link
        mode, owner = stat.S_IMODE(file.status.st_mode), file.status.st_uid
        details = f"mode {mode:04o}, owned by user {owner}"
        text = f"{file.path} exists, but user {os.geteuid()} cannot read it ({details})"
        return UnresolvedCause("unreadable", (file.path,), text, f"Run: chmod 0644 {file.path}")
    return None


def check_unparsable_file(query: CdiNameQuery) -> UnresolvedCause | None:
    """Check whether a file that cannot be parsed is named after the vendor, and so may define the name."""
    vendor = query.kind.partition("/")[0]
    for file in query.sort_by_file_name([file for file in query.scan.files if file.errors and not file.kind]):
        if vendor not in file.path and vendor.partition(".")[0] not in file.path.rpartition("/")[2]:
            continue
        error = file.errors[0]
        text = f"{file.path}, which may define it, cannot be used: {error.text}"
        return UnresolvedCause("invalid", (file.path,), text, _hint_of_error(error, file.path))
    return None


def check_unquoted_name(query: CdiNameQuery) -> UnresolvedCause | None:
    """Check whether YAML reads an unquoted device name, such as yes, as something else."""
    start = f"{query.device} without quotes is read as "
    for file in query.scan.files:
        for finding in file.findings:
            if file.kind == query.kind and finding.where.endswith("].name") and finding.text.startswith(start):
                text = f"{file.path}:{finding.line}: {finding.where}: {finding.text}, so the device is called that"
                return UnresolvedCause("device", (file.path,), text, finding.hint)
    return None


def _hint_of_error(error: Finding, path: str) -> str:
    return error.hint or f"See: gpu-oci-hook cdi validate {path}"


def _is_defined_in_file(path: str, name: str) -> bool:
    """Tell whether a file that is not scanned defines a name, valid or not."""
    document = read_spec_file(path)
    kind = get_member(document.data, "kind")
    return any(f"{kind}={get_member(device, 'name')}" == name for device in get_list(document.data, "devices"))
