"""List an image's libraries, and read the version of its glibc.

Directories are listed, and the libc is searched for strings up to a size limit. No ELF structure of an image is parsed.

Import budget: cold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.architectures import ARCHITECTURES
from gpu_oci_hook.formats.ldcache import parse_ld_cache

if TYPE_CHECKING:
    from gpu_oci_hook.container.image import Image
    from gpu_oci_hook.files.directory import Directory
    from gpu_oci_hook.files.rootfs import Rootfs

LIBC_LIMIT = 8 << 20
_SYMBOL_VERSION = re.compile(rb"GLIBC_2\.(\d{1,3})(?:\.\d{1,3})?\0")


def read_libc_version(rootfs: Rootfs, image: Image) -> str | None:
    """Return the newest GLIBC_2.x that the image's libc.so.6 names, such as "2.31"; None if there is none to read."""
    triple = ARCHITECTURES[image.arch].triple if image.arch in ARCHITECTURES else ""
    for directory in (image.library_dir, f"/lib/{triple}", f"/usr/lib/{triple}", "/lib64", "/usr/lib64",
                      "/lib", "/usr/lib"):  # fmt: skip
        data = rootfs.read_file(f"{directory}/libc.so.6", LIBC_LIMIT)
        minors = _SYMBOL_VERSION.findall(data) if data else []
        if minors:
            return f"2.{max(map(int, minors))}"
    return None


def open_library_directories(rootfs: Rootfs, image: Image) -> Iterable[Directory]:
    """Open the loader's directories, each once."""
    wanted = [image.library_dir, image.library_dir32, "/usr/local/lib"]
    wanted += ["/usr/local/nvidia/lib64", "/usr/local/nvidia/lib"]
    for top in ("/usr/lib", "/lib"):
        wanted += [f"{top}/{triple}" for triple in [known.triple for known in ARCHITECTURES.values()]]
        wanted += [f"{top}64", f"{top}32", top]
    seen = set()
    for path in wanted:
        try:
            directory = rootfs.open_directory(path, create=False)
        except Fault:
            continue
        if directory.path in seen:
            continue
        seen.add(directory.path)
        yield directory


def list_image_names(rootfs: Rootfs, image: Image) -> set[str]:
    """Return the names in the image's library directories and in its loader cache."""
    names = {name for directory in open_library_directories(rootfs, image) for name in directory.list_names()}
    try:
        names |= {entry.name for entry in parse_ld_cache(image.ld_cache or b"").entries}
    except Fault:
        pass  # the loader finds nothing in it either
    return names


def make_version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
