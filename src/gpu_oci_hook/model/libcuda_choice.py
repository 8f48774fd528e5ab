"""Which libcuda the programs of a container load, as plain data with the sentences for people.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.errors import make_printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    LibcudaFinder = Callable[[], "LibcudaChoice"]
    LibcudaOwner = Literal["host", "image", "mount"]

LD_LIBRARY_PATH = "LD_LIBRARY_PATH"


class FoundLibcuda:
    """A libcuda.so.1 that the loader of a container finds.

    Attributes:
        path: the path that the loader opens.
        file: the same file without links.
        version: the driver version in the file's name; "" if it has none.
        owner: "host" for the driver's, "image" for a file of the image, "mount" for a mount of the container itself.
        found_by: the loader's input that names it: LD_LIBRARY_PATH, the path of a file, or "its default directories".
    """

    __slots__ = ("file", "found_by", "owner", "path", "version")

    def __init__(self, path: str, file: str, version: str, owner: LibcudaOwner, found_by: str) -> None:
        self.path = path
        self.file = file
        self.version = version
        self.owner = owner
        self.found_by = found_by

    @property
    def is_compat(self) -> bool:
        """Whether it is in a directory of CUDA compat libraries."""
        return "compat" in self.file.split("/")

    @property
    def is_stub(self) -> bool:
        """Whether it is the CUDA toolkit's library for linking, which fails in every call."""
        return "stubs" in self.file.split("/")

    def describe(self) -> str:
        """Return the file, whose it is, its version, and which input of the loader names it."""
        owners = {"host": "the host's", "image": "the image's", "mount": "a mount of the container"}
        version = "a stub for linking" if self.is_stub else self.version
        whose = f"{owners[self.owner]}, {version}" if version else owners[self.owner]
        return f"{self.file} ({whose}; found by {self.found_by})"

    def to_data(self) -> dict[str, object]:
        """Return the attributes as data for JSON."""
        return {
            "path": self.path,
            "file": self.file,
            "version": self.version or None,
            "owner": self.owner,
            "found_by": self.found_by,
        }


class LibcudaChoice:
    """Which libcuda.so.1 the programs of a container load, of those that the loader's inputs name.

    Programs with a search path of their own (DT_RPATH, DT_RUNPATH) may load another one.

    Attributes:
        at_start: the one that is loaded at the start; None if the loader finds none.
        after_ldconfig: the one that is loaded after `ldconfig` has run in the container; None if the image has no
            `ldconfig` or it cannot write there.
        driver_version: the host's driver version.
        wanted: "host", or "image" if its CUDA compat libraries come first.
        reason: why that one is wanted.
        compat_error: how CUDA fails with the image's compat library, for a sentence about it; "" if it is unknown.
        unknown_directories: directories that the loader searches before, and that lie in mounts of the container.
    """

    __slots__ = (
        "after_ldconfig",
        "at_start",
        "compat_error",
        "driver_version",
        "reason",
        "unknown_directories",
        "wanted",
    )  # fmt: skip

    def __init__(
        self,
        at_start: FoundLibcuda | None,
        after_ldconfig: FoundLibcuda | None,
        *,
        driver_version: str,
        wanted: LibcudaOwner,
        reason: str,
        compat_error: str = "",
        unknown_directories: tuple[str, ...] = (),
    ) -> None:
        self.at_start = at_start
        self.after_ldconfig = after_ldconfig
        self.driver_version = driver_version
        self.wanted = wanted
        self.reason = reason
        self.compat_error = compat_error
        self.unknown_directories = unknown_directories

    def describe(self) -> list[str]:
        """Return a line for the start and, if it differs, one for the time after `ldconfig`."""
        lines = [self.at_start.describe() if self.at_start else "none is found"]
        if self.after_ldconfig is not None and not self._is_same_later():
            lines.append(f"after ldconfig: {self.after_ldconfig.describe()}")
        if self.reason:
            lines.append(self.reason)
        lines += [f"not searched, as it lies in a mount or is not plain: {path}" for path in self.unknown_directories]
        return [make_printable(line) for line in lines]

    def list_warnings(self) -> list[str]:
        """Return a sentence for each time at which programs load another libcuda than the wanted one."""
        warnings = []
        if self.at_start is None:
            warnings.append("the container's loader finds no libcuda.so.1")
        elif self._is_unwanted(self.at_start):
            warnings.append(self._describe_unwanted(self.at_start, "programs load"))
        if (
            self.after_ldconfig is not None
            and self._is_unwanted(self.after_ldconfig)
            and not (warnings and self._is_same_later())
        ):
            warnings.append(
                self._describe_unwanted(self.after_ldconfig, "after `ldconfig` in the container programs load")
            )
        return [make_printable(warning) for warning in warnings]

    def to_data(self) -> dict[str, object]:
        """Return the attributes as data for JSON."""
        return {
            "driver": self.driver_version or None,
            "wanted": self.wanted,
            "reason": self.reason or None,
            "at_start": self.at_start.to_data() if self.at_start else None,
            "after_ldconfig": self.after_ldconfig.to_data() if self.after_ldconfig else None,
            "not_searched": list(self.unknown_directories),
        }

    def _is_same_later(self) -> bool:
        start, later = self.at_start, self.after_ldconfig
        return start is not None and later is not None and start.file == later.file

    def _is_unwanted(self, found: FoundLibcuda) -> bool:
        return found.owner != self.wanted and found.owner != "mount"

    def _describe_unwanted(self, found: FoundLibcuda, subject: str) -> str:
        directory = found.path.rpartition("/")[0]
        if self.wanted == "image":
            return f"{subject} the host's libcuda {found.version} and not the image's CUDA compat library: {found.file}"
        if found.is_stub:
            which, consequence = "a stub libcuda of the CUDA toolkit", "which fails with CUDA error 34"
        elif not found.version:
            which, consequence = (
                "the image's libcuda",
                "which fails with CUDA error 803 or 804 if it is of another version",
            )
        elif found.version == self.driver_version:
            which, consequence = f"the image's libcuda {found.version}", "which is of the same version"
        elif _make_version_key(found.version) < _make_version_key(self.driver_version):
            which, consequence = f"the image's libcuda {found.version}", "which is older and fails with CUDA error 803"
        elif self.compat_error and found.is_compat:
            which, consequence = f"the image's libcuda {found.version}", f"which {self.compat_error}"
        else:
            which, consequence = (
                f"the image's libcuda {found.version}",
                "which is newer and fails with CUDA error 803 or 804 unless this GPU and driver branch support it",
            )
        if found.found_by == LD_LIBRARY_PATH:
            hint = f"Remove {directory} from LD_LIBRARY_PATH"
        else:
            hint = f"Remove {directory} from the loader's configuration in the image, or the library from the image"
        host = f"the host's {self.driver_version}" if self.driver_version else "the host's"
        return f"{subject} {which}, {found.file}, {consequence}, and not {host} ({found.found_by} names it). {hint}"


def _make_version_key(version: str) -> tuple[int, ...]:
    return tuple([int(part) for part in version.split(".") if part.isdigit()])
