"""GPUs, device nodes and driver files of a machine, as plain data.

Import budget: GPU container.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Any, Protocol

    StatSignature = tuple[str, int, int, int]  # path in this process, mtime in ns, inode, size (-1: missing)
    # Kind, capability, paths to try, path in the container, environment variable that overrides the paths.
    DaemonFile = tuple[str, str, tuple[str, ...], str, str]
    InventorySearchResult = tuple[tuple[StatSignature, ...], tuple[object, ...], tuple[Any, ...]]

    class Cache(Protocol):
        """What readers of the machine need of the state directory; `files.state_dir.StateCache` implements it."""

        def get(self, name: str) -> bytes | None: ...
        def put(self, name: str, data: bytes) -> object: ...
        def lock(self, name: str) -> AbstractContextManager[object]: ...


class Gpu:
    """One GPU.

    Attributes:
        index: rank of the PCI address among the GPUs that are not excluded, as in NVML and `nvidia-smi`.
        uuid: "GPU-…"; question marks until the driver has initialised the GPU once.
        pci: PCI address in lower case, such as "0000:01:00.0".
        minor: the number in /dev/nvidia<minor>, which can differ from the index; -1 without such a node.
        model: such as "NVIDIA A100-SXM4-40GB".
    """

    __slots__ = ("index", "minor", "model", "pci", "uuid")

    def __init__(self, *, index: int, uuid: str, pci: str, minor: int, model: str) -> None:
        self.index = index
        self.uuid = uuid
        self.pci = pci
        self.minor = minor
        self.model = model


class DeviceNode:
    """One device node; the host may lack it.

    Attributes:
        path: the path on the host and in the container, such as "/dev/nvidia0".
        major, minor: the numbers that the kernel currently assigns.
        mode: permission bits, such as 0o666.
        uid, gid: owner on the host.
        exists: the host's node exists with these numbers, so it can be the source of a bind mount.
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

    Attributes:
        kind: the catalogue's "library", "binary", "socket", "firmware", "config" or "directory"; also "tree" (a
            read-only directory) and "shm" (a directory that replaces /dev/shm).
        capability: "utility", "compute", "video", "graphics", "display", "ngx", or "" for always. A 32-bit library
            has the capability of its 64-bit sister; its `arch` differs, and "compat32" must be requested for it.
        path: below the driver root, or for sockets below the root that has them, free of links.
        source: the same file as a path in this process, which is mounted.
        name: its file name in the container.
        soname: the name that the loader searches; "" except for libraries.
        links: names of further links in its directory, to `soname`; a name with a slash ("gbm/x.so") is a link in a
            subdirectory.
        needs: the SONAMEs that a library needs (DT_NEEDED, and libraries that it opens by name); the libraries that a
            manifest names.
        glibc: the newest glibc version that it needs, such as "2.34"; "" for none.
        arch: "x86_64", "i386", "aarch64" or "armhf"; "" if it is not an ELF file.
        container_path: its path in the container; "" for libraries, where the image decides.
        found_in: where it was found, as `list` prints it.
        required: its capability cannot work without it.
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
        """Return all fields as data for `marshal`, in the order of their names."""
        return tuple(getattr(self, name) for name in self.__slots__)

    @classmethod
    def from_data(cls, data: tuple[Any, ...]) -> DriverFile:
        """Build a file from the data of `to_data`.

        Raises:
            ValueError, TypeError: the data has another shape.
        """
        file = cls.__new__(cls)  # keyword arguments would cost every start a fifth of a millisecond
        (
            file.arch, file.capability, file.container_path, file.found_in, file.glibc, file.kind,
            file.links, file.name, file.needs, file.path, file.required, file.soname, file.source,
        ) = data  # fmt: skip
        return file


class Inventory:
    """The driver's files on a machine.

    Attributes:
        version: version of the running kernel module; the libraries' version if no module is loaded; "" if both are
            unknown.
        library_version: version of the libraries in `files`; "" if unknown. It must be the same as `version`.
        files: all driver files, sorted.
        search_report: (searched directory, what it has or why it has nothing), in search order.
        missing_libraries: (capability, SONAME, "path (version)" of another version or "") of each library without
            which its capability cannot work.
        missing_expected: (capability, SONAME or file name) of each file without which its capability is of little use.
        problems: sentences about files that cannot be used.
        missing_dependencies: (path in the container, name, SONAME) of each manifest whose library needs one that the
            host lacks.
    """

    __slots__ = (
        "files",
        "library_version",
        "missing_dependencies",
        "missing_expected",
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
        missing_expected: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.missing_dependencies = missing_dependencies
        self.missing_expected = missing_expected
        self.version = version
        self.library_version = library_version
        self.files = files
        self.search_report = search_report
        self.missing_libraries = missing_libraries
        self.problems = problems

    @property
    def has_version_mismatch(self) -> bool:
        """Whether kernel module and libraries have different versions, with which NVML and CUDA refuse to start."""
        return bool(self.library_version) and self.library_version != self.version

    def to_data(self) -> tuple[object, ...]:
        """Return all fields as nested tuples of str, int and bool, for `marshal`."""
        files = tuple([file.to_data() for file in self.files])
        return (
            self.version,
            self.library_version,
            files,
            self.search_report,
            self.missing_libraries,
            self.problems,
            self.missing_dependencies,
            self.missing_expected,
        )

    @classmethod
    def from_data(cls, data: tuple[object, ...]) -> Inventory:
        """Build an inventory from the data of `to_data`.

        Raises:
            ValueError, TypeError: the data has another shape.
        """
        version, library_version, files, search_report, missing_libraries, problems, dependencies, expected = data
        return cls(
            version=version,  # type: ignore[arg-type]
            library_version=library_version,  # type: ignore[arg-type]
            files=tuple([DriverFile.from_data(item) for item in files]),  # type: ignore[attr-defined]
            search_report=search_report,  # type: ignore[arg-type]
            missing_libraries=missing_libraries,  # type: ignore[arg-type]
            problems=problems,  # type: ignore[arg-type]
            missing_dependencies=dependencies,  # type: ignore[arg-type]
            missing_expected=expected,  # type: ignore[arg-type]
        )
