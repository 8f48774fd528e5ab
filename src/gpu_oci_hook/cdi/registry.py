"""The CDI files of a host: which device comes from which file, and what a name brings.

The rules are those of the reference library (container-device-interface, pkg/cdi/cache.go and spec-dirs.go): the
directories in order, a later one wins; `.json` and `.yaml` files by name, no subdirectories; a device that two files
of one directory define is nobody's, not even where a later directory defines it too; a broken file harms no other.

What the files say is remembered with the status of every one of them, so that a start parses none: PyYAML and the
checks are imported by `scan` alone. Cost rule: hot where a CDI name is used; one directory listing for each
directory, one `stat` for each file.
"""

from __future__ import annotations

import marshal
import os
import stat
import sys

from gpu_oci_hook import VERSION, state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.inventory import Memory
    from gpu_oci_hook.host.root import Host

    # Name, inode, size, and times of change in ns; zeros where it cannot be looked at.
    Mark = tuple[str, int, int, int, int]
    # A directory as configured, and its files; None for one that is missing or no directory.
    Marks = tuple[tuple[str, tuple[Mark, ...] | None], ...]

SUFFIXES = (".json", ".yaml")

# Files of one directory that are looked at; a driver that writes one for each claim has some hundreds.
MOST = 4096


class Part:
    """One file's word on one name: its common edits, or those of a device.

    Attributes:
        name: the qualified name that it was asked for by.
        path: of the file, in this process, as people know it.
        where: the JSON path of the edits in the file.
        edits: the object `containerEdits`.
        reason: why it goes in, for people.
    """

    __slots__ = ("edits", "name", "path", "reason", "where")

    def __init__(self, name: str, path: str, where: str, edits: dict[str, object], reason: str = "") -> None:
        self.name = name
        self.path = path
        self.where = where
        self.edits = edits
        self.reason = reason


class Registry:
    """The devices that the files of some directories define.

    Arguments:
        host: the machine; the directories lie below its root.
        directories: the spec directories, the one that wins last.
        memory: where what the files say is remembered.
    """

    __slots__ = ("_devices", "_files", "directories", "host")

    def __init__(self, host: Host, directories: tuple[str, ...], memory: Memory) -> None:
        self.host = host
        self.directories = directories
        # (path, common edits) of each file that defines a device that counts; a device's file, place in it, edits.
        self._files: list[tuple[str, dict[str, object]]] = []
        self._devices: dict[str, tuple[int, int, dict[str, object]]] = {}
        self._load(memory)

    def _load(self, memory: Memory) -> None:
        key = (VERSION, sys.hexversion, self.host.root, self.directories, marks(self.host, self.directories))
        words = "\0".join((self.host.root, *self.directories))
        name = "cdi-" + state.digest(words.encode("utf-8", "surrogateescape"))
        if self._recall(memory.get(name), key):
            return
        from gpu_oci_hook.cdi import scan

        found = scan.Scan(self.host, self.directories)
        self._files, self._devices = found.index()
        if found.settled():
            blob = marshal.dumps((key, self._files, self._devices))
            if len(blob) < state.LIMIT:  # more is not read back
                memory.put(name, blob)

    def _recall(self, blob: bytes | None, key: tuple[object, ...]) -> bool:
        if blob is None:
            return False
        try:
            known, files, devices = marshal.loads(blob)  # noqa: S302 - the memory is ours alone
        except (EOFError, ValueError, TypeError):
            return False
        if known != key:
            return False
        self._files, self._devices = files, devices
        return True

    def names(self) -> list[str]:
        """The qualified names of all devices that count."""
        return list(self._devices)

    def file(self, name: str) -> str:
        """The path of the file that a device comes from; "" when it comes from none."""
        found = self._devices.get(name)
        return self._files[found[0]][0] if found else ""

    def resolve(self, names: list[str]) -> list[Part]:
        """What some names bring, in their order; a file's common edits once, before the first of its devices.

        Arguments:
            names: qualified names that are known, see `file`; one that comes twice counts once.
        """
        parts: list[Part] = []
        met: set[int] = set()
        for name in dict.fromkeys(names):
            file, place, edits = self._devices[name]
            path, common = self._files[file]
            if file not in met:
                met.add(file)
                parts.append(Part(name, path, "containerEdits", common))
            parts.append(Part(name, path, f"devices[{place}].containerEdits", edits))
        return parts


def marks(host: Host, directories: tuple[str, ...]) -> Marks:
    """What changes when the files of some directories change."""
    found: list[tuple[str, tuple[Mark, ...] | None]] = []
    for directory in directories:
        place = location(host, directory)
        if not place:
            found.append((directory, None))
            continue
        entries: list[Mark] = []
        for name in names(place):
            try:
                status = os.stat(actual(host, f"{place}/{name}"))
            except (OSError, ValueError):
                entries.append((name, 0, 0, 0, 0))
                continue
            entries.append((name, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
        found.append((directory, tuple(entries)))
    return tuple(found)


def location(host: Host, directory: str) -> str:
    """A spec directory as a path in this process; "" when there is none.

    The library walks from the directory's own inode: one that is itself a link is no directory there, while links
    above it (/var/run) are followed.
    """
    status = host.status(directory, follow=False)
    if status is None or not stat.S_ISDIR(status.st_mode):
        return ""
    if not host.prefix:
        return directory
    above, _, name = directory.rstrip("/").rpartition("/")
    return host.path(f"{host.resolve(above or '/') or ''}/{name}")


def names(place: str) -> list[str]:
    """The names of the spec files in a directory, in the library's order; at most MOST of them."""
    try:
        found = [name for name in os.listdir(place) if name.endswith(SUFFIXES)]
    except OSError:
        return []
    found.sort()
    return found[:MOST]


def actual(host: Host, path: str) -> str:
    """The file that a path in this process means: below another root a link is followed inside it."""
    if not host.prefix or not os.path.islink(path):
        return path
    inside = host.resolve(path[len(host.prefix) :])
    return path if inside is None else host.path(inside)
