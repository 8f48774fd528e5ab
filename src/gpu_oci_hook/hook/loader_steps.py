"""Carry out the policy for a container's loader in the hook: create links and write the loader's files.

`plan.loader_files` has the policy, which the shim carries out before the container's mounts exist. Everything is
written below the held root, and nothing below another mount of the container.

Import budget: hook.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files.directory import CrossMountError
from gpu_oci_hook.formats.architectures import ARCHITECTURES
from gpu_oci_hook.hook.link_steps import UNWRITABLE_ROOTFS, create_links, list_mount_destinations
from gpu_oci_hook.plan.loader_files import LibrarySearch, is_required_loader_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.hook.arguments import HookArguments
    from gpu_oci_hook.hook.called_container import Container


def run_library_steps(container: Container, arguments: HookArguments, arch: str) -> None:
    """Create the links that our hook's arguments name, and make the loader find the libraries in their folders.

    Arguments:
        arch: the machine's architecture, as `uname -m` prints it.
    """
    create_links(container, arguments.links)
    arch32 = ARCHITECTURES[arch].arch32 if arch in ARCHITECTURES else ""
    folders = [(folder, arch) for folder in arguments.folders]
    folders += [(folder, arch32) for folder in arguments.folders32 if arch32]
    if not folders:
        return
    image = container.inspect_image(arch)
    search = start_library_search(container, arch)
    links: list[tuple[str, str]] = []
    for folder, folder_arch in folders:
        names = _list_library_names(container, arguments, folder)
        search.add_directory(folder)
        image_directory = search.get_image_directory(folder_arch)
        if image_directory in (folder, container.rootfs.resolve_path(folder)):
            for name in names:
                search.add_library(name, f"{folder}/{name}", folder_arch)
            continue
        for name in names:
            own_mount = search.find_own_mount(folder_arch, name)
            search.add_library(name, own_mount or f"{folder}/{name}", folder_arch, own_mount=bool(own_mount))
        chosen = search.choose_image_links(names, image_directory)
        links += [(f"{folder}/{name}", f"{image_directory}/{name}") for name, _ in chosen]
    plugin_links = {image.library_dir32: arguments.plugins32}
    plugin_links[image.library_dir] = arguments.plugins + plugin_links.get(image.library_dir, [])
    for image_directory, plugins in plugin_links.items():
        if search.may_link_plugins(image_directory):
            links += [(target, f"{image_directory}/{name}") for target, name in plugins]
    create_links(container, links)
    search.compat_directory = choose_compat_directory(
        container, arch, arguments.driver_version, arguments.cuda_compat, arguments.root
    )
    write_loader_files(container, search)


def start_library_search(container: Container, arch: str) -> LibrarySearch:
    """Return the policy for the container's loader, without any library yet."""
    return LibrarySearch(container.inspect_image(arch), container.rootfs, container.get_layout())


def _list_library_names(container: Container, arguments: HookArguments, folder: str) -> list[str]:
    """Return the names of the libraries in a folder: of its mounted files and of the links created in it."""
    names = [name for directory, name in list_mount_destinations(container) if directory == folder]
    for _, path in arguments.links:
        directory, _, name = path.rpartition("/")
        if directory == folder and name not in names:
            names.append(name)
    return names


def choose_compat_directory(
    container: Container, arch: str, driver_version: str, policy: str, root: str, compat_root: str = ""
) -> str:
    """Return the directory of the image's CUDA compat libraries if they win over the host's libcuda, else "".

    Arguments:
        arch: the machine's architecture.
        driver_version: the host's driver version.
        policy: `[inject] cuda-compat`.
        root: the host's root directory.
        compat_root: the image's directory of compat libraries; "" for the usual one.
    """
    compat_libraries = container.inspect_image(arch, compat_root).compat_libcudas
    if not compat_libraries or policy == "never":
        return ""
    from gpu_oci_hook.plan.compat import decide_cuda_compat

    def has_only_datacenter_gpus() -> bool:
        # Imported here: the GPUs matter only for a compat library that is newer than the driver, which few images have.
        from gpu_oci_hook.hook import device_steps

        return device_steps.has_only_datacenter_gpus(container, root)

    decision = decide_cuda_compat(
        compat_libraries, driver_version, policy, has_only_datacenter_gpus=has_only_datacenter_gpus
    )
    if decision.warning:
        container.notes.append(decision.warning)
    return decision.directory


def write_loader_files(container: Container, search: LibrarySearch) -> None:
    """Make the container's loader find the libraries.

    Raises:
        Fault: the loader's cache cannot be written although its directory is writable.
    """
    if not search.has_libraries:
        return
    layout = container.get_layout()
    fallback = f"Set LD_LIBRARY_PATH={':'.join(search.directories)}"
    if not layout.writable:
        container.notes.append(f"cannot write the loader cache: {UNWRITABLE_ROOTFS}. {fallback}")
        return
    result = search.build_files()
    container.notes += result.notes
    if result.needs_ld_library_path:
        container.notes.append(f"the loader's files are not sufficient. {fallback}")
    for path, content in result.files:
        if layout.classify_path(path) != "image":
            container.notes.append(f"left {path} unchanged: it is in another mount")
            continue
        try:
            container.writable_rootfs.write_file(path, content)
        except CrossMountError:
            container.notes.append(f"left {path} unchanged: it is in another mount")
        except Fault:
            if is_required_loader_file(path):
                raise
