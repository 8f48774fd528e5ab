"""A small driver as a tree of files, for tests of the search for driver files."""

from __future__ import annotations

from pathlib import Path

from gpu_oci_hook.formats import elf_builder, ldcache
from gpu_oci_hook.host.driver.inventory_cache import load_inventory
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.model.machine import DriverFile, Inventory
from support.fake_cache import FakeCache

VERSION = "550.163.01"
LIBRARY_DIR = "/usr/lib/x86_64-linux-gnu"
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


def write_library(
    root: Path, directory: str, name: str, soname: str, *, arch: str = "x86_64", needed: tuple[str, ...] = ()
) -> Path:
    """Write a shared object of a few hundred bytes."""
    path = root / directory.lstrip("/") / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(elf_builder.build_shared_object(soname=soname, needed=needed, arch=arch))
    return path


def write_driver(
    root: Path, directory: str = LIBRARY_DIR, version: str = VERSION, *, arch: str = "x86_64", links: bool = True
) -> None:
    """Write a driver's libraries with their links into one directory."""
    for pattern in SONAMES:
        soname = pattern.replace("{v}", version)
        name = soname.split(".so.")[0] + ".so." + version
        write_library(root, directory, name, soname, arch=arch)
        link = root / directory.lstrip("/") / soname
        if links and not link.exists():
            link.symlink_to(name)


def write_ld_cache(
    root: Path, entries: list[tuple[str, str]], path: str = "/etc/ld.so.cache", flags: int = 0x303
) -> None:
    """Write a loader cache with these entries (SONAME, path)."""
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    made = ldcache.merge_ld_cache(None, [(soname, file, flags) for soname, file in entries])
    place.write_bytes(ldcache.dump_ld_cache(made))


def search_inventory(
    root: Path, *, version: str | None = VERSION, paths: tuple[str, ...] = (), below: str = "/"
) -> Inventory:
    """Search the driver files of a tree, with an empty cache."""
    host = Host(str(root))
    return load_inventory(host, host.sub_host(below), paths, version, FakeCache())


def index_libraries(found: Inventory) -> dict[tuple[str, str], DriverFile]:
    """Return the libraries by (SONAME, architecture)."""
    return {(file.soname, file.arch): file for file in found.files if file.kind == "library"}


def find_report_line(found: Inventory, place: str) -> str:
    """Return the search report's text about a directory."""
    return next(text for label, text in found.search_report if label == place or label.startswith(place + " "))
