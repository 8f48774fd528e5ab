"""What the hook does because of a container's device nodes: which GPUs they are, and what that asks for.

Nodes come from the bundle's config.json, never from the image's /dev. Cost rule: imported only where one of these is
asked for; one small file for each GPU of the machine.
"""

from __future__ import annotations

import os

from gpu_oci_hook.container.directory import PATH, contents
from gpu_oci_hook.errors import Fault, words
from gpu_oci_hook.formats import proc
from gpu_oci_hook.host.root import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.container.called import Container
    from gpu_oci_hook.host.inventory import Gpu

PARAMS = "/proc/driver/nvidia/params"
_LIMIT = 65536
_MAJOR = 195  # Documentation/admin-guide/devices.txt of the kernel


def gpus(here: Container, root: str) -> tuple[list[Gpu], list[Gpu], list[int]]:
    """All GPUs of the machine, those whose nodes the container has, and the minors of all its GPU nodes."""
    from gpu_oci_hook.host import gpus as host_gpus

    minors = []
    for path, (major, minor) in here.nodes().items():
        number = path.removeprefix("/dev/nvidia")
        if number != path and number.isascii() and number.isdigit() and major == _MAJOR and minor not in minors:
            minors.append(minor)
    known, _ = host_gpus.gpus(Host(root))
    return known, [gpu for gpu in known if gpu.minor in minors], sorted(minors)


def datacenter(here: Container, root: str) -> bool:
    """Whether all of the container's GPUs are of the data-centre class; one that the machine does not know is not."""
    from gpu_oci_hook.host import versions

    _, chosen, minors = gpus(here, root)
    return len(chosen) == len(minors) and all(versions.datacenter(gpu.model) for gpu in chosen)


def requirements(here: Container, root: str, version: str) -> None:
    """Holds the container's `NVIDIA_REQUIRE_*` against the host, by the evaluator and in the words of the shim.

    Arguments:
        version: the driver's when the CDI file was made; it counts only where the machine does not tell its own.

    Raises:
        Fault: one is not met, or cannot be decided.
    """
    from gpu_oci_hook.config import Config
    from gpu_oci_hook.request import demands

    config = Config(root=root)
    asked = demands.alone(here.spec, config)
    here.notes += asked.warnings
    if not asked.requirements:
        return
    from gpu_oci_hook import conditions, state
    from gpu_oci_hook.host import gpus as host_gpus

    host = Host(root)
    known, chosen, _ = gpus(here, root)
    special = None
    if host_gpus.unusual(host, loaded=bool(known)):
        from gpu_oci_hook.host import platform

        special = platform.find(host, config.platform)
        if special is not None:
            chosen = special.gpus(known)
    running = host_gpus.version(host) or version
    conditions.hold(asked, chosen, special, host, config, running, state.Memory(), here.notes)


def profile(here: Container, root: str) -> None:
    """Writes the application profile that keeps EGL from listing GPUs that the container does not have.

    Where it has every one there is nothing to keep out; then only a profile that the image has already is replaced.
    """
    from gpu_oci_hook.host import graphics

    known, _, minors = gpus(here, root)
    subset = len(minors) < len(known) or not known
    text, warning = graphics.profile(minors)
    if warning and subset:
        here.notes.append(warning)
    if not text or not (subset or here.rootfs.status(graphics.PROFILE) is not None):
        return
    places = here.places()
    if not places.writable:
        here.notes.append("EGL's application profile is left out: the root file system cannot be written")
    elif places.cover(graphics.PROFILE) != "image":
        here.notes.append(f"{graphics.PROFILE} is left out: it lies in another mount")
    else:
        try:
            here.layer.write(graphics.PROFILE, text)
        except Fault as fault:
            here.notes.append(f"EGL's application profile is left out: {fault}")


def drm_links(here: Container, root: str) -> None:
    """Makes the links by path of exactly the DRM nodes that the container has."""
    from gpu_oci_hook.cdi import steps
    from gpu_oci_hook.host import graphics

    nodes = here.nodes()
    host = Host(root)
    known, _, _ = gpus(here, root)
    wanted = []
    for gpu in known:
        for name, minor in graphics.drm(host, gpu):
            if minor is not None and nodes.get(f"/dev/dri/{name}") == (graphics.DRM_MAJOR, minor):
                path, text = graphics.by_path(gpu, name)
                wanted.append((text, path))
    try:
        steps.links(here, wanted)
    except Fault as fault:
        here.notes.append(f"links of DRM nodes by path are left out: {fault}")


def hide(here: Container, root: str) -> None:
    """Lays parameters with `ModifyDeviceFiles: 0` over the container's: its driver's libraries then make no nodes.

    A mount in the runtime's mount namespace, gone with the container. The place is reached from the held root without
    following a link, and must be a procfs, which no image can bring. It protects nothing that the container's
    device rules do not, so whatever is in the way is a note.
    """
    name = "ModifyDeviceFiles: 0"
    if not os.path.exists(PARAMS):
        return  # no module, or a simulated one: containers see the running kernel's files
    try:
        text = Host(root).read(PARAMS, _LIMIT)
    except Fault as fault:
        here.notes.append(f"{name} is not set: {fault}")
        return
    wanted = proc.closed_params(text or b"")
    if text is None or wanted == text:
        return
    reason = _lay(here, wanted)
    if reason:
        here.notes.append(f"{name} is not set in the container's {PARAMS}: {reason}")


def _lay(here: Container, text: bytes) -> str:
    """Why the container's parameters cannot be covered; "" when they are."""
    from gpu_oci_hook.linux import mounts

    above, _, name = PARAMS.rpartition("/")
    try:
        directory = here.rootfs.directory(above, create=False)
    except Fault:
        return "its /proc does not show it"
    mount = mounts.of(directory.fd)
    if mount is None:
        return "this machine's /proc does not tell what is mounted"
    if mount.kind != "proc" or directory.path != above:
        return "it has no procfs on /proc"
    if mount.shared:
        return "the container shares its mounts with the host, which would then see it too"
    try:
        fd = os.open(name, PATH, dir_fd=directory.fd)
        try:
            if contents(fd, _LIMIT) == text:
                return ""
        finally:
            os.close(fd)
    except OSError as error:
        return words(error)
    from gpu_oci_hook.container import apply

    try:
        source = apply.generate(f"{here.bundle}/{apply.GENERATED}", PARAMS, text)
        mounts.lay(source, directory.fd, name)
    except Fault as fault:
        return str(fault)
    except OSError as error:
        return words(error, writing=True)
    return ""
