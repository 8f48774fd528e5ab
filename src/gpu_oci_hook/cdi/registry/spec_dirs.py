"""List the CDI spec directories and their files, with stat signatures for the cache.

Import budget: CDI.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.root import Host

    # Name, inode, size, mtime and ctime in ns; zeros for a file without a status.
    SpecFileSignature = tuple[str, int, int, int, int]
    # A directory as configured, and its files; None if it is missing or not a directory.
    SpecDirSignatures = tuple[tuple[str, tuple[SpecFileSignature, ...] | None], ...]

# Engines read no other files; .yml is ignored (container-device-interface, pkg/cdi/spec-dirs.go).
SPEC_SUFFIXES = (".json", ".yaml")

FALLBACK_SPEC_DIR = "/etc/cdi"
"""Directory that hints name if no directory is configured."""

# Files of one directory that are read. A Kubernetes DRA driver that writes one file for each claim has some hundreds.
MAX_SPEC_FILES = 4096


def read_spec_dir_signatures(host: Host, directories: tuple[str, ...]) -> SpecDirSignatures:
    """Read the stat signatures of all CDI files, which change with the files."""
    signatures: list[tuple[str, tuple[SpecFileSignature, ...] | None]] = []
    for directory in directories:
        local_directory = locate_spec_dir(host, directory)
        if not local_directory:
            signatures.append((directory, None))
            continue
        files: list[SpecFileSignature] = []
        for name in list_spec_files(local_directory):
            try:
                status = os.stat(resolve_host_link(host, f"{local_directory}/{name}"))
            except (OSError, ValueError):
                files.append((name, 0, 0, 0, 0))
                continue
            files.append((name, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
        signatures.append((directory, tuple(files)))
    return tuple(signatures)


def locate_spec_dir(host: Host, directory: str) -> str:
    """Return the path of a spec directory in this process; "" if it does not exist.

    The reference library walks from the directory's own inode. A directory that is itself a symbolic link is not read,
    whereas links in its parents (/var/run) are followed.
    """
    status = host.stat_path(directory, follow=False)
    if status is None or not stat.S_ISDIR(status.st_mode):
        return ""
    if not host.prefix:
        return directory
    parent, _, name = directory.rstrip("/").rpartition("/")
    return host.full_path(f"{host.resolve_path(parent or '/') or ''}/{name}")


def list_spec_files(directory: str) -> list[str]:
    """List the names of at most MAX_SPEC_FILES CDI files in a directory, in the reference library's order."""
    try:
        names = [name for name in os.listdir(directory) if name.endswith(SPEC_SUFFIXES)]
    except OSError:
        return []
    names.sort()
    return names[:MAX_SPEC_FILES]


def resolve_host_link(host: Host, path: str) -> str:
    """Resolve a link in this process: below another host root it is followed inside that root."""
    if not host.prefix or not os.path.islink(path):
        return path
    host_path = host.resolve_path(path[len(host.prefix) :])
    return path if host_path is None else host.full_path(host_path)
