"""Read the host below one root directory: every file of the host is read through a `Host`.

The running machine, a driver container's root and a tree made by `simulate` differ only in that directory.

Import budget: GPU container.
"""

from __future__ import annotations

import errno
import os

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.read_regular import ImpossibleNameError, UnusableFileError, read_regular_file
from gpu_oci_hook.formats.architectures import HOST_ARCHITECTURES

MAX_LINKS = 40  # the kernel's own limit (path_resolution(7))
_MISSING_ERRNOS = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_VERSION_FILE_LIMIT = 65536


class Host:
    """A root directory and everything below it. Symbolic links never lead out of it.

    Arguments:
        root: the directory, "/" for the running machine. All methods take paths below it.
    """

    __slots__ = ("_machine", "_walked_paths", "prefix", "root")

    def __init__(self, root: str = "/") -> None:
        self.root = _normalize_path(root)
        self.prefix = "" if self.root == "/" else self.root
        # Cache of path walks: directory as asked for -> directory without links. Twenty files lie in a few
        # directories. A missing path is not cached, since loading a kernel module can create it.
        self._walked_paths: dict[str, str] = {}
        self._machine = ""

    def __repr__(self) -> str:
        return f"Host({self.root!r})"

    def full_path(self, path: str) -> str:
        """Return the path as this process sees it. Links are not followed, and `..` stops at the root."""
        return (self.prefix + _normalize_path(path)) if self.prefix else _normalize_path(path)

    def resolve_path(self, path: str, visited_links: list[str] | None = None) -> str | None:
        """Return the path below the root without links, or None when it is missing, loops, or cannot be walked.

        Arguments:
            visited_links: receives the path (below the root) of every link followed, and the path at which the
                walk ended if it failed. A change of the result shows in one of these.
        """
        resolved = self._walk_path(path, visited_links)
        if resolved is None:
            return None
        if not self.prefix and visited_links is None:
            return resolved  # realpath has checked that it exists
        try:
            os.lstat(self.prefix + resolved)
        except (OSError, ValueError):
            return None
        return resolved

    def read_file(self, path: str, limit: int) -> bytes | None:
        """Return the bytes of a regular file (procfs and sysfs files included), or None when it is missing.

        Raises:
            Fault: it is a special file, larger than `limit` bytes, or cannot be read. A FIFO never blocks.
        """
        real_path = self._resolve_full_path(path)
        if real_path is None:
            return None
        try:
            return read_regular_file(real_path, limit)
        except ImpossibleNameError:
            return None
        except UnusableFileError as error:
            raise Fault(str(error), where=self.full_path(path)) from None
        except OSError as error:
            if error.errno in _MISSING_ERRNOS:
                return None
            raise Fault(f"it cannot be read: {describe_os_error(error)}", where=self.full_path(path)) from None

    def list_names(self, path: str) -> list[str]:
        """Return the names in a directory, sorted, or an empty list when it is missing or cannot be listed."""
        real_path = self._resolve_full_path(path)
        if real_path is None:
            return []
        try:
            return sorted(os.listdir(real_path))
        except (OSError, ValueError):
            return []

    def stat_path(self, path: str, *, follow: bool = True) -> os.stat_result | None:
        """Return the status of a path, or None when it is missing.

        Arguments:
            follow: whether to follow a link at the end of the path (inside the root).
        """
        try:
            if not self.prefix:
                return os.stat(path) if follow else os.lstat(path)
            if follow:
                resolved = self._walk_path(path, None)
                return None if resolved is None else os.lstat(self.prefix + resolved)
            entry = self._find_entry(path)
            return None if entry is None else os.lstat(entry)
        except (OSError, ValueError):
            return None

    def can_open_node(self, path: str, *, write: bool = True) -> bool:
        """Tell whether this process may open a device node for reading, and for writing too, without opening it.

        The kernel asks the device cgroup here as well as in open() (facts: access-asks-device-cgroup). Opening would
        make the driver initialise the GPU, which takes seconds without persistence mode.
        """
        mode = os.R_OK | os.W_OK if write else os.R_OK
        try:
            if not self.prefix:
                return os.access(path, mode)
            entry = self._find_entry(path)
            return entry is not None and os.access(entry, mode)
        except (OSError, ValueError):
            return False

    def sub_host(self, path: str) -> Host:
        """Return the directory at `path` as a root of its own (a driver container's). A missing one reads as empty."""
        resolved = self.resolve_path(path)
        return Host(self.full_path(path if resolved is None else resolved))

    def driver_host(self, driver_root: str) -> Host:
        """Return the root that has the driver's files: this one, or a driver container's below it.

        Arguments:
            driver_root: `[host] driver-root`.
        """
        return self if driver_root == "/" else self.sub_host(driver_root)

    @property
    def machine(self) -> str:
        """The machine's architecture as `uname -m` names it.

        Below another root, the architecture in the driver's version file comes first, if it names one.
        """
        if not self._machine:
            self._machine = os.uname().machine
            if self.prefix:
                try:
                    version_words = (self.read_file("/proc/driver/nvidia/version", _VERSION_FILE_LIMIT) or b"").split()
                except Fault:
                    version_words = []
                self._machine = next(
                    (arch for arch in HOST_ARCHITECTURES if arch.encode() in version_words), self._machine
                )
        return self._machine

    def _resolve_full_path(self, path: str) -> str | None:
        if not self.prefix:
            return path
        resolved = self._walk_path(path, None)
        return None if resolved is None else self.prefix + resolved

    def _find_entry(self, path: str) -> str | None:
        """Return the path as this process sees it, with the links on the way followed and not one at its end."""
        parent, _, name = _normalize_path(path).rpartition("/")
        directory = self._walked_paths.get(parent) or self._walk_path(parent or "/", None)
        return None if directory is None else f"{self.prefix}{directory}/{name}"

    def _walk_path(self, path: str, visited_links: list[str] | None) -> str | None:
        """Return the path with every link followed inside the root. The last component need not exist."""
        if not self.prefix and visited_links is None:
            try:
                return os.path.realpath(path, strict=True)
            except (OSError, ValueError):
                return None
        head, rest = self._find_walked_prefix(path) if visited_links is None else ("", path)
        resolved = self._walked_paths[head].split("/")[1:] if head else []
        link_count = 0
        for component in rest.split("/"):
            pending = [component]
            while pending:
                name = pending.pop()
                if name in ("", "."):
                    continue
                if name == "..":
                    if resolved:
                        resolved.pop()
                    continue
                current = "/" + "/".join([*resolved, name])
                try:
                    target = os.readlink(self.prefix + current)
                except ValueError:
                    return None
                except OSError as error:
                    if error.errno == errno.EINVAL:  # it exists and is not a link
                        resolved.append(name)
                        continue
                    if visited_links is not None:
                        visited_links.append(current)
                    return None
                link_count += 1
                if link_count > MAX_LINKS:
                    return None
                if visited_links is not None:
                    visited_links.append(current)
                if target.startswith("/"):
                    resolved.clear()
                pending.extend(reversed(target.split("/")))
            if component:
                head = f"{head}/{component}"
                if resolved:
                    self._walked_paths[head] = "/" + "/".join(resolved)
        return "/" + "/".join(resolved)

    def _find_walked_prefix(self, path: str) -> tuple[str, str]:
        """Return the longest leading part of a path that is in the cache of path walks, and the rest of the path."""
        head = path
        while head:
            head = head.rpartition("/")[0]
            if head in self._walked_paths:
                return head, path[len(head) :]
        return "", path


def _normalize_path(path: str) -> str:
    """Return the path made absolute, without `.`, `..`, doubled and trailing slashes. Reads no file."""
    if path.startswith("/") and "//" not in path and "/." not in path and (path == "/" or path[-1] != "/"):
        return path
    normalized = os.path.normpath("/" + path)
    return normalized[1:] if normalized.startswith("//") else normalized
