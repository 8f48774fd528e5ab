"""Manifests: the small files by which the loaders of Vulkan, EGL, GBM and OpenCL find NVIDIA's libraries.

Which library a manifest names, for which architecture it is, and what of all that it needs the host lacks.
Cost rule: cold; only when the driver's files are searched anew. Parsing is bounded.
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
    """Whether a file of this name names libraries."""
    return name.endswith(_MANIFEST_SUFFIXES)


def parse_manifest_libraries(name: str, data: bytes) -> tuple[str, ...]:
    """The libraries that a manifest names, as it names them: by SONAME or by path. None for one that is damaged.

    JSON: `library_path` in `ICD`, in `layer` or in each of `layers` (Vulkan-Loader's LoaderDriverInterface.md and
    LoaderLayerInterface.md, libglvnd's egl_vendor.d, eglexternalplatform). OpenCL: the first line of the file.
    """
    if name.endswith(".icd"):
        found: list[object] = [data.decode("utf-8", "surrogateescape").partition("\n")[0]]
    else:
        try:
            table = parse_json(data)
        except Fault:
            return ()
        if not isinstance(table, dict):
            return ()
        layers = table.get("layers")
        parts = [table.get("ICD"), table.get("layer"), *(layers if isinstance(layers, list) else [])]
        found = [part.get("library_path") for part in parts if isinstance(part, dict)]
    names = [text.strip() for text in found if isinstance(text, str)]
    return tuple(
        dict.fromkeys([text for text in names if text and text.isprintable() and len(text) < _MAX_NAME_LENGTH])
    )


def manifest_architecture(name: str, machine: str) -> str:
    """The architecture in a manifest's name ("nvidia_icd.x86_64.json"); the machine's where it has none."""
    stem = name.rpartition(".")[0]
    for known in ARCHITECTURES.values():
        if any(stem.endswith(f"{mark}{word}") for word in known.aliases for mark in "._-"):
            return known.name
    return machine


def find_missing_dependencies(
    files: Iterable[DriverFile], is_driver_library: Callable[[str], bool]
) -> tuple[tuple[str, str, str], ...]:
    """What the manifests need and the host lacks: (place in the container, the manifest's name, SONAME).

    Arguments:
        files: all that the driver has.
        is_driver_library: whether a SONAME is the driver's; what else is missing the image may have.
    """
    files = list(files)
    known = {(file.soname, file.arch): file for file in files if file.kind == "library"}
    known.update({(file.name, file.arch): file for file in files if file.kind == "library"})
    lacking: list[tuple[str, str, str]] = []
    for manifest in files:
        if manifest.kind != "config" or not manifest.needs:
            continue
        queue = [name.rpartition("/")[2] for name in manifest.needs]
        named = set(queue)
        for soname in queue:
            library = known.get((soname, manifest.arch))
            if library is not None:
                queue += [need for need in library.needs if need not in queue]
            elif soname in named or is_driver_library(soname):
                lacking.append((manifest.container_path, manifest_label(manifest.name), soname))
    return tuple(lacking)


def manifest_label(name: str) -> str:
    """How people call a manifest: "nvidia_icd" for "nvidia_icd.x86_64.json"."""
    return name.partition(".")[0] if name.endswith(".json") else name
