"""Make a container's loader find the injected libraries: the one policy, and the files that carry it out.

glibc looks in /etc/ld.so.cache: the image's own cache is merged with the injected libraries. A later `ldconfig` in
the container rebuilds the cache from /etc/ld.so.conf, so a drop-in there keeps our directories first. musl has no
cache, only a list of directories. Nothing is executed, and the same input gives the same bytes.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.container.image import FALLBACK_LIBRARY_DIR, LD_CACHE, LD_CONF, LD_CONF_DIRECTORY
from gpu_oci_hook.errors import Fault, make_printable
from gpu_oci_hook.formats.architectures import ARCHITECTURES, ARCHITECTURES_32BIT, musl_path_file
from gpu_oci_hook.formats.ldcache import NEW_MAGIC, dump_ld_cache, merge_ld_cache, parse_ld_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from gpu_oci_hook.container.image import Image
    from gpu_oci_hook.model.plan_input import RootfsReader
    from gpu_oci_hook.plan.layout import Layout

    LoaderEntry = tuple[str, str, str]  # name that the loader looks for, path in the container, architecture

# Sorts before an image's own: ldconfig takes the first of two libraries with one name.
LD_CONF_DROP_IN = f"{LD_CONF_DIRECTORY}/00-gpu-oci-hook.conf"
LIBCUDA = "libcuda.so.1"
# Programs look for these by path in the image's own library directory.
MAIN_LIBRARIES = (LIBCUDA, "libcuda.so", "libnvidia-ml.so.1")
# The linker looks for these there: builds name them with -l.
LINKER_LIBRARIES = ("libnvidia-ml.so", "libnvcuvid.so", "libnvidia-encode.so")
MUSL_DEFAULT_DIRS = ("/lib", "/usr/local/lib", "/usr/lib")  # musl: ldso/dynlink.c
_CACHE_VERSION = b"1.1"
_DROP_IN_NAME = LD_CONF_DROP_IN.rpartition("/")[2]
_DROP_IN_KEY = "00gpuocihookconf"  # the same as a locale compares it
_INCLUDE_OURS = f"include {LD_CONF_DROP_IN}"
_INCLUDE_ALL = f"include {LD_CONF_DIRECTORY}/*.conf"
_INCLUDE_ALL_RELATIVE = "include ld.so.conf.d/*.conf"


class LibrarySearch:
    """The libraries that a container's loader has to find: the one policy, which the shim and the hook carry out.

    The shim (`plan.libraries`) decides before the container's mounts are made, the hook (`hook.loader_steps`) after.
    Both add their libraries and directories, make the links that `choose_image_links` and `may_link_plugins` allow, and
    write the files of `build_files`. The order in which libraries win:

    1. A library that the container itself mounts in the image's library directory (`find_own_mount`).
    2. The image's CUDA compat library, if `compat_directory` is set and has one of that name. Compat libraries are
       of the native architecture, so 32-bit libraries are never replaced. The name in the directory of the injected
       libraries leads to it too, since images have that directory in LD_LIBRARY_PATH.
    3. The injected library.

    What the container's environment or image puts before them, `plan.libcuda_search` finds out.

    Attributes:
        compat_directory: the directory of the image's CUDA compat libraries when `plan.compat` prefers them, else "".
    """

    __slots__ = ("_directories", "_entries", "_image", "_layout", "_owned", "_rootfs", "compat_directory")

    def __init__(self, image: Image, rootfs: RootfsReader, layout: Layout) -> None:
        self._image = image
        self._rootfs = rootfs
        self._layout = layout
        self._entries: list[LoaderEntry] = []
        self._owned: set[str] = set()
        self._directories: list[str] = []
        self.compat_directory = ""

    def get_image_directory(self, arch: str) -> str:
        """Return the image's own library directory for an architecture."""
        return self._image.library_dir32 if arch in ARCHITECTURES_32BIT else self._image.library_dir

    def find_own_mount(self, arch: str, *names: str) -> str:
        """Return where the container itself mounts a library with one of these names; "" when it does not.

        Such a mount wins: its programs shall find that library.
        """
        directory = self.get_image_directory(arch)
        for name in names:
            if self._layout.is_mount_destination(f"{directory}/{name}"):
                return f"{directory}/{name}"
        return ""

    def add_library(self, name: str, path: str, arch: str, *, own_mount: bool = False) -> None:
        """Add a name that the loader has to find.

        Arguments:
            own_mount: `path` is a mount of the container itself.
        """
        self._entries.append((name, path, arch))
        if own_mount:
            self._owned.add(path)

    def add_directory(self, directory: str) -> None:
        """Add a directory with injected libraries; the first one wins."""
        if directory not in self._directories:
            self._directories.append(directory)

    def find_compat_library(self, name: str, arch: str) -> str:
        """Return the path of the compat library that has this name and comes first; "" for none."""
        native = arch not in ARCHITECTURES_32BIT
        if self.compat_directory and native and name in self._image.compat_names:
            return f"{self.compat_directory}/{name}"
        return ""

    def may_be_overruled(self, search_path: str) -> bool:
        """Tell whether LD_LIBRARY_PATH names another directory before one of ours."""
        for directory in search_path.split(":") if search_path else ():
            if directory == self._layout.driver_library_dir:
                return False
            if directory != self._layout.driver_library_dir32:
                return True
        return False

    def find_cached_path(self, name: str) -> str:
        """Return the path that a name of the machine's own architecture has in the loader cache; "" for none."""
        for entry_name, path, arch in self._entries:
            if entry_name == name and arch not in ARCHITECTURES_32BIT:
                return self._prefer_compat(name, path, arch)
        return ""

    @property
    def has_libraries(self) -> bool:
        """Whether there is anything for the loader to find."""
        return bool(self._entries)

    @property
    def image(self) -> Image:
        """The image that is searched."""
        return self._image

    @property
    def directories(self) -> list[str]:
        """The directories for LD_LIBRARY_PATH, the one to win first."""
        compat = [self.compat_directory] if self.compat_directory else []
        return compat + [directory for directory in self._directories if directory not in compat]

    def is_default_directory(self, directory: str) -> bool:
        """Tell whether the image's loader searches a directory without being told.

        Such a directory is not listed in the loader's files: a line would change the order of the image's libraries.
        """
        if directory in ("/usr/lib", "/lib"):
            return True
        own = directory in (self._image.library_dir, self._image.library_dir32)
        return own and directory not in (FALLBACK_LIBRARY_DIR, FALLBACK_LIBRARY_DIR.removesuffix("64"))

    def choose_image_links(self, names: Iterable[str], image_directory: str) -> list[tuple[str, str]]:
        """Choose which libraries get a link in one of the image's own library directories; see `choose_library_links`.

        Returns:
            (name, reason) of each.
        """
        existing = self._rootfs.stat_names(image_directory, names)
        return choose_library_links(names, existing, native=image_directory == self._image.library_dir)

    def may_link_plugins(self, image_directory: str) -> bool:
        """Tell whether links to plug-ins belong below one of the image's own library directories.

        An image without a directory for 32-bit libraries has no program that would load a plug-in from there.
        """
        return image_directory == self._image.library_dir or self._rootfs.stat_path(image_directory) is not None

    def build_files(self) -> LoaderFiles:
        """Build the files to write below the container's root; see `build_loader_files`."""
        listed = [self.compat_directory] if self.compat_directory else []
        for directory in self._directories:
            if not self.is_default_directory(self._rootfs.resolve_path(directory) or directory):
                listed.append(directory)
        entries = self._entries
        if self.compat_directory:
            entries = [(name, self._prefer_compat(name, path, arch), arch) for name, path, arch in entries]
        return build_loader_files(self._image, entries, listed)

    def _prefer_compat(self, name: str, path: str, arch: str) -> str:
        return path if path in self._owned else self.find_compat_library(name, arch) or path


class LoaderFiles:
    """The loader's files for one image.

    Attributes:
        files: (path in the container, content); see `is_required_loader_file`.
        notes: one sentence each for `explain`.
        needs_ld_library_path: these files are not enough; LD_LIBRARY_PATH has to name the directories.
    """

    __slots__ = ("files", "needs_ld_library_path", "notes")

    def __init__(self) -> None:
        self.files: list[tuple[str, bytes]] = []
        self.notes: list[str] = []
        self.needs_ld_library_path = False


def is_required_loader_file(path: str) -> bool:
    """Tell whether the loader itself reads a file; the others serve only a later `ldconfig` in the container."""
    return path.endswith((".cache", ".path"))


def build_loader_files(image: Image, libraries: Sequence[LoaderEntry], directories: Iterable[str]) -> LoaderFiles:
    """Build the loader's files for an image.

    Arguments:
        libraries: what the loader has to find. Of two with one name and architecture the first wins, and both win
            over the image's.
        directories: the directories they are in, the one to win first.
    """
    result = LoaderFiles()
    listed = [directory for directory in dict.fromkeys(directories) if _can_be_listed(directory, result)]
    if image.libc == "none":
        result.needs_ld_library_path = True
        result.notes.append(
            "no glibc or musl loader was found in the image: only statically linked programs will run, and most of "
            "these cannot load the driver libraries"
        )
    elif image.libc == "musl":
        result.files.append((musl_path_file(image.arch), _build_musl_path(image.musl_path_content, listed)))
    else:
        cache = _build_ld_cache(image, libraries, result)
        if cache is not None:
            result.files.append((LD_CACHE, cache))
        lines = "".join(f"{directory}\n" for directory in listed)
        result.files.append(
            (LD_CONF_DROP_IN, _encode_text(f"# Written by gpu-oci-hook: the driver's libraries\n{lines}"))
        )
        ld_conf = _build_ld_conf(image)
        if ld_conf is not None and ld_conf != image.ld_conf:
            result.files.append((LD_CONF, _encode_text(ld_conf)))
    return result


def _build_ld_conf(image: Image) -> str | None:
    """Return the image's /etc/ld.so.conf so that `ldconfig` reads our drop-in first; None if it cannot be read.

    `ldconfig` takes the first of two libraries with one SONAME, in the order of the lines and of the files that
    `include` names (glibc: elf/ldconfig.c). Most images have the one line that includes all drop-ins, and ours sorts
    before theirs. Elsewhere ours is included once more at the beginning.
    """
    if image.ld_conf is None:
        return None
    ld_conf = image.ld_conf or f"{_INCLUDE_ALL}\n"
    lines = [" ".join(line.partition("#")[0].split()) for line in ld_conf.split("\n")]
    first_line = next((line for line in lines if line), "")
    if first_line == _INCLUDE_OURS:
        return ld_conf
    if first_line in (_INCLUDE_ALL, _INCLUDE_ALL_RELATIVE) and not any(map(_may_sort_before_ours, image.ld_conf_names)):
        return ld_conf
    return f"{_INCLUDE_OURS}\n{ld_conf}"


def _may_sort_before_ours(name: str) -> bool:
    """Tell whether `ldconfig` can read a drop-in before ours: glob() sorts as the process's locale does.

    In the C locale bytes are compared. In others punctuation and case count only between names that are equal else.
    """
    if not name.endswith(".conf"):
        return False
    if name < _DROP_IN_NAME:
        return True
    return "".join([c for c in name.lower() if c.isalnum()]) < _DROP_IN_KEY


def choose_library_links(
    names: Iterable[str], existing: Mapping[str, os.stat_result], *, native: bool
) -> list[tuple[str, str]]:
    """Choose which libraries get a link in one of the image's own library directories.

    Programs that look for a file instead of asking the loader, and those with a loader of their own, expect the main
    libraries there, and the linker those of LINKER_LIBRARIES. Any other name is touched only when a leftover of a
    committed GPU container has it: an empty file or a link would hide ours from programs that have that directory in
    LD_LIBRARY_PATH.

    Arguments:
        names: of our libraries.
        existing: what the directory has under these names, links not followed.
        native: the directory is for the machine's own programs, not for 32-bit ones.

    Returns:
        (name, reason) of each.
    """
    links = []
    for name in names:
        status = existing.get(name)
        if native and name in MAIN_LIBRARIES:
            links.append((name, "compatibility link: some programs open the library by this path"))
        elif native and name in LINKER_LIBRARIES and (status is None or status.st_mode & 0o170000 == 0o120000):
            links.append((name, "the linker looks for it there"))  # after a start, such a link is our own
        elif status is not None and (status.st_mode & 0o170000 != 0o100000 or status.st_size == 0):
            links.append((name, "the image has a leftover there"))
    return links


def _build_ld_cache(image: Image, libraries: Sequence[LoaderEntry], result: LoaderFiles) -> bytes | None:
    data = image.ld_cache
    magic = NEW_MAGIC
    if data is not None and data.startswith(magic) and not data.startswith(magic + _CACHE_VERSION):
        version = make_printable(data[len(magic) : len(magic) + 3].decode("latin-1"))
        result.notes.append(f"the image's {LD_CACHE} is of the unknown version {version}: left as it is")
        result.needs_ld_library_path = True
        return None
    old = None
    if image.ld_cache_unreadable:
        result.notes.append(f"the image's {LD_CACHE} cannot be read or is too large, so it is replaced")
    elif data is not None:
        try:
            old = parse_ld_cache(data)
        except Fault as fault:
            result.notes.append(f"the image's {LD_CACHE} is replaced: {fault}")
    new = [(name, path, ARCHITECTURES[arch].cache_flags) for name, path, arch in libraries if arch in ARCHITECTURES]
    try:
        return dump_ld_cache(merge_ld_cache(old, new))
    except Fault as fault:
        result.notes.append(f"the image's {LD_CACHE} is left as it is: {fault}")
        result.needs_ld_library_path = True
        return None


def _build_musl_path(existing: str | None, directories: list[str]) -> bytes:
    """Build musl's path file, our directories first. It replaces musl's defaults, so a new one must repeat them."""
    if existing is None:
        existing = "".join(f"{d}\n" for d in MUSL_DEFAULT_DIRS if d not in directories)
    else:
        existing = existing.partition("\0")[0]  # as far as musl reads
    ours = "".join(f"{d}\n" for d in directories)
    return _encode_text(existing if existing.startswith(ours) else ours + existing)


def _can_be_listed(directory: str, result: LoaderFiles) -> bool:
    """Tell whether these files can name a directory; note it if not. A link of the image can lead to an odd name."""
    odd = not directory.isprintable() or any(c in directory for c in " :#=,;")
    if odd:
        result.notes.append(f"the directory {make_printable(directory)!r} cannot be named in the loader's files")
        result.needs_ld_library_path = True
    return not odd


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
