"""The ways below a container's root: paths walked by descriptor, component by component, and what is held of them.

The directories on the way stay open, so that a second name below one costs the rest of the way and nothing else, and
the way to one that is missing is walked once. openat2(RESOLVE_IN_ROOT) would be shorter, but ctypes costs 3 ms.
Cost rule: on the way of every GPU container, so `os`, `errno` and `stat` only.
"""

from __future__ import annotations

import errno
import os
import stat

from gpu_oci_hook.files.directory import MAX_RETRIES, PATH_FLAGS, Directory, make_os_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MAX_LINKS = 40  # as the kernel: path_resolution(7)
MAX_STEPS = 20000  # a hostile text could else make us walk for minutes
MAX_CACHED_DIRECTORIES = 64  # directories held open, and as many for what is missing
MAX_CACHED_DEPTH = 16  # components from which on they are not worth it


class PathWalker:
    """The ways below one root.

    Arguments:
        fd: an O_PATH descriptor of the root, owned by the caller.

    Attributes:
        write_guard: whether something may be changed in a directory; None where it may everywhere. It is asked with the
            descriptor in hand, so that no other process can redirect a way after it has answered.
    """

    __slots__ = ("_cached", "_missing", "_root_fd", "write_guard")

    def __init__(self, fd: int) -> None:
        self._root_fd = fd
        self._cached: dict[str, Directory] = {}
        # Of directories that are missing: the last thing on the way, and what is missing after it.
        self._missing: dict[str, tuple[Directory, list[str]]] = {}
        self.write_guard: Callable[[Directory], bool] | None = None

    def drop_cached(self) -> None:
        """Let go of the directories that are held for speed: a path may lead elsewhere now."""
        self._cached.clear()
        self._missing.clear()

    def drop_missing(self) -> None:
        """Let go of what was found to be missing: something has been made."""
        self._missing.clear()

    def resolve_missing(self, path: str) -> str:
        """Where a directory that was looked for and is missing would come to be, free of links.

        Raises: FileNotFoundError when nobody has looked for it.
        """
        if path not in self._missing:
            raise make_os_error(errno.ENOENT)
        found, missing = self._missing[path]
        return "/" + "/".join([*found.parts, *missing])

    def open_parent(self, path: str, *, create: bool) -> tuple[Directory, str]:
        """The directory that holds the last name of a path, and that name ("" when there is none)."""
        above, _, name = path.rstrip("/").rpartition("/")
        if name in (".", ".."):
            return self.open_directory(path, create=create), ""
        return self.open_directory(above, create=create), name

    def open_directory(self, path: str, *, create: bool) -> Directory:
        """A directory, held; missing ones are made (0755) on request.

        Raises: OSError when it is missing or something else is there; ValueError for impossible names.
        """
        known = self._cached.get(path)
        if known is None:
            if not create and path in self._missing:
                raise make_os_error(errno.ENOENT)
            known, missing = self.walk_path(path, create=create)
            if missing:
                if (
                    len(self._missing) >= MAX_CACHED_DIRECTORIES
                ):  # each holds a descriptor, and a spec can have thousands of mounts
                    self._missing.clear()
                self._missing[path] = known, missing
                raise make_os_error(errno.ENOENT)
            if not stat.S_ISDIR(os.fstat(known.fd).st_mode):
                raise make_os_error(errno.ENOTDIR)
            self._cache_directory(path, known)
        return known

    def _cache_directory(self, path: str, directory: Directory) -> None:
        if len(self._cached) >= MAX_CACHED_DIRECTORIES:
            self.drop_cached()
        self._cached[path] = directory

    def _find_cached_ancestor(self, path: str) -> tuple[Directory | None, str]:
        """The last directory of a path that is held, and the rest of the path."""
        head = path
        while head:
            head = head.rpartition("/")[0]
            known = self._cached.get(head)
            if known is not None:
                return known, path[len(head) :]
        return None, path

    def walk_path(self, path: str, *, create: bool = False) -> tuple[Directory, list[str]]:
        """Walk a path below the root, component by component.

        Returns: a handle on the last thing that exists (a file, too: the caller asks), and the
        components that are missing after it. Raises: OSError; ValueError for impossible names.
        """
        start, rest = self._find_cached_ancestor(path)
        # What was walked of the path as it is written, while that has led through nothing but directories.
        plain = path[: len(path) - len(rest)] if path.startswith("/") else None
        pending = rest.split("/")
        pending.reverse()
        missing: list[str] = []
        links = steps = 0
        here = Directory(self, os.dup(self._root_fd), []) if start is None else start
        own = start is None  # nobody else has `here`
        while pending:
            name = pending.pop()
            if name in ("", "."):
                continue
            steps += 1
            if steps > MAX_STEPS:
                raise make_os_error(errno.ELOOP)
            if missing:
                if name == "..":
                    missing.pop()
                elif len(os.fsencode(name)) > 255 or "\0" in name:
                    raise make_os_error(errno.ENAMETOOLONG)
                else:
                    missing.append(name)
                continue
            if name == "..":
                plain = None
                if not here.parts:
                    continue
                if not stat.S_ISDIR(os.fstat(here.fd).st_mode):
                    raise make_os_error(errno.ENOTDIR)
                pending += reversed(here.parts[:-1])
            else:
                try:
                    fd, text = _open_component(here.fd, name)
                except FileNotFoundError:
                    if create:
                        here.mkdir(name)
                        self.drop_missing()
                        pending.append(name)
                    else:
                        missing.append(name)
                    continue
                if fd >= 0:
                    if plain is not None:
                        if plain and plain not in self._cached:
                            self._cache_directory(plain, here)  # it is a directory: something is in it
                            own = False
                        plain = f"{plain}/{name}" if len(here.parts) < MAX_CACHED_DEPTH else None
                    parts = here.parts if own else [*here.parts]
                    parts.append(name)
                    here = Directory(self, fd, parts)
                    own = True
                    continue
                plain = None
                links += 1
                if links > MAX_LINKS:
                    raise make_os_error(errno.ELOOP)
                pending += reversed(text.split("/"))
                if not text.startswith("/"):
                    continue
            here = Directory(self, os.dup(self._root_fd), [])
            own = True
        return here, missing


def _open_component(parent_fd: int, name: str) -> tuple[int, str]:
    """Open one component: (descriptor, "") for a thing, (-1, its text) for a symbolic link."""
    try:
        return os.open(name, PATH_FLAGS | os.O_DIRECTORY, dir_fd=parent_fd), ""
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
    for _ in range(MAX_RETRIES):
        try:
            return -1, os.readlink(name, dir_fd=parent_fd)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        fd = os.open(name, PATH_FLAGS, dir_fd=parent_fd)
        if not stat.S_ISLNK(os.fstat(fd).st_mode):
            return fd, ""
        os.close(fd)  # it has become a link since
    raise make_os_error(errno.ELOOP)
