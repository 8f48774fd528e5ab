"""Run the hook's steps that depend on the container's GPUs: requirements, EGL profile, DRM links, device files.

The GPUs are found by the device nodes in the bundle's config.json, never by those in the image's /dev.

Import budget: hook.
"""

from __future__ import annotations

import os

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.directory import PATH_FLAGS
from gpu_oci_hook.files.read_regular import UnusableFileError, read_regular_fd
from gpu_oci_hook.hook.link_steps import UNWRITABLE_ROOTFS, create_links
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

_NVIDIA_MAJOR = 195  # assigned to NVIDIA (Linux, Documentation/admin-guide/devices.txt)


def find_container_gpus(container: Container, root: str) -> tuple[list[Gpu], list[Gpu], list[int]]:
    """Return all GPUs of the machine, those whose nodes the container has, and the minors of all its GPU nodes."""
    # Imported here and below: each step loads what it needs, and few files request every step.
    from gpu_oci_hook.host.gpus import read_gpus

    minors = _list_gpu_minors(container)
    gpus, _ = read_gpus(Host(root))  # every GPU of the driver: this process is in the container's device cgroup
    return gpus, [gpu for gpu in gpus if gpu.minor in minors], minors


def _list_gpu_minors(container: Container) -> list[int]:
    """Return the minors of the container's GPU nodes."""
    minors = []
    for path, (major, minor) in container.list_device_nodes().items():
        number = path.removeprefix("/dev/nvidia")
        if number != path and number.isascii() and number.isdigit() and major == _NVIDIA_MAJOR and minor not in minors:
            minors.append(minor)
    return sorted(minors)


def has_only_datacenter_gpus(container: Container, root: str) -> bool:
    """Tell whether all of the container's GPUs are data-centre GPUs; a node without a known GPU does not count as
    one.
    """
    from gpu_oci_hook.host.model_tables import is_datacenter_gpu

    _, chosen, minors = find_container_gpus(container, root)
    return len(chosen) == len(minors) and all(is_datacenter_gpu(gpu.model) for gpu in chosen)


def enforce_requirements(container: Container, root: str, driver_version: str) -> None:
    """Check the container's `NVIDIA_REQUIRE_*` against the host, as the shim does.

    Arguments:
        driver_version: the driver version when the CDI file was generated; used if the host does not report its own.

    Raises:
        Fault: a requirement is not met, or its result is unknown.
    """
    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.request.require_variables import read_requirements_only

    config = Config(root=root)
    request = read_requirements_only(container.spec, config)
    container.notes += request.warnings
    if not request.requirements:
        return
    from gpu_oci_hook.files import state_dir
    from gpu_oci_hook.host.gpus import find_machine_platform, read_driver_version, read_gpus
    from gpu_oci_hook.inject.requirements import check_host_requirements

    host = Host(root)
    # Every GPU of the driver: this process is in the container's device cgroup, and not where the nodes are chosen.
    gpus, _ = read_gpus(host)
    platform = find_machine_platform(host, gpus, config.platform)
    if platform is None:
        minors = _list_gpu_minors(container)
        gpus = [gpu for gpu in gpus if gpu.minor in minors]
    else:
        gpus = platform.list_gpus(gpus)
    running_version = read_driver_version(host) or driver_version
    check_host_requirements(
        request, gpus, platform, host, config, running_version, state_dir.StateCache(), container.notes
    )


def write_egl_profile(container: Container, root: str) -> None:
    """Write the application profile that keeps EGL from listing GPUs that the container does not have.

    A container with every GPU needs none; then only an existing profile of the image is replaced.
    """
    from gpu_oci_hook.host.optional.graphics import EGL_PROFILE_PATH, decide_egl_profile

    gpus, _, minors = find_container_gpus(container, root)
    subset = len(minors) < len(gpus) or not gpus
    profile = decide_egl_profile(minors, subset=subset)
    if profile.warning:
        container.notes.append(profile.warning)
    if not profile.content or not (profile.always or container.rootfs.stat_path(EGL_PROFILE_PATH) is not None):
        return
    layout = container.get_layout()
    if not layout.writable:
        container.notes.append(f"skipped EGL's application profile: {UNWRITABLE_ROOTFS}")
    elif layout.classify_path(EGL_PROFILE_PATH) != "image":
        container.notes.append(f"skipped {EGL_PROFILE_PATH}: it is in another mount")
    else:
        try:
            container.writable_rootfs.write_file(EGL_PROFILE_PATH, profile.content)
        except Fault as fault:
            container.notes.append(f"skipped EGL's application profile: {fault}")


def create_drm_links(container: Container, root: str) -> None:
    """Create the by-path links of the DRM nodes that the container has."""
    from gpu_oci_hook.host.optional.graphics import DRM_MAJOR, build_by_path_link, list_drm_devices

    nodes = container.list_device_nodes()
    host = Host(root)
    gpus, _, _ = find_container_gpus(container, root)
    links = []
    for gpu in gpus:
        for name, minor in list_drm_devices(host, gpu):
            if minor is not None and nodes.get(f"/dev/dri/{name}") == (DRM_MAJOR, minor):
                path, target = build_by_path_link(gpu, name)
                links.append((target, path))
    try:
        create_links(container, links)
    except Fault as fault:
        container.notes.append(f"skipped the by-path links of DRM nodes: {fault}")


def hide_device_files(container: Container, root: str) -> None:
    """Bind parameters with `ModifyDeviceFiles: 0` over the container's, so the driver's libraries create no nodes.

    The mount is in the container's mount namespace and ends with it. Its directory is reached from the held root
    without following links and has to be in a procfs, which an image cannot bring. The container's device rules give
    the same protection, so a failure is only a note.
    """
    if not os.path.exists(DRIVER_PARAMS):
        return  # no module, or a simulated one: a container's procfs is always the running kernel's
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
    """Bind the content over the container's parameters; return why that is impossible, "" when it is done."""
    from gpu_oci_hook.files.mounts import bind_file_over, read_mount_of_fd

    parent, _, name = DRIVER_PARAMS.rpartition("/")
    try:
        directory = container.rootfs.open_directory(parent, create=False)
    except Fault:
        return "its /proc does not show it"
    mount = read_mount_of_fd(directory.fd)
    if mount is None:
        return "this machine's /proc does not list its mount"
    if mount.filesystem_type != "proc" or directory.path != parent:
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
        pass  # longer than the driver's own: covered like any other content
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
