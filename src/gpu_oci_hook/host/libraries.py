"""The driver's libraries: by the SONAME inside the file, wherever a distribution put it.

Looked at in this order: configured paths, the loader's caches, the directories that real hosts use, then the
directories where something was found and what lies below them. Of several versions the running driver's wins.
Cost rule: cold; only when the driver's files are searched anew.
"""

from __future__ import annotations

import os

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats import ARCHITECTURES, MACHINES, ldcache
from gpu_oci_hook.host.catalogue import Catalogue, stem
from gpu_oci_hook.host.gpus import driver_like
from gpu_oci_hook.host.inventory import DriverFile
from gpu_oci_hook.host.search import Search

_CACHE_LIMIT = 16 << 20
_SMALL = 100  # directories with up to so many libraries are read file by file, whatever the names
_DRIVER = ("libcuda.so", "libnvidia-ml.so")  # what tells a driver directory and the driver's version
_OTHERS = ("/stubs/", "/compat/")  # a CUDA toolkit's, also with the SONAME libcuda.so.1


class Place:
    """A place that was looked at, and what came of it."""

    __slots__ = ("known", "label", "left_out", "text", "used")

    def __init__(self, label: str, text: str = "") -> None:
        self.label = label
        self.text = text
        self.used = 0
        self.known = 0
        self.left_out: dict[str, None] = {}

    def said(self) -> str:
        """The report's words."""
        if self.used:
            text = f"{self.used} driver librar{'y' if self.used == 1 else 'ies'}"
        elif self.known:
            text = f"{self.known} driver librar{'y' if self.known == 1 else 'ies'} that an earlier place had"
        else:
            text = "no usable driver library" if self.left_out else self.text or "no driver library"
        if not self.left_out:
            return text
        reasons = list(self.left_out)
        more = f" and {len(reasons) - 5} more" if len(reasons) > 5 else ""
        return f"{text}; left out: {'; '.join(reasons[:5])}{more}"


class _Candidate:
    __slots__ = ("arch", "glibc", "linked", "needs", "place", "real", "soname", "stem", "version")

    def __init__(self, place: Place, real: str, name: str, soname: str) -> None:
        self.place = place
        self.real = real
        self.soname = soname or os.path.basename(real)
        self.stem = stem(self.soname)
        self.version = _suffix(real)
        self.linked = name == self.soname  # reached by the name that the loader would use
        self.arch = ""
        self.glibc = ""
        self.needs: tuple[str, ...] = ()


class Libraries:
    """One discovery of libraries.

    Arguments:
        search: the driver root, and the note of what to watch.
        catalogue: what belongs to which capability.
        version: the running kernel module's, "" when no module is loaded.
        machine: `uname -m`.

    Attributes:
        files: the libraries chosen, sorted. places: all that was looked at, in order.
        version: what the libraries were chosen by: the running one if libcuda or libnvidia-ml of it is there,
            else the libraries' own. directories: those that had a driver library.
        refused: (SONAME, architecture) to "path (version)" where only other versions were found.
    """

    def __init__(self, search: Search, catalogue: Catalogue, version: str, machine: str) -> None:
        self.search = search
        self.catalogue = catalogue
        self.running = version
        self.arch = machine if machine in MACHINES else ""
        self.arch32 = ARCHITECTURES[machine].small if self.arch else ""
        self.triple, self.triple32 = (ARCHITECTURES[a].triple if a else "" for a in (self.arch, self.arch32))
        self.version = ""
        self.files: list[DriverFile] = []
        self.places: list[Place] = []
        self.directories: dict[str, None] = {}
        self.refused: dict[tuple[str, str], str] = {}
        self._scanned: dict[str, str] = {}
        self._real: dict[str, None] = {}
        self._candidates: list[_Candidate] = []

    def discover(self, configured: tuple[str, ...]) -> None:
        """Looks everywhere, then chooses."""
        for path in configured:
            self._directory(path, label=f"{path} (configured)", thorough=True)
        for path in self.catalogue.places["caches"]:
            self._cache(path)
        for pattern in self.catalogue.places["libraries"]:
            filled = pattern.replace("{arch}", self.triple).replace("{arch32}", self.triple32)
            paths = self.search.expand(filled)
            if not paths:
                self.places.append(Place(filled, "missing"))
            for path in paths:
                self._directory(path, label=path)
        done: set[str] = set()
        while left := [path for path in self.directories if path not in done]:
            for path in left:
                done.add(path)
                if path not in self._scanned:
                    self._directory(path, label=f"{path} (a driver library was found there)")
                for name in self.catalogue.places["subdirectories"]:
                    if self.search.directory(f"{path}/{name}") is not None:
                        self._directory(f"{path}/{name}", label=f"{path}/{name}", quiet=True)
        self._choose()

    def _directory(self, path: str, *, label: str, thorough: bool = False, quiet: bool = False) -> None:
        place = Place(label)
        found = self.search.directory(path)
        if found is None:
            place.text = "missing"
        elif found in self._scanned:
            place.text = f"the same as {self._scanned[found]}"
            if quiet:
                return
        else:
            self._scanned[found] = label
            names = [name for name in self.search.host.names(found) if ".so" in name]
            place.text = f"no driver library among {len(names)}" if names else "no library"
            everything = thorough or len(names) <= _SMALL
            for name in names:
                if everything or self.interesting(name):
                    self._consider(place, f"{found}/{name}", name)
        self.places.append(place)

    def _cache(self, path: str) -> None:
        place = Place(path)
        self.places.append(place)
        found = self.search.resolve(path)
        if found is None:
            place.text = "missing"
            return
        self.search.watch(found)
        try:
            data = self.search.host.read(found, _CACHE_LIMIT)
            cache = ldcache.parse(data or b"")
        except Fault as fault:
            place.text = f"not usable: {fault.what}"
            return
        place.text = f"no driver library among {len(cache.rows)}"
        kinds = [ARCHITECTURES[arch].flags & 0xFF00 for arch in (self.arch, self.arch32) if arch]
        for flags, raw, raw_path, _, hwcap in cache.rows:
            if flags & 0xFF00 not in kinds or not flags & 1 or hwcap:
                continue
            name = os.fsdecode(raw)
            if self.interesting(name):
                self._consider(place, os.fsdecode(raw_path), name)

    def interesting(self, name: str) -> bool:
        """Whether a file's name alone makes it worth opening."""
        base = stem(name)
        if base in self.catalogue.withheld:
            return False
        return base in self.catalogue.libraries or "nvidia" in name or driver_like(name[len(base) + 1 :])

    def _consider(self, place: Place, path: str, name: str) -> None:
        loud = stem(name) in self.catalogue.libraries
        found = self.search.file(path)
        if isinstance(found, str):
            if loud:
                place.left_out[f"{name} {found}"] = None
            return
        real, _ = found
        if real in self._real:
            for known in self._candidates:
                if known.real == real and known.soname == name:
                    known.linked = True
                    place.known += known.place is not place and known.stem in self.catalogue.libraries
            return
        self._real[real] = None
        if any(part in real for part in _OTHERS):
            if loud:
                place.left_out[f"{name} belongs to a CUDA toolkit ({real})"] = None
            return
        facts = self.search.library(real)
        if isinstance(facts, str):
            if loud:
                place.left_out[f"{name}: {facts}"] = None
            return
        candidate = _Candidate(place, real, name, facts.soname)
        if candidate.stem in self.catalogue.withheld or "/" in candidate.soname:
            return
        if facts.arch not in (self.arch, self.arch32) or not facts.arch:
            if loud:
                place.left_out[f"{name} is for {facts.arch or 'another machine'}"] = None
            return
        candidate.arch = facts.arch
        candidate.glibc = facts.glibc
        candidate.needs = tuple(facts.needed)
        self._candidates.append(candidate)
        if candidate.stem in self.catalogue.libraries:
            self.directories[os.path.dirname(real)] = None

    def _choose(self) -> None:
        self.version = self._own_version()
        chosen: dict[tuple[str, str], _Candidate] = {}
        strangers: list[_Candidate] = []
        for candidate in self._candidates:
            key = (candidate.soname, candidate.arch)
            if candidate.version and candidate.version != self.version:
                if candidate.stem in self.catalogue.libraries:
                    self._refuse(candidate)
            elif candidate.stem not in self.catalogue.libraries and not candidate.version:
                strangers.append(candidate)
            elif key not in chosen or (candidate.version and not chosen[key].version):
                chosen[key] = candidate
        self._closure(chosen, strangers)
        for key, candidate in chosen.items():
            self.refused.pop(key, None)
            entry = self.catalogue.libraries.get(candidate.stem)
            opens = [name.replace("{version}", self.version) for name in entry.opens] if entry else []
            more = [name for name in opens if (name, candidate.arch) in chosen and name not in candidate.needs]
            candidate.needs += tuple(more)
        for _, candidate in sorted(chosen.items(), key=lambda item: (item[0][1] != self.arch, item[0])):
            candidate.place.used += 1
            self.search.watch(candidate.real)
            self.files.append(self._file(candidate))

    def _own_version(self) -> str:
        """The version to choose by: the running one where its libraries are there, else what the libraries
        say.
        """
        known = [c for c in self._candidates if c.stem in self.catalogue.libraries and c.version]
        telling = [c for c in known if c.stem in _DRIVER and c.arch == self.arch]
        if not telling and not self.running:
            telling = known
        if not telling or any(c.version == self.running for c in telling):
            return self.running
        first = [c for c in telling if c.place is telling[0].place]
        best = max(first, key=lambda c: (c.linked, [int(part) for part in c.version.split(".")]))
        return best.version

    def _refuse(self, candidate: _Candidate) -> None:
        name = os.path.basename(candidate.real)
        candidate.place.left_out[f"{name} (the driver is {self.version})"] = None
        self.refused.setdefault((candidate.soname, candidate.arch), f"{candidate.real} ({candidate.version})")

    def _closure(self, chosen: dict[tuple[str, str], _Candidate], strangers: list[_Candidate]) -> None:
        """Takes NVIDIA's unlisted libraries without the driver's version where a chosen one needs them."""
        while True:
            needed = {(name, c.arch) for c in chosen.values() for name in c.needs}
            wanted = [
                c
                for c in strangers
                if (c.soname, c.arch) in needed and (c.soname, c.arch) not in chosen and "nvidia" in c.soname
            ]
            if not wanted:
                return
            for candidate in wanted:
                chosen.setdefault((candidate.soname, candidate.arch), candidate)

    def _file(self, candidate: _Candidate) -> DriverFile:
        entry = self.catalogue.libraries.get(candidate.stem)
        name = os.path.basename(candidate.real)
        links = entry.links if entry else ()
        return DriverFile(
            kind="library",
            capability=entry.capability if entry else "compute",
            path=candidate.real,
            source=self.search.host.path(candidate.real),
            name=name,
            soname=candidate.soname,
            links=tuple([link for link in links if link not in (name, candidate.soname)]),
            needs=candidate.needs,
            glibc=candidate.glibc,
            arch=candidate.arch,
            found=candidate.place.label,
            required=bool(entry and entry.required == candidate.soname and candidate.arch == self.arch),
        )


def _suffix(path: str) -> str:
    """The driver version that a file's name ends with; "" when it has none ("libnvidia-egl-gbm.so.1.1.1")."""
    _, found, rest = os.path.basename(path).partition(".so.")
    return rest if found and driver_like(rest) else ""
