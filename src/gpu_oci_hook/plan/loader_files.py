"""The files that make a container's loader find the injected libraries. Nothing is executed for it.

glibc looks in /etc/ld.so.cache: the image's own is merged with our libraries. A later `ldconfig` in the
container makes it anew from /etc/ld.so.conf, so a drop-in there keeps our directories first. musl has no
cache, only a list of directories.

Cost rule: on the way of every GPU container. Pure: bytes in, bytes out. Doing it again gives the same bytes.
"""

from __future__ import annotations

from gpu_oci_hook.container.image import LD_CACHE, LD_CONF, LD_CONF_DIRECTORY
from gpu_oci_hook.errors import Fault, make_printable
from gpu_oci_hook.formats.architectures import ARCHITECTURES, musl_path_file
from gpu_oci_hook.formats.ldcache import NEW_MAGIC, dump_ld_cache, merge_ld_cache, parse_ld_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from gpu_oci_hook.container.image import Image

# Sorts before an image's own: ldconfig takes the first of two libraries with one name.
LD_CONF_DROP_IN = f"{LD_CONF_DIRECTORY}/00-gpu-oci-hook.conf"
# What programs look for by its path in the image's own library directory.
MAIN_LIBRARIES = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1")
MUSL_DEFAULT_DIRS = ("/lib", "/usr/local/lib", "/usr/lib")  # musl: ldso/dynlink.c
_CACHE_VERSION = b"1.1"


class LoaderFiles:
    """What to write, and what to know.

    files: (path in the container, content). notes: one sentence each for `explain`. needs_ld_library_path: these
    files are not enough, the caller should set LD_LIBRARY_PATH.
    """

    __slots__ = ("files", "needs_ld_library_path", "notes")

    def __init__(self) -> None:
        self.files: list[tuple[str, bytes]] = []
        self.notes: list[str] = []
        self.needs_ld_library_path = False


def build_loader_files(
    image: Image, libraries: Sequence[tuple[str, str, str]], directories: Iterable[str]
) -> LoaderFiles:
    """The loader's files for an image.

    Arguments:
        libraries: (SONAME, path in the container, architecture); of two with one SONAME and architecture
            the first wins, and both win over the image's.
        directories: the directories they are in, the one to win first.
    """
    result = LoaderFiles()
    known = [d for d in dict.fromkeys(directories) if _can_be_listed(d, result)]
    if image.libc == "none":
        result.needs_ld_library_path = True
        result.notes.append("the image has neither glibc's nor musl's loader in its usual place")
    elif image.libc == "musl":
        result.files.append((musl_path_file(image.arch), _build_musl_path(image.musl_path_content, known)))
    else:
        cache = _build_ld_cache(image, libraries, result)
        if cache is not None:
            result.files.append((LD_CACHE, cache))
        text = "# Written by gpu-oci-hook: the driver's libraries\n" + "".join(f"{d}\n" for d in known)
        result.files.append((LD_CONF_DROP_IN, _encode_text(text)))
        if not image.has_ld_conf:
            result.files.append((LD_CONF, _encode_text(f"include {LD_CONF_DIRECTORY}/*.conf\n")))
    return result


def choose_library_links(
    names: Iterable[str], existing: Mapping[str, os.stat_result], *, native: bool
) -> list[tuple[str, str]]:
    """(name, reason) of the libraries that get a link in one of the image's own library directories.

    Programs that look for a file rather than ask the loader, and those with their own loader, expect the main
    libraries there. Any other name is touched only when a leftover of a committed GPU container has it: an
    empty file or a link would hide ours from whoever puts that directory into LD_LIBRARY_PATH.

    Arguments:
        names: of our libraries. existing: what the directory has under these names, links not followed.
        native: it is the directory for the machine's own programs, not for 32-bit ones.
    """
    links = []
    for name in names:
        status = existing.get(name)
        if native and name in MAIN_LIBRARIES:
            links.append((name, "for programs that do not ask the loader"))
        elif status is not None and (status.st_mode & 0o170000 != 0o100000 or status.st_size == 0):
            links.append((name, "the image has a leftover there"))
    return links


def _build_ld_cache(image: Image, libraries: Sequence[tuple[str, str, str]], result: LoaderFiles) -> bytes | None:
    data = image.ld_cache
    magic = NEW_MAGIC
    if data is not None and data.startswith(magic) and not data.startswith(magic + _CACHE_VERSION):
        version = make_printable(data[len(magic) : len(magic) + 3].decode("latin-1"))
        result.notes.append(f"the image's {LD_CACHE} is of the unknown version {version}: left as it is")
        result.needs_ld_library_path = True
        return None
    old = None
    if image.ld_cache_unreadable:
        result.notes.append(f"the image's {LD_CACHE} is no readable file of a sane size: replaced")
    elif data is not None:
        try:
            old = parse_ld_cache(data)
        except Fault as fault:
            result.notes.append(f"the image's {LD_CACHE} is replaced: {fault}")
    known = ARCHITECTURES
    new = [(soname, path, known[arch].cache_flags) for soname, path, arch in libraries if arch in known]
    try:
        return dump_ld_cache(merge_ld_cache(old, new))
    except Fault as fault:
        result.notes.append(f"the image's {LD_CACHE} is left as it is: {fault}")
        result.needs_ld_library_path = True
        return None


def _build_musl_path(existing: str | None, directories: list[str]) -> bytes:
    """musl's path file: an existing one replaces the defaults, so a new one must repeat them."""
    listed: Sequence[str]
    if existing is None:
        existing = "".join(f"{d}\n" for d in MUSL_DEFAULT_DIRS)
        listed = MUSL_DEFAULT_DIRS
    else:
        existing = existing.partition("\0")[0]  # as far as musl reads
        listed = existing.replace(":", "\n").split("\n")
    return _encode_text("".join(f"{d}\n" for d in directories if d not in listed) + existing)


def _can_be_listed(directory: str, result: LoaderFiles) -> bool:
    """Whether a directory can stand in these files: an image with a link to an odd name chose it."""
    odd = not directory.isprintable() or any(c in directory for c in " :#=,;")
    if odd:
        result.notes.append(f"the directory {make_printable(directory)!r} cannot be named in the loader's files")
        result.needs_ld_library_path = True
    return not odd


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
