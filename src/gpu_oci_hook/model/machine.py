"""GPUs, device nodes and driver files of a machine, as plain data."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Any, Protocol

    StatSignature = tuple[str, int, int, int]  # path in this process, mtime in ns, inode, size (-1: missing)
    # Kind, capability, paths to try, place in the container, environment variable that comes first.
    DaemonFile = tuple[str, str, tuple[str, ...], str, str]
    InventorySearchResult = tuple[tuple[StatSignature, ...], tuple[object, ...], tuple[Any, ...]]

    class Cache(Protocol):
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


class DeviceNode:
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
        container_path: its place in the container; "" for libraries, where the image decides.
        found_in: the place that had it, as `list` prints it.
        required: without it, its capability cannot work.
    """

    __slots__ = (
        "arch", "capability", "container_path", "found_in", "glibc", "kind",
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
        container_path: str = "",
        found_in: str = "",
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
        self.container_path = container_path
        self.found_in = found_in
        self.required = required

    def to_data(self) -> tuple[object, ...]:
        """All fields as marshal-able plain data, in the order of their names."""
        return tuple(getattr(self, name) for name in self.__slots__)

    @classmethod
    def from_data(cls, data: tuple[Any, ...]) -> DriverFile:
        """The reverse of `to_data`; ValueError or TypeError when the data has another shape."""
        file = cls.__new__(cls)  # by keyword it would cost every start a fifth of a millisecond
        (
            file.arch, file.capability, file.container_path, file.found_in, file.glibc, file.kind,
            file.links, file.name, file.needs, file.path, file.required, file.soname, file.source,
        ) = data  # fmt: skip
        return file


class Inventory:
    """What the driver has brought onto the machine.

    Arguments:
        version: of the running kernel module; the libraries' own when no module is loaded; "" when neither
            tells.
        library_version: version of the libraries in `files`; "" when unknown. Another one than `version` is a
            mismatch.
        files: all driver files, sorted.
        search_report: (place, what was found there or why nothing was), in the order looked at.
        missing_libraries: (capability, SONAME, "path (version)" of another version or "") of each library without
            which its capability cannot work.
        problems: sentences for people about files that cannot be used.
        missing_dependencies: (place in the container, name, SONAME) where a file names a library that needs another which
            the host lacks.
    """

    __slots__ = (
        "files",
        "library_version",
        "missing_dependencies",
        "missing_libraries",
        "problems",
        "search_report",
        "version",
    )

    def __init__(
        self,
        *,
        version: str,
        library_version: str = "",
        files: tuple[DriverFile, ...] = (),
        search_report: tuple[tuple[str, str], ...] = (),
        missing_libraries: tuple[tuple[str, str, str], ...] = (),
        problems: tuple[str, ...] = (),
        missing_dependencies: tuple[tuple[str, str, str], ...] = (),
    ) -> None:
        self.missing_dependencies = missing_dependencies
        self.version = version
        self.library_version = library_version
        self.files = files
        self.search_report = search_report
        self.missing_libraries = missing_libraries
        self.problems = problems

    @property
    def has_version_mismatch(self) -> bool:
        """Kernel module and libraries are of different versions: NVML and CUDA will refuse to start."""
        return bool(self.library_version) and self.library_version != self.version

    def to_data(self) -> tuple[object, ...]:
        """Everything as nested tuples of str, int and bool."""
        files = tuple([file.to_data() for file in self.files])
        return (
            self.version,
            self.library_version,
            files,
            self.search_report,
            self.missing_libraries,
            self.problems,
            self.missing_dependencies,
        )

    @classmethod
    def from_data(cls, data: tuple[object, ...]) -> Inventory:
        """The reverse of `to_data`; ValueError or TypeError when the data has another shape."""
        version, libraries, files, places, missing, problems, incomplete = data
        return cls(
            version=version,  # type: ignore[arg-type]
            library_version=libraries,  # type: ignore[arg-type]
            files=tuple([DriverFile.from_data(item) for item in files]),  # type: ignore[attr-defined]
            search_report=places,  # type: ignore[arg-type]
            missing_libraries=missing,  # type: ignore[arg-type]
            problems=problems,  # type: ignore[arg-type]
            missing_dependencies=incomplete,  # type: ignore[arg-type]
        )
