"""What the hook does because of a container's device nodes: which GPUs they are, and what that asks for.

Nodes come from the bundle's config.json, never from the image's /dev. Cost rule: imported only where one of these is
asked for; one small file for each GPU of the machine.
"""

from __future__ import annotations

import os

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.directory import PATH_FLAGS
from gpu_oci_hook.files.read_regular import UnusableFileError, read_regular_fd
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.plan.driver_params import (
    DRIVER_PARAMS,
    DRIVER_PARAMS_LIMIT,
    MODIFY_DEVICE_FILES,
    SHARED_MOUNTS_REASON,
    build_hidden_params,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.hook.called_container import Container
    from gpu_oci_hook.model.machine import Gpu

_NVIDIA_MAJOR = 195  # Documentation/admin-guide/devices.txt of the kernel


def find_container_gpus(container: Container, root: str) -> tuple[list[Gpu], list[Gpu], list[int]]:
    """All GPUs of the machine, those whose nodes the container has, and the minors of all its GPU nodes."""
    from gpu_oci_hook.host.gpus import read_gpus

    minors = _list_gpu_minors(container)
    known, _ = read_gpus(Host(root))
    return known, [gpu for gpu in known if gpu.minor in minors], minors


def _list_gpu_minors(container: Container) -> list[int]:
    """Return the minors of all GPU nodes that the container has."""
    minors = []
    for path, (major, minor) in container.list_device_nodes().items():
        number = path.removeprefix("/dev/nvidia")
        if number != path and number.isascii() and number.isdigit() and major == _NVIDIA_MAJOR and minor not in minors:
            minors.append(minor)
    return sorted(minors)


def has_only_datacenter_gpus(container: Container, root: str) -> bool:
    """Whether all of the container's GPUs are of the data-centre class; one that the machine does not know is not."""
    from gpu_oci_hook.host.model_tables import is_datacenter_gpu

    _, chosen, minors = find_container_gpus(container, root)
    return len(chosen) == len(minors) and all(is_datacenter_gpu(gpu.model) for gpu in chosen)


def enforce_requirements(container: Container, root: str, driver_version: str) -> None:
    """Holds the container's `NVIDIA_REQUIRE_*` against the host, by the evaluator and in the words of the shim.

    Arguments:
        driver_version: the driver's when the CDI file was made; it counts only where the machine does not tell its own.

    Raises:
        Fault: one is not met, or cannot be decided.
    """
    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.request.require_variables import read_requirements_only

    config = Config(root=root)
    asked = read_requirements_only(container.spec, config)
    container.notes += asked.warnings
    if not asked.requirements:
        return
    from gpu_oci_hook.files import state_dir
    from gpu_oci_hook.host.gpus import read_driver_version, read_machine_gpus
    from gpu_oci_hook.inject.requirements import check_host_requirements

    host = Host(root)
    gpus, _, platform = read_machine_gpus(host, config.platform)
    if platform is None:
        minors = _list_gpu_minors(container)
        gpus = [gpu for gpu in gpus if gpu.minor in minors]
    running = read_driver_version(host) or driver_version
    check_host_requirements(asked, gpus, platform, host, config, running, state_dir.StateCache(), container.notes)


def write_egl_profile(container: Container, root: str) -> None:
    """Writes the application profile that keeps EGL from listing GPUs that the container does not have.

    Where it has every one there is nothing to keep out; then only a profile that the image has already is replaced.
    """
    from gpu_oci_hook.host.optional.graphics import EGL_PROFILE_PATH, decide_egl_profile

    known, _, minors = find_container_gpus(container, root)
    subset = len(minors) < len(known) or not known
    profile = decide_egl_profile(minors, subset=subset)
    if profile.warning:
        container.notes.append(profile.warning)
    if not profile.content or not (profile.always or container.rootfs.stat_path(EGL_PROFILE_PATH) is not None):
        return
    places = container.get_layout()
    if not places.writable:
        container.notes.append("EGL's application profile is left out: the root file system cannot be written")
    elif places.classify_path(EGL_PROFILE_PATH) != "image":
        container.notes.append(f"{EGL_PROFILE_PATH} is left out: it lies in another mount")
    else:
        try:
            container.writable_rootfs.write_file(EGL_PROFILE_PATH, profile.content)
        except Fault as fault:
            container.notes.append(f"EGL's application profile is left out: {fault}")


def create_drm_links(container: Container, root: str) -> None:
    """Makes the links by path of exactly the DRM nodes that the container has."""
    from gpu_oci_hook.hook.link_steps import create_links
    from gpu_oci_hook.host.optional.graphics import DRM_MAJOR, build_by_path_link, list_drm_devices

    nodes = container.list_device_nodes()
    host = Host(root)
    known, _, _ = find_container_gpus(container, root)
    wanted = []
    for gpu in known:
        for name, minor in list_drm_devices(host, gpu):
            if minor is not None and nodes.get(f"/dev/dri/{name}") == (DRM_MAJOR, minor):
                path, text = build_by_path_link(gpu, name)
                wanted.append((text, path))
    try:
        create_links(container, wanted)
    except Fault as fault:
        container.notes.append(f"links of DRM nodes by path are left out: {fault}")


def hide_device_files(container: Container, root: str) -> None:
    """Lays parameters with `ModifyDeviceFiles: 0` over the container's: its driver's libraries then make no nodes.

    A mount in the runtime's mount namespace, gone with the container. The place is reached from the held root without
    following a link, and must be a procfs, which no image can bring. It protects nothing that the container's
    device rules do not, so whatever is in the way is a note.
    """
    if not os.path.exists(DRIVER_PARAMS):
        return  # no module, or a simulated one: containers see the running kernel's files
    try:
        params = Host(root).read_file(DRIVER_PARAMS, DRIVER_PARAMS_LIMIT)
    except Fault as fault:
        container.notes.append(f"{MODIFY_DEVICE_FILES} is not set: {fault}")
        return
    content = build_hidden_params(params)
    reason = "" if content is None else _cover_params_file(container, content)
    if reason:
        container.notes.append(f"{MODIFY_DEVICE_FILES} is not set in the container's {DRIVER_PARAMS}: {reason}")


def _cover_params_file(container: Container, content: bytes) -> str:
    """Why the container's parameters cannot be covered; "" when they are."""
    from gpu_oci_hook.files.mounts import bind_file_over, read_mount_of_fd

    above, _, name = DRIVER_PARAMS.rpartition("/")
    try:
        directory = container.rootfs.open_directory(above, create=False)
    except Fault:
        return "its /proc does not show it"
    mount = read_mount_of_fd(directory.fd)
    if mount is None:
        return "this machine's /proc does not tell what is mounted"
    if mount.filesystem_type != "proc" or directory.path != above:
        return "it has no procfs on /proc"
    if mount.shared:
        return SHARED_MOUNTS_REASON
    try:
        fd = os.open(name, PATH_FLAGS, dir_fd=directory.fd)
        try:
            if read_regular_fd(fd, DRIVER_PARAMS_LIMIT) == content:
                return ""
        finally:
            os.close(fd)
    except UnusableFileError:
        pass  # longer than any that the driver shows: covered like another one
    except OSError as error:
        return describe_os_error(error)
    from gpu_oci_hook.container.rootfs_edits import GENERATED_DIR, write_generated_file

    try:
        source = write_generated_file(f"{container.bundle}/{GENERATED_DIR}", DRIVER_PARAMS, content)
        bind_file_over(source, directory.fd, name)
    except Fault as fault:
        return str(fault)
    except OSError as error:
        return describe_os_error(error, writing=True)
    return ""
