"""List the CDI spec directories and their files, with stat signatures for the cache."""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.root import Host

    # Name, inode, size, and times of change in ns; zeros where it cannot be looked at.
    SpecFileSignature = tuple[str, int, int, int, int]
    # A directory as configured, and its files; None for one that is missing or no directory.
    SpecDirSignatures = tuple[tuple[str, tuple[SpecFileSignature, ...] | None], ...]


SPEC_SUFFIXES = (".json", ".yaml")


# Files of one directory that are looked at; a driver that writes one for each claim has some hundreds.
MAX_SPEC_FILES = 4096


def read_spec_dir_signatures(host: Host, directories: tuple[str, ...]) -> SpecDirSignatures:
    """What changes when the files of some directories change."""
    found: list[tuple[str, tuple[SpecFileSignature, ...] | None]] = []
    for directory in directories:
        place = locate_spec_dir(host, directory)
        if not place:
            found.append((directory, None))
            continue
        entries: list[SpecFileSignature] = []
        for name in list_spec_files(place):
            try:
                status = os.stat(resolve_host_link(host, f"{place}/{name}"))
            except (OSError, ValueError):
                entries.append((name, 0, 0, 0, 0))
                continue
            entries.append((name, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
        found.append((directory, tuple(entries)))
    return tuple(found)


def locate_spec_dir(host: Host, directory: str) -> str:
    """A spec directory as a path in this process; "" when there is none.

    The library walks from the directory's own inode: one that is itself a link is no directory there, while links
    above it (/var/run) are followed.
    """
    status = host.stat_path(directory, follow=False)
    if status is None or not stat.S_ISDIR(status.st_mode):
        return ""
    if not host.prefix:
        return directory
    above, _, name = directory.rstrip("/").rpartition("/")
    return host.full_path(f"{host.resolve_path(above or '/') or ''}/{name}")


def list_spec_files(directory: str) -> list[str]:
    """The names of the spec files in a directory, in the library's order; at most MOST of them."""
    try:
        found = [name for name in os.listdir(directory) if name.endswith(SPEC_SUFFIXES)]
    except OSError:
        return []
    found.sort()
    return found[:MAX_SPEC_FILES]


def resolve_host_link(host: Host, path: str) -> str:
    """The file that a path in this process means: below another root a link is followed inside it."""
    if not host.prefix or not os.path.islink(path):
        return path
    inside = host.resolve_path(path[len(host.prefix) :])
    return path if inside is None else host.full_path(inside)
