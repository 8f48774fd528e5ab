"""Looking for files below a root, with a note of everything that the answer depends on.

Cost rule: cold; only when the driver's files are searched anew.
"""

from __future__ import annotations

import errno
import os
import stat
from fnmatch import fnmatchcase

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.read_regular import UnusableFileError, open_regular_file
from gpu_oci_hook.formats.elf import SharedObject, read_shared_object
from gpu_oci_hook.host.root import MAX_LINKS, Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import StatSignature


class FileSearch:
    """One search below one root.

    What the answer depends on is noted before it is looked at, so that a change in between is found later.

    Attributes:
        host: the root that is searched.
    """

    __slots__ = ("_resolved_parents", "_seen_files", "_seen_links", "_watched", "host")

    def __init__(self, host: Host) -> None:
        self.host = host
        self._watched: dict[str, StatSignature] = {}
        self._seen_files: dict[str, StatSignature] = {}
        self._seen_links: dict[str, StatSignature] = {}
        # Some hundred files lie in a few directories, and those do not move while we look.
        self._resolved_parents: dict[str, str | None] = {}

    def resolve_path(self, path: str, links_left: int = MAX_LINKS) -> str | None:
        """The path without links, None when it leads nowhere; every link on the way is watched.

        Arguments:
            links_left: how many more may be followed.
        """
        head, _, name = path.rpartition("/")
        if head not in self._resolved_parents:
            self._resolved_parents[head] = self._walk_path(head or "/")
        parent = self._resolved_parents[head]
        if parent is None or name in ("", ".", ".."):
            return self._walk_path(path)
        here = f"{parent.rstrip('/')}/{name}"
        try:
            target = os.readlink(self.host.prefix + here)
        except OSError as error:
            # EINVAL: it is there, and no link; what nearly all files are
            return here if error.errno == errno.EINVAL else self._walk_path(path)
        except ValueError:
            return None
        if here not in self._seen_links:
            self._seen_links[here] = stat_signature(self.host.full_path(here))
        if links_left == 0:
            return None
        return self.resolve_path(target if target.startswith("/") else f"{parent.rstrip('/')}/{target}", links_left - 1)

    def _walk_path(self, path: str) -> str | None:
        trail: list[str] = []
        found = self.host.resolve_path(path, trail)
        for step in trail:
            if step not in self._seen_links:
                self._seen_links[step] = stat_signature(self.host.full_path(step))
        return found

    def find_directory(self, path: str) -> str | None:
        """The directory at `path` without links, watched from now on; None when there is none."""
        found = self.resolve_path(path)
        if found is None:
            return None
        self._watched.setdefault(found, stat_signature(self.host.full_path(found)))
        status = self.host.stat_path(found, follow=False)
        return found if status is not None and stat.S_ISDIR(status.st_mode) else None

    def watch_file(self, path: str) -> None:
        """Watches a file without links from now on, or from when `file` has first seen it."""
        self._watched[path] = self._seen_files.get(path) or stat_signature(self.host.full_path(path))

    def find_file(self, path: str) -> tuple[str, os.stat_result] | str:
        """The regular, non-empty file at `path` (path without links, status), or why there is none."""
        found = self.resolve_path(path)
        if found is None:
            return "leads nowhere"
        status = self.host.stat_path(found, follow=False)
        if status is None:
            return "is missing"
        if stat.S_ISDIR(status.st_mode):
            return "is a directory"
        if not stat.S_ISREG(status.st_mode):
            return "is no regular file"
        if status.st_size == 0:
            return "is empty"
        self._seen_files.setdefault(
            found, (self.host.full_path(found), status.st_mtime_ns, status.st_ino, status.st_size)
        )
        return found, status

    def read_elf(self, path: str) -> SharedObject | str:
        """What the ELF file at a path without links says of itself, or why it says nothing."""
        try:
            fd = open_regular_file(self.host.full_path(path), follow_symlinks=False)
        except (OSError, UnusableFileError) as error:
            return describe_os_error(error)
        try:
            return read_shared_object(fd)
        except Fault as fault:
            return fault.what
        finally:
            os.close(fd)

    def expand_pattern(self, pattern: str) -> list[str]:
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
                if self.find_directory(path or "/") is None:
                    continue
                names = [name for name in self.host.list_names(path or "/") if fnmatchcase(name, part)]
                grown.extend(f"{path}/{name}" for name in names)
            paths = grown
            if number == len(parts) - 1:
                return paths
        return paths

    def collect_stat_signatures(self) -> tuple[StatSignature, ...]:
        """Everything to watch; what a watched directory already tells is left out."""
        watched = self._watched
        loose = [seen for path, seen in self._seen_links.items() if os.path.dirname(path) not in watched]
        return (*watched.values(), *loose)


def stat_signature(path: str) -> StatSignature:
    """What must stay the same about a path in this process, for what was learnt from it to stay true."""
    try:
        status = os.lstat(path)
    except (OSError, ValueError):
        return path, 0, 0, -1
    return path, status.st_mtime_ns, status.st_ino, status.st_size
