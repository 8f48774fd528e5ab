"""Find what keeps the driver's libraries from being loaded: an old libc, missing libraries, another architecture.

Of an image's ELF files only the first bytes are looked at.

Import budget: cold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from gpu_oci_hook.container.image_libraries import list_image_names, make_version_key, read_libc_version
from gpu_oci_hook.formats.architectures import ARCHITECTURES

if TYPE_CHECKING:
    from gpu_oci_hook.container.image import Image
    from gpu_oci_hook.files.rootfs import Rootfs
    from gpu_oci_hook.model.machine import DriverFile

# The libraries without which nothing of their capability works.
_MAIN_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
# What the driver brings for graphics, by the beginning of its name, and the loader by which programs reach it.
_GRAPHICS_LOADERS = (
    ("libEGL_nvidia.so.", "libEGL.so.1"),
    ("libGLX_nvidia.so.", "libGL.so.1"),
    ("nvidia_icd.", "libvulkan.so.1"),
)
# Programs that nearly every image has, by which its architecture is known.
_COMMON_PROGRAMS = ("/bin/sh", "/usr/bin/env", "/bin/busybox", "/sbin/ldconfig", "/usr/bin/python3")
_PROGRAM_LIMIT = 16 << 20
_OTHER_MACHINES = {8: "mips", 20: "powerpc", 21: "ppc64le", 22: "s390x", 243: "riscv64", 258: "loongarch64"}


def lint_libraries(rootfs: Rootfs, image: Image, files: list[DriverFile]) -> list[str]:
    """Return a warning for each thing that keeps the driver's libraries from being loaded.

    Arguments:
        files: the driver files that would be injected.
    """
    return [
        *_lint_glibc(rootfs, image, files),
        *_lint_dependencies(rootfs, image, files),
        *_lint_architecture(rootfs, image, files),
    ]


def _lint_glibc(rootfs: Rootfs, image: Image, files: list[DriverFile]) -> list[str]:
    """Warn of driver libraries that need symbols which the image's libc lacks."""
    if image.libc != "glibc":
        return []
    wanted = [(f.soname or f.name, f.glibc) for f in files if f.glibc and f.arch in ("", image.arch)]
    if not wanted:
        return []
    own = read_libc_version(rootfs, image)
    if own is None:
        return []
    return [
        f"{name} needs GLIBC_{least}, image provides {own}: will not load"
        for name, least in wanted
        if make_version_key(least) > make_version_key(own)
    ]


def _lint_dependencies(rootfs: Rootfs, image: Image, files: list[DriverFile]) -> list[str]:
    """Warn of what does not load since the image lacks a library: libcuda and NVML, what manifests name, and graphics.

    The loaders of Vulkan, EGL and OpenCL skip such a driver silently. An image without a readable C library, a static
    one for example, loads nothing anyway.
    """
    own_version = read_libc_version(rootfs, image) if image.libc == "glibc" else None
    if own_version is None:
        return []
    native = [file for file in files if file.arch == image.arch]
    libraries = {file.soname: file for file in native if file.kind == "library"}
    libraries |= {file.name: file for file in libraries.values()}
    search = _DependencySearch(libraries, list_image_names(rootfs, image), own_version)
    result = []
    roots: list[tuple[str, tuple[str, ...]]] = [
        (soname, (soname,)) for soname in _MAIN_LIBRARIES if soname in libraries
    ]
    roots += [(file.name, file.needs) for file in native if file.kind == "config" and file.needs]
    for root, names in roots:
        reasons = search.find_obstacles(names, with_version=root not in _MAIN_LIBRARIES)  # see _lint_glibc
        if reasons:
            result.append(f"{root} will not load: {'; '.join(reasons)}")
    result += _lint_graphics_loaders(files, search.image_names)
    return result


class _DependencySearch:
    """The libraries of the driver and of the image, and what keeps a library from being loaded.

    Arguments:
        libraries: the driver's, by SONAME and by file name.
        image_names: the names of the image's libraries.
        own_version: the version of the image's glibc.
    """

    def __init__(self, libraries: Mapping[str, DriverFile], image_names: set[str], own_version: str) -> None:
        self.libraries = libraries
        self.image_names = image_names
        self.own_version = own_version

    def find_obstacles(self, names: Iterable[str], *, with_version: bool) -> list[str]:
        """Return why libraries of the driver, or those that they need, do not load.

        Arguments:
            with_version: an old glibc of the image counts.
        """
        queue = [name.rpartition("/")[2] for name in names]
        reasons = []
        for soname in queue:
            library = self.libraries.get(soname)
            if library is None:
                continue
            least = library.glibc if with_version else ""
            if least and make_version_key(least) > make_version_key(self.own_version):
                reasons.append(f"{soname} needs GLIBC_{least}, image provides {self.own_version}")
            lacking = [name for name in library.needs if self._is_lacking(name)]
            if lacking:
                reasons.append(f"{soname} needs {', '.join(lacking)}, not found in the image")
            queue += [name for name in library.needs if name not in queue]
        return reasons

    def _is_lacking(self, name: str) -> bool:
        # Libraries that the driver opens by name, or that the host lacks, are not expected in the image.
        return name not in self.libraries and name not in self.image_names and "nvidia" not in name


def _lint_graphics_loaders(files: list[DriverFile], image_names: set[str]) -> list[str]:
    injected = [file.soname or file.name for file in files]
    lacking = [
        loader
        for prefix, loader in _GRAPHICS_LOADERS
        if any(name.startswith(prefix) for name in injected) and loader not in image_names and loader not in injected
    ]
    if not lacking:
        return []
    names = lacking[0] if len(lacking) == 1 else f"{', '.join(lacking[:-1])} and {lacking[-1]}"
    text = (
        f"the image has no {names}, by which programs reach the driver's graphics libraries: install "
        f"{'it' if len(lacking) == 1 else 'them'} if the image has such programs (Debian: libegl1, libgl1, libvulkan1)"
    )
    return [text]


def _lint_architecture(rootfs: Rootfs, image: Image, files: list[DriverFile]) -> list[str]:
    """Warn of an image for another architecture, which no library of the driver can serve."""
    if not any(file.kind == "library" for file in files) or image.arch not in ARCHITECTURES:
        return []
    for path in _COMMON_PROGRAMS:
        arch = _name_elf_architecture(rootfs.read_file(path, _PROGRAM_LIMIT) or b"")
        if arch in (image.arch, ARCHITECTURES[image.arch].arch32):
            return []
        if arch:
            text = (
                f"the image is for {arch} (by its {path}), and the driver's libraries are for {image.arch}: its "
                f"programs cannot load them. Use an image for {image.arch}"
            )
            return [text]
    return []


def _name_elf_architecture(data: bytes) -> str:
    """Return the architecture of an ELF file by its header; "" for another file."""
    if len(data) < 20 or data[:4] != b"\x7fELF":
        return ""
    bits, order = 64 if data[4] == 2 else 32, "big" if data[5] == 2 else "little"
    machine = int.from_bytes(data[18:20], order)  # type: ignore[arg-type]
    names = [name for name, known in ARCHITECTURES.items() if (known.bits, known.elf_machine) == (bits, machine)]
    return names[0] if names else _OTHER_MACHINES.get(machine, f"machine {machine} of the ELF specification")
