"""The driver's libraries: by the SONAME inside the file, wherever a distribution put it.

Looked at in this order: configured paths, the loader's caches, the directories that real hosts use, then the
directories where something was found and what lies below them. Of several versions the running driver's wins.
Cost rule: cold; only when the driver's files are searched anew.
"""

from __future__ import annotations

import os

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.architectures import ARCHITECTURES, HOST_ARCHITECTURES
from gpu_oci_hook.formats.driver_version import is_driver_version
from gpu_oci_hook.formats.ldcache import parse_ld_cache
from gpu_oci_hook.host.driver.catalogue import Catalogue, library_stem
from gpu_oci_hook.host.driver.search import FileSearch
from gpu_oci_hook.model.machine import DriverFile

_LOADER_CACHE_LIMIT = 16 << 20
_FULL_SCAN_LIMIT = 100  # directories with up to so many libraries are read file by file, whatever the names
_VERSION_LIBRARIES = ("libcuda.so", "libnvidia-ml.so")  # what tells a driver directory and the driver's version
_TOOLKIT_DIRECTORIES = ("/stubs/", "/compat/")  # a CUDA toolkit's, also with the SONAME libcuda.so.1


class SearchLocation:
    """A place that was looked at, and what came of it."""

    __slots__ = ("duplicate_count", "label", "note", "rejections", "used_count")

    def __init__(self, label: str, note: str = "") -> None:
        self.label = label
        self.note = note
        self.used_count = 0
        self.duplicate_count = 0
        self.rejections: dict[str, None] = {}

    def describe(self) -> str:
        """The report's words."""
        if self.used_count:
            text = f"{self.used_count} driver librar{'y' if self.used_count == 1 else 'ies'}"
        elif self.duplicate_count:
            text = f"{self.duplicate_count} driver librar{'y' if self.duplicate_count == 1 else 'ies'} that an earlier place had"
        else:
            text = "no usable driver library" if self.rejections else self.note or "no driver library"
        if not self.rejections:
            return text
        reasons = list(self.rejections)
        more = f" and {len(reasons) - 5} more" if len(reasons) > 5 else ""
        return f"{text}; left out: {'; '.join(reasons[:5])}{more}"


class _Candidate:
    __slots__ = ("arch", "glibc", "location", "needs", "real_path", "soname", "stem", "version", "via_soname")

    def __init__(self, location: SearchLocation, real_path: str, name: str, soname: str) -> None:
        self.location = location
        self.real_path = real_path
        self.soname = soname or os.path.basename(real_path)
        self.stem = library_stem(self.soname)
        self.version = _version_suffix(real_path)
        self.via_soname = name == self.soname  # reached by the name that the loader would use
        self.arch = ""
        self.glibc = ""
        self.needs: tuple[str, ...] = ()


class LibrarySearch:
    """One discovery of libraries.

    Arguments:
        search: the driver root, and the note of what to watch.
        catalogue: what belongs to which capability.
        version: the running kernel module's, "" when no module is loaded.
        machine: `uname -m`.

    Attributes:
        files: the libraries chosen, sorted. locations: all that was looked at, in order.
        version: what the libraries were chosen by: the running one if libcuda or libnvidia-ml of it is there,
            else the libraries' own. directories: those that had a driver library.
        other_versions: (SONAME, architecture) to "path (version)" where only other versions were found.
    """

    def __init__(self, search: FileSearch, catalogue: Catalogue, version: str, machine: str) -> None:
        self.search = search
        self.catalogue = catalogue
        self.running_version = version
        self.arch = machine if machine in HOST_ARCHITECTURES else ""
        self.arch32 = ARCHITECTURES[machine].arch32 if self.arch else ""
        self.triple, self.triple32 = (ARCHITECTURES[a].triple if a else "" for a in (self.arch, self.arch32))
        self.version = ""
        self.files: list[DriverFile] = []
        self.locations: list[SearchLocation] = []
        self.directories: dict[str, None] = {}
        self.other_versions: dict[tuple[str, str], str] = {}
        self._scanned_directories: dict[str, str] = {}
        self._seen_paths: dict[str, None] = {}
        self._candidates: list[_Candidate] = []

    def find_libraries(self, configured_paths: tuple[str, ...]) -> None:
        """Looks everywhere, then chooses."""
        for path in configured_paths:
            self._scan_directory(path, label=f"{path} (configured)", thorough=True)
        for path in self.catalogue.search_paths["caches"]:
            self._scan_loader_cache(path)
        for pattern in self.catalogue.search_paths["libraries"]:
            filled = pattern.replace("{arch}", self.triple).replace("{arch32}", self.triple32)
            paths = self.search.expand_pattern(filled)
            if not paths:
                self.locations.append(SearchLocation(filled, "missing"))
            for path in paths:
                self._scan_directory(path, label=path)
        done: set[str] = set()
        while left := [path for path in self.directories if path not in done]:
            for path in left:
                done.add(path)
                if path not in self._scanned_directories:
                    self._scan_directory(path, label=f"{path} (a driver library was found there)")
                for name in self.catalogue.search_paths["subdirectories"]:
                    if self.search.find_directory(f"{path}/{name}") is not None:
                        self._scan_directory(f"{path}/{name}", label=f"{path}/{name}", quiet=True)
        self._choose_libraries()

    def _scan_directory(self, path: str, *, label: str, thorough: bool = False, quiet: bool = False) -> None:
        place = SearchLocation(label)
        found = self.search.find_directory(path)
        if found is None:
            place.note = "missing"
        elif found in self._scanned_directories:
            place.note = f"the same as {self._scanned_directories[found]}"
            if quiet:
                return
        else:
            self._scanned_directories[found] = label
            names = [name for name in self.search.host.list_names(found) if ".so" in name]
            place.note = f"no driver library among {len(names)}" if names else "no library"
            everything = thorough or len(names) <= _FULL_SCAN_LIMIT
            for name in names:
                if everything or self.is_driver_library_name(name):
                    self._add_candidate(place, f"{found}/{name}", name)
        self.locations.append(place)

    def _scan_loader_cache(self, path: str) -> None:
        place = SearchLocation(path)
        self.locations.append(place)
        found = self.search.resolve_path(path)
        if found is None:
            place.note = "missing"
            return
        self.search.watch_file(found)
        try:
            data = self.search.host.read_file(found, _LOADER_CACHE_LIMIT)
            cache = parse_ld_cache(data or b"")
        except Fault as fault:
            place.note = f"not usable: {fault.what}"
            return
        place.note = f"no driver library among {len(cache.rows)}"
        kinds = [ARCHITECTURES[arch].cache_flags & 0xFF00 for arch in (self.arch, self.arch32) if arch]
        for flags, raw, raw_path, _, hwcap in cache.rows:
            if flags & 0xFF00 not in kinds or not flags & 1 or hwcap:
                continue
            name = os.fsdecode(raw)
            if self.is_driver_library_name(name):
                self._add_candidate(place, os.fsdecode(raw_path), name)

    def is_driver_library_name(self, name: str) -> bool:
        """Whether a file's name alone makes it worth opening."""
        base = library_stem(name)
        if base in self.catalogue.withheld:
            return False
        return base in self.catalogue.libraries or "nvidia" in name or is_driver_version(name[len(base) + 1 :])

    def _add_candidate(self, location: SearchLocation, path: str, name: str) -> None:
        loud = library_stem(name) in self.catalogue.libraries
        found = self.search.find_file(path)
        if isinstance(found, str):
            if loud:
                location.rejections[f"{name} {found}"] = None
            return
        real, _ = found
        if real in self._seen_paths:
            for known in self._candidates:
                if known.real_path == real and known.soname == name:
                    known.via_soname = True
                    location.duplicate_count += (
                        known.location is not location and known.stem in self.catalogue.libraries
                    )
            return
        self._seen_paths[real] = None
        if any(part in real for part in _TOOLKIT_DIRECTORIES):
            if loud:
                location.rejections[f"{name} belongs to a CUDA toolkit ({real})"] = None
            return
        facts = self.search.read_elf(real)
        if isinstance(facts, str):
            if loud:
                location.rejections[f"{name}: {facts}"] = None
            return
        candidate = _Candidate(location, real, name, facts.soname)
        if candidate.stem in self.catalogue.withheld or "/" in candidate.soname:
            return
        if facts.arch not in (self.arch, self.arch32) or not facts.arch:
            if loud:
                location.rejections[f"{name} is for {facts.arch or 'another machine'}"] = None
            return
        candidate.arch = facts.arch
        candidate.glibc = facts.glibc
        candidate.needs = tuple(facts.needed)
        self._candidates.append(candidate)
        if candidate.stem in self.catalogue.libraries:
            self.directories[os.path.dirname(real)] = None

    def _choose_libraries(self) -> None:
        self.version = self._choose_version()
        chosen: dict[tuple[str, str], _Candidate] = {}
        strangers: list[_Candidate] = []
        for candidate in self._candidates:
            key = (candidate.soname, candidate.arch)
            if candidate.version and candidate.version != self.version:
                if candidate.stem in self.catalogue.libraries:
                    self._reject_other_version(candidate)
            elif candidate.stem not in self.catalogue.libraries and not candidate.version:
                strangers.append(candidate)
            elif key not in chosen or (candidate.version and not chosen[key].version):
                chosen[key] = candidate
        self._add_needed_libraries(chosen, strangers)
        for key, candidate in chosen.items():
            self.other_versions.pop(key, None)
            entry = self.catalogue.libraries.get(candidate.stem)
            opens = [name.replace("{version}", self.version) for name in entry.opens] if entry else []
            more = [name for name in opens if (name, candidate.arch) in chosen and name not in candidate.needs]
            candidate.needs += tuple(more)
        for _, candidate in sorted(chosen.items(), key=lambda item: (item[0][1] != self.arch, item[0])):
            candidate.location.used_count += 1
            self.search.watch_file(candidate.real_path)
            self.files.append(self._build_driver_file(candidate))

    def _choose_version(self) -> str:
        """The version to choose by: the running one where its libraries are there, else what the libraries
        say.
        """
        known = [c for c in self._candidates if c.stem in self.catalogue.libraries and c.version]
        telling = [c for c in known if c.stem in _VERSION_LIBRARIES and c.arch == self.arch]
        if not telling and not self.running_version:
            telling = known
        if not telling or any(c.version == self.running_version for c in telling):
            return self.running_version
        first = [c for c in telling if c.location is telling[0].location]
        best = max(first, key=lambda c: (c.via_soname, [int(part) for part in c.version.split(".")]))
        return best.version

    def _reject_other_version(self, candidate: _Candidate) -> None:
        name = os.path.basename(candidate.real_path)
        candidate.location.rejections[f"{name} (the driver is {self.version})"] = None
        self.other_versions.setdefault(
            (candidate.soname, candidate.arch), f"{candidate.real_path} ({candidate.version})"
        )

    def _add_needed_libraries(self, chosen: dict[tuple[str, str], _Candidate], unlisted: list[_Candidate]) -> None:
        """Takes NVIDIA's unlisted libraries without the driver's version where a chosen one needs them."""
        while True:
            needed = {(name, c.arch) for c in chosen.values() for name in c.needs}
            wanted = [
                c
                for c in unlisted
                if (c.soname, c.arch) in needed and (c.soname, c.arch) not in chosen and "nvidia" in c.soname
            ]
            if not wanted:
                return
            for candidate in wanted:
                chosen.setdefault((candidate.soname, candidate.arch), candidate)

    def _build_driver_file(self, candidate: _Candidate) -> DriverFile:
        entry = self.catalogue.libraries.get(candidate.stem)
        name = os.path.basename(candidate.real_path)
        links = entry.links if entry else ()
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
    """The driver version that a file's name ends with; "" when it has none ("libnvidia-egl-gbm.so.1.1.1")."""
    _, found, rest = os.path.basename(path).partition(".so.")
    return rest if found and is_driver_version(rest) else ""
