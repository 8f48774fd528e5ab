"""Read and check every CDI file of a host: its devices, which file wins, conflicts and findings.

`registry` caches the available devices. `cdi list` and `cdi resolve` show the rest.

Import budget: cold.
"""

from __future__ import annotations

import os
import stat
import time

from gpu_oci_hook.cdi.registry.spec_dirs import (
    MAX_SPEC_FILES,
    SPEC_SUFFIXES,
    list_spec_files,
    locate_spec_dir,
    resolve_host_link,
)
from gpu_oci_hook.cdi.spec.finding import Finding
from gpu_oci_hook.cdi.spec.reading import read_spec_file
from gpu_oci_hook.cdi.spec.validation import validate_spec
from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.trust import check_file_trust
from gpu_oci_hook.formats.oci import get_list, get_member
from gpu_oci_hook.host.root import Host

# A file that changed a moment ago can change again within the same tick of the kernel's clock (100 Hz at worst), with
# the same stat signature. Its content is not cached yet.
_SETTLE_TIME_NS = 50_000_000


class SpecFile:
    """One CDI file.

    Attributes:
        path: path in this process, for people.
        real_path: the same with links resolved.
        directory: the spec directory as configured.
        priority: index of the directory in the list.
        data: content of a valid file; None for an invalid one.
        unchecked_data: content of any file that can be parsed.
        findings: errors and warnings.
        kind: "vendor/class", also of an invalid file; "" if unknown.
        devices: names of its devices, likewise.
        status: stat result; None if the file cannot be looked up.
    """

    __slots__ = (
        "data",
        "devices",
        "directory",
        "findings",
        "kind",
        "path",
        "priority",
        "real_path",
        "status",
        "unchecked_data",
    )

    def __init__(self, path: str, real_path: str, directory: str, priority: int) -> None:
        self.path = path
        self.real_path = real_path
        self.directory = directory
        self.priority = priority
        self.data: dict[str, object] | None = None
        self.unchecked_data: object = None
        self.findings: list[Finding] = []
        self.kind = ""
        self.devices: list[str] = []
        self.status: os.stat_result | None = None

    @property
    def errors(self) -> list[Finding]:
        """The findings that make the file invalid."""
        return [finding for finding in self.findings if finding.level == "error"]

    def list_qualified_names(self) -> list[str]:
        """List the qualified names of its devices."""
        return [f"{self.kind}={name}" for name in self.devices]


class SpecScan:
    """The CDI files in some directories.

    Attributes:
        files: all files, in the order in which they are read.
        problems: findings about the directories themselves.
        winners: qualified name to (file, index of the device in it).
        conflicts: qualified name to the files of one directory that all define it.
        shadowed: qualified name to the files that a later directory's file overrides.
    """

    def __init__(self, host: Host, directories: tuple[str, ...]) -> None:
        self.host = host
        self.directories = directories
        self.files: list[SpecFile] = []
        self.problems: list[Finding] = []
        self.winners: dict[str, tuple[SpecFile, int]] = {}
        self.conflicts: dict[str, list[SpecFile]] = {}
        self.shadowed: dict[str, list[SpecFile]] = {}
        for priority, directory in enumerate(directories):
            self._scan_directory(directory, priority)
        for name in self.conflicts:
            self.winners.pop(name, None)

    def _scan_directory(self, directory: str, priority: int) -> None:
        local_directory = locate_spec_dir(self.host, directory)
        if not local_directory:
            return
        shown_directory = self.host.full_path(directory)
        try:
            count = sum(1 for name in os.listdir(local_directory) if name.endswith(SPEC_SUFFIXES))
        except OSError as error:
            text, hint = f"cannot be listed: {describe_os_error(error)}", f"Run: chmod a+rx {shown_directory}"
            self.problems.append(Finding("error", shown_directory, "", text, hint))
            return
        if count > MAX_SPEC_FILES:
            text = f"has {count} CDI files, and only the first {MAX_SPEC_FILES} of them by name are read"
            self.problems.append(Finding("error", shown_directory, "", text, "Remove the files that are not needed"))
        for name in list_spec_files(local_directory):
            path = f"{local_directory}/{name}"
            status = _lstat_or_none(path)
            if status is not None and stat.S_ISDIR(status.st_mode):
                continue
            file = SpecFile(f"{shown_directory}/{name}", resolve_host_link(self.host, path), directory, priority)
            self.files.append(file)
            self._read_file(file)
            self._register_devices(file)

    def _read_file(self, file: SpecFile) -> None:
        def check_trust(status: os.stat_result) -> None:
            file.status = status
            check_file_trust(status, file.path, description="the CDI file")

        try:
            file.status = os.stat(file.real_path)
        except OSError:
            pass  # reading reports it
        try:
            document = read_spec_file(file.real_path, check_trust)
        except Fault as fault:
            file.findings.append(Finding("error", file.path, "", fault.what, fault.hint))
            return
        file.findings += document.findings
        file.unchecked_data = document.data
        if document.data is None:
            return
        kind = get_member(document.data, "kind")
        file.kind = kind if isinstance(kind, str) else ""
        file.devices = [
            name if isinstance(name := get_member(device, "name"), str) else ""
            for device in get_list(document.data, "devices")
        ]
        file.findings += validate_spec(document.data, file.path)
        if not file.errors and isinstance(document.data, dict):
            file.data = document.data

    def _register_devices(self, file: SpecFile) -> None:
        if file.data is None:
            return
        for index, name in enumerate(file.list_qualified_names()):
            winner = self.winners.get(name)
            if winner is not None and winner[0].priority == file.priority:
                self.conflicts.setdefault(name, [winner[0]]).append(file)
                continue
            if winner is not None:
                self.shadowed.setdefault(name, []).append(winner[0])
            self.winners[name] = (file, index)

    def build_index(self) -> tuple[list[tuple[str, dict[str, object]]], dict[str, tuple[int, int, dict[str, object]]]]:
        """Build the index that `registry` caches.

        Returns:
            (path, common edits) of each file, and (file, index in the file, edits) of each device by qualified name.
        """
        files: list[tuple[str, dict[str, object]]] = []
        file_numbers: dict[str, int] = {}
        devices: dict[str, tuple[int, int, dict[str, object]]] = {}
        for name, (file, index) in self.winners.items():
            if file.path not in file_numbers:
                file_numbers[file.path] = len(files)
                files.append((file.path, _as_object(get_member(file.data, "containerEdits"))))
            edits = _as_object(get_member(get_list(file.data, "devices")[index], "containerEdits"))
            devices[name] = (file_numbers[file.path], index, edits)
        return files, devices

    def is_settled(self) -> bool:
        """Tell whether all files are old enough that their next change shows in their stat signatures."""
        now = time.time_ns()
        return all(now - file.status.st_ctime_ns > _SETTLE_TIME_NS for file in self.files if file.status is not None)


def _lstat_or_none(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _as_object(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}
