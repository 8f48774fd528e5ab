"""Search for files below a root, and record a stat signature of everything that the result depends on.

`inventory_cache` compares these signatures later to find out whether a cached result still holds.

Import budget: cold.
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


NOT_READABLE = "cannot be read: this user may not read it"


class FileSearch:
    """One search below one root.

    Every path is watched before it is read: its stat signature is recorded first, so that a change during the search
    is noticed later.

    Attributes:
        host: the root that is searched.
    """

    __slots__ = ("_resolved_parents", "_seen_files", "_seen_links", "_watched", "host")

    def __init__(self, host: Host) -> None:
        self.host = host
        self._watched: dict[str, StatSignature] = {}
        self._seen_files: dict[str, StatSignature] = {}
        self._seen_links: dict[str, StatSignature] = {}
        # Some hundred files lie in a few directories, and those do not move during the search.
        self._resolved_parents: dict[str, str | None] = {}

    def resolve_path(self, path: str, links_left: int = MAX_LINKS) -> str | None:
        """Return the path without links, or None when it leads nowhere. Every link on the way is watched.

        Arguments:
            links_left: how many more links may be followed.
        """
        parent_path, _, name = path.rpartition("/")
        if parent_path not in self._resolved_parents:
            self._resolved_parents[parent_path] = self._walk_path(parent_path or "/")
        parent = self._resolved_parents[parent_path]
        if parent is None or name in ("", ".", ".."):
            return self._walk_path(path)
        candidate = f"{parent.rstrip('/')}/{name}"
        try:
            target = os.readlink(self.host.prefix + candidate)
        except OSError as error:
            # EINVAL: it exists and is not a link, as nearly all files
            return candidate if error.errno == errno.EINVAL else self._walk_path(path)
        except ValueError:
            return None
        if candidate not in self._seen_links:
            self._seen_links[candidate] = stat_signature(self.host.full_path(candidate))
        if links_left == 0:
            return None
        return self.resolve_path(target if target.startswith("/") else f"{parent.rstrip('/')}/{target}", links_left - 1)

    def _walk_path(self, path: str) -> str | None:
        visited_links: list[str] = []
        resolved = self.host.resolve_path(path, visited_links)
        for link in visited_links:
            if link not in self._seen_links:
                self._seen_links[link] = stat_signature(self.host.full_path(link))
        return resolved

    def find_directory(self, path: str) -> str | None:
        """Return the directory at `path` without links, and watch it from now on, or None when there is none."""
        resolved = self.resolve_path(path)
        if resolved is None:
            return None
        self._watched.setdefault(resolved, stat_signature(self.host.full_path(resolved)))
        status = self.host.stat_path(resolved, follow=False)
        return resolved if status is not None and stat.S_ISDIR(status.st_mode) else None

    def describe_absence(self, path: str) -> str:
        """Return why nothing was found at a path: it is missing, or this user may not look there."""
        try:
            os.stat(self.host.full_path(path))
        except PermissionError:
            return NOT_READABLE
        except (OSError, ValueError):
            pass
        return "missing"

    def may_list(self, directory: str) -> bool:
        """Tell whether this user may list a directory without links."""
        return os.access(self.host.full_path(directory), os.R_OK, effective_ids=True)

    def watch_file(self, path: str) -> None:
        """Watch the file at a path without links, with the signature that `find_file` saw or the one of now."""
        self._watched[path] = self._seen_files.get(path) or stat_signature(self.host.full_path(path))

    def find_file(self, path: str) -> tuple[str, os.stat_result] | str:
        """Return the regular, non-empty file at `path` as (path without links, status), or why there is none."""
        resolved = self.resolve_path(path)
        if resolved is None:
            absence = self.describe_absence(path)
            return absence if absence == NOT_READABLE else "leads nowhere"
        status = self.host.stat_path(resolved, follow=False)
        if status is None:
            return "is missing"
        if stat.S_ISDIR(status.st_mode):
            return "is a directory"
        if not stat.S_ISREG(status.st_mode):
            return "is not a regular file"
        if status.st_size == 0:
            return "is empty"
        self._seen_files.setdefault(
            resolved, (self.host.full_path(resolved), status.st_mtime_ns, status.st_ino, status.st_size)
        )
        return resolved, status

    def read_elf(self, path: str) -> SharedObject | str:
        """Return the header data of the ELF file at a path without links, or why it cannot be read."""
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
        """Return the paths that match a pattern with `*`, sorted. A pattern without `*` is returned as it is."""
        if "*" not in pattern:
            return [pattern]
        paths = [""]
        for component in pattern.strip("/").split("/"):
            if "*" not in component:
                paths = [f"{path}/{component}" for path in paths]
                continue
            matches: list[str] = []
            for path in paths:
                if self.find_directory(path or "/") is None:
                    continue
                names = [name for name in self.host.list_names(path or "/") if fnmatchcase(name, component)]
                matches.extend(f"{path}/{name}" for name in names)
            paths = matches
        return paths

    def collect_stat_signatures(self) -> tuple[StatSignature, ...]:
        """Return the signatures of everything that is watched. A link in a watched directory needs none of its own."""
        watched = self._watched
        loose_links = [seen for path, seen in self._seen_links.items() if os.path.dirname(path) not in watched]
        return (*watched.values(), *loose_links)


def stat_signature(path: str) -> StatSignature:
    """Return path, mtime, inode and size of a path in this process. A missing one has size -1.

    A result that was read from the path holds as long as these are the same.
    """
    try:
        status = os.lstat(path)
    except (OSError, ValueError):
        return path, 0, 0, -1
    return path, status.st_mtime_ns, status.st_ino, status.st_size
