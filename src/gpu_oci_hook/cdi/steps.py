"""What the hook does to a container's libraries: links, and what makes its loader find them.

The shim decides the same before the container's mounts are made; the rules are the same functions. Everything is
written below the held root, and nothing below another mount of the container's. Cost rule: on the way of the hook.
"""

from __future__ import annotations

from gpu_oci_hook.container import loader
from gpu_oci_hook.container.called import ANY
from gpu_oci_hook.container.directory import Outside
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats import ARCHITECTURES
from gpu_oci_hook.formats.oci import items, member

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_oci_hook.cdi.errand import Errand
    from gpu_oci_hook.container.called import Container
    from gpu_oci_hook.container.rootfs import Rootfs

    Found = list[tuple[str, str, str]]

UNWRITABLE = "the root file system cannot be written"


def links(here: Container, wanted: Iterable[tuple[str, str]]) -> None:
    """Makes symbolic links, (text, path) each; one that lies in somebody else's mount is left out with a note.

    Raises:
        Fault: one cannot be made though its place can be written.
    """
    places = here.places()
    lost = []
    # What holds for one name in a directory holds for all; a driver has fifty links in one.
    ways: dict[str, tuple[str, str, Rootfs]] = {}
    for text, path in wanted:
        above, _, name = path.rpartition("/")
        if above not in ways:
            place, why = places.mount_point(f"{above}/{ANY}")
            fresh = not why and places.covered(place) == "fresh"
            if not (why or fresh or places.writable):
                why = UNWRITABLE
            ways[above] = place.rpartition("/")[0], why, here.rootfs if fresh else here.layer
        place, why, root = ways[above]
        if not why and places.mounted(f"{place}/{name}"):
            why = "the container has its own mount there"
        if not why:
            try:
                root.link(f"{place}/{name}", text)
            except Outside:
                here.notes.append(f"the link {path} is left out: it lies in another mount")
        elif places.writable:
            here.notes.append(f"the link {path} is left out: {why}")
        else:
            lost.append(path)
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        here.notes.append(f"the link {lost[0]}{more} cannot be made: {UNWRITABLE}")


def errand(here: Container, said: Errand, arch: str) -> None:
    """The links and libraries of our own errand.

    Arguments:
        arch: the machine's, as `uname -m` has it.
    """
    links(here, said.links)
    small = ARCHITECTURES[arch].small if arch in ARCHITECTURES else ""
    folders = [(folder, arch) for folder in said.folders]
    folders += [(folder, small) for folder in said.folders32 if small]
    if not folders:
        return
    image = here.image(arch)
    wanted: list[tuple[str, str]] = []
    found: Found = []
    mounted = here.places().mounted
    for folder, kind in folders:
        names = _names(here, said, folder)
        own = image.library_dir if kind == arch else image.library_dir32
        if own in (folder, here.rootfs.resolve(folder)):
            found += [(name, f"{folder}/{name}", kind) for name in names]
            continue
        # A library that the container mounts there itself is the one that its programs shall find.
        found += [(name, f"{own if mounted(f'{own}/{name}') else folder}/{name}", kind) for name in names]
        there = here.rootfs.statuses(own, names)
        main = own == image.library_dir
        wanted += [(f"{folder}/{name}", f"{own}/{name}") for name, _ in loader.beside(names, there, main=main)]
    for plugins, own in ((said.plugins, image.library_dir), (said.plugins32, image.library_dir32)):
        # An image without a directory for 32-bit libraries has no program that would load a plug-in from there.
        if own == image.library_dir or here.rootfs.status(own) is not None:
            wanted += [(text, f"{own}/{name}") for text, name in plugins]
    links(here, wanted)
    preferred = compat(here, arch, said.driver_version, said.cuda_compat, said.root)
    libraries(here, arch, found, [folder for folder, _ in folders], preferred)


def _names(here: Container, said: Errand, folder: str) -> list[str]:
    """The names of the libraries in a folder: of the files mounted there, and of the links made there."""
    names = [name for above, name in destinations(here) if above == folder]
    for _, path in said.links:
        above, _, name = path.rpartition("/")
        if above == folder and name not in names:
            names.append(name)
    return names


def destinations(here: Container) -> list[tuple[str, str]]:
    """(directory, name) of what the spec mounts."""
    found = []
    for mount in items(here.spec, "mounts"):
        path = member(mount, "destination")
        if isinstance(path, str) and path.startswith("/"):
            above, _, name = path.rpartition("/")
            found.append((above, name))
    return found


def compat(here: Container, arch: str, version: str, policy: str, root: str, compat_root: str = "") -> str:
    """The directory of the image's CUDA compat libraries where they come first, else "".

    Arguments:
        version: the host's driver's. policy: `[inject] cuda-compat`. root: the host's.
        compat_root: where the image would have them, if not in the usual place.
    """
    found = here.image(arch, compat_root).compat
    if not found or policy == "never":
        return ""
    from gpu_oci_hook.plan import compat as decision

    verdict = decision.decide(found, version, policy, datacenter=True)
    if verdict.directory and policy == "auto":
        from gpu_oci_hook.cdi import devices  # few images have newer ones: only then the GPUs matter

        if not devices.datacenter(here, root):
            verdict = decision.decide(found, version, policy, datacenter=False)
    if verdict.warning:
        here.notes.append(verdict.warning)
    return verdict.directory


def libraries(here: Container, arch: str, found: Found, folders: list[str], preferred: str) -> None:
    """Makes the container's loader find libraries.

    Arguments:
        found: (name, path, architecture) of each. folders: the directories they are in, the one to win first.
        preferred: the directory of the image's compat libraries, if those come first.

    Raises:
        Fault: the cache cannot be written though its place can.
    """
    if not found:
        return
    image, places = here.image(arch), here.places()
    instead = f"Set LD_LIBRARY_PATH={':'.join([preferred, *folders] if preferred else folders)}"
    if not places.writable:
        here.notes.append(f"the loader's cache cannot be written: {UNWRITABLE}. {instead}")
        return
    # What lies in a directory where the loader looks anyway needs no line: one would change the order of others'.
    usual = (image.library_dir, image.library_dir32, "/usr/lib", "/lib")
    directories = [preferred] if preferred else []
    directories += [folder for folder in folders if (here.rootfs.resolve(folder) or folder) not in usual]
    if preferred:
        found = [
            (name, f"{preferred}/{name}" if kind == arch and name in image.compat_names else path, kind)
            for name, path, kind in found
        ]
    result = loader.files(image, found, directories)
    here.notes += result.notes
    if result.environment:
        here.notes.append(f"the loader's files are not enough. {instead}")
    for path, content in result.files:
        needed = path.endswith((".cache", ".path"))
        if places.cover(path) != "image":
            here.notes.append(f"{path} is left as it is: it lies in another mount")
            continue
        try:
            here.layer.write(path, content)
        except Outside:
            here.notes.append(f"{path} is left as it is: it lies in another mount")
        except Fault:
            if needed:
                raise
