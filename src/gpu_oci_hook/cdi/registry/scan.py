"""Every spec file of a host read and checked: what each defines, what wins, what is in conflict, and what is wrong.

Cold: PyYAML and the checks come with it. `registry` remembers what counts of it; `cdi list` and `cdi resolve` show
the rest.
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
from gpu_oci_hook.errors import Fault, describe_os_error, make_printable
from gpu_oci_hook.files.trust import check_file_trust
from gpu_oci_hook.formats.oci import get_list, get_member
from gpu_oci_hook.host.root import Host

# A file that was changed in the last moments may change again without its status telling (a kernel's clock ticks
# 100 times a second at worst), so what it says is not remembered yet.
_SETTLE_TIME_NS = 50_000_000


class SpecFile:
    """One spec file.

    Attributes:
        path: in this process, as people know it. real_path: what it means there, links followed.
        directory, priority: the spec directory as configured, and its place in the list.
        data: what it says; None when it does not count.
        findings: what is wrong with it.
        kind: "vendor/class", also of a file that does not count; "" when that cannot be told.
        devices: the names of its devices, likewise.
        status: None when it cannot be looked at.
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
        """The findings that keep it from counting."""
        return [one for one in self.findings if one.level == "error"]

    def list_qualified_names(self) -> list[str]:
        """The qualified names of its devices."""
        return [f"{self.kind}={name}" for name in self.devices]


class SpecScan:
    """The spec files of some directories.

    Attributes:
        files: all of them, in the order in which they are read.
        problems: what is wrong with the directories themselves.
        winners: qualified name to (file, place of the device in it).
        conflicts: qualified name to the files of one directory that both define it.
        shadowed: qualified name to the files that a later directory's file wins over.
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
        place = locate_spec_dir(self.host, directory)
        if not place:
            return
        shown = self.host.full_path(directory)
        try:
            count = sum(1 for name in os.listdir(place) if name.endswith(SPEC_SUFFIXES))
        except OSError as error:
            text, cure = f"it cannot be listed: {describe_os_error(error)}", f"Run: chmod a+rx {shown}"
            self.problems.append(Finding("error", shown, "", text, cure))
            return
        if count > MAX_SPEC_FILES:
            text = f"it has {count} spec files, and only the first {MAX_SPEC_FILES} of them by name are read"
            self.problems.append(Finding("error", shown, "", text, "Remove those that nobody needs"))
        for name in list_spec_files(place):
            path = f"{place}/{name}"
            status = _lstat_or_none(path)
            if status is not None and stat.S_ISDIR(status.st_mode):
                continue
            file = SpecFile(f"{shown}/{name}", resolve_host_link(self.host, path), directory, priority)
            self.files.append(file)
            self._read_file(file)
            self._register_devices(file)

    def _read_file(self, file: SpecFile) -> None:
        def accept(status: os.stat_result) -> None:
            file.status = status
            check_file_trust(status, file.path, description="the CDI file")

        try:
            file.status = os.stat(file.real_path)
        except OSError:
            pass  # reading says it
        try:
            document = read_spec_file(file.real_path, accept)
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
        for place, name in enumerate(file.list_qualified_names()):
            known = self.winners.get(name)
            if known is not None and known[0].priority == file.priority:
                self.conflicts.setdefault(name, [known[0]]).append(file)
                continue
            if known is not None:
                self.shadowed.setdefault(name, []).append(known[0])
            self.winners[name] = (file, place)

    def build_index(self) -> tuple[list[tuple[str, dict[str, object]]], dict[str, tuple[int, int, dict[str, object]]]]:
        """What `registry` remembers: files with their common edits, and each device's file, place and edits."""
        files: list[tuple[str, dict[str, object]]] = []
        numbers: dict[str, int] = {}
        devices: dict[str, tuple[int, int, dict[str, object]]] = {}
        for name, (file, place) in self.winners.items():
            if file.path not in numbers:
                numbers[file.path] = len(files)
                files.append((file.path, _as_object(get_member(file.data, "containerEdits"))))
            edits = _as_object(get_member(get_list(file.data, "devices")[place], "containerEdits"))
            devices[name] = (numbers[file.path], place, edits)
        return files, devices

    def is_settled(self) -> bool:
        """Whether no file was changed so lately that its next change could stay unseen."""
        now = time.time_ns()
        return all(now - file.status.st_ctime_ns > _SETTLE_TIME_NS for file in self.files if file.status is not None)

    def find_spec_file(self, path: str) -> SpecFile | None:
        """The file with a path."""
        return next((file for file in self.files if file.path == path), None)


def _lstat_or_none(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _as_object(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def format_finding_text(finding: Finding) -> str:
    """A finding as one sentence without its file."""
    return make_printable(f"{finding.where}: {finding.text}" if finding.where else finding.text)
