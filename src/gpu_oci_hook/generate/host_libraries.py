"""Find the directories in which this host's loader looks for libraries by itself, for CDI files without a hook.

Import budget: cold.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpu_oci_hook.formats.architectures import ARCHITECTURES
from gpu_oci_hook.host.root import Host

if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import DriverFile


def find_loader_directories(host: Host, files: Iterable[DriverFile]) -> tuple[str, str]:
    """Find the directories for 64-bit and 32-bit libraries: those of the C library, else those of the driver.

    Arguments:
        files: the driver's files.
    """
    if host.machine not in ARCHITECTURES:
        return "/usr/lib64", "/usr/lib"
    arch = ARCHITECTURES[host.machine]
    triple32 = ARCHITECTURES[arch.arch32].triple if arch.arch32 else arch.triple
    driver_dirs = {file.path.rpartition("/")[0] for file in files if file.kind == "library"}
    return (
        _find_directory(host, (f"/usr/lib/{arch.triple}", "/usr/lib64", "/lib64", "/usr/lib"), driver_dirs),
        _find_directory(host, (f"/usr/lib/{triple32}", "/usr/lib32", "/usr/lib"), driver_dirs),
    )


def _find_directory(host: Host, candidates: tuple[str, ...], driver_dirs: set[str]) -> str:
    for directory in candidates:
        if host.stat_path(f"{directory}/libc.so.6") is not None:
            return directory
    return next((directory for directory in candidates if directory in driver_dirs), candidates[0])
