"""What the machine has, as plain data: GPUs, device nodes, driver files; and the memory of the latter.

Searching for driver files takes a hundred times longer than remembering them, so what was found is kept with a list
of witnesses: the status of every directory, cache and file that the answer depends on. It counts only while all of
them are the same. Cost rule: on the way of every GPU container; the search itself is imported only when it has to
run.
"""

from __future__ import annotations

import marshal
import os
import stat
import sys

from gpu_oci_hook import VERSION, state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any, Protocol

    from gpu_oci_hook.host.root import Host

    Witness = tuple[str, int, int, int]  # path in this process, mtime in ns, inode, size (-1: missing)
    # Kind, capability, paths to try, place in the container, environment variable that comes first.
    Live = tuple[str, str, tuple[str, ...], str, str]
    Remembered = tuple[tuple[Witness, ...], tuple[object, ...], tuple[Any, ...]]

    class Memory(Protocol):
        """What `load` needs of the state directory."""

        def get(self, name: str) -> bytes | None: ...
        def put(self, name: str, data: bytes) -> object: ...
        def lock(self, name: str) -> AbstractContextManager[object]: ...


class Gpu:
    """One GPU.

    Arguments:
        index: rank of the PCI address among the GPUs that are not excluded (what NVML and `nvidia-smi`
            number by).
        uuid: "GPU-…"; the driver writes question marks until the GPU was initialised once.
        pci: "0000:01:00.0", lower case.
        minor: number of /dev/nvidia<minor>; another number than the index.
        model: "NVIDIA A100-SXM4-40GB".
    """

    __slots__ = ("index", "minor", "model", "pci", "uuid")

    def __init__(self, *, index: int, uuid: str, pci: str, minor: int, model: str) -> None:
        self.index = index
        self.uuid = uuid
        self.pci = pci
        self.minor = minor
        self.model = model


class Node:
    """One device node, whether the host has it or not.

    Arguments:
        path: "/dev/nvidia0", the same on the host and in the container.
        major, minor: the numbers that the kernel has given to the driver now.
        mode: permission bits (0o666).
        uid, gid: owner on the host.
        exists: the host's node is there with these very numbers, so it can be the source of a bind mount.
        source: the host's node as a path in this process.
    """

    __slots__ = ("exists", "gid", "major", "minor", "mode", "path", "source", "uid")

    def __init__(
        self, *, path: str, major: int, minor: int, mode: int, uid: int, gid: int, exists: bool, source: str
    ) -> None:
        self.path = path
        self.major = major
        self.minor = minor
        self.mode = mode
        self.uid = uid
        self.gid = gid
        self.exists = exists
        self.source = source


class DriverFile:
    """One file, socket or directory of the driver.

    Arguments:
        kind: "library", "binary", "socket", "firmware", "config" or "directory"; of extras also "tree" (a
            directory to be read only) and "shm" (one in the place of /dev/shm).
        capability: "utility", "compute", "video", "graphics", "display", "ngx", or "" for always. A library
            for 32-bit programs keeps its own capability and is told by its `arch`; it goes in with
            "compat32" alone.
        path: below the driver root (sockets: below the root that has them), without links.
        source: the same file as a path in this process: what gets mounted.
        name: the name it gets in the container.
        soname: the name the loader looks for; "" for everything but libraries.
        links: extra link names beside it, to `soname`; one with a slash ("gbm/x.so") is a link in a
            subdirectory.
        needs: the SONAMEs that it needs (DT_NEEDED, and what it opens by name); the libraries that a manifest names.
        glibc: the newest glibc version that it needs ("2.34"), "" for none.
        arch: "x86_64", "i386", "aarch64", "armhf"; "" for what is no ELF file.
        container: its place in the container; "" for libraries, where the image decides.
        found: the place that had it, as `list` prints it.
        required: without it, its capability cannot work.
    """

    __slots__ = (
        "arch", "capability", "container", "found", "glibc", "kind",
        "links", "name", "needs", "path", "required", "soname", "source",
    )  # fmt: skip

    def __init__(
        self,
        *,
        kind: str,
        capability: str,
        path: str,
        source: str,
        name: str,
        soname: str = "",
        links: tuple[str, ...] = (),
        needs: tuple[str, ...] = (),
        glibc: str = "",
        arch: str = "",
        container: str = "",
        found: str = "",
        required: bool = False,
    ) -> None:
        self.kind = kind
        self.capability = capability
        self.path = path
        self.source = source
        self.name = name
        self.soname = soname
        self.links = links
        self.needs = needs
        self.glibc = glibc
        self.arch = arch
        self.container = container
        self.found = found
        self.required = required

    def to_data(self) -> tuple[object, ...]:
        """All fields as marshal-able plain data, in the order of their names."""
        return tuple(getattr(self, name) for name in self.__slots__)

    @classmethod
    def from_data(cls, data: tuple[Any, ...]) -> DriverFile:
        """The reverse of `to_data`; ValueError or TypeError when the data has another shape."""
        file = cls.__new__(cls)  # by keyword it would cost every start a fifth of a millisecond
        (
            file.arch, file.capability, file.container, file.found, file.glibc, file.kind,
            file.links, file.name, file.needs, file.path, file.required, file.soname, file.source,
        ) = data  # fmt: skip
        return file


class Inventory:
    """What the driver has brought onto the machine.

    Arguments:
        version: of the running kernel module; the libraries' own when no module is loaded; "" when neither
            tells.
        libraries: version of the libraries in `files`; "" when unknown. Another one than `version` is a
            mismatch.
        files: all driver files, sorted.
        places: (place, what was found there or why nothing was), in the order looked at.
        missing: (capability, SONAME, why) of each library without which its capability cannot work.
        problems: sentences for people, each with its cure.
        incomplete: (place in the container, name, SONAME) where a file names a library that needs another which
            the host lacks.
    """

    __slots__ = ("files", "incomplete", "libraries", "missing", "places", "problems", "version")

    def __init__(
        self,
        *,
        version: str,
        libraries: str = "",
        files: tuple[DriverFile, ...] = (),
        places: tuple[tuple[str, str], ...] = (),
        missing: tuple[tuple[str, str, str], ...] = (),
        problems: tuple[str, ...] = (),
        incomplete: tuple[tuple[str, str, str], ...] = (),
    ) -> None:
        self.incomplete = incomplete
        self.version = version
        self.libraries = libraries
        self.files = files
        self.places = places
        self.missing = missing
        self.problems = problems

    @property
    def mismatch(self) -> bool:
        """Kernel module and libraries are of different versions: NVML and CUDA will refuse to start."""
        return bool(self.libraries) and self.libraries != self.version

    def to_data(self) -> tuple[object, ...]:
        """Everything as nested tuples of str, int and bool."""
        files = tuple([file.to_data() for file in self.files])
        return self.version, self.libraries, files, self.places, self.missing, self.problems, self.incomplete

    @classmethod
    def from_data(cls, data: tuple[object, ...]) -> Inventory:
        """The reverse of `to_data`; ValueError or TypeError when the data has another shape."""
        version, libraries, files, places, missing, problems, incomplete = data
        return cls(
            version=version,  # type: ignore[arg-type]
            libraries=libraries,  # type: ignore[arg-type]
            files=tuple([DriverFile.from_data(item) for item in files]),  # type: ignore[attr-defined]
            places=places,  # type: ignore[arg-type]
            missing=missing,  # type: ignore[arg-type]
            problems=problems,  # type: ignore[arg-type]
            incomplete=incomplete,  # type: ignore[arg-type]
        )


def witness(path: str) -> Witness:
    """What must stay the same about a path in this process, for what was learnt from it to stay true."""
    try:
        status = os.lstat(path)
    except (OSError, ValueError):
        return path, 0, 0, -1
    return path, status.st_mtime_ns, status.st_ino, status.st_size


def load(host: Host, driver: Host, library_paths: tuple[str, ...], version: str | None, memory: Memory) -> Inventory:
    """The driver's files: remembered while nothing has changed, searched and remembered otherwise.

    Sockets and directories of daemons come and go; they are looked at every time.

    Arguments:
        host: the machine. driver: the root that has the driver's files, the same or `host.below(...)`.
        library_paths: where to look first, below the driver's root.
        version: of the running kernel module, None when it is not loaded.
        memory: where to remember; of many processes that find nothing remembered, one searches.
    """
    key = (
        "inventory", VERSION, sys.hexversion, version or "", host.root, driver.root, library_paths, host.machine,
        os.uname().release,
    )  # fmt: skip

    def search() -> Remembered:
        from gpu_oci_hook.host import discovery

        return discovery.discover(host, driver, library_paths, version or "")

    inventory, live = remembered(memory, _name(host.root + "\0" + driver.root), key, search)
    present = _present(host, driver, live, inventory.problems)
    inventory.files = inventory.files + present[0]
    inventory.problems = present[1]
    return inventory


def remembered(
    memory: Memory, name: str, key: tuple[object, ...], search: Callable[[], Remembered]
) -> tuple[Inventory, tuple[Any, ...]]:
    """An inventory and what belongs to it: remembered while nothing has changed, searched and remembered otherwise.

    Arguments:
        name: of the blob in the memory. key: everything that the answer depends on and no witness can tell.
        search: gives witnesses, `Inventory.to_data()` and the rest.
    """
    found = _recall(memory.get(name), key)
    if found is None:
        with memory.lock(name):
            found = _recall(memory.get(name), key)  # somebody else may have searched while we waited
            if found is None:
                fresh = search()
                found = Inventory.from_data(fresh[1]), fresh[2]
                memory.put(name, marshal.dumps((key, *fresh)))  # type: ignore[arg-type]
    return found


def place(kind: str, *roots: str) -> str:
    """A file name in the memory for what is known of these roots."""
    return f"inventory-{kind}-" + state.digest("\0".join(roots).encode("utf-8", "surrogateescape"))


def _name(roots: str) -> str:
    """A file name for each pair of roots, so that two of them do not drive each other out of the memory."""
    if roots == "/\0/":
        return "inventory"
    return "inventory-" + state.digest(roots.encode("utf-8", "surrogateescape"))


def _recall(blob: bytes | None, key: tuple[object, ...]) -> tuple[Inventory, tuple[Any, ...]] | None:
    """What the blob remembers, None when it is damaged, about something else, or no longer true."""
    if blob is None:
        return None
    try:
        known, witnesses, data, live = marshal.loads(blob)  # noqa: S302  the memory is ours alone
        if known != key:
            return None
        lstat = os.lstat
        for path, mtime, inode, size in witnesses:
            try:
                status = lstat(path)
            except OSError:
                if size == -1:
                    continue
                return None
            if status.st_mtime_ns != mtime or status.st_ino != inode or status.st_size != size:
                return None
        return Inventory.from_data(data), live
    except Exception:
        return None  # whatever a damaged blob does: it costs a search, never a start


def _present(
    host: Host, driver: Host, live: tuple[Live, ...], problems: tuple[str, ...]
) -> tuple[tuple[DriverFile, ...], tuple[str, ...]]:
    """The daemons' sockets and directories that are there now, and the problems with one more for each bad
    one.
    """
    roots = (driver, host) if driver.root != host.root else (host,)
    files: list[DriverFile] = []
    for kind, capability, paths, container, variable in live:
        chosen = os.environ.get(variable, "") if variable else ""
        for root, path in [(r, p) for r in roots for p in ((chosen,) if chosen.startswith("/") else paths)]:
            # A directory below /tmp may be anybody's link to anywhere: only a real one of root or ours
            # counts.
            status = root.status(path, follow=kind == "socket")
            if status is None:
                continue
            if kind == "socket" and not stat.S_ISSOCK(status.st_mode):
                continue
            if kind == "directory":
                if not stat.S_ISDIR(status.st_mode):
                    continue
                if status.st_uid not in (0, os.geteuid()):
                    text = f"{root.path(path)} belongs to user {status.st_uid}, so it is not given to containers"
                    problems = (*problems, text)
                    continue
            real = root.resolve(path)
            if real is None:
                continue
            files.append(
                DriverFile(
                    kind=kind,
                    capability=capability,
                    path=real,
                    source=root.path(real),
                    name=os.path.basename(container),
                    container=container,
                    found=path,
                )
            )
            break
    return tuple(files), problems
