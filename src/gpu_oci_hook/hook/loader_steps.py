"""Carry out the policy for a container's loader in the hook: create links and write the loader's files.

`plan.loader_files` has the policy, which the shim carries out before the container's mounts exist. Everything is
written below the held root, and nothing below another mount of the container.

Import budget: hook.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files.directory import CrossMountError
from gpu_oci_hook.formats.architectures import ARCHITECTURES
from gpu_oci_hook.formats.oci import get_list
from gpu_oci_hook.hook.link_steps import UNWRITABLE_ROOTFS, create_links, list_mount_destinations
from gpu_oci_hook.plan.loader_files import LIBCUDA, LibrarySearch, is_required_loader_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.hook.arguments import HookArguments
    from gpu_oci_hook.hook.called_container import Container
    from gpu_oci_hook.model.libcuda_choice import LibcudaOwner
    from gpu_oci_hook.plan.compat import CompatDecision


def run_library_steps(container: Container, arguments: HookArguments, arch: str) -> None:
    """Create the links that our hook's arguments name, and make the loader find the libraries in their folders.

    Arguments:
        arch: the machine's architecture, as `uname -m` prints it.
    """
    # Before the links: it decides where some of them lead.
    if arguments.board_compat:
        compat = choose_board_compat(
            container, arch, arguments.board_cuda, arguments.cuda_compat, arguments.board_compat
        )
    else:
        compat = choose_compat_library(container, arch, arguments.driver_version, arguments.cuda_compat, arguments.root)
    search = start_library_search(container, arch)
    search.compat_directory = compat.directory if compat else ""
    links32: list[str] = []
    if search.image.libc == "musl":
        # musl stops at a library of another architecture, and its images have no 32-bit programs for the driver's.
        links32 = [path for _, path in arguments.links if path.rpartition("/")[0] in arguments.folders32]
    create_links(
        container,
        [
            (_choose_link_target(search, arguments, arch, target, path), path)
            for target, path in arguments.links
            if path not in links32
        ],
    )
    arch32 = ARCHITECTURES[arch].arch32 if arch in ARCHITECTURES else ""
    folders = [(folder, arch) for folder in arguments.folders]
    folders += [(folder, arch32) for folder in arguments.folders32 if arch32]
    if not folders and not arguments.libraries:
        return
    image = container.inspect_image(arch)
    links: list[tuple[str, str]] = []
    for folder, folder_arch in folders:
        names = _list_library_names(container, arguments, folder)
        search.add_directory(folder)
        image_directory = search.get_image_directory(folder_arch)
        if search.compat_directory and folder_arch == arch:
            links += _list_compat_links(search, folder, names)
        if image_directory in (folder, container.rootfs.resolve_path(folder)):
            for name in names:
                search.add_library(name, f"{folder}/{name}", folder_arch)
            continue
        for name in names:
            own_mount = search.find_own_mount(folder_arch, name)
            search.add_library(name, own_mount or f"{folder}/{name}", folder_arch, own_mount=bool(own_mount))
        chosen = search.choose_image_links(names, image_directory)
        links += [(f"{folder}/{name}", f"{image_directory}/{name}") for name, _ in chosen]
    for path, name in arguments.libraries:
        search.add_library(name, path, arch)
    plugin_links = {image.library_dir32: arguments.plugins32}
    plugin_links[image.library_dir] = arguments.plugins + plugin_links.get(image.library_dir, [])
    for image_directory, plugins in plugin_links.items():
        if search.may_link_plugins(image_directory):
            links += [(target, f"{image_directory}/{name}") for target, name in plugins]
    create_links(container, links)
    write_loader_files(container, search)
    report_libcuda(container, search, compat, arguments.driver_version)


def _list_compat_links(search: LibrarySearch, folder: str, names: list[str]) -> list[tuple[str, str]]:
    """Return (target, path) of the links in a folder to the image's compat libraries."""
    from gpu_oci_hook.plan.compat import list_compat_links

    added = list_compat_links(search.compat_directory, search.image.compat_names, names)
    return [(target, f"{folder}/{name}") for name, target in added]


def _choose_link_target(search: LibrarySearch, arguments: HookArguments, arch: str, target: str, path: str) -> str:
    """Return the target of a link: the image's compat library for a name in a folder that it replaces."""
    folder, _, name = path.rpartition("/")
    return (folder in arguments.folders and search.find_compat_library(name, arch)) or target


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


def choose_compat_library(
    container: Container, arch: str, driver_version: str, policy: str, root: str, compat_root: str = ""
) -> CompatDecision | None:
    """Decide whether the image's CUDA compat libraries win over the host's libcuda; None if it has none.

    Arguments:
        arch: the machine's architecture.
        driver_version: the host's driver version.
        policy: `[inject] cuda-compat`.
        root: the host's root directory.
        compat_root: the image's directory of compat libraries; "" for the usual one.
    """
    compat_libraries = container.inspect_image(arch, compat_root).compat_libcudas
    if not compat_libraries:
        return None
    from gpu_oci_hook.plan.compat import decide_cuda_compat

    def has_only_datacenter_gpus() -> bool:
        # Imported here: the GPUs matter only for a compat library that is newer than the driver, which few images have.
        from gpu_oci_hook.hook import device_steps

        return device_steps.has_only_datacenter_gpus(container, root)

    return decide_cuda_compat(
        compat_libraries, driver_version, policy, has_only_datacenter_gpus=has_only_datacenter_gpus
    )


def choose_board_compat(
    container: Container, arch: str, board_cuda: str, policy: str, compat_roots: list[str]
) -> CompatDecision | None:
    """Decide whether the image's CUDA compat libraries for a Tegra board win; None if it has none.

    Arguments:
        board_cuda: the CUDA version of the board's libcuda.
        compat_roots: the image's directories to look in, in order.
    """
    from gpu_oci_hook.container.image import BOARD_LIBCUDA_VERSION, find_board_compat

    image = container.inspect_image(arch)
    find_board_compat(image, container.rootfs, compat_roots)
    if not image.compat_libcudas or image.compat_libcudas[0][1] != BOARD_LIBCUDA_VERSION:
        return None
    from gpu_oci_hook.plan.compat import decide_board_compat

    return decide_board_compat(image.compat_dir, read_env_variable(container, "CUDA_VERSION"), board_cuda, policy)


def read_env_variable(container: Container, name: str) -> str:
    """Return a variable of the container's process, "" if it is not set; of repeated entries the last counts."""
    value = ""
    for entry in get_list(container.spec, "process", "env"):
        if isinstance(entry, str) and entry.startswith(f"{name}="):
            value = entry.partition("=")[2]
    return value


def report_libcuda(
    container: Container, search: LibrarySearch, compat: CompatDecision | None, driver_version: str
) -> None:
    """Note it if the container's programs will load another libcuda than the one that the loader's files put first."""
    if not search.find_cached_path(LIBCUDA):
        return
    search_path = read_env_variable(container, "LD_LIBRARY_PATH")
    if compat is None and not search.may_be_overruled(search_path):
        return
    from gpu_oci_hook.plan.libcuda_search import LoaderInputs, find_libcuda

    inputs = LoaderInputs(
        search.image,
        container.rootfs,
        spec=container.spec,
        search_path=search_path,
        cached_path=search.find_cached_path(LIBCUDA),
        host_files=[
            f"{folder}/{name}" for folder, name in list_mount_destinations(container) if name[:8] == "libcuda."
        ],
        writable=container.get_layout().writable,
    )
    wanted: LibcudaOwner = "image" if search.compat_directory else "host"
    error = compat.error if compat else ""
    choice = find_libcuda(inputs, driver_version=driver_version, wanted=wanted, compat_error=error)
    container.notes += choice.list_warnings()
    if compat is not None and compat.warning and choice.at_start is not None and choice.at_start.owner == "host":
        container.notes.append(compat.warning)


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
