"""What the hook does to a container's libraries: links, and what makes its loader find them.

The shim decides the same before the container's mounts are made; the rules are the same functions. Everything is
written below the held root, and nothing below another mount of the container's. Cost rule: on the way of the hook.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files.directory import CrossMountError
from gpu_oci_hook.formats.architectures import ARCHITECTURES
from gpu_oci_hook.hook.link_steps import UNWRITABLE_ROOTFS, create_links, list_mount_destinations
from gpu_oci_hook.plan.loader_files import build_loader_files, choose_library_links

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.hook.arguments import HookArguments
    from gpu_oci_hook.hook.called_container import Container

    Found = list[tuple[str, str, str]]


def run_library_steps(container: Container, arguments: HookArguments, arch: str) -> None:
    """The links and libraries of our own errand.

    Arguments:
        arch: the machine's, as `uname -m` has it.
    """
    create_links(container, arguments.links)
    small = ARCHITECTURES[arch].arch32 if arch in ARCHITECTURES else ""
    folders = [(folder, arch) for folder in arguments.folders]
    folders += [(folder, small) for folder in arguments.folders32 if small]
    if not folders:
        return
    image = container.inspect_image(arch)
    wanted: list[tuple[str, str]] = []
    found: Found = []
    mounted = container.get_layout().is_mount_destination
    for folder, kind in folders:
        names = _list_library_names(container, arguments, folder)
        own = image.library_dir if kind == arch else image.library_dir32
        if own in (folder, container.rootfs.resolve_path(folder)):
            found += [(name, f"{folder}/{name}", kind) for name in names]
            continue
        # A library that the container mounts there itself is the one that its programs shall find.
        found += [(name, f"{own if mounted(f'{own}/{name}') else folder}/{name}", kind) for name in names]
        there = container.rootfs.stat_names(own, names)
        main = own == image.library_dir
        wanted += [(f"{folder}/{name}", f"{own}/{name}") for name, _ in choose_library_links(names, there, native=main)]
    for plugins, own in ((arguments.plugins, image.library_dir), (arguments.plugins32, image.library_dir32)):
        # An image without a directory for 32-bit libraries has no program that would load a plug-in from there.
        if own == image.library_dir or container.rootfs.stat_path(own) is not None:
            wanted += [(text, f"{own}/{name}") for text, name in plugins]
    create_links(container, wanted)
    preferred = choose_compat_directory(
        container, arch, arguments.driver_version, arguments.cuda_compat, arguments.root
    )
    update_loader_files(container, arch, found, [folder for folder, _ in folders], preferred)


def _list_library_names(container: Container, arguments: HookArguments, folder: str) -> list[str]:
    """The names of the libraries in a folder: of the files mounted there, and of the links made there."""
    names = [name for above, name in list_mount_destinations(container) if above == folder]
    for _, path in arguments.links:
        above, _, name = path.rpartition("/")
        if above == folder and name not in names:
            names.append(name)
    return names


def choose_compat_directory(
    container: Container, arch: str, driver_version: str, policy: str, root: str, compat_root: str = ""
) -> str:
    """The directory of the image's CUDA compat libraries where they come first, else "".

    Arguments:
        driver_version: the host's driver's. policy: `[inject] cuda-compat`. root: the host's.
        compat_root: where the image would have them, if not in the usual place.
    """
    found = container.inspect_image(arch, compat_root).compat_libcudas
    if not found or policy == "never":
        return ""
    from gpu_oci_hook.plan.compat import decide_cuda_compat

    verdict = decide_cuda_compat(found, driver_version, policy, datacenter_only=True)
    if verdict.directory and policy == "auto":
        from gpu_oci_hook.hook.device_steps import (
            has_only_datacenter_gpus,  # few images have newer ones: only then the GPUs matter
        )

        if not has_only_datacenter_gpus(container, root):
            verdict = decide_cuda_compat(found, driver_version, policy, datacenter_only=False)
    if verdict.warning:
        container.notes.append(verdict.warning)
    return verdict.directory


def update_loader_files(
    container: Container, arch: str, libraries: Found, folders: list[str], compat_directory: str
) -> None:
    """Makes the container's loader find libraries.

    Arguments:
        libraries: (name, path, architecture) of each. folders: the directories they are in, the one to win first.
        compat_directory: the directory of the image's compat libraries, if those come first.

    Raises:
        Fault: the cache cannot be written though its place can.
    """
    if not libraries:
        return
    image, places = container.inspect_image(arch), container.get_layout()
    instead = f"Set LD_LIBRARY_PATH={':'.join([compat_directory, *folders] if compat_directory else folders)}"
    if not places.writable:
        container.notes.append(f"the loader's cache cannot be written: {UNWRITABLE_ROOTFS}. {instead}")
        return
    # What lies in a directory where the loader looks anyway needs no line: one would change the order of others'.
    usual = (image.library_dir, image.library_dir32, "/usr/lib", "/lib")
    directories = [compat_directory] if compat_directory else []
    directories += [folder for folder in folders if (container.rootfs.resolve_path(folder) or folder) not in usual]
    if compat_directory:
        libraries = [
            (name, f"{compat_directory}/{name}" if kind == arch and name in image.compat_names else path, kind)
            for name, path, kind in libraries
        ]
    result = build_loader_files(image, libraries, directories)
    container.notes += result.notes
    if result.needs_ld_library_path:
        container.notes.append(f"the loader's files are not enough. {instead}")
    for path, content in result.files:
        needed = path.endswith((".cache", ".path"))
        if places.classify_path(path) != "image":
            container.notes.append(f"{path} is left as it is: it lies in another mount")
            continue
        try:
            container.writable_rootfs.write_file(path, content)
        except CrossMountError:
            container.notes.append(f"{path} is left as it is: it lies in another mount")
        except Fault:
            if needed:
                raise
