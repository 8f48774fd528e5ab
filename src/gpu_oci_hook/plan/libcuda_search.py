"""Find out which libcuda the programs of a container load: at the start, and after `ldconfig` has run in it.

The inputs of the loader, in its order (ld.so(8); glibc: elf/dl-load.c, elf/ldconfig.c; musl: ldso/dynlink.c):

1. LD_LIBRARY_PATH.
2. glibc: /etc/ld.so.cache. `ldconfig` makes it from the directories that /etc/ld.so.conf names, in their order, then
   from its default directories; of two files with one SONAME in a directory it links the SONAME to the newer one.
   musl: the directories of its path file.
3. glibc: the loader's default directories.

The shim asks while it plans (the plan's edits count as made), the hook when all is in place. Files are judged by their
names; no file of an image is parsed. Not modelled: search paths inside programs, glibc-hwcaps directories.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.container.image import LD_CACHE, LD_CONF, LD_CONF_LIMIT
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.architectures import ARCHITECTURES, musl_path_file
from gpu_oci_hook.formats.driver_version import is_driver_version
from gpu_oci_hook.formats.ld_conf import list_ld_conf_directories
from gpu_oci_hook.formats.ldcache import make_libcmp_key, parse_ld_cache
from gpu_oci_hook.formats.oci import get_member
from gpu_oci_hook.model.libcuda_choice import LD_LIBRARY_PATH, FoundLibcuda, LibcudaChoice
from gpu_oci_hook.plan.loader_files import LIBCUDA, MUSL_DEFAULT_DIRS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpu_oci_hook.container.image import Image
    from gpu_oci_hook.model.libcuda_choice import LibcudaOwner
    from gpu_oci_hook.model.plan_input import RootfsReader

_LINKER_NAME = "libcuda.so"
_DEFAULT_DIRECTORIES = "its default directories"
_MAX_LINKS = 40
_MAX_DIRECTORIES = 1000  # of each input of the loader; an image can name more
_LDCONFIG_PATHS = ("/sbin/ldconfig", "/usr/sbin/ldconfig", "/usr/bin/ldconfig")


class LoaderInputs:
    """What the loader of a container reads, and what is mounted and written for it.

    Attributes:
        image, rootfs_reader: the image, without `links` and `host_files`, or with them where they are in place.
        search_path: the value of LD_LIBRARY_PATH.
        working_directory: of the container's process, by its config.json.
        cached_path: the path of libcuda.so.1 in the loader cache that is written; None if none is.
        written_files: content of the files that are written in the container, by path.
        links: links that are made, path to target.
        host_files: paths of the driver's mounted files.
        host_trees: directories of the driver that are mounted as a whole, each with a slash at its end.
        sealed_directories: directories in which `ldconfig` cannot change links.
        directories32: directories for 32-bit libraries.
        is_hidden: tells whether a path lies in a mount that is not made yet.
        is_mounted: tells whether the container mounts something on exactly this path.
        can_run_ldconfig: whether a process in the container can write the cache.

    Arguments:
        spec: the container's config.json.
        writable: whether its root file system can be written; config.json may forbid that to the container.
    """

    def __init__(
        self,
        image: Image,
        rootfs_reader: RootfsReader,
        *,
        spec: object,
        search_path: str,
        cached_path: str | None = None,
        written_files: dict[str, bytes] | None = None,
        links: dict[str, str] | None = None,
        host_files: Iterable[str] = (),
        host_trees: tuple[str, ...] = (),
        sealed_directories: Iterable[str] = (),
        directories32: Iterable[str] = (),
        is_hidden: Callable[[str], bool] = lambda path: False,
        is_mounted: Callable[[str], bool] = lambda path: False,
        writable: bool = True,
    ) -> None:
        self.image = image
        self.rootfs_reader = rootfs_reader
        self.search_path = search_path
        working_directory = get_member(spec, "process", "cwd")
        self.working_directory = working_directory if isinstance(working_directory, str) else "/"
        self.cached_path = cached_path
        self.written_files = written_files or {}
        self.links = links or {}
        self.host_files = frozenset(host_files)
        self.host_trees = host_trees
        self.sealed_directories = frozenset(sealed_directories)
        self.directories32 = frozenset(directories32)
        self.is_hidden = is_hidden
        self.is_mounted = is_mounted
        self.can_run_ldconfig = writable and get_member(spec, "root", "readonly") is not True


def find_libcuda(
    inputs: LoaderInputs,
    *,
    driver_version: str,
    wanted: LibcudaOwner = "host",
    reason: str = "",
    compat_error: str = "",
) -> LibcudaChoice:
    """Find the libcuda.so.1 that programs load.

    Arguments:
        driver_version: the host's driver version.
        wanted: whose library the loader's files put first.
        reason: why, for people.
        compat_error: see `LibcudaChoice`.
    """
    finder = _LibcudaFinder(inputs, driver_version)
    at_start = finder.find_at_start()
    return LibcudaChoice(
        at_start,
        finder.find_after_ldconfig(),
        driver_version=driver_version,
        wanted=wanted,
        reason=reason,
        compat_error=compat_error,
        unknown_directories=tuple(finder.unknown_directories),
    )


class _LibcudaFinder:
    """Follow the loader's inputs through the image, with the links and files that a plan adds."""

    def __init__(self, inputs: LoaderInputs, driver_version: str) -> None:
        self._inputs = inputs
        self._rootfs = inputs.rootfs_reader
        self._driver_version = driver_version
        self._resolved: dict[str, str] = {}
        arch = ARCHITECTURES.get(inputs.image.arch)
        self._triple = arch.triple if arch else ""
        self._triple32 = ARCHITECTURES[arch.arch32].triple if arch and arch.arch32 else ""
        self._flags = arch.cache_flags if arch else 0
        self.unknown_directories: dict[str, None] = {}

    def find_at_start(self) -> FoundLibcuda | None:
        """Find the library with the cache and links of the container's start."""
        for directory in self._list_search_path():
            found = self._find_in_directory(directory, LD_LIBRARY_PATH)
            if found is not None:
                return found
        image = self._inputs.image
        if image.libc == "musl":
            path_file = musl_path_file(image.arch)
            return self._find_in_first(self._list_musl_directories(path_file), path_file)
        if image.libc != "glibc":
            return None
        cached_path = self._find_cached_path()
        found = self._find_file(cached_path, LD_CACHE) if cached_path else None
        return found or self._find_in_first(self._list_default_directories(), _DEFAULT_DIRECTORIES)

    def find_after_ldconfig(self) -> FoundLibcuda | None:
        """Find the library with the cache and links that `ldconfig` makes; None where it cannot run."""
        inputs = self._inputs
        if inputs.image.libc != "glibc" or not inputs.can_run_ldconfig:
            return None
        if not any(self._rootfs.stat_path(path, follow=True) is not None for path in _LDCONFIG_PATHS):
            return None
        directories = list_ld_conf_directories(LD_CONF, self._read_text, self._list_names)
        directories = directories[: _MAX_DIRECTORIES - 4] + ["/lib64", "/usr/lib64", "/lib", "/usr/lib"]
        found_in = {}
        for directory in directories:
            resolved = self._resolve_directory(directory)
            if resolved not in found_in:
                found_in[resolved] = self._find_as_ldconfig(directory, resolved)
        for directory in self._list_search_path():
            linked = found_in.get(self._resolve_directory(directory))
            found = (
                FoundLibcuda(f"{directory}/{LIBCUDA}", linked.file, linked.version, linked.owner, LD_LIBRARY_PATH)
                if linked is not None
                else self._find_in_directory(directory, LD_LIBRARY_PATH)
            )
            if found is not None:
                return found
        return next((found for found in found_in.values() if found is not None), None)

    def _list_search_path(self) -> list[str]:
        """Return the absolute directories of LD_LIBRARY_PATH. An empty one is the working directory."""
        value = self._inputs.search_path
        if not value:
            return []
        directories = []
        entries = value.replace("\n" if self._inputs.image.libc == "musl" else ";", ":").split(":")
        if len(entries) > _MAX_DIRECTORIES:
            self.unknown_directories[f"{LD_LIBRARY_PATH} after its directory {_MAX_DIRECTORIES}"] = None
        for directory in entries[:_MAX_DIRECTORIES]:
            if "$" in directory:
                self.unknown_directories[directory] = None
            else:
                path = directory if directory.startswith("/") else f"{self._inputs.working_directory}/{directory}"
                directories.append(path.rstrip("/"))
        return directories

    def _list_musl_directories(self, path_file: str) -> list[str]:
        written = self._inputs.written_files.get(path_file)
        text = self._inputs.image.musl_path_content if written is None else written.decode("utf-8", "surrogateescape")
        if text is None:
            return list(MUSL_DEFAULT_DIRS)
        return [path.rstrip("/") for path in text.partition("\0")[0].replace("\n", ":").split(":") if path]

    def _list_default_directories(self) -> list[str]:
        """Return the directories that glibc's loader searches in the end; they are compiled into it."""
        library_dir = self._inputs.image.library_dir
        if self._triple and library_dir.endswith(f"/{self._triple}"):
            return [f"/lib/{self._triple}", f"/usr/lib/{self._triple}", "/lib", "/usr/lib"]
        return ["/lib64", "/usr/lib64", "/lib", "/usr/lib"]

    def _find_cached_path(self) -> str:
        if self._inputs.cached_path is not None:
            return self._inputs.cached_path
        try:
            rows = parse_ld_cache(self._inputs.image.ld_cache or b"").rows
        except Fault:
            return ""
        name = LIBCUDA.encode()
        for flags, row_name, path, _, _ in rows:
            if row_name == name and flags & 0xFF01 == self._flags & 0xFF01:
                return path.decode("utf-8", "surrogateescape")
        return ""

    def _find_in_first(self, directories: list[str], found_by: str) -> FoundLibcuda | None:
        for directory in directories[:_MAX_DIRECTORIES]:
            found = self._find_in_directory(directory, found_by)
            if found is not None:
                return found
        return None

    def _find_in_directory(self, directory: str, found_by: str) -> FoundLibcuda | None:
        """Find the library in a directory as the loader does, which opens the SONAME."""
        resolved = self._resolve_directory(directory)
        if self._is_for_32_bit(resolved) or self._is_unknown(directory, resolved):
            return None
        return self._find_file(f"{directory}/{LIBCUDA}", found_by)

    def _find_as_ldconfig(self, directory: str, resolved: str) -> FoundLibcuda | None:
        """Find the library to which `ldconfig` links the SONAME in a directory.

        It prefers files to links, then the newer name. A link with another name than that of the SONAME or the
        linker's counts as a file.
        """
        if self._is_for_32_bit(resolved) or self._is_unknown(directory, resolved):
            return None
        if resolved in self._inputs.sealed_directories:
            return self._find_file(f"{directory}/{LIBCUDA}", LD_CONF)
        prefix = f"{resolved.rstrip('/')}/"
        names = set(self._rootfs.list_names(resolved))
        names.update([path[len(prefix) :] for path in (*self._inputs.links, *self._inputs.host_files)
                      if path.startswith(prefix)])  # fmt: skip
        best: tuple[bool, tuple[int, ...]] | None = None
        best_found: FoundLibcuda | None = None
        for name in sorted(names):
            if name != _LINKER_NAME and not name.startswith(f"{_LINKER_NAME}."):
                continue
            found = self._find_file(prefix + name, LD_CONF)
            if found is None or not self._is_library_file(found.file):
                continue
            is_link = name in (LIBCUDA, _LINKER_NAME) and found.file != prefix + name
            rank = not is_link, make_libcmp_key(name)
            if best is None or rank > best:
                best, best_found = rank, found
        if best_found is not None:
            best_found.path = f"{directory}/{LIBCUDA}"
        return best_found

    def _find_file(self, path: str, found_by: str) -> FoundLibcuda | None:
        """Follow a path to a file: through the links of the image and of the plan."""
        at = path
        for _ in range(_MAX_LINKS):
            parent, _, name = at.rpartition("/")
            parent = self._resolve_directory(parent or "/").rstrip("/")
            at = f"{parent}/{name}"
            target = self._inputs.links.get(at)
            if target is None:
                if at in self._inputs.host_files or at.startswith(self._inputs.host_trees):
                    return FoundLibcuda(path, at, _read_version(name) or self._driver_version, "host", found_by)
                if self._inputs.is_mounted(at):
                    return FoundLibcuda(path, at, _read_version(name), "mount", found_by)
                if self._inputs.is_hidden(at):
                    return None
                target = self._rootfs.readlink(at)
            if target is None:
                status = self._rootfs.stat_path(at)
                is_file = status is not None and status.st_mode & 0o170000 == 0o100000
                return FoundLibcuda(path, at, _read_version(name), "image", found_by) if is_file else None
            at = target if target.startswith("/") else f"{parent}/{target}"
        return None

    def _is_library_file(self, path: str) -> bool:
        """Tell whether a file has content; `ldconfig` passes over an empty one."""
        if path in self._inputs.host_files:
            return True
        status = self._rootfs.stat_path(path)
        return status is None or status.st_size > 0

    def _is_unknown(self, directory: str, resolved: str) -> bool:
        """Tell whether a directory lies in a mount that is not made yet, and note it."""
        path = f"{resolved.rstrip('/')}/{LIBCUDA}"
        if path in self._inputs.links or resolved in self._inputs.sealed_directories:
            return False
        if self._inputs.is_mounted(path) or not self._inputs.is_hidden(path):
            return False
        if not any(file.startswith(f"{resolved}/") for file in self._inputs.host_files):
            self.unknown_directories[directory] = None
            return True
        return False

    def _is_for_32_bit(self, resolved: str) -> bool:
        return resolved in self._inputs.directories32 or resolved.endswith(("/lib32", f"/{self._triple32 or 'lib32'}"))

    def _resolve_directory(self, path: str) -> str:
        """Return a directory's path without links; components may be missing in the image."""
        resolved = self._resolved.get(path)
        if resolved is None:
            try:
                resolved = self._rootfs.resolve_destination(path) if path != "/" else "/"
            except Fault:
                resolved = path
            self._resolved[path] = resolved
        return resolved

    def _read_text(self, path: str) -> str:
        content = self._inputs.written_files.get(path)
        if content is None:
            content = self._rootfs.read_file(path, LD_CONF_LIMIT)
        return (content or b"").decode("utf-8", "surrogateescape")

    def _list_names(self, directory: str) -> list[str]:
        names = set(self._rootfs.list_names(directory))
        for path in self._inputs.written_files:
            parent, _, name = path.rpartition("/")
            if parent == directory:
                names.add(name)
        return sorted(names)


def _read_version(name: str) -> str:
    version = name.removeprefix(f"{_LINKER_NAME}.")
    return version if version != name and is_driver_version(version) else ""
