"""A driver as a tree of files, small enough to say in a test what is odd about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_oci_hook.formats import elf, ldcache
from gpu_oci_hook.host.driver.inventory_cache import load_inventory
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.model.machine import DriverFile, Inventory

VERSION = "550.163.01"
LIBDIR = "/usr/lib/x86_64-linux-gnu"
# SONAME; "{v}" is the driver's version.
SONAMES = (
    "libcuda.so.1",
    "libnvidia-ml.so.1",
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-encode.so.1",
    "libGLX_nvidia.so.0",
    "libnvidia-glcore.so.{v}",
    "libnvidia-brandnew.so.1",
)


class Memory:
    """A memory in a dict that counts what is put into it."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.puts = 0
        self.locks = 0

    def get(self, name: str) -> bytes | None:
        """What was put under this name."""
        return self.blobs.get(name)

    def put(self, name: str, data: bytes) -> None:
        """Keeps it."""
        self.puts += 1
        self.blobs[name] = data

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Locks nothing, but counts."""
        self.locks += 1
        yield


def library(
    root: Path, directory: str, name: str, soname: str, *, arch: str = "x86_64", needed: tuple[str, ...] = ()
) -> Path:
    """One shared object of ours."""
    path = root / directory.lstrip("/") / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(elf.build_shared_object(soname=soname, needed=needed, arch=arch))
    return path


def driver(
    root: Path, directory: str = LIBDIR, version: str = VERSION, *, arch: str = "x86_64", links: bool = True
) -> None:
    """A driver's libraries with their links in one directory."""
    for pattern in SONAMES:
        soname = pattern.replace("{v}", version)
        name = soname.split(".so.")[0] + ".so." + version
        library(root, directory, name, soname, arch=arch)
        link = root / directory.lstrip("/") / soname
        if links and not link.exists():
            link.symlink_to(name)


def cache(root: Path, entries: list[tuple[str, str]], path: str = "/etc/ld.so.cache", flags: int = 0x303) -> None:
    """A loader's cache with these (SONAME, path)."""
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    made = ldcache.merge_ld_cache(None, [(soname, file, flags) for soname, file in entries])
    place.write_bytes(ldcache.dump_ld_cache(made))


def inventory(root: Path, *, version: str | None = VERSION, paths: tuple[str, ...] = (), below: str = "/") -> Inventory:
    """The inventory of a tree, nothing remembered."""
    host = Host(str(root))
    return load_inventory(host, host.sub_host(below), paths, version, Memory())


def libraries(found: Inventory) -> dict[tuple[str, str], DriverFile]:
    """The libraries by (SONAME, architecture)."""
    return {(file.soname, file.arch): file for file in found.files if file.kind == "library"}


def said(found: Inventory, place: str) -> str:
    """What the report says about a place."""
    return next(text for label, text in found.search_report if label == place or label.startswith(place + " "))
