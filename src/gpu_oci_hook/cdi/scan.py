"""Every spec file of a host read and checked: what each defines, what wins, what is in conflict, and what is wrong.

Cold: PyYAML and the checks come with it. `registry` remembers what counts of it; `cdi list` and `cdi resolve` show
the rest.
"""

from __future__ import annotations

import os
import stat
import time

from gpu_oci_hook import config
from gpu_oci_hook.cdi import reading, registry, validation
from gpu_oci_hook.cdi.finding import Finding
from gpu_oci_hook.errors import Fault, printable, words
from gpu_oci_hook.formats.oci import items, member
from gpu_oci_hook.host.root import Host

# A file that was changed in the last moments may change again without its status telling (a kernel's clock ticks
# 100 times a second at worst), so what it says is not remembered yet.
_SETTLED = 50_000_000


class File:
    """One spec file.

    Attributes:
        path: in this process, as people know it. real: what it means there, links followed.
        directory, priority: the spec directory as configured, and its place in the list.
        data: what it says; None when it does not count.
        findings: what is wrong with it.
        kind: "vendor/class", also of a file that does not count; "" when that cannot be told.
        devices: the names of its devices, likewise.
        status: None when it cannot be looked at.
    """

    __slots__ = ("data", "devices", "directory", "findings", "kind", "path", "priority", "raw", "real", "status")

    def __init__(self, path: str, real: str, directory: str, priority: int) -> None:
        self.path = path
        self.real = real
        self.directory = directory
        self.priority = priority
        self.data: dict[str, object] | None = None
        self.raw: object = None
        self.findings: list[Finding] = []
        self.kind = ""
        self.devices: list[str] = []
        self.status: os.stat_result | None = None

    @property
    def errors(self) -> list[Finding]:
        """The findings that keep it from counting."""
        return [one for one in self.findings if one.level == "error"]

    def qualified(self) -> list[str]:
        """The qualified names of its devices."""
        return [f"{self.kind}={name}" for name in self.devices]


class Scan:
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
        self.files: list[File] = []
        self.problems: list[Finding] = []
        self.winners: dict[str, tuple[File, int]] = {}
        self.conflicts: dict[str, list[File]] = {}
        self.shadowed: dict[str, list[File]] = {}
        for priority, directory in enumerate(directories):
            self._directory(directory, priority)
        for name in self.conflicts:
            self.winners.pop(name, None)

    def _directory(self, directory: str, priority: int) -> None:
        place = registry.location(self.host, directory)
        if not place:
            return
        shown = self.host.path(directory)
        try:
            count = sum(1 for name in os.listdir(place) if name.endswith(registry.SUFFIXES))
        except OSError as error:
            text, cure = f"it cannot be listed: {words(error)}", f"Run: chmod a+rx {shown}"
            self.problems.append(Finding("error", shown, "", text, cure))
            return
        if count > registry.MOST:
            text = f"it has {count} spec files, and only the first {registry.MOST} of them by name are read"
            self.problems.append(Finding("error", shown, "", text, "Remove those that nobody needs"))
        for name in registry.names(place):
            path = f"{place}/{name}"
            status = _lstat(path)
            if status is not None and stat.S_ISDIR(status.st_mode):
                continue
            file = File(f"{shown}/{name}", registry.actual(self.host, path), directory, priority)
            self.files.append(file)
            self._read(file)
            self._enter(file)

    def _read(self, file: File) -> None:
        def accept(status: os.stat_result) -> None:
            file.status = status
            config.trust(status, file.path, what="the CDI file")

        try:
            file.status = os.stat(file.real)
        except OSError:
            pass  # reading says it
        try:
            document = reading.read(file.real, accept)
        except Fault as fault:
            file.findings.append(Finding("error", file.path, "", fault.what, fault.cure))
            return
        file.findings += document.findings
        file.raw = document.data
        if document.data is None:
            return
        kind = member(document.data, "kind")
        file.kind = kind if isinstance(kind, str) else ""
        file.devices = [
            name if isinstance(name := member(device, "name"), str) else ""
            for device in items(document.data, "devices")
        ]
        file.findings += validation.findings(document.data, file.path)
        if not file.errors and isinstance(document.data, dict):
            file.data = document.data

    def _enter(self, file: File) -> None:
        if file.data is None:
            return
        for place, name in enumerate(file.qualified()):
            known = self.winners.get(name)
            if known is not None and known[0].priority == file.priority:
                self.conflicts.setdefault(name, [known[0]]).append(file)
                continue
            if known is not None:
                self.shadowed.setdefault(name, []).append(known[0])
            self.winners[name] = (file, place)

    def index(self) -> tuple[list[tuple[str, dict[str, object]]], dict[str, tuple[int, int, dict[str, object]]]]:
        """What `registry` remembers: files with their common edits, and each device's file, place and edits."""
        files: list[tuple[str, dict[str, object]]] = []
        numbers: dict[str, int] = {}
        devices: dict[str, tuple[int, int, dict[str, object]]] = {}
        for name, (file, place) in self.winners.items():
            if file.path not in numbers:
                numbers[file.path] = len(files)
                files.append((file.path, _object(member(file.data, "containerEdits"))))
            edits = _object(member(items(file.data, "devices")[place], "containerEdits"))
            devices[name] = (numbers[file.path], place, edits)
        return files, devices

    def settled(self) -> bool:
        """Whether no file was changed so lately that its next change could stay unseen."""
        now = time.time_ns()
        return all(now - file.status.st_ctime_ns > _SETTLED for file in self.files if file.status is not None)

    def file(self, path: str) -> File | None:
        """The file with a path."""
        return next((file for file in self.files if file.path == path), None)


def _lstat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _object(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def text(finding: Finding) -> str:
    """A finding as one sentence without its file."""
    return printable(f"{finding.where}: {finding.text}" if finding.where else finding.text)
