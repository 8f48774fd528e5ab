"""Looking for files below a root, with a note of everything that the answer depends on.

Cost rule: cold; only when the driver's files are searched anew.
"""

from __future__ import annotations

import errno
import os
import stat
from fnmatch import fnmatchcase

from gpu_oci_hook.errors import Fault, words
from gpu_oci_hook.formats import elf
from gpu_oci_hook.host.inventory import witness
from gpu_oci_hook.host.root import MAX_LINKS, Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.inventory import Witness


class Search:
    """One search below one root.

    What the answer depends on is noted before it is looked at, so that a change in between is found later.

    Attributes:
        host: the root that is searched.
    """

    __slots__ = ("_directories", "_files", "_links", "_parents", "host")

    def __init__(self, host: Host) -> None:
        self.host = host
        self._directories: dict[str, Witness] = {}
        self._files: dict[str, Witness] = {}
        self._links: dict[str, Witness] = {}
        # Some hundred files lie in a few directories, and those do not move while we look.
        self._parents: dict[str, str | None] = {}

    def resolve(self, path: str, links: int = MAX_LINKS) -> str | None:
        """The path without links, None when it leads nowhere; every link on the way is watched.

        Arguments:
            links: how many more may be followed.
        """
        head, _, name = path.rpartition("/")
        if head not in self._parents:
            self._parents[head] = self._walk(head or "/")
        parent = self._parents[head]
        if parent is None or name in ("", ".", ".."):
            return self._walk(path)
        here = f"{parent.rstrip('/')}/{name}"
        try:
            target = os.readlink(self.host.prefix + here)
        except OSError as error:
            # EINVAL: it is there, and no link; what nearly all files are
            return here if error.errno == errno.EINVAL else self._walk(path)
        except ValueError:
            return None
        if here not in self._links:
            self._links[here] = witness(self.host.path(here))
        if links == 0:
            return None
        return self.resolve(target if target.startswith("/") else f"{parent.rstrip('/')}/{target}", links - 1)

    def _walk(self, path: str) -> str | None:
        trail: list[str] = []
        found = self.host.resolve(path, trail)
        for step in trail:
            if step not in self._links:
                self._links[step] = witness(self.host.path(step))
        return found

    def directory(self, path: str) -> str | None:
        """The directory at `path` without links, watched from now on; None when there is none."""
        found = self.resolve(path)
        if found is None:
            return None
        self._directories.setdefault(found, witness(self.host.path(found)))
        status = self.host.status(found, follow=False)
        return found if status is not None and stat.S_ISDIR(status.st_mode) else None

    def watch(self, path: str) -> None:
        """Watches a file without links from now on, or from when `file` has first seen it."""
        self._directories[path] = self._files.get(path) or witness(self.host.path(path))

    def file(self, path: str) -> tuple[str, os.stat_result] | str:
        """The regular, non-empty file at `path` (path without links, status), or why there is none."""
        found = self.resolve(path)
        if found is None:
            return "leads nowhere"
        status = self.host.status(found, follow=False)
        if status is None:
            return "is missing"
        if stat.S_ISDIR(status.st_mode):
            return "is a directory"
        if not stat.S_ISREG(status.st_mode):
            return "is no regular file"
        if status.st_size == 0:
            return "is empty"
        self._files.setdefault(found, (self.host.path(found), status.st_mtime_ns, status.st_ino, status.st_size))
        return found, status

    def library(self, path: str) -> elf.Library | str:
        """What the ELF file at a path without links says of itself, or why it says nothing."""
        try:
            fd = os.open(self.host.path(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            return words(error)
        try:
            return elf.read(fd)
        except Fault as fault:
            return fault.what
        finally:
            os.close(fd)

    def expand(self, pattern: str) -> list[str]:
        """The paths that a pattern with `*` stands for, existing or not where it has none, sorted."""
        if "*" not in pattern:
            return [pattern]
        paths = [""]
        parts = pattern.strip("/").split("/")
        for number, part in enumerate(parts):
            if "*" not in part:
                paths = [f"{path}/{part}" for path in paths]
                continue
            grown: list[str] = []
            for path in paths:
                if self.directory(path or "/") is None:
                    continue
                names = [name for name in self.host.names(path or "/") if fnmatchcase(name, part)]
                grown.extend(f"{path}/{name}" for name in names)
            paths = grown
            if number == len(parts) - 1:
                return paths
        return paths

    def witnesses(self) -> tuple[Witness, ...]:
        """Everything to watch; what a watched directory already tells is left out."""
        watched = self._directories
        loose = [seen for path, seen in self._links.items() if os.path.dirname(path) not in watched]
        return (*watched.values(), *loose)
