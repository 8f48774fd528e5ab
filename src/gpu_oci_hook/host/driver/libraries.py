"""Find the driver's libraries by the SONAME inside the file, in whatever directory a distribution put them.

Search order: configured paths, loader caches, the directories of known distributions, then the directories in which a
driver library was found and their subdirectories. Of several versions the running driver's is chosen.

Import budget: cold.
"""

from __future__ import annotations

import os

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.architectures import ARCHITECTURES, HOST_ARCHITECTURES
from gpu_oci_hook.formats.driver_version import is_driver_version
from gpu_oci_hook.formats.ldcache import parse_ld_cache
from gpu_oci_hook.host.driver.catalogue import Catalogue, library_stem
from gpu_oci_hook.host.driver.search import NOT_READABLE, FileSearch
from gpu_oci_hook.model.machine import DriverFile

_LOADER_CACHE_LIMIT = 16 << 20
_FULL_SCAN_LIMIT = 100  # in a directory with up to this many libraries every file is opened, whatever its name
_VERSION_LIBRARIES = ("libcuda.so", "libnvidia-ml.so")  # their version is the driver's version
_TOOLKIT_DIRECTORIES = ("/stubs/", "/compat/")  # of a CUDA toolkit, which has files with SONAME libcuda.so.1 there
_MAX_REPORTED_REJECTIONS = 5


class SearchLocation:
    """A directory or loader cache that was searched, and the result for the report.

    Arguments:
        label: the location, for people.
        note: the result where no library was found, or "" for a default text.

    Attributes:
        used_count: the libraries of this location that were chosen.
        duplicate_count: its libraries that an earlier location had.
        rejections: the reasons why files were left out, in order.
    """

    __slots__ = ("duplicate_count", "label", "note", "rejections", "used_count")

    def __init__(self, label: str, note: str = "") -> None:
        self.label = label
        self.note = note
        self.used_count = 0
        self.duplicate_count = 0
        self.rejections: dict[str, None] = {}

    def describe_result(self) -> str:
        """Return the result as a text for the report."""
        if self.used_count:
            result = _count_libraries(self.used_count)
        elif self.duplicate_count:
            result = f"{_count_libraries(self.duplicate_count)} (already found above)"
        else:
            result = "no usable driver library" if self.rejections else self.note or "no driver library"
        if not self.rejections:
            return result
        reasons = list(self.rejections)
        rest_count = len(reasons) - _MAX_REPORTED_REJECTIONS
        more = f" and {rest_count} more" if rest_count > 0 else ""
        return f"{result}; left out: {'; '.join(reasons[:_MAX_REPORTED_REJECTIONS])}{more}"


def _count_libraries(count: int) -> str:
    return f"{count} driver {'library' if count == 1 else 'libraries'}"


class _Candidate:
    """A library that may be chosen.

    Attributes:
        via_soname: it was reached by the name that the loader would use.
    """

    __slots__ = ("arch", "glibc", "location", "needs", "real_path", "soname", "stem", "version", "via_soname")

    def __init__(self, location: SearchLocation, real_path: str, name: str, soname: str) -> None:
        self.location = location
        self.real_path = real_path
        self.soname = soname or os.path.basename(real_path)
        self.stem = library_stem(self.soname)
        self.version = _version_suffix(real_path)
        self.via_soname = name == self.soname
        self.arch = ""
        self.glibc = ""
        self.needs: tuple[str, ...] = ()


class DriverLibrarySearch:
    """One search for libraries below a driver root.

    Arguments:
        search: the search below the driver root; it records what to watch.
        catalogue: which library belongs to which capability.
        version: the running kernel module's version, "" when no module is loaded.
        machine: `uname -m`.

    Attributes:
        files: the chosen libraries, sorted.
        locations: all locations searched, in order.
        version: the version by which libraries were chosen: the running one if its libcuda or libnvidia-ml was found,
            else the libraries' own.
        directories: the directories that had a driver library.
        other_versions: (SONAME, architecture) to "path (version)" where only other versions were found.
    """

    def __init__(self, search: FileSearch, catalogue: Catalogue, version: str, machine: str) -> None:
        self.search = search
        self.catalogue = catalogue
        self.running_version = version
        self.arch = machine if machine in HOST_ARCHITECTURES else ""
        self.arch32 = ARCHITECTURES[machine].arch32 if self.arch else ""
        self.triple, self.triple32 = (ARCHITECTURES[arch].triple if arch else "" for arch in (self.arch, self.arch32))
        self.version = ""
        self.files: list[DriverFile] = []
        self.locations: list[SearchLocation] = []
        self.directories: dict[str, None] = {}
        self.other_versions: dict[tuple[str, str], str] = {}
        self._scanned_directories: dict[str, str] = {}
        self._seen_paths: dict[str, dict[str, None]] = {}  # path without links to the names that lead there
        self._candidates: list[_Candidate] = []

    def find_libraries(self, configured_paths: tuple[str, ...]) -> None:
        """Search all locations, then choose among the libraries found."""
        for path in configured_paths:
            self._scan_directory(path, label=f"{path} (configured)", thorough=True)
        for path in self.catalogue.search_paths["caches"]:
            self._scan_loader_cache(path)
        for pattern in self.catalogue.search_paths["libraries"]:
            filled = pattern.replace("{arch}", self.triple).replace("{arch32}", self.triple32)
            if "{machine}" in filled:  # a root directory that only one distribution has is not worth a line elsewhere
                filled = filled.replace("{machine}", self.search.host.machine)
                if self.search.find_directory(filled) is None:
                    continue
            paths = self.search.expand_pattern(filled)
            if not paths:
                self.locations.append(SearchLocation(filled, "missing"))
            for path in paths:
                self._scan_directory(path, label=path)
        self._scan_library_directories()
        self._choose_libraries()

    def _scan_library_directories(self) -> None:
        """Search the directories that had a driver library, and their subdirectories, until no new one appears."""
        done: set[str] = set()
        while pending := [path for path in self.directories if path not in done]:
            for path in pending:
                done.add(path)
                if path not in self._scanned_directories:
                    self._scan_directory(path, label=f"{path} (a driver library was found there)")
                for name in self.catalogue.search_paths["subdirectories"]:
                    if self.search.find_directory(f"{path}/{name}") is not None:
                        self._scan_directory(f"{path}/{name}", label=f"{path}/{name}", quiet=True)

    def _scan_directory(self, path: str, *, label: str, thorough: bool = False, quiet: bool = False) -> None:
        """Collect the candidates in a directory.

        Arguments:
            label: the directory, for people.
            thorough: open every library, however many there are.
            quiet: do not report a directory that was scanned before.
        """
        location = SearchLocation(label)
        directory = self.search.find_directory(path)
        if directory is None:
            location.note = self.search.describe_absence(path)
        elif directory in self._scanned_directories:
            location.note = f"the same as {self._scanned_directories[directory]}"
            if quiet:
                return
        else:
            self._scanned_directories[directory] = label
            names = [name for name in self.search.host.list_names(directory) if ".so" in name]
            no_library = "no library" if self.search.may_list(directory) else NOT_READABLE
            location.note = f"no driver library among {len(names)}" if names else no_library
            open_all = thorough or len(names) <= _FULL_SCAN_LIMIT
            for name in names:
                if open_all or self.is_driver_library_name(name):
                    self._add_candidate(location, f"{directory}/{name}", name)
        self.locations.append(location)

    def _scan_loader_cache(self, path: str) -> None:
        """Collect the candidates in an ld.so.cache."""
        location = SearchLocation(path)
        self.locations.append(location)
        resolved = self.search.resolve_path(path)
        if resolved is None:
            location.note = self.search.describe_absence(path)
            return
        self.search.watch_file(resolved)
        try:
            data = self.search.host.read_file(resolved, _LOADER_CACHE_LIMIT)
            cache = parse_ld_cache(data or b"")
        except Fault as fault:
            location.note = f"not usable: {fault.what}"
            return
        location.note = f"no driver library among {len(cache.rows)}"
        arch_flags = [ARCHITECTURES[arch].cache_flags & 0xFF00 for arch in (self.arch, self.arch32) if arch]
        for flags, raw_name, raw_path, _, hwcap in cache.rows:
            if flags & 0xFF00 not in arch_flags or not flags & 1 or hwcap:
                continue
            name = os.fsdecode(raw_name)
            if self.is_driver_library_name(name):
                self._add_candidate(location, os.fsdecode(raw_path), name)

    def is_driver_library_name(self, name: str) -> bool:
        """Tell whether a file of this name may be a driver library, so that it is worth opening."""
        stem = library_stem(name)
        if stem in self.catalogue.withheld:
            return False
        return stem in self.catalogue.libraries or "nvidia" in name or is_driver_version(name[len(stem) + 1 :])

    def _add_candidate(self, location: SearchLocation, path: str, name: str) -> None:
        """Add the library at a path to the candidates, or its rejection to the location."""
        match = self.search.find_file(path)
        if isinstance(match, str):
            self._reject_listed(location, name, f"{name} {match}")
            return
        real_path, _ = match
        if real_path in self._seen_paths:
            self._seen_paths[real_path][name] = None
            self._count_duplicate(location, real_path, name)
            return
        self._seen_paths[real_path] = {name: None}
        if any(part in real_path for part in _TOOLKIT_DIRECTORIES):
            self._reject_listed(location, name, f"{name} belongs to a CUDA toolkit ({real_path})")
            return
        library = self.search.read_elf(real_path)
        if isinstance(library, str):
            self._reject_listed(location, name, f"{name}: {library}")
            return
        candidate = _Candidate(location, real_path, name, library.soname)
        if candidate.stem in self.catalogue.withheld or "/" in candidate.soname:
            return
        if library.arch not in (self.arch, self.arch32) or not library.arch:
            self._reject_listed(location, name, f"{name} is for {library.arch or 'another machine'}")
            return
        candidate.arch = library.arch
        candidate.glibc = library.glibc
        candidate.needs = tuple(library.needed)
        self._candidates.append(candidate)
        if candidate.stem in self.catalogue.libraries:
            self.directories[os.path.dirname(real_path)] = None

    def _reject_listed(self, location: SearchLocation, name: str, reason: str) -> None:
        """Report the rejection of a file if the catalogue lists its name. Other files are not worth a report."""
        if library_stem(name) in self.catalogue.libraries:
            location.rejections[reason] = None

    def _count_duplicate(self, location: SearchLocation, real_path: str, name: str) -> None:
        """Note that a location has a library again, under this name."""
        for candidate in self._candidates:
            if candidate.real_path == real_path and candidate.soname == name:
                candidate.via_soname = True
                if candidate.location is not location and candidate.stem in self.catalogue.libraries:
                    location.duplicate_count += 1

    def _choose_libraries(self) -> None:
        """Choose one library for each SONAME and architecture."""
        self.version = self._choose_version()
        chosen: dict[tuple[str, str], _Candidate] = {}
        unlisted: list[_Candidate] = []
        for candidate in self._candidates:
            key = (candidate.soname, candidate.arch)
            if candidate.version and candidate.version != self.version:
                if candidate.stem in self.catalogue.libraries:
                    self._reject_other_version(candidate)
            elif candidate.stem not in self.catalogue.libraries and not candidate.version:
                unlisted.append(candidate)
            elif key not in chosen or (candidate.version and not chosen[key].version):
                chosen[key] = candidate
        self._add_needed_libraries(chosen, unlisted)
        for key, candidate in chosen.items():
            self.other_versions.pop(key, None)
            entry = self.catalogue.libraries.get(candidate.stem)
            opened_names = [name.replace("{version}", self.version) for name in entry.opens] if entry else []
            candidate.needs += tuple(
                [name for name in opened_names if (name, candidate.arch) in chosen and name not in candidate.needs]
            )
        for _, candidate in sorted(chosen.items(), key=lambda item: (item[0][1] != self.arch, item[0])):
            candidate.location.used_count += 1
            self.search.watch_file(candidate.real_path)
            self.files.append(self._build_driver_file(candidate))

    def _choose_version(self) -> str:
        """Return the version to choose libraries by: the running one if it was found, else the libraries' own."""
        versioned = [c for c in self._candidates if c.stem in self.catalogue.libraries and c.version]
        decisive = [c for c in versioned if c.stem in _VERSION_LIBRARIES and c.arch == self.arch]
        if not decisive and not self.running_version:
            decisive = versioned
        if not decisive or any(c.version == self.running_version for c in decisive):
            return self.running_version
        first_location = [c for c in decisive if c.location is decisive[0].location]
        best = max(first_location, key=lambda c: (c.via_soname, [int(part) for part in c.version.split(".")]))
        return best.version

    def _reject_other_version(self, candidate: _Candidate) -> None:
        name = os.path.basename(candidate.real_path)
        candidate.location.rejections[f"{name} (the driver is {self.version})"] = None
        self.other_versions.setdefault(
            (candidate.soname, candidate.arch), f"{candidate.real_path} ({candidate.version})"
        )

    def _add_needed_libraries(self, chosen: dict[tuple[str, str], _Candidate], unlisted: list[_Candidate]) -> None:
        """Choose also NVIDIA's unlisted libraries without the driver's version that a chosen one needs."""
        while True:
            needed = {(name, c.arch) for c in chosen.values() for name in c.needs}
            additions = [
                c
                for c in unlisted
                if (c.soname, c.arch) in needed and (c.soname, c.arch) not in chosen and "nvidia" in c.soname
            ]
            if not additions:
                return
            for candidate in additions:
                chosen.setdefault((candidate.soname, candidate.arch), candidate)

    def _build_driver_file(self, candidate: _Candidate) -> DriverFile:
        entry = self.catalogue.libraries.get(candidate.stem)
        name = os.path.basename(candidate.real_path)
        links = list(entry.links) if entry else []
        # Names for the linker, and for programs that open the library without a version.
        links += [link for link in self._seen_paths[candidate.real_path] if link.endswith(".so") and link not in links]
        return DriverFile(
            kind="library",
            capability=entry.capability if entry else "compute",
            path=candidate.real_path,
            source=self.search.host.full_path(candidate.real_path),
            name=name,
            soname=candidate.soname,
            links=tuple([link for link in links if link not in (name, candidate.soname)]),
            needs=candidate.needs,
            glibc=candidate.glibc,
            arch=candidate.arch,
            found_in=candidate.location.label,
            required=bool(entry and entry.required == candidate.soname and candidate.arch == self.arch),
        )


def _version_suffix(path: str) -> str:
    """Return the driver version at the end of a file's name, or "" when it has none ("libnvidia-egl-gbm.so.1.1.1")."""
    _, separator, suffix = os.path.basename(path).partition(".so.")
    return suffix if separator and is_driver_version(suffix) else ""
