"""Parse manifests: the small files by which the loaders of Vulkan, EGL, GBM and OpenCL find NVIDIA's libraries.

A manifest names a library. This module also finds the libraries behind it that the host lacks. Parsing is bounded.

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.architectures import ARCHITECTURES
from gpu_oci_hook.formats.fastjson import parse_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpu_oci_hook.model.machine import DriverFile

MANIFEST_LIMIT = 64 << 10  # real ones have less than 2 KiB
_MAX_NAME_LENGTH = 4096
_MANIFEST_SUFFIXES = (".json", ".icd")


def is_manifest(name: str) -> bool:
    """Tell whether a file of this name is a manifest."""
    return name.endswith(_MANIFEST_SUFFIXES)


def parse_manifest_libraries(name: str, data: bytes) -> tuple[str, ...]:
    """Return the libraries that a manifest names, by SONAME or by path as written. A damaged one has none.

    JSON: `library_path` in `ICD`, in `layer` or in each of `layers` (Vulkan-Loader's LoaderDriverInterface.md and
    LoaderLayerInterface.md, libglvnd's egl_vendor.d, eglexternalplatform). OpenCL: the first line of the file.
    """
    if name.endswith(".icd"):
        values: list[object] = [data.decode("utf-8", "surrogateescape").partition("\n")[0]]
    else:
        try:
            table = parse_json(data)
        except Fault:
            return ()
        if not isinstance(table, dict):
            return ()
        layers = table.get("layers")
        sections = [table.get("ICD"), table.get("layer"), *(layers if isinstance(layers, list) else [])]
        values = [section.get("library_path") for section in sections if isinstance(section, dict)]
    libraries = [value.strip() for value in values if isinstance(value, str)]
    return tuple(
        dict.fromkeys(
            [library for library in libraries if library and library.isprintable() and len(library) < _MAX_NAME_LENGTH]
        )
    )


def manifest_architecture(name: str, machine: str) -> str:
    """Return the architecture in a manifest's name ("nvidia_icd.x86_64.json"), or `machine` when it has none."""
    stem = name.rpartition(".")[0]
    for architecture in ARCHITECTURES.values():
        if any(stem.endswith(f"{separator}{alias}") for alias in architecture.aliases for separator in "._-"):
            return architecture.name
    return machine


def find_missing_dependencies(
    files: Iterable[DriverFile], is_driver_library: Callable[[str], bool]
) -> tuple[tuple[str, str, str], ...]:
    """Return the libraries that manifests need and the host lacks: (path in the container, manifest's label, SONAME).

    Arguments:
        files: all files of the driver.
        is_driver_library: tells whether a SONAME is the driver's. The image may have the other libraries.
    """
    files = list(files)
    libraries = {(file.soname, file.arch): file for file in files if file.kind == "library"}
    libraries.update({(file.name, file.arch): file for file in files if file.kind == "library"})
    missing: list[tuple[str, str, str]] = []
    for manifest in files:
        if manifest.kind != "config" or not manifest.needs:
            continue
        queue = [name.rpartition("/")[2] for name in manifest.needs]
        named = set(queue)
        for soname in queue:
            library = libraries.get((soname, manifest.arch))
            if library is not None:
                queue += [need for need in library.needs if need not in queue]
            elif soname in named or is_driver_library(soname):
                missing.append((manifest.container_path, manifest_label(manifest.name), soname))
    return tuple(missing)


def manifest_label(name: str) -> str:
    """Return a manifest's common name: "nvidia_icd" for "nvidia_icd.x86_64.json"."""
    return name.partition(".")[0] if name.endswith(".json") else name
