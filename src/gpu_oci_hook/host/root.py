"""The host as a directory: everything that is read from the machine goes through one `Host`.

A tree of files made by `simulate`, a driver container's root and the machine itself differ in their root
directory only. Cost rule: on the way of every GPU container; `os`, `errno` and `stat` alone, and for "/"
the kernel's own path walk.
"""

from __future__ import annotations

import errno
import os
import stat

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.formats.architectures import HOST_ARCHITECTURES

MAX_LINKS = 40  # the kernel's own bound (path_resolution(7))
_MISSING_ERRNOS = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_READ_SIZE = 1 << 14
_READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class Host:
    """A root directory and what lies below it; links never lead out of it.

    Arguments:
        root: the directory; "/" is the machine itself. All paths given to the methods are paths below it.
    """

    __slots__ = ("_machine", "_walked_paths", "prefix", "root")

    def __init__(self, root: str = "/") -> None:
        self.root = _normalize_path(root)
        self.prefix = "" if self.root == "/" else self.root
        # Ways walked, and where they lead: twenty files lie in few directories. What is missing is looked for
        # again, since a module that is loaded meanwhile brings it.
        self._walked_paths: dict[str, str] = {}
        self._machine = ""

    def __repr__(self) -> str:
        return f"Host({self.root!r})"

    def full_path(self, path: str) -> str:
        """The path in this process; links are not followed, `..` stops at the root."""
        return (self.prefix + _normalize_path(path)) if self.prefix else _normalize_path(path)

    def resolve_path(self, path: str, visited_links: list[str] | None = None) -> str | None:
        """The path below the root without links; None when it is missing, loops, or cannot be walked.

        Arguments:
            visited_links: takes the path (below the root) of every link on the way, and the place where the way
                ends if it does: what to watch to notice that the answer is another one now.
        """
        found = self._walk_path(path, visited_links)
        if found is None:
            return None
        if not self.prefix and visited_links is None:
            return found  # realpath has looked already
        try:
            os.lstat(self.prefix + found)
        except (OSError, ValueError):
            return None
        return found

    def read_file(self, path: str, limit: int) -> bytes | None:
        """The bytes of a regular file (procfs and sysfs files count); None when it is missing.

        Raises:
            Fault: it is special, larger than `limit` bytes, or cannot be read. A FIFO never blocks.
        """
        real = self._resolve_full_path(path)
        if real is None:
            return None
        try:
            fd = os.open(real, _READ_FLAGS)
        except ValueError:
            return None
        except OSError as error:
            if error.errno in _MISSING_ERRNOS:
                return None
            raise Fault(f"it cannot be read: {describe_os_error(error)}", where=self.full_path(path)) from None
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise Fault("it is not a regular file", where=self.full_path(path))
            # Room for what a read may bring is made first: for the limit it would be a megabyte for a line. Files
            # of procfs say that they are empty, and come in one piece if they are short.
            piece = min(limit, max(status.st_size, _READ_SIZE)) + 1
            data = os.read(fd, piece)
            while data and len(data) <= limit:
                more = os.read(fd, piece)
                if not more:
                    break
                data += more
        except OSError as error:
            raise Fault(f"it cannot be read: {describe_os_error(error)}", where=self.full_path(path)) from None
        finally:
            os.close(fd)
        if len(data) > limit:
            raise Fault(f"it is larger than {limit} bytes", where=self.full_path(path))
        return data

    def list_names(self, path: str) -> list[str]:
        """The names in a directory, sorted; empty when it is missing or cannot be listed."""
        real = self._resolve_full_path(path)
        if real is None:
            return []
        try:
            return sorted(os.listdir(real))
        except (OSError, ValueError):
            return []

    def stat_path(self, path: str, *, follow: bool = True) -> os.stat_result | None:
        """The status of what is there; None when it is missing.

        Arguments:
            follow: look at the target of a link (inside the root), else at the link itself.
        """
        try:
            if not self.prefix:
                return os.stat(path) if follow else os.lstat(path)
            if follow:
                found = self._walk_path(path, None)
                return None if found is None else os.lstat(self.prefix + found)
            head, _, tail = _normalize_path(path).rpartition("/")
            parent = self._walk_path(head or "/", None)
            return None if parent is None else os.lstat(f"{self.prefix}{parent}/{tail}")
        except (OSError, ValueError):
            return None

    def sub_host(self, path: str) -> Host:
        """The directory at `path` as a root of its own (a driver container's); missing ones stay empty."""
        found = self.resolve_path(path)
        return Host(self.full_path(path if found is None else found))

    @property
    def machine(self) -> str:
        """`uname -m`; below another root what the driver there says that it is for, if it says so."""
        if not self._machine:
            self._machine = os.uname().machine
            if self.prefix:
                try:
                    said = (self.read_file("/proc/driver/nvidia/version", 65536) or b"").split()
                except Fault:
                    said = []
                self._machine = next((word for word in HOST_ARCHITECTURES if word.encode() in said), self._machine)
        return self._machine

    def _resolve_full_path(self, path: str) -> str | None:
        if not self.prefix:
            return path
        found = self._walk_path(path, None)
        return None if found is None else self.prefix + found

    def _walk_path(self, path: str, visited_links: list[str] | None) -> str | None:
        """The path with every link followed inside the root; the last part need not exist."""
        if not self.prefix and visited_links is None:
            try:
                return os.path.realpath(path, strict=True)
            except (OSError, ValueError):
                return None
        head, rest = self._find_walked_prefix(path) if visited_links is None else ("", path)
        done = self._walked_paths[head].split("/")[1:] if head else []
        count = 0
        for part in rest.split("/"):
            left = [part]
            while left:
                name = left.pop()
                if name in ("", "."):
                    continue
                if name == "..":
                    if done:
                        done.pop()
                    continue
                here = "/" + "/".join([*done, name])
                try:
                    target = os.readlink(self.prefix + here)
                except ValueError:
                    return None
                except OSError as error:
                    if error.errno == errno.EINVAL:  # it is there, and no link
                        done.append(name)
                        continue
                    if visited_links is not None:
                        visited_links.append(here)
                    return None
                count += 1
                if count > MAX_LINKS:
                    return None
                if visited_links is not None:
                    visited_links.append(here)
                if target.startswith("/"):
                    done.clear()
                left.extend(reversed(target.split("/")))
            if part:
                head = f"{head}/{part}"
                if done:
                    self._walked_paths[head] = "/" + "/".join(done)
        return "/" + "/".join(done)

    def _find_walked_prefix(self, path: str) -> tuple[str, str]:
        """The longest way to a directory above that was walked already, and the rest of the path."""
        head = path
        while head:
            head = head.rpartition("/")[0]
            if head in self._walked_paths:
                return head, path[len(head) :]
        return "", path


def _normalize_path(path: str) -> str:
    """The path made absolute, without `.`, `..`, doubled and trailing slashes; by its text alone."""
    if path.startswith("/") and "//" not in path and "/." not in path and (path == "/" or path[-1] != "/"):
        return path
    tidy = os.path.normpath("/" + path)
    return tidy[1:] if tidy.startswith("//") else tidy
