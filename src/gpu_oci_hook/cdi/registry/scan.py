"""Read and check every CDI file of a host: its devices, which file wins, conflicts and findings.

`registry` caches the available devices. `cdi list` and `cdi resolve` show the rest. A directory can have thousands of
files of megabytes: the content of KEPT_SIZE bytes of them is kept, and the others are read again when it is asked for.

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
from gpu_oci_hook.cdi.spec.reading import MAX_SPEC_SIZE, read_spec_file
from gpu_oci_hook.cdi.spec.validation import validate_spec
from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.trust import check_file_trust, describe_foreign_access
from gpu_oci_hook.formats.oci import get_list, get_member
from gpu_oci_hook.host.root import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.cdi.registry.registry import IndexedDevice, IndexedFile

# A file that changed a moment ago can change again within the same tick of the kernel's clock (100 Hz at worst), with
# the same stat signature. Its content is not cached yet.
_SETTLE_TIME_NS = 50_000_000

KEPT_SIZE = 4 << 20
"""Bytes of files whose content is kept in memory and in the registry's cache."""

MAX_TOTAL_SIZE = 128 << 20
"""Bytes of files that are read, the first ones first: a start would wait for minutes otherwise."""


class SpecFile:
    """One CDI file.

    Attributes:
        path: path in this process, for people.
        real_path: the same with links resolved.
        directory: the spec directory as configured.
        priority: index of the directory in the list.
        is_valid, is_parsed: engines accept the file; it can be parsed.
        findings: errors and warnings.
        kind: "vendor/class", also of an invalid file; "" if unknown.
        devices: names of its devices, likewise.
        status: stat result; None if the file cannot be looked up.
    """

    __slots__ = (
        "_content",
        "devices",
        "directory",
        "findings",
        "is_parsed",
        "is_valid",
        "kind",
        "path",
        "priority",
        "real_path",
        "status",
    )

    def __init__(self, path: str, real_path: str, directory: str, priority: int) -> None:
        self.path = path
        self.real_path = real_path
        self.directory = directory
        self.priority = priority
        self.is_valid = self.is_parsed = False
        self._content: object = None
        self.findings: list[Finding] = []
        self.kind = ""
        self.devices: list[str] = []
        self.status: os.stat_result | None = None

    @property
    def data(self) -> dict[str, object] | None:
        """Content of a valid file; None for an invalid one."""
        return _as_object(self.unchecked_data) if self.is_valid else None

    @property
    def unchecked_data(self) -> object:
        """Content of any file that can be parsed."""
        if self._content is None and self.is_parsed:
            return read_spec_file(self.real_path).data
        return self._content

    @property
    def is_kept(self) -> bool:
        """Whether the content is in memory."""
        return self._content is not None

    def keep_content(self, content: object) -> None:
        """Keep the content in memory."""
        self._content = content

    @property
    def signature(self) -> tuple[int, ...]:
        """The stat signature, () for a file that cannot be looked up."""
        status = self.status
        return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns) if status is not None else ()

    @property
    def errors(self) -> list[Finding]:
        """The findings that make the file invalid."""
        return [finding for finding in self.findings if finding.level == "error"]

    def list_qualified_names(self) -> list[str]:
        """List the qualified names of its devices."""
        return [f"{self.kind}={name}" for name in self.devices]


FileSummary = tuple[tuple[int, ...], str, list[str], bool]
"""Stat signature, kind, device names, and whether the file is valid."""


class SpecScan:
    """The CDI files in some directories.

    Arguments:
        summaries: what an earlier scan found, by real path. A file of the same signature whose content would not be
            kept is not read again; then it has no findings.

    Attributes:
        files: all files, in the order in which they are read.
        problems: findings about the directories themselves.
        winners: qualified name to (file, index of the device in it).
        conflicts: qualified name to the files of one directory that all define it.
        shadowed: qualified name to the files that a later directory's file overrides.
    """

    def __init__(
        self, host: Host, directories: tuple[str, ...], summaries: dict[str, FileSummary] | None = None
    ) -> None:
        self.host = host
        self.directories = directories
        self._summaries = summaries or {}
        self._left_size = KEPT_SIZE
        self._total_size = 0
        self.files: list[SpecFile] = []
        self.problems: list[Finding] = []
        self.winners: dict[str, tuple[SpecFile, int]] = {}
        self.conflicts: dict[str, list[SpecFile]] = {}
        self.shadowed: dict[str, list[SpecFile]] = {}
        self._has_untrusted_directory = False
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
        distrust = _describe_distrust(local_directory, shown_directory)
        self._has_untrusted_directory = self._has_untrusted_directory or distrust is not None
        for name in list_spec_files(local_directory):
            path = f"{local_directory}/{name}"
            status = _lstat_or_none(path)
            if status is not None and stat.S_ISDIR(status.st_mode):
                continue
            file = SpecFile(f"{shown_directory}/{name}", resolve_host_link(self.host, path), directory, priority)
            self.files.append(file)
            if distrust is not None:
                file.findings.append(Finding("error", file.path, "", distrust.what, distrust.hint))
                continue
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
        if file.status is not None and file.status.st_size <= MAX_SPEC_SIZE:  # a larger one is not read
            self._total_size += file.status.st_size
        if self._total_size > MAX_TOTAL_SIZE:
            text = f"is not read: the CDI files up to it have more than {MAX_TOTAL_SIZE >> 20} MiB"
            file.findings.append(Finding("error", file.path, "", text, "Remove the files that are not needed"))
            return
        summary = self._summaries.get(file.real_path)
        if summary is not None and summary[0] == file.signature and file.signature[1] > self._left_size:
            _, file.kind, file.devices, file.is_valid = summary
            file.is_parsed = file.is_valid
            return
        try:
            document = read_spec_file(file.real_path, check_trust)
        except Fault as fault:
            file.findings.append(Finding("error", file.path, "", fault.what, fault.hint))
            return
        file.findings += document.findings
        if document.data is None:
            return
        file.is_parsed = True
        size = file.status.st_size if file.status is not None else 0
        if size <= self._left_size:
            self._left_size -= size
            file.keep_content(document.data)
        kind = get_member(document.data, "kind")
        file.kind = kind if isinstance(kind, str) else ""
        file.devices = [
            name if isinstance(name := get_member(device, "name"), str) else ""
            for device in get_list(document.data, "devices")
        ]
        file.findings += validate_spec(document.data, file.path)
        file.is_valid = not file.errors and isinstance(document.data, dict)

    def _register_devices(self, file: SpecFile) -> None:
        if not file.is_valid:
            return
        for index, name in enumerate(file.list_qualified_names()):
            winner = self.winners.get(name)
            if winner is not None and winner[0].priority == file.priority:
                self.conflicts.setdefault(name, [winner[0]]).append(file)
                continue
            if winner is not None:
                self.shadowed.setdefault(name, []).append(winner[0])
            self.winners[name] = (file, index)

    def build_index(self) -> tuple[list[IndexedFile], dict[str, IndexedDevice]]:
        """Build the index that `registry` caches; edits of files whose content is not kept are None."""
        files: list[IndexedFile] = []
        file_numbers: dict[str, int] = {}
        devices: dict[str, IndexedDevice] = {}
        for name, (file, index) in self.winners.items():
            if file.path not in file_numbers:
                file_numbers[file.path] = len(files)
                common = _as_object(get_member(file.data, "containerEdits")) if file.is_kept else None
                files.append((file.path, file.real_path, common))
            edits = None
            if file.is_kept:
                edits = _as_object(get_member(get_list(file.data, "devices")[index], "containerEdits"))
            devices[name] = (file_numbers[file.path], index, edits)
        return files, devices

    def has_unkept_files(self) -> bool:
        """Tell whether the content of a valid file is not kept."""
        return any(file.is_valid and not file.is_kept for file in self.files)

    def summarise_files(self) -> dict[str, FileSummary]:
        """Return what the next scan needs of each file that can be looked up."""
        return {
            file.real_path: (file.signature, file.kind, file.devices, file.is_valid)
            for file in self.files
            if file.signature
        }

    def is_settled(self) -> bool:
        """Tell whether all files are old enough that their next change shows in their stat signatures."""
        if self._has_untrusted_directory:
            return False  # a change of the directory's owner or mode does not show in the signatures
        now = time.time_ns()
        return all(now - file.status.st_ctime_ns > _SETTLE_TIME_NS for file in self.files if file.status is not None)


def read_file_edits(path: str) -> tuple[dict[str, object], list[dict[str, object]]]:
    """Read the common edits of a file and those of each device; empty for a file that is not there any more."""
    data = read_spec_file(path).data
    devices = [_as_object(get_member(device, "containerEdits")) for device in get_list(data, "devices")]
    return _as_object(get_member(data, "containerEdits")), devices


def _describe_distrust(directory: str, shown: str) -> Fault | None:
    """Describe why the files of a directory are refused while running as root; None if they are not.

    Who can write the directory can put a link to a file of root's there, or give one another name.
    """
    status = _lstat_or_none(directory)
    access = describe_foreign_access(status) if status is not None else ""
    if not access:
        return None
    command = f"chown root {shown}" if "belongs" in access else f"chmod go-w {shown}"
    return Fault(
        f"the directory {shown} {access}, so its files are refused while running as root", hint=f"Run: {command}"
    )


def _lstat_or_none(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _as_object(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}
