"""Resolve paths below a container's root, component by component with openat(O_NOFOLLOW), and cache directories.

Directories stay open, so that a second path through one costs only the rest of the walk, and the path to a missing one
is walked once. openat2(RESOLVE_IN_ROOT) would be shorter, but ctypes costs 3 ms.

Import budget: GPU container.
"""

from __future__ import annotations

import errno
import os
import stat

from gpu_oci_hook.files.directory import MAX_RETRIES, PATH_FLAGS, Directory, make_os_error, read_mount_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MAX_LINKS = 40  # as the kernel: path_resolution(7)
MAX_STEPS = 20000  # a hostile link could make the walk take minutes
MAX_PATH_LENGTH = 4096  # PATH_MAX of limits.h: no program of the container can use a longer path either
MAX_CACHED_DIRECTORIES = 64  # held directories, and as many missing ones
MAX_CACHED_SHORT_OF_DESCRIPTORS = 2  # once this process has run out of descriptors
MAX_CACHED_DEPTH = 16  # components of the deepest directory that a walk caches


class PathWalker:
    """The path walk below one root, and its cache.

    Arguments:
        fd: an O_PATH descriptor of the root, owned by the caller.

    Attributes:
        write_guard: tells whether entries of a directory may be changed, or None where all in the root's own mount may.
            It is called with the held directory, so that no other process can redirect the path after the check.
    """

    __slots__ = ("_cached", "_max_cached", "_missing", "_mount_id", "_root_fd", "write_guard")

    def __init__(self, fd: int) -> None:
        self._root_fd = fd
        self._cached: dict[str, Directory] = {}
        # Of missing directories: the last component that exists, and the missing ones after it.
        self._missing: dict[str, tuple[Directory, list[str]]] = {}
        self._max_cached = MAX_CACHED_DIRECTORIES
        self._mount_id: bytes | None = None
        self.write_guard: Callable[[Directory], bool] | None = None

    def get_mount_id(self) -> bytes:
        """Return the kernel's number of the root's mount, or b"" where /proc does not show it."""
        if self._mount_id is None:
            self._mount_id = read_mount_id(self._root_fd)
        return self._mount_id

    def drop_cached(self) -> None:
        """Drop the cache: a path may lead to another directory now."""
        self._cached.clear()
        self._missing.clear()

    def drop_missing(self) -> None:
        """Drop the cache of missing directories: an entry has been created."""
        self._missing.clear()

    def resolve_missing(self, path: str) -> str:
        """Return the path, without links, that a missing directory would have.

        Raises:
            FileNotFoundError: `open_directory` has not been called for it.
        """
        if path not in self._missing:
            raise make_os_error(errno.ENOENT)
        last, missing = self._missing[path]
        return "/" + "/".join([*last.parts, *missing])

    def open_nearest(self, path: str) -> Directory:
        """Open the last directory on a path that exists.

        Raises:
            OSError: a component is not a directory, or cannot be opened.
        """
        try:
            return self.open_directory(path, create=False)
        except FileNotFoundError:
            if path not in self._missing:
                raise
            return self._missing[path][0]

    def open_parent(self, path: str, *, create: bool) -> tuple[Directory, str]:
        """Open the directory of a path's last component; return it and that component ("" when there is none)."""
        parent, _, name = path.rstrip("/").rpartition("/")
        if name in (".", ".."):
            return self.open_directory(path, create=create), ""
        return self.open_directory(parent, create=create), name

    def open_directory(self, path: str, *, create: bool) -> Directory:
        """Open a directory, which stays cached.

        Arguments:
            create: create missing directories, with mode 0755.

        Raises:
            OSError: it is missing, or is not a directory.
            ValueError: a name is impossible.
        """
        directory = self._cached.get(path)
        if directory is None:
            _check_length(path)
            if not create and path in self._missing:
                raise make_os_error(errno.ENOENT)
            directory, missing = self.walk_path(path, create=create)
            if missing:
                # Each one needs a descriptor, and a spec can have thousands of mounts.
                if len(self._missing) >= self._max_cached:
                    self._missing.clear()
                self._missing[path] = directory, missing
                raise make_os_error(errno.ENOENT)
            if not stat.S_ISDIR(os.fstat(directory.fd).st_mode):
                raise make_os_error(errno.ENOTDIR)
            self._cache_directory(path, directory)
        return directory

    def _cache_directory(self, path: str, directory: Directory) -> None:
        if len(self._cached) >= self._max_cached:
            self.drop_cached()
        self._cached[path] = directory

    def _find_cached_ancestor(self, path: str) -> tuple[Directory | None, str]:
        """Return the last cached directory of a path, and the rest of the path."""
        head = path
        while head:
            head = head.rpartition("/")[0]
            directory = self._cached.get(head)
            if directory is not None:
                return directory, path[len(head) :]
        return None, path

    def walk_path(self, path: str, *, create: bool = False) -> tuple[Directory, list[str]]:
        """Walk a path: see `_walk_path`. Where no descriptor is left, the cache gives its own back."""
        _check_length(path)
        try:
            return self._walk_path(path, create=create)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
        self.drop_cached()
        self._max_cached = MAX_CACHED_SHORT_OF_DESCRIPTORS
        return self._walk_path(path, create=create)

    def _walk_path(self, path: str, *, create: bool = False) -> tuple[Directory, list[str]]:
        """Walk a path below the root, component by component.

        Returns:
            The last component that exists, which may also be a file, and the names of the missing ones after it.

        Raises:
            OSError: a component cannot be opened or created.
            ValueError: a name is impossible.
        """
        start, rest = self._find_cached_ancestor(path)
        # The walked part of the path as written, while it has led through directories only: the key for the cache.
        plain = path[: len(path) - len(rest)] if path.startswith("/") else None
        pending = rest.split("/")
        pending.reverse()
        missing: list[str] = []
        links = steps = 0
        current = Directory(self, os.dup(self._root_fd), []) if start is None else start
        is_shared = start is not None  # the cache has `current`, so its parts must not be changed
        while pending:
            name = pending.pop()
            if name in ("", "."):
                continue
            steps += 1
            if steps > MAX_STEPS:
                raise make_os_error(errno.ELOOP)
            if missing:
                _walk_missing(missing, name)
                continue
            if name == "..":
                plain = None
                if not current.parts:
                    continue
                if not stat.S_ISDIR(os.fstat(current.fd).st_mode):
                    raise make_os_error(errno.ENOTDIR)
                # Walked again from the root: the directory may have been moved, so the kernel's ".." is not trusted.
                pending += reversed(current.parts[:-1])
            else:
                try:
                    fd, target = _open_component(current.fd, name)
                except FileNotFoundError:
                    if create:
                        current.mkdir(name)
                        self.drop_missing()
                        pending.append(name)
                    else:
                        missing.append(name)
                    continue
                if fd >= 0:
                    if plain and plain not in self._cached:
                        self._cache_directory(plain, current)  # it has an entry, so it is a directory
                        is_shared = True
                    if plain is not None:
                        plain = f"{plain}/{name}" if len(current.parts) < MAX_CACHED_DEPTH else None
                    parts = [*current.parts] if is_shared else current.parts
                    parts.append(name)
                    current = Directory(self, fd, parts)
                    is_shared = False
                    continue
                plain = None
                links += 1
                if links > MAX_LINKS:
                    raise make_os_error(errno.ELOOP)
                pending += reversed(target.split("/"))
                if not target.startswith("/"):
                    continue
            current = Directory(self, os.dup(self._root_fd), [])
            is_shared = False
        return current, missing


def _check_length(path: str) -> None:
    # Some paths are an image's, from its variables and its loader's configuration.
    if len(path) > MAX_PATH_LENGTH:
        raise make_os_error(errno.ENAMETOOLONG)


def _walk_missing(missing: list[str], name: str) -> None:
    """Go one component further below a missing directory."""
    if name == "..":
        missing.pop()
    elif len(os.fsencode(name)) > 255 or "\0" in name:
        raise make_os_error(errno.ENAMETOOLONG)
    else:
        missing.append(name)


def _open_component(parent_fd: int, name: str) -> tuple[int, str]:
    """Open one component: return (-1, target) for a symbolic link, (descriptor, "") for everything else."""
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
        os.close(fd)  # it has become a link meanwhile
    raise make_os_error(errno.ELOOP)
