"""The whole search: libraries, then programs, firmware and configuration files around them.

Cost rule: cold; only when the driver's files are searched anew.
"""

from __future__ import annotations

import os

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host.driver.catalogue import CATALOGUE_PATH, Catalogue, CatalogueEntry, load_catalogue
from gpu_oci_hook.host.driver.libraries import LibrarySearch
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

_CONTAINER_BIN_DIR = "/usr/bin"  # where programs get to in a container


def discover_driver_files(
    host: Host, driver: Host, library_paths: tuple[str, ...], version: str
) -> InventorySearchResult:
    """Everything that the driver brought, for `inventory_cache.load_inventory`.

    Arguments:
        host: the machine. driver: the root with the driver's files.
        library_paths: where to look first, below the driver's root.
        version: of the running kernel module, "" when it is not loaded.

    Returns:
        (witnesses, `Inventory.to_data()`, what to look at every time).
    """
    catalogue = load_catalogue()
    search = FileSearch(driver)
    libraries = LibrarySearch(search, catalogue, version, host.machine)
    libraries.find_libraries(library_paths)
    own = libraries.version if any(file.kind == "library" for file in libraries.files) else ""
    around = _CompanionFiles(
        search, catalogue, list(libraries.directories), version or own, (libraries.arch, libraries.arch32)
    )
    files = [
        *libraries.files,
        *around.find_binaries(),
        *around.find_firmware(host, os.uname().release),
        *around.find_config_files(),
    ]
    places = [(place.label, place.describe()) for place in libraries.locations]
    problems: list[str] = []
    if version and own and own != version:
        problems.append(
            f"kernel module {version}, libraries {own}: reboot, or unload and reload the nvidia modules; "
            f"until then NVML and CUDA fail with a version mismatch"
        )
    inventory = Inventory(
        version=version or own,
        library_version=own,
        files=tuple(files),
        search_report=tuple(places),
        missing_libraries=_missing_libraries(catalogue, libraries),
        problems=tuple(problems),
        missing_dependencies=find_missing_dependencies(files, libraries.is_driver_library_name),
    )
    live: list[DaemonFile] = [
        (entry.kind, entry.capability, entry.paths, entry.container, entry.variable)
        for entry in catalogue.entries
        if entry.kind in ("socket", "directory")
    ]
    witnesses = (*search.collect_stat_signatures(), stat_signature(CATALOGUE_PATH))
    return witnesses, inventory.to_data(), tuple(live)


def _missing_libraries(catalogue: Catalogue, libraries: LibrarySearch) -> tuple[tuple[str, str, str], ...]:
    there = {file.soname for file in libraries.files if file.arch == libraries.arch}
    found: list[tuple[str, str, str]] = []
    for capability, soname in catalogue.required_libraries:
        if soname not in there:
            other = libraries.other_versions.get((soname, libraries.arch))
            why = f"only {other} is there" if other else "it is in none of the places looked at"
            found.append((capability, soname, why))
    return tuple(found)


class _CompanionFiles:
    """What lies around the libraries.

    Arguments:
        search: the driver root. library_directories: those that had driver libraries. version: the driver's.
        arches: the machine's architecture and its 32-bit sister.
    """

    def __init__(
        self,
        search: FileSearch,
        catalogue: Catalogue,
        library_directories: list[str],
        version: str,
        arches: tuple[str, str],
    ) -> None:
        self.search = search
        self.catalogue = catalogue
        self.library_directories = library_directories
        self.version = version
        self.arches = arches

    def find_binaries(self) -> list[DriverFile]:
        """The programs; of several with one name the first place's."""
        found: list[DriverFile] = []
        places = [
            path for pattern in self.catalogue.search_paths["binaries"] for path in self._fill_placeholders(pattern)
        ]
        wanted = {name: entry for entry in self.catalogue.entries_of_kind("binary") for name in entry.names}
        for place in places:
            directory = self.search.find_directory(place)
            if directory is None:
                continue
            for name in list(wanted):
                hit = self.search.find_file(f"{directory}/{name}")
                if isinstance(hit, str) or not hit[1].st_mode & 0o111:
                    continue
                entry = wanted.pop(name)
                found.append(self._build_driver_file(entry, hit[0], name, place, f"{_CONTAINER_BIN_DIR}/{name}"))
        return sorted(found, key=lambda file: file.name)

    def find_firmware(self, host: Host, kernel: str) -> list[DriverFile]:
        """The firmware; of several with one name the first place's, in the kernel's own order."""
        places = [place.replace("{kernel}", kernel) for place in self.catalogue.search_paths["firmware"]]
        try:
            own = host.read_file("/sys/module/firmware_class/parameters/path", 4096)
        except Fault:
            own = None
        text = os.fsdecode(own or b"").strip()
        if text.startswith("/"):
            below, root = host.full_path(text), self.search.host.prefix  # the kernel's path is the machine's
            places.insert(0, below.removeprefix(root) if below.startswith(root + "/") else text)
        found: list[DriverFile] = []
        for entry in self.catalogue.entries_of_kind("firmware"):
            patterns = [f"{place}/{name}" for place in places for name in entry.names] if self.version else []
            found.extend(self._find_matching_files(entry, patterns))
        return found

    def find_config_files(self) -> list[DriverFile]:
        """The configuration files; of several with one name the first place's."""
        found: list[DriverFile] = []
        for entry in self.catalogue.entries_of_kind("config"):
            found.extend(self._find_matching_files(entry, list(entry.paths)))
        return found

    def _find_matching_files(self, entry: CatalogueEntry, patterns: list[str]) -> list[DriverFile]:
        known: dict[str, DriverFile] = {}
        for pattern in patterns:
            for path in [path for filled in self._fill_placeholders(pattern) for path in self._match_paths(filled)]:
                name = os.path.basename(path)
                hit = "known" if name in known else self.search.find_file(path)
                if is_manifest(name) and manifest_architecture(name, self.arches[0]) not in self.arches:
                    continue
                if not isinstance(hit, str):
                    container = entry.container.replace("{version}", self.version)
                    where = os.path.dirname(path)
                    known[name] = self._build_driver_file(entry, hit[0], name, where, f"{container}/{name}")
        return [known[name] for name in sorted(known)]

    def _fill_placeholders(self, pattern: str) -> list[str]:
        pattern = pattern.replace("{version}", self.version)
        if "{lib}" in pattern:
            return [pattern.replace("{lib}", path) for path in self.library_directories]
        return [pattern]

    def _match_paths(self, pattern: str) -> list[str]:
        """The paths, the last directory watched in any case."""
        return [
            path
            for path in self.search.expand_pattern(pattern)
            if self.search.find_directory(os.path.dirname(path)) is not None
        ]

    def _build_driver_file(self, entry: CatalogueEntry, real: str, name: str, found: str, container: str) -> DriverFile:
        self.search.watch_file(real)
        facts = self.search.read_elf(real) if entry.kind == "binary" else ""
        named: tuple[str, ...] = ()
        if entry.kind == "config" and is_manifest(name):
            try:
                named = parse_manifest_libraries(name, self.search.host.read_file(real, MANIFEST_LIMIT) or b"")
            except Fault:
                named = ()  # larger than any real one, or not to be read: a file like others
        arch = manifest_architecture(name, self.arches[0]) if named else ""
        return DriverFile(
            kind=entry.kind,
            capability=entry.capability,
            path=real,
            source=self.search.host.full_path(real),
            name=name,
            needs=named if isinstance(facts, str) else tuple(facts.needed),
            glibc="" if isinstance(facts, str) else facts.glibc,
            arch=arch if isinstance(facts, str) else facts.arch,
            container_path=container,
            found_in=found,
        )
