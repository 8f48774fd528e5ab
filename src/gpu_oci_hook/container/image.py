"""What the plan must know about an image: C library, place for libraries, loader's files, compat CUDA.

Cost rule: on the way of every GPU container: some twenty names are looked at, one directory is listed, no
library directory is scanned, no ELF file is opened. Whatever an image holds there, the answer is an Image.
"""

from __future__ import annotations

import stat

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats import ARCHITECTURES, musl_loader, musl_path_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.container.rootfs import Rootfs

CACHE = "/etc/ld.so.cache"
CONF = "/etc/ld.so.conf"
CONF_DIRECTORY = "/etc/ld.so.conf.d"
COMPAT = "/usr/local/cuda/compat"
CACHE_LIMIT = 16 << 20  # a cache of 5000 libraries has 0.5 MiB
TEXT_LIMIT = 64 << 10
LAST_RESORT = "/usr/local/nvidia/lib64"


class Image:
    """Facts about one image, as plain data.

    arch: what it was looked at for. libc: "glibc", "musl" or "none" (no loader in a usual place: a static
    image, or one like Nix's, whose loader reads no cache). library_dir, library_dir32: where libraries go,
    free of links; to be made where missing. cache: the raw /etc/ld.so.cache, None when there is no readable
    regular file of at most CACHE_LIMIT bytes; odd_cache: something is there all the same. conf: it has an
    /etc/ld.so.conf. musl_path: the content of musl's path file, None without one. compat: (path, version)
    of each libcuda.so.<version> in /usr/local/cuda/compat, newest first; compat_dir: that directory free of
    links, "" without one; compat_names: the lib*.so.* names in it. writable: files can be made in it.
    """

    __slots__ = (
        "arch", "cache", "compat", "compat_dir", "compat_names", "conf", "libc",
        "library_dir", "library_dir32", "musl_path", "odd_cache", "writable",
    )  # fmt: skip

    def __init__(
        self,
        *,
        arch: str = "x86_64",
        libc: str = "glibc",
        library_dir: str = "/usr/lib64",
        library_dir32: str = "/usr/lib32",
        cache: bytes | None = None,
        odd_cache: bool = False,
        conf: bool = True,
        musl_path: str | None = None,
        compat: tuple[tuple[str, str], ...] = (),
        compat_dir: str = "",
        compat_names: tuple[str, ...] = (),
        writable: bool = True,
    ) -> None:
        self.arch = arch
        self.libc = libc
        self.library_dir = library_dir
        self.library_dir32 = library_dir32
        self.cache = cache
        self.odd_cache = odd_cache
        self.conf = conf
        self.musl_path = musl_path
        self.compat = compat
        self.compat_dir = compat_dir
        self.compat_names = compat_names
        self.writable = writable


def survey(rootfs: Rootfs, arch: str, compat_root: str = COMPAT) -> Image:
    """Look at an image for programs of this architecture ("x86_64", "aarch64").

    Arguments:
        compat_root: where its forward-compatibility libraries would lie.

    Raises: Fault only when the image leaves no place at all for libraries.
    """
    multiarch = _directory(rootfs, f"/usr/lib/{ARCHITECTURES[arch].triple}") if arch in ARCHITECTURES else None
    libc = _libc(rootfs, arch, multiarch)
    library_dir = _library_dir(rootfs, libc, multiarch)
    cache = rootfs.read(CACHE, CACHE_LIMIT)
    musl_path = rootfs.read(musl_path_file(arch), TEXT_LIMIT) if libc == "musl" else None
    compat_dir, compat, compat_names = _compat(rootfs, compat_root)
    return Image(
        arch=arch,
        libc=libc,
        library_dir=library_dir,
        library_dir32=_library_dir32(rootfs, arch, library_dir, multiarch),
        cache=cache,
        odd_cache=cache is None and rootfs.status(CACHE) is not None,
        conf=_is(rootfs, CONF, stat.S_IFREG),
        musl_path=None if musl_path is None else musl_path.decode("utf-8", "surrogateescape"),
        compat=compat,
        compat_dir=compat_dir,
        compat_names=compat_names,
        writable=rootfs.writable(),
    )


def driver_version(text: str) -> bool:
    """Whether a text is a driver's version: "560.35.03", not "1" and not Tegra's "1.1"."""
    parts = text.split(".")
    return 2 <= len(parts) <= 3 and all(p.isascii() and p.isdigit() for p in parts) and len(parts[0]) == 3


def version_key(text: str) -> tuple[int, ...]:
    """Orders what `driver_version` accepts."""
    return tuple(int(part) for part in text.split("."))


def _is(rootfs: Rootfs, path: str, kind: int) -> bool:
    info = rootfs.status(path, follow=True)
    return info is not None and stat.S_IFMT(info.st_mode) == kind


def _directory(rootfs: Rootfs, path: str) -> str | None:
    """The directory free of links, None when there is none that could hold libraries."""
    try:
        place = rootfs.directory(path, create=False).path
    except Fault:
        return None
    return None if _covered(place) else place


def _covered(place: str) -> bool:
    """Whether the runtime mounts something over this place: a link of a hostile image leads there."""
    return place == "/" or place.split("/")[1] in ("proc", "sys", "dev")


def _libc(rootfs: Rootfs, arch: str, multiarch: str | None) -> str:
    """Which C library programs of the image use.

    An Alpine with gcompat has a glibc loader too, a Debian can have the musl package: the libc itself tells.
    """
    if rootfs.status(musl_loader(arch), follow=True) is not None:
        if rootfs.status("/etc/alpine-release") is not None:
            return "musl"
        for directory in (multiarch, "/usr/lib64", "/lib64", "/usr/lib"):
            if directory and _is(rootfs, f"{directory}/libc.so.6", stat.S_IFREG):
                return "glibc"
        return "musl"
    if multiarch is not None:
        return "glibc"
    own = ARCHITECTURES[arch].loader if arch in ARCHITECTURES else CACHE
    for path in (own, CACHE, CONF, CONF_DIRECTORY, "/etc/debian_version"):
        if rootfs.status(path, follow=True) is not None:
            return "glibc"
    return "none"


def _library_dir(rootfs: Rootfs, libc: str, multiarch: str | None) -> str:
    """The directory that the image's loader looks in by itself, so that a lost cache does no harm."""
    if libc == "musl":
        wanted = "/usr/lib"
    elif multiarch is not None:
        return multiarch
    else:
        wanted = "/usr/lib64"
    found = _directory(rootfs, wanted) or _to_make(rootfs, wanted)
    return found or rootfs.destination(LAST_RESORT)


def _library_dir32(rootfs: Rootfs, arch: str, library_dir: str, multiarch: str | None) -> str:
    small = ARCHITECTURES[arch].small if arch in ARCHITECTURES else ""
    if not small:
        return library_dir
    if multiarch is not None:
        wanted = f"/usr/lib/{ARCHITECTURES[small].triple}"
        found = _directory(rootfs, wanted)
    else:
        wanted = "/usr/lib32"
        found = _directory(rootfs, wanted) or _directory(rootfs, "/usr/lib")
    if found is not None and found != library_dir:
        return found
    return _to_make(rootfs, wanted) or LAST_RESORT.removesuffix("64")


def _to_make(rootfs: Rootfs, path: str) -> str | None:
    """Where a missing directory would come to be; None when something is in its way."""
    try:
        place = rootfs.destination(path)
    except Fault:
        return None
    return place if rootfs.status(place) is None and not _covered(place) else None


def _compat(rootfs: Rootfs, place: str) -> tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]]:
    try:
        directory = rootfs.directory(place, create=False)
    except Fault:
        return "", (), ()
    names = [n for n in directory.names() if n.startswith("lib") and ".so." in n]
    found = []
    for name in names:
        version = name.removeprefix("libcuda.so.")
        if version != name and driver_version(version):
            info = directory.status(name)
            # an empty file is a mount point that an earlier container left behind
            if info is not None and stat.S_ISREG(info.st_mode) and info.st_size:
                found.append((f"{directory.path}/{name}", version))
    found.sort(key=lambda entry: version_key(entry[1]), reverse=True)
    return directory.path, tuple(found), tuple(names)
