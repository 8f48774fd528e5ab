"""What the plan must know about an image: C library, place for libraries, loader's files, compat CUDA.

Cost rule: on the way of every GPU container: some twenty names are looked at, one directory is listed, no
library directory is scanned, no ELF file is opened. Whatever an image holds there, the answer is an Image.
"""

from __future__ import annotations

import stat

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.architectures import ARCHITECTURES, musl_loader_path, musl_path_file
from gpu_oci_hook.formats.driver_version import is_driver_version, make_version_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.files.rootfs import Rootfs

LD_CACHE = "/etc/ld.so.cache"
LD_CONF = "/etc/ld.so.conf"
LD_CONF_DIRECTORY = "/etc/ld.so.conf.d"
COMPAT_DIRECTORY = "/usr/local/cuda/compat"
LD_CACHE_LIMIT = 16 << 20  # a cache of 5000 libraries has 0.5 MiB
MUSL_PATH_LIMIT = 64 << 10
FALLBACK_LIBRARY_DIR = "/usr/local/nvidia/lib64"


class Image:
    """Facts about one image, as plain data.

    arch: what it was looked at for. libc: "glibc", "musl" or "none" (no loader in a usual place: a static
    image, or one like Nix's, whose loader reads no cache). library_dir, library_dir32: where libraries go,
    free of links; to be made where missing. ld_cache: the raw /etc/ld.so.cache, None when there is no readable
    regular file of at most CACHE_LIMIT bytes; odd_cache: something is there all the same. has_ld_conf: it has an
    /etc/ld.so.conf. musl_path_content: the content of musl's path file, None without one. compat_libcudas: (path, version)
    of each libcuda.so.<version> in /usr/local/cuda/compat, newest first; compat_dir: that directory free of
    links, "" without one; compat_names: the lib*.so.* names in it. writable: files can be made in it.
    """

    __slots__ = (
        "arch",
        "compat_dir",
        "compat_libcudas",
        "compat_names",
        "has_ld_conf",
        "ld_cache",
        "ld_cache_unreadable",
        "libc",
        "library_dir",
        "library_dir32",
        "musl_path_content",
        "writable",
    )  # fmt: skip

    def __init__(
        self,
        *,
        arch: str = "x86_64",
        libc: str = "glibc",
        library_dir: str = "/usr/lib64",
        library_dir32: str = "/usr/lib32",
        ld_cache: bytes | None = None,
        ld_cache_unreadable: bool = False,
        has_ld_conf: bool = True,
        musl_path_content: str | None = None,
        compat_libcudas: tuple[tuple[str, str], ...] = (),
        compat_dir: str = "",
        compat_names: tuple[str, ...] = (),
        writable: bool = True,
    ) -> None:
        self.arch = arch
        self.libc = libc
        self.library_dir = library_dir
        self.library_dir32 = library_dir32
        self.ld_cache = ld_cache
        self.ld_cache_unreadable = ld_cache_unreadable
        self.has_ld_conf = has_ld_conf
        self.musl_path_content = musl_path_content
        self.compat_libcudas = compat_libcudas
        self.compat_dir = compat_dir
        self.compat_names = compat_names
        self.writable = writable


def inspect_image(rootfs: Rootfs, arch: str, compat_root: str = COMPAT_DIRECTORY) -> Image:
    """Look at an image for programs of this architecture ("x86_64", "aarch64").

    Arguments:
        compat_root: where its forward-compatibility libraries would lie.

    Raises: Fault only when the image leaves no place at all for libraries.
    """
    multiarch = _find_directory(rootfs, f"/usr/lib/{ARCHITECTURES[arch].triple}") if arch in ARCHITECTURES else None
    libc = _detect_libc(rootfs, arch, multiarch)
    library_dir = _choose_library_dir(rootfs, libc, multiarch)
    cache = rootfs.read_file(LD_CACHE, LD_CACHE_LIMIT)
    musl_path = rootfs.read_file(musl_path_file(arch), MUSL_PATH_LIMIT) if libc == "musl" else None
    compat_dir, compat, compat_names = _find_compat(rootfs, compat_root)
    return Image(
        arch=arch,
        libc=libc,
        library_dir=library_dir,
        library_dir32=_choose_library_dir32(rootfs, arch, library_dir, multiarch),
        ld_cache=cache,
        ld_cache_unreadable=cache is None and rootfs.stat_path(LD_CACHE) is not None,
        has_ld_conf=_has_file_type(rootfs, LD_CONF, stat.S_IFREG),
        musl_path_content=None if musl_path is None else musl_path.decode("utf-8", "surrogateescape"),
        compat_libcudas=compat,
        compat_dir=compat_dir,
        compat_names=compat_names,
        writable=rootfs.is_writable(),
    )


def _has_file_type(rootfs: Rootfs, path: str, kind: int) -> bool:
    info = rootfs.stat_path(path, follow=True)
    return info is not None and stat.S_IFMT(info.st_mode) == kind


def _find_directory(rootfs: Rootfs, path: str) -> str | None:
    """The directory free of links, None when there is none that could hold libraries."""
    try:
        place = rootfs.open_directory(path, create=False).path
    except Fault:
        return None
    return None if _is_runtime_mount(place) else place


def _is_runtime_mount(place: str) -> bool:
    """Whether the runtime mounts something over this place: a link of a hostile image leads there."""
    return place == "/" or place.split("/")[1] in ("proc", "sys", "dev")


def _detect_libc(rootfs: Rootfs, arch: str, multiarch: str | None) -> str:
    """Which C library programs of the image use.

    An Alpine with gcompat has a glibc loader too, a Debian can have the musl package: the libc itself tells.
    """
    if rootfs.stat_path(musl_loader_path(arch), follow=True) is not None:
        if rootfs.stat_path("/etc/alpine-release") is not None:
            return "musl"
        for directory in (multiarch, "/usr/lib64", "/lib64", "/usr/lib"):
            if directory and _has_file_type(rootfs, f"{directory}/libc.so.6", stat.S_IFREG):
                return "glibc"
        return "musl"
    if multiarch is not None:
        return "glibc"
    own = ARCHITECTURES[arch].loader if arch in ARCHITECTURES else LD_CACHE
    for path in (own, LD_CACHE, LD_CONF, LD_CONF_DIRECTORY, "/etc/debian_version"):
        if rootfs.stat_path(path, follow=True) is not None:
            return "glibc"
    return "none"


def _choose_library_dir(rootfs: Rootfs, libc: str, multiarch: str | None) -> str:
    """The directory that the image's loader looks in by itself, so that a lost cache does no harm."""
    if libc == "musl":
        wanted = "/usr/lib"
    elif multiarch is not None:
        return multiarch
    else:
        wanted = "/usr/lib64"
    found = _find_directory(rootfs, wanted) or _find_creatable_directory(rootfs, wanted)
    return found or rootfs.resolve_destination(FALLBACK_LIBRARY_DIR)


def _choose_library_dir32(rootfs: Rootfs, arch: str, library_dir: str, multiarch: str | None) -> str:
    small = ARCHITECTURES[arch].arch32 if arch in ARCHITECTURES else ""
    if not small:
        return library_dir
    if multiarch is not None:
        wanted = f"/usr/lib/{ARCHITECTURES[small].triple}"
        found = _find_directory(rootfs, wanted)
    else:
        wanted = "/usr/lib32"
        found = _find_directory(rootfs, wanted) or _find_directory(rootfs, "/usr/lib")
    if found is not None and found != library_dir:
        return found
    return _find_creatable_directory(rootfs, wanted) or FALLBACK_LIBRARY_DIR.removesuffix("64")


def _find_creatable_directory(rootfs: Rootfs, path: str) -> str | None:
    """Where a missing directory would come to be; None when something is in its way."""
    try:
        place = rootfs.resolve_destination(path)
    except Fault:
        return None
    return place if rootfs.stat_path(place) is None and not _is_runtime_mount(place) else None


def _find_compat(rootfs: Rootfs, place: str) -> tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]]:
    try:
        directory = rootfs.open_directory(place, create=False)
    except Fault:
        return "", (), ()
    names = [n for n in directory.list_names() if n.startswith("lib") and ".so." in n]
    found = []
    for name in names:
        version = name.removeprefix("libcuda.so.")
        if version != name and is_driver_version(version):
            info = directory.stat_name(name)
            # an empty file is a mount point that an earlier container left behind
            if info is not None and stat.S_ISREG(info.st_mode) and info.st_size:
                found.append((f"{directory.path}/{name}", version))
    found.sort(key=lambda entry: make_version_key(entry[1]), reverse=True)
    return directory.path, tuple(found), tuple(names)
