"""Open a container whose config.json its own hook cannot read: hook and container share a user namespace.

createContainer hooks run with the rights of the container's root. Engines keep bundles where other users cannot look,
so the hook sees neither the container's environment nor its list of mounts (facts: hooks-in-user-namespaces). The
mounts themselves exist by then, in this process's own mount table, which no image can influence. They stand in for the
list, and all of them count as foreign.

Import budget: cold.
"""

from __future__ import annotations

import os

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.mounts import list_mount_points
from gpu_oci_hook.files.rootfs import Rootfs
from gpu_oci_hook.files.user_namespace import is_process_in_user_namespace


def is_hidden_by_user_namespace(path: str) -> bool:
    """Tell whether this process may not read a file because it is in a user namespace."""
    return is_process_in_user_namespace() and not os.access(path, os.R_OK)


def open_mounted_rootfs(bundle: str, state_root: object, config_fault: Fault) -> tuple[Rootfs, dict[str, object]]:
    """Open the mounted root file system of the container; return it with a spec of its root and mounts.

    Arguments:
        bundle: the bundle's directory.
        state_root: the root file system in crun's state. runc runs the hook in it instead.
        config_fault: why config.json cannot be read.

    Raises:
        Fault: the root file system is unknown; `config_fault`, or why it cannot be opened.
    """
    try:
        if isinstance(state_root, str) and state_root and "\0" not in state_root:
            path = os.path.join(bundle, state_root)
            rootfs = Rootfs(path)
        else:
            path = os.getcwd()
            rootfs = Rootfs(".")
        path = rootfs.path = os.path.realpath(path)
    except OSError as error:
        raise Fault(
            f"{config_fault.what}; the current directory cannot be found: {describe_os_error(error)}",
            where=config_fault.where,
        ) from None
    mount_points = list_mount_points()
    if path not in mount_points or rootfs.is_host_root():
        raise config_fault
    destinations = [point[len(path) :] for point in mount_points if point.startswith(f"{path}/")]
    spec: dict[str, object] = {
        "root": {"path": path, "readonly": not rootfs.is_writable()},
        "mounts": [
            {"destination": name, "type": "bind", "source": path + name, "options": ["bind"]} for name in destinations
        ],
    }
    return rootfs, spec
