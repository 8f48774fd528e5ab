"""The whole search: libraries, then programs, firmware and configuration files around them.

Cost rule: cold; only when the driver's files are searched anew.
"""

from __future__ import annotations

import os

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host import catalogue as catalogues
from gpu_oci_hook.host import manifests
from gpu_oci_hook.host.catalogue import Catalogue, Entry
from gpu_oci_hook.host.inventory import DriverFile, Inventory, witness
from gpu_oci_hook.host.libraries import Libraries
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.host.search import Search

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.inventory import Live, Remembered

_BINARIES = "/usr/bin"  # where programs get to in a container


def discover(host: Host, driver: Host, library_paths: tuple[str, ...], version: str) -> Remembered:
    """Everything that the driver brought, for `inventory.load`.

    Arguments:
        host: the machine. driver: the root with the driver's files.
        library_paths: where to look first, below the driver's root.
        version: of the running kernel module, "" when it is not loaded.

    Returns:
        (witnesses, `Inventory.to_data()`, what to look at every time).
    """
    catalogue = catalogues.load()
    search = Search(driver)
    libraries = Libraries(search, catalogue, version, host.machine)
    libraries.discover(library_paths)
    own = libraries.version if any(file.kind == "library" for file in libraries.files) else ""
    around = _Around(search, catalogue, list(libraries.directories), version or own, (libraries.arch, libraries.arch32))
    files = [*libraries.files, *around.binaries(), *around.firmware(host, os.uname().release), *around.config()]
    places = [(place.label, place.said()) for place in libraries.places]
    problems: list[str] = []
    if version and own and own != version:
        problems.append(
            f"kernel module {version}, libraries {own}: reboot, or unload and reload the nvidia modules; "
            f"until then NVML and CUDA fail with a version mismatch"
        )
    inventory = Inventory(
        version=version or own,
        libraries=own,
        files=tuple(files),
        places=tuple(places),
        missing=_missing(catalogue, libraries),
        problems=tuple(problems),
        incomplete=manifests.incomplete(files, libraries.interesting),
    )
    live: list[Live] = [
        (entry.kind, entry.capability, entry.paths, entry.container, entry.variable)
        for entry in catalogue.entries
        if entry.kind in ("socket", "directory")
    ]
    witnesses = (*search.witnesses(), witness(catalogues.PATH))
    return witnesses, inventory.to_data(), tuple(live)


def _missing(catalogue: Catalogue, libraries: Libraries) -> tuple[tuple[str, str, str], ...]:
    there = {file.soname for file in libraries.files if file.arch == libraries.arch}
    found: list[tuple[str, str, str]] = []
    for capability, soname in catalogue.required:
        if soname not in there:
            other = libraries.refused.get((soname, libraries.arch))
            why = f"only {other} is there" if other else "it is in none of the places looked at"
            found.append((capability, soname, why))
    return tuple(found)


class _Around:
    """What lies around the libraries.

    Arguments:
        search: the driver root. directories: those that had driver libraries. version: the driver's.
        arches: the machine's architecture and its 32-bit sister.
    """

    def __init__(
        self,
        search: Search,
        catalogue: Catalogue,
        directories: list[str],
        version: str,
        arches: tuple[str, str],
    ) -> None:
        self.search = search
        self.catalogue = catalogue
        self.directories = directories
        self.version = version
        self.arches = arches

    def binaries(self) -> list[DriverFile]:
        """The programs; of several with one name the first place's."""
        found: list[DriverFile] = []
        places = [path for pattern in self.catalogue.places["binaries"] for path in self._fill(pattern)]
        wanted = {name: entry for entry in self.catalogue.of("binary") for name in entry.names}
        for place in places:
            directory = self.search.directory(place)
            if directory is None:
                continue
            for name in list(wanted):
                hit = self.search.file(f"{directory}/{name}")
                if isinstance(hit, str) or not hit[1].st_mode & 0o111:
                    continue
                entry = wanted.pop(name)
                found.append(self._file(entry, hit[0], name, place, f"{_BINARIES}/{name}"))
        return sorted(found, key=lambda file: file.name)

    def firmware(self, host: Host, kernel: str) -> list[DriverFile]:
        """The firmware; of several with one name the first place's, in the kernel's own order."""
        places = [place.replace("{kernel}", kernel) for place in self.catalogue.places["firmware"]]
        try:
            own = host.read("/sys/module/firmware_class/parameters/path", 4096)
        except Fault:
            own = None
        text = os.fsdecode(own or b"").strip()
        if text.startswith("/"):
            below, root = host.path(text), self.search.host.prefix  # the kernel's path is the machine's
            places.insert(0, below.removeprefix(root) if below.startswith(root + "/") else text)
        found: list[DriverFile] = []
        for entry in self.catalogue.of("firmware"):
            patterns = [f"{place}/{name}" for place in places for name in entry.names] if self.version else []
            found.extend(self._named(entry, patterns))
        return found

    def config(self) -> list[DriverFile]:
        """The configuration files; of several with one name the first place's."""
        found: list[DriverFile] = []
        for entry in self.catalogue.of("config"):
            found.extend(self._named(entry, list(entry.paths)))
        return found

    def _named(self, entry: Entry, patterns: list[str]) -> list[DriverFile]:
        known: dict[str, DriverFile] = {}
        for pattern in patterns:
            for path in [path for filled in self._fill(pattern) for path in self._matches(filled)]:
                name = os.path.basename(path)
                hit = "known" if name in known else self.search.file(path)
                if manifests.is_manifest(name) and manifests.architecture(name, self.arches[0]) not in self.arches:
                    continue
                if not isinstance(hit, str):
                    container = entry.container.replace("{version}", self.version)
                    where = os.path.dirname(path)
                    known[name] = self._file(entry, hit[0], name, where, f"{container}/{name}")
        return [known[name] for name in sorted(known)]

    def _fill(self, pattern: str) -> list[str]:
        pattern = pattern.replace("{version}", self.version)
        if "{lib}" in pattern:
            return [pattern.replace("{lib}", path) for path in self.directories]
        return [pattern]

    def _matches(self, pattern: str) -> list[str]:
        """The paths, the last directory watched in any case."""
        return [
            path for path in self.search.expand(pattern) if self.search.directory(os.path.dirname(path)) is not None
        ]

    def _file(self, entry: Entry, real: str, name: str, found: str, container: str) -> DriverFile:
        self.search.watch(real)
        facts = self.search.library(real) if entry.kind == "binary" else ""
        named: tuple[str, ...] = ()
        if entry.kind == "config" and manifests.is_manifest(name):
            try:
                named = manifests.libraries(name, self.search.host.read(real, manifests.LIMIT) or b"")
            except Fault:
                named = ()  # larger than any real one, or not to be read: a file like others
        arch = manifests.architecture(name, self.arches[0]) if named else ""
        return DriverFile(
            kind=entry.kind,
            capability=entry.capability,
            path=real,
            source=self.search.host.path(real),
            name=name,
            needs=named if isinstance(facts, str) else tuple(facts.needed),
            glibc="" if isinstance(facts, str) else facts.glibc,
            arch=arch if isinstance(facts, str) else facts.arch,
            container=container,
            found=found,
        )
