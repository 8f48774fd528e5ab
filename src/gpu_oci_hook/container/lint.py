"""Find problems of an image for `explain`: leftover driver files, stubs, several libcudas, misspelt names.

`lint_libraries` adds what the driver's libraries do not find in the image.

Import budget: cold.
"""

from __future__ import annotations

import difflib
import stat
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from gpu_oci_hook.container.image import COMPAT_DIRECTORY
from gpu_oci_hook.container.image_libraries import open_library_directories
from gpu_oci_hook.container.lint_libraries import lint_libraries
from gpu_oci_hook.errors import clip_text, make_printable
from gpu_oci_hook.formats.architectures import ARCHITECTURES
from gpu_oci_hook.formats.driver_version import is_driver_version
from gpu_oci_hook.request.capabilities import CAPABILITIES_VARIABLE
from gpu_oci_hook.request.environment import FEATURE_VARIABLES, MIG_RIGHT_VARIABLES, VISIBLE_DEVICES

if TYPE_CHECKING:
    from gpu_oci_hook.container.image import Image
    from gpu_oci_hook.files.rootfs import Rootfs
    from gpu_oci_hook.model.machine import DriverFile

MAX_SHOWN_PATHS = 10
MAX_VARIABLES = 1000  # of an environment that are checked
# The CUDA toolkit's directories with a libcuda for linking, which returns error 34 for every call.
STUBS_DIRECTORY = "/usr/local/cuda/lib64/stubs"
TARGET_STUBS_DIRECTORY = "/usr/local/cuda/targets/{}/lib/stubs"
CONTAINER_VARIABLES = (
    VISIBLE_DEVICES,
    CAPABILITIES_VARIABLE,
    "NVIDIA_DISABLE_REQUIRE",
    *FEATURE_VARIABLES,
    *(name for name, _ in MIG_RIGHT_VARIABLES),
)
"""The variables by which a container requests something; NVIDIA_REQUIRE_* come in addition."""


def find_misspelt_variables(environment: Iterable[str]) -> list[str]:
    """Return a sentence for each variable whose name is nearly a known one: it has no effect, and nothing else
    warns.
    """
    warnings = []
    for name in list(environment)[:MAX_VARIABLES]:
        near = difflib.get_close_matches(name, CONTAINER_VARIABLES, n=1, cutoff=0.9) if name.startswith("N") else []
        if near and name not in CONTAINER_VARIABLES:
            warnings.append(f"{clip_text(name)} has no effect: did you mean {near[0]}?")
    return warnings


def lint_image(
    rootfs: Rootfs,
    image: Image,
    files: Iterable[DriverFile],
    env: Mapping[str, str],
    mount_destinations: Iterable[str] = (),
) -> list[str]:
    """Return warnings about an image.

    Arguments:
        files: the driver files that would be injected.
        env: the container's environment.
        mount_destinations: the destinations of the bundle's mounts, where runtimes create empty files as mount points.
    """
    files = list(files)
    version = _find_host_driver_version(files)
    libraries = list(_list_libraries(rootfs, image))
    result = [
        *_lint_leftovers(rootfs, files, libraries, version, frozenset(map(rootfs.resolve_path, mount_destinations))),
        *_lint_libcudas(image, libraries, version),
        *_lint_stubs(rootfs, image, env),
        *_lint_musl(rootfs, image, files),
        *lint_libraries(rootfs, image, files),
    ]
    return [make_printable(text) for text in dict.fromkeys(result)]


def _find_host_driver_version(files: Iterable[DriverFile]) -> str:
    """Return the driver version in the names of the driver's libraries; "" without one."""
    for file in files:
        version = file.name.partition(".so.")[2]
        if file.kind == "library" and is_driver_version(version):
            return version
    return ""


def _list_libraries(rootfs: Rootfs, image: Image) -> Iterable[tuple[str, str, int]]:
    """Yield (path, name, size) of the regular files with ".so" in their names, in the loader's directories."""
    for directory in open_library_directories(rootfs, image):
        for name in directory.list_names():
            if ".so" in name:
                info = directory.stat_name(name)
                if info is not None and stat.S_ISREG(info.st_mode):
                    yield f"{directory.path.rstrip('/')}/{name}", name, info.st_size


def _lint_leftovers(
    rootfs: Rootfs,
    files: list[DriverFile],
    libraries: list[tuple[str, str, int]],
    driver_version: str,
    mounted: frozenset[str | None],
) -> list[str]:
    """Warn of empty driver files, which are mount points of an earlier container, and of other driver versions."""
    driver_stems = {file.name.partition(".so")[0] for file in files if file.kind == "library"}
    leftovers = []
    for path, name, size in libraries:
        stem, _, suffix = name.partition(".so")
        version = suffix[1:]
        of_driver = stem in driver_stems or stem == "libcuda"
        if (size == 0 and (of_driver or stem.startswith("libnvidia-"))) or (
            size and of_driver and is_driver_version(version) and version != driver_version
        ):
            leftovers.append(path)
    for file in files:
        if file.kind == "binary":
            status = rootfs.stat_path(file.container_path)
            if status is not None and stat.S_ISREG(status.st_mode) and status.st_size == 0:
                leftovers.append(file.container_path)
    leftovers = [path for path in leftovers if not mounted or rootfs.resolve_path(path) not in mounted]
    if not leftovers:
        return []
    paths = _join_first_paths(leftovers)
    if len(leftovers) == 1:
        found, removal = "a driver file", "Remove it"
    else:
        found, removal = f"{len(leftovers)} driver files", "Remove them"
    return [f"the image contains {found}, probably committed from a GPU container: {paths}. {removal} from the image"]


def _lint_libcudas(image: Image, libraries: list[tuple[str, str, int]], driver_version: str) -> list[str]:
    """Warn of libcudas in the image that programs can load instead of the host's."""
    result = []
    libcudas = []
    for path, name, size in libraries:
        version = name.removeprefix("libcuda.so.")
        if size and version != name and is_driver_version(version):
            libcudas.append(path)
            if version != driver_version:
                result.append(
                    f"programs that load the image's {path} (driver {version}) will fail with CUDA error 803, as the "
                    f"host has {driver_version or 'another driver version'}"
                )
    libcudas += [path for path, _ in image.compat_libcudas if path not in libcudas]
    if len(image.compat_libcudas) > 1:
        names = ", ".join(path for path, _ in image.compat_libcudas)
        result.append(f"{COMPAT_DIRECTORY} has more than one libcuda; which one applies is ambiguous: {names}")
    if len(libcudas) > 1:
        result.append(
            f"the image contains {len(libcudas)} libcudas in addition to the host's: {_join_first_paths(libcudas)}"
        )
    return result


def _lint_stubs(rootfs: Rootfs, image: Image, env: Mapping[str, str]) -> list[str]:
    result = []
    for directory in env.get("LD_LIBRARY_PATH", "").split(":"):
        if "stubs" in directory.split("/"):
            result.append(
                f"LD_LIBRARY_PATH names {directory}, which is for a stub libcuda: CUDA fails with error 34. Remove the "
                "directory from LD_LIBRARY_PATH"
            )
    targets = ARCHITECTURES[image.arch].toolkit_targets if image.arch in ARCHITECTURES else ()
    for directory in (STUBS_DIRECTORY, *[TARGET_STUBS_DIRECTORY.format(target) for target in targets]):
        if rootfs.stat_path(f"{directory}/libcuda.so.1", follow=True) is not None:
            result.append(
                f"{directory} has a stub libcuda.so.1: CUDA fails with error 34 in programs that load it. Remove it "
                "from the image"
            )
    if image.ld_cache is not None and b"/stubs/libcuda.so" in image.ld_cache:
        result.append(
            "the image's loader cache names a stub libcuda: CUDA fails with error 34 in programs that load it. Remove "
            "its directory from the loader's configuration and run ldconfig in the image"
        )
    return result


def _lint_musl(rootfs: Rootfs, image: Image, files: list[DriverFile]) -> list[str]:
    if image.libc != "musl" or rootfs.stat_path("/lib/libgcompat.so.0", follow=True) is not None:
        return []
    result = [
        f"{file.name} is a glibc binary; needs gcompat"
        for file in files
        if file.kind == "binary" and not file.name.endswith(".sh")
    ]
    if any(file.kind == "library" for file in files):
        result.append("the driver's libraries are built for glibc; programs of this musl image need gcompat")
    return result


def _join_first_paths(paths: list[str]) -> str:
    rest = len(paths) - MAX_SHOWN_PATHS
    return ", ".join(paths[:MAX_SHOWN_PATHS]) + (f" and {rest} more" if rest > 0 else "")
