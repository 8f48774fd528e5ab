"""Search the host for the driver's files: libraries, then programs, firmware and configuration files.

Import budget: cold.
"""

from __future__ import annotations

import os

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.architectures import ARCHITECTURES_32BIT
from gpu_oci_hook.host.driver.catalogue import CATALOGUE_PATH, Catalogue, CatalogueEntry, load_catalogue
from gpu_oci_hook.host.driver.libraries import DriverLibrarySearch
from gpu_oci_hook.host.driver.manifests import (
    MANIFEST_LIMIT,
    find_missing_dependencies,
    is_manifest,
    manifest_architecture,
    parse_manifest_libraries,
)
from gpu_oci_hook.host.driver.search import FileSearch, stat_signature
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.model.machine import DriverFile, Inventory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import DaemonFile, InventorySearchResult

_CONTAINER_BIN_DIR = "/usr/bin"


def discover_driver_files(
    host: Host, driver: Host, library_paths: tuple[str, ...], version: str
) -> InventorySearchResult:
    """Search for all files of the driver, for `inventory_cache.load_inventory`.

    Arguments:
        host: the machine.
        driver: the root with the driver's files.
        library_paths: the directories to search first, below the driver's root.
        version: the running kernel module's version, "" when it is not loaded.

    Returns:
        (stat signatures, `Inventory.to_data()`, the daemons' sockets and directories to look for on every start).
    """
    catalogue = load_catalogue()
    search = FileSearch(driver)
    libraries = DriverLibrarySearch(search, catalogue, version, host.machine)
    libraries.find_libraries(library_paths)
    library_version = libraries.version if any(file.kind == "library" for file in libraries.files) else ""
    companions = _CompanionFiles(
        search, catalogue, list(libraries.directories), version or library_version, (libraries.arch, libraries.arch32)
    )
    files = [
        *libraries.files,
        *companions.find_binaries(),
        *companions.find_firmware(host, os.uname().release),
        *companions.find_config_files(),
    ]
    inventory = Inventory(
        version=version or library_version,
        library_version=library_version,
        files=tuple(files),
        search_report=tuple([(location.label, location.describe_result()) for location in libraries.locations]),
        missing_libraries=_find_missing_libraries(catalogue, libraries),
        missing_expected=_find_missing_expected_files(catalogue, files),
        missing_dependencies=find_missing_dependencies(files, libraries.is_driver_library_name),
    )
    daemon_files: list[DaemonFile] = [
        (entry.kind, entry.capability, entry.paths, entry.container, entry.variable)
        for entry in catalogue.entries
        if entry.kind in ("socket", "directory")
    ]
    signatures = (*search.collect_stat_signatures(), stat_signature(CATALOGUE_PATH))
    return signatures, inventory.to_data(), tuple(daemon_files)


def _find_missing_libraries(catalogue: Catalogue, libraries: DriverLibrarySearch) -> tuple[tuple[str, str, str], ...]:
    """Return the required libraries that were not found, for `Inventory.missing_libraries`."""
    sonames = {file.soname for file in libraries.files if file.arch == libraries.arch}
    return tuple(
        (capability, soname, libraries.other_versions.get((soname, libraries.arch), ""))
        for capability, soname in catalogue.required_libraries
        if soname not in sonames
    )


def _find_missing_expected_files(catalogue: Catalogue, files: list[DriverFile]) -> tuple[tuple[str, str], ...]:
    """Return the expected files that were not found, for `Inventory.missing_expected`."""
    names = {name for file in files if file.arch not in ARCHITECTURES_32BIT for name in (file.soname, file.name)}
    return tuple([expected for expected in catalogue.expected_files if expected[1] not in names])


class _CompanionFiles:
    """The driver's programs, firmware and configuration files.

    Arguments:
        search: the search below the driver root.
        library_directories: the directories that had driver libraries.
        version: the driver's version.
        architectures: the machine's architecture and the one of its 32-bit programs.
    """

    def __init__(
        self,
        search: FileSearch,
        catalogue: Catalogue,
        library_directories: list[str],
        version: str,
        architectures: tuple[str, str],
    ) -> None:
        self.search = search
        self.catalogue = catalogue
        self.library_directories = library_directories
        self.version = version
        self.architectures = architectures

    def find_binaries(self) -> list[DriverFile]:
        """Find the programs. Of several with one name the first in search order counts."""
        binaries: list[DriverFile] = []
        directories = [
            path for pattern in self.catalogue.search_paths["binaries"] for path in self._fill_placeholders(pattern)
        ]
        pending = {name: entry for entry in self.catalogue.entries_of_kind("binary") for name in entry.names}
        for directory in directories:
            resolved_directory = self.search.find_directory(directory)
            if resolved_directory is None:
                continue
            for name in list(pending):
                match = self.search.find_file(f"{resolved_directory}/{name}")
                if isinstance(match, str) or not match[1].st_mode & 0o111:
                    continue
                entry = pending.pop(name)
                binaries.append(
                    self._build_driver_file(entry, match[0], name, directory, f"{_CONTAINER_BIN_DIR}/{name}")
                )
        return sorted(binaries, key=lambda file: file.name)

    def find_firmware(self, host: Host, kernel_release: str) -> list[DriverFile]:
        """Find the firmware. Of several with one name the first in the kernel's search order counts."""
        directories = [path.replace("{kernel}", kernel_release) for path in self.catalogue.search_paths["firmware"]]
        try:
            parameter = host.read_file("/sys/module/firmware_class/parameters/path", 4096)
        except Fault:
            parameter = None
        kernel_path = os.fsdecode(parameter or b"").strip()
        if kernel_path.startswith("/"):
            # The kernel's path is below the machine's root, which is not always the driver's.
            full_path, driver_root = host.full_path(kernel_path), self.search.host.prefix
            below_driver_root = full_path.startswith(driver_root + "/")
            directories.insert(0, full_path.removeprefix(driver_root) if below_driver_root else kernel_path)
        firmware: list[DriverFile] = []
        for entry in self.catalogue.entries_of_kind("firmware"):
            patterns = (
                [f"{directory}/{name}" for directory in directories for name in entry.names] if self.version else []
            )
            firmware.extend(self._find_matching_files(entry, patterns))
        return firmware

    def find_config_files(self) -> list[DriverFile]:
        """Find the configuration files. Of several with one name the first in search order counts."""
        config_files: list[DriverFile] = []
        for entry in self.catalogue.entries_of_kind("config"):
            config_files.extend(self._find_matching_files(entry, list(entry.paths)))
        return config_files

    def _find_matching_files(self, entry: CatalogueEntry, patterns: list[str]) -> list[DriverFile]:
        """Return the files that match the patterns, sorted. Of several with one name the first counts."""
        files: dict[str, DriverFile] = {}
        for pattern in patterns:
            for path in [path for filled in self._fill_placeholders(pattern) for path in self._match_paths(filled)]:
                name = os.path.basename(path)
                match = "known" if name in files else self.search.find_file(path)
                if is_manifest(name) and manifest_architecture(name, self.architectures[0]) not in self.architectures:
                    continue
                if not isinstance(match, str):
                    container = entry.container.replace("{version}", self.version)
                    directory = os.path.dirname(path)
                    files[name] = self._build_driver_file(entry, match[0], name, directory, f"{container}/{name}")
        return [files[name] for name in sorted(files)]

    def _fill_placeholders(self, pattern: str) -> list[str]:
        pattern = pattern.replace("{version}", self.version).replace("{machine}", self.search.host.machine)
        if "{lib}" in pattern:
            return [pattern.replace("{lib}", path) for path in self.library_directories]
        return [pattern]

    def _match_paths(self, pattern: str) -> list[str]:
        """Return the paths that match a pattern and whose directory exists. The directory is watched in any case."""
        return [
            path
            for path in self.search.expand_pattern(pattern)
            if self.search.find_directory(os.path.dirname(path)) is not None
        ]

    def _build_driver_file(
        self, entry: CatalogueEntry, path: str, name: str, found_in: str, container_path: str
    ) -> DriverFile:
        """Describe a file at a path without links, and watch it."""
        self.search.watch_file(path)
        program = self.search.read_elf(path) if entry.kind == "binary" else ""
        manifest_libraries: tuple[str, ...] = ()
        if entry.kind == "config" and is_manifest(name):
            try:
                manifest_libraries = parse_manifest_libraries(
                    name, self.search.host.read_file(path, MANIFEST_LIMIT) or b""
                )
            except Fault:
                manifest_libraries = ()  # larger than any real manifest, or unreadable: treated as an ordinary file
        arch = manifest_architecture(name, self.architectures[0]) if manifest_libraries else ""
        return DriverFile(
            kind=entry.kind,
            capability=entry.capability,
            path=path,
            source=self.search.host.full_path(path),
            name=name,
            needs=manifest_libraries if isinstance(program, str) else tuple(program.needed),
            glibc="" if isinstance(program, str) else program.glibc,
            arch=arch if isinstance(program, str) else program.arch,
            container_path=container_path,
            found_in=found_in,
        )
