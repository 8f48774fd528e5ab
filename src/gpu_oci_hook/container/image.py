"""Inspect an image for the plan: its C library, library directories, loader files and CUDA compat libraries.

Some twenty names are looked up and one directory is listed. No library directory is scanned and no ELF file is opened.
Whatever an image has there, the result is an `Image`.

Import budget: GPU container.
"""

from __future__ import annotations

import stat

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.architectures import ARCHITECTURES, musl_loader_path, musl_path_file
from gpu_oci_hook.formats.driver_version import is_driver_version, make_version_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    from gpu_oci_hook.files.rootfs import Rootfs

    Libc = Literal["glibc", "musl", "none"]

LD_CACHE = "/etc/ld.so.cache"
LD_CONF = "/etc/ld.so.conf"
LD_CONF_DIRECTORY = "/etc/ld.so.conf.d"
COMPAT_DIRECTORY = "/usr/local/cuda/compat"
BOARD_LIBCUDA_VERSION = "1.1"
LD_CACHE_LIMIT = 16 << 20  # a cache of 5000 libraries has 0.5 MiB
MUSL_PATH_LIMIT = 64 << 10
LD_CONF_LIMIT = 256 << 10
FALLBACK_LIBRARY_DIR = "/usr/local/nvidia/lib64"


class Image:
    """Facts about one image, as plain data.

    Attributes:
        arch: the architecture that it was inspected for.
        libc: "glibc", "musl" or "none". It is "none" without a loader in a usual path: a static image, or one like
            Nix's, whose loader reads no cache.
        library_dir, library_dir32: its directories for 64-bit and 32-bit libraries, without links; they can be missing.
        ld_cache: the bytes of /etc/ld.so.cache; None without a readable regular file of at most LD_CACHE_LIMIT bytes.
        ld_cache_unreadable: something other than such a file is there.
        ld_conf: the content of /etc/ld.so.conf; "" without one; None if something is there that cannot be read.
        ld_conf_names: the names in /etc/ld.so.conf.d, sorted.
        musl_path_content: the content of musl's path file; None without one.
        compat_libcudas: (path, version) of each libcuda.so.<version> in the compat directory, newest first.
        compat_dir: the compat directory without links; "" without one.
        compat_names: the names lib*.so.* in it.
        writable: this process can create files in it.
    """

    __slots__ = (
        "arch",
        "compat_dir",
        "compat_libcudas",
        "compat_names",
        "ld_cache",
        "ld_cache_unreadable",
        "ld_conf",
        "ld_conf_names",
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
        libc: Libc = "glibc",
        library_dir: str = "/usr/lib64",
        library_dir32: str = "/usr/lib32",
        ld_cache: bytes | None = None,
        ld_cache_unreadable: bool = False,
        ld_conf: str | None = f"include {LD_CONF_DIRECTORY}/*.conf\n",
        ld_conf_names: tuple[str, ...] = (),
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
        self.ld_conf = ld_conf
        self.ld_conf_names = ld_conf_names
        self.musl_path_content = musl_path_content
        self.compat_libcudas = compat_libcudas
        self.compat_dir = compat_dir
        self.compat_names = compat_names
        self.writable = writable


def inspect_image(rootfs: Rootfs, arch: str, compat_root: str = COMPAT_DIRECTORY) -> Image:
    """Inspect an image for programs of one architecture.

    Arguments:
        arch: "x86_64" or "aarch64".
        compat_root: the directory for its forward-compatibility libraries.

    Raises:
        Fault: the image leaves no directory at all for libraries.
    """
    multiarch = _find_directory(rootfs, f"/usr/lib/{ARCHITECTURES[arch].triple}") if arch in ARCHITECTURES else None
    libc = _detect_libc(rootfs, arch, multiarch)
    library_dir = _choose_library_dir(rootfs, libc, multiarch)
    cache = rootfs.read_file(LD_CACHE, LD_CACHE_LIMIT)
    musl_path = rootfs.read_file(musl_path_file(arch), MUSL_PATH_LIMIT) if libc == "musl" else None
    is_glibc = libc == "glibc"
    compat_dir, compat, compat_names = _find_compat(rootfs, compat_root)
    return Image(
        arch=arch,
        libc=libc,
        library_dir=library_dir,
        library_dir32=_choose_library_dir32(rootfs, arch, library_dir, multiarch),
        ld_cache=cache,
        ld_cache_unreadable=cache is None and rootfs.stat_path(LD_CACHE) is not None,
        ld_conf=_read_ld_conf(rootfs) if is_glibc else "",
        ld_conf_names=tuple(rootfs.list_names(LD_CONF_DIRECTORY)) if is_glibc else (),
        musl_path_content=None if musl_path is None else musl_path.decode("utf-8", "surrogateescape"),
        compat_libcudas=compat,
        compat_dir=compat_dir,
        compat_names=compat_names,
        writable=rootfs.is_writable(),
    )


def _read_ld_conf(rootfs: Rootfs) -> str | None:
    """Return the content of the loader's configuration; see `Image.ld_conf`."""
    content = rootfs.read_file(LD_CONF, LD_CONF_LIMIT)
    if content is None:
        return None if _has_file_type(rootfs, LD_CONF, stat.S_IFREG) else ""
    return content.decode("utf-8", "surrogateescape")


def _has_file_type(rootfs: Rootfs, path: str, kind: int) -> bool:
    info = rootfs.stat_path(path, follow=True)
    return info is not None and stat.S_IFMT(info.st_mode) == kind


def _find_directory(rootfs: Rootfs, path: str) -> str | None:
    """Return a directory's path without links; None if there is no directory for libraries."""
    try:
        resolved = rootfs.open_directory(path, create=False).path
    except Fault:
        return None
    return None if _is_runtime_mount(resolved) else resolved


def _is_runtime_mount(path: str) -> bool:
    """Tell whether the runtime mounts something over a path; a link of a hostile image can lead there."""
    return path == "/" or path.split("/")[1] in ("proc", "sys", "dev")


def _detect_libc(rootfs: Rootfs, arch: str, multiarch: str | None) -> Libc:
    """Detect the C library that programs of the image use.

    Alpine with gcompat has a glibc loader too, and Debian can have the musl package, so the libc itself decides.
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
    glibc_loader = ARCHITECTURES[arch].loader if arch in ARCHITECTURES else LD_CACHE
    for path in (glibc_loader, LD_CACHE, LD_CONF, LD_CONF_DIRECTORY, "/etc/debian_version"):
        if rootfs.stat_path(path, follow=True) is not None:
            return "glibc"
    return "none"


def _choose_library_dir(rootfs: Rootfs, libc: str, multiarch: str | None) -> str:
    """Choose a directory that the image's loader searches by default, so that a lost cache does no harm."""
    if libc == "musl":
        wanted = "/usr/lib"
    elif multiarch is not None:
        return multiarch
    else:
        wanted = "/usr/lib64"
    directory = _find_directory(rootfs, wanted) or _find_creatable_directory(rootfs, wanted)
    return directory or rootfs.resolve_destination(FALLBACK_LIBRARY_DIR)


def _choose_library_dir32(rootfs: Rootfs, arch: str, library_dir: str, multiarch: str | None) -> str:
    """Choose the directory for 32-bit libraries; `library_dir` on a machine without them."""
    arch32 = ARCHITECTURES[arch].arch32 if arch in ARCHITECTURES else ""
    if not arch32:
        return library_dir
    if multiarch is not None:
        wanted = f"/usr/lib/{ARCHITECTURES[arch32].triple}"
        directory = _find_directory(rootfs, wanted)
    else:
        wanted = "/usr/lib32"
        directory = _find_directory(rootfs, wanted) or _find_directory(rootfs, "/usr/lib")
    if directory is not None and directory != library_dir:
        return directory
    return _find_creatable_directory(rootfs, wanted) or FALLBACK_LIBRARY_DIR.removesuffix("64")


def _find_creatable_directory(rootfs: Rootfs, path: str) -> str | None:
    """Return where a missing directory can be created; None if something is in its way."""
    try:
        resolved = rootfs.resolve_destination(path)
    except Fault:
        return None
    return resolved if rootfs.stat_path(resolved) is None and not _is_runtime_mount(resolved) else None


def find_board_compat(image: Image, rootfs: Rootfs, compat_roots: Iterable[str]) -> None:
    """Replace the image's compat libraries by those for a Tegra board, if it has any.

    Their libcuda has the version 1.1 on all boards.

    Arguments:
        compat_roots: the directories to look in, in order.
    """
    for path in compat_roots:
        directory, libcudas, names = _find_compat(rootfs, path, BOARD_LIBCUDA_VERSION)
        if libcudas:
            image.compat_dir, image.compat_libcudas, image.compat_names = directory, libcudas, names
            return


def _find_compat(
    rootfs: Rootfs, path: str, board_version: str = ""
) -> tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return (compat directory, its libcudas, its libraries' names); see `Image`."""
    try:
        directory = rootfs.open_directory(path, create=False)
    except Fault:
        return "", (), ()
    names = [n for n in directory.list_names() if n.startswith("lib") and ".so." in n]
    libcudas = []
    for name in names:
        version = name.removeprefix("libcuda.so.")
        if version != name and (version == board_version if board_version else is_driver_version(version)):
            info = directory.stat_name(name)
            # An empty file is a mount point that an earlier container has left.
            if info is not None and stat.S_ISREG(info.st_mode) and info.st_size:
                libcudas.append((f"{directory.path}/{name}", version))
    libcudas.sort(key=lambda entry: make_version_key(entry[1]), reverse=True)
    return directory.path, tuple(libcudas), tuple(names)
