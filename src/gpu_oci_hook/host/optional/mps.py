"""Find the host directories of a Multi-Process Service (MPS) daemon.

Only the configuration decides which directories are mounted. A container's variables choose whether they are mounted,
and at which of two paths.

Import budget: GPU container.
"""

from __future__ import annotations

import stat

from gpu_oci_hook.errors import clip_text
from gpu_oci_hook.files.trust import describe_foreign_access
from gpu_oci_hook.model.machine import DriverFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.machine import Inventory
    from gpu_oci_hook.model.optional_devices import OptionalItems
    from gpu_oci_hook.model.request import Request

PIPE_VARIABLE, LOG_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
# Used by clients and the daemon without those variables (facts: mps-directories).
DEFAULT_PIPE_DIRECTORY, DEFAULT_LOG_DIRECTORY = "/tmp/nvidia-mps", "/var/log/nvidia-mps"  # noqa: S108


def add_mps_directories(
    items: OptionalItems, host: Host, request: Request, config: Config, inventory: Inventory
) -> None:
    """Add the pipe and log directories and the shared memory, or the reasons why they are withheld."""
    if not config.sockets or "compute" not in request.capabilities:
        return  # the plan withholds the directory of the inventory with that reason
    if not _add_pipe_directory(items, host, request, config, inventory):
        return
    if config.mps_shm:
        _add_configured_directory(items, host, config.mps_shm, "/dev/shm", "mps-shm", kind="shm")  # noqa: S108
    if LOG_VARIABLE in request.environment:
        _add_log_directory(items, host, request.environment[LOG_VARIABLE], config)


def _add_pipe_directory(
    items: OptionalItems, host: Host, request: Request, config: Config, inventory: Inventory
) -> bool:
    """Add the pipe directory of the configuration, or else of the daemon that runs; tell whether there is one.

    The inventory has the running daemon's directory, for its default path in the container.
    """
    running = next((file for file in inventory.files if file.container_path == DEFAULT_PIPE_DIRECTORY), None)
    configured = config.mps_pipe_directory
    requested = request.environment.get(PIPE_VARIABLE)
    container_path, reason = _choose_container_path(
        requested, DEFAULT_PIPE_DIRECTORY, configured or (running.path if running else ""), PIPE_VARIABLE
    )
    if running and (configured or container_path != DEFAULT_PIPE_DIRECTORY):
        items.excluded_files[running.source] = reason or "[inject] mps-pipe-directory names another directory"
    if reason:
        if configured or running or requested:
            items.withheld.append(("directory", "MPS pipes", reason))
        return False
    if configured:
        return _add_configured_directory(items, host, configured, container_path, "mps-pipe-directory")
    if running is None:
        if requested:
            reason = f"{PIPE_VARIABLE} is set, but the host has no directory of an MPS daemon"
            items.withheld.append(("directory", "MPS pipes", reason))
        return False
    if container_path != DEFAULT_PIPE_DIRECTORY:
        file = _build_directory_file(running.path, running.source, container_path)
        items.files.append((file, f"{PIPE_VARIABLE}={container_path}"))
    return True


def _add_log_directory(items: OptionalItems, host: Host, requested: str, config: Config) -> None:
    configured = config.mps_log_directory
    if not configured:
        reason = f"{LOG_VARIABLE} is set, but [inject] mps-log-directory is not"
        items.withheld.append(("directory", "MPS logs", reason))
        return
    container_path, reason = _choose_container_path(requested, DEFAULT_LOG_DIRECTORY, configured, LOG_VARIABLE)
    if reason:
        items.withheld.append(("directory", "MPS logs", reason))
    else:
        _add_configured_directory(items, host, configured, container_path, "mps-log-directory")


def _choose_container_path(requested: str | None, default: str, source: str, variable: str) -> tuple[str, str]:
    """Return the path of a directory in the container and "", or "" and the reason why it is withheld.

    Arguments:
        requested: the variable's value, None if it is not set.
        source: the host's directory, "" if there is none.
    """
    if requested is None:
        return default, ""
    path = requested.rstrip("/") if len(requested) > 1 else requested
    if path in (default, source.rstrip("/")):
        return path, ""
    if not path:
        return "", f"{variable} is empty: the container does not want the directory"
    return "", (
        f"{variable}={clip_text(requested)} is neither {default} nor the host's directory ({source or 'none'}), and a "
        "container cannot choose the directory that is mounted"
    )


def _add_configured_directory(
    items: OptionalItems, host: Host, path: str, container_path: str, key: str, *, kind: str = "directory"
) -> bool:
    """Add a directory that the configuration names, or the reason why it is withheld; tell whether it was added.

    Arguments:
        key: the configuration's key below `[inject]`.
        kind: see `DriverFile`.
    """
    status = host.stat_path(path, follow=False)
    resolved = host.resolve_path(path)
    reason = ""
    if status is None or resolved is None:
        reason = f"{host.full_path(path)} is missing"
    elif not stat.S_ISDIR(status.st_mode):
        reason = f"{host.full_path(path)} is not a directory"
    elif access := describe_foreign_access(status, every_user=True, owner_only=True):
        # Below /tmp any user can create the directory.
        reason = f"{host.full_path(path)} {access}, so it is not mounted into containers"
    if reason or resolved is None:
        items.withheld.append(("directory", container_path, f"[inject] {key}: {reason}"))
        items.warnings.append(f"[inject] {key} is not used: {reason}")
        return False
    file = _build_directory_file(resolved, host.full_path(resolved), container_path, kind)
    items.files.append((file, f"[inject] {key}"))
    return True


def _build_directory_file(path: str, source: str, container_path: str, kind: str = "directory") -> DriverFile:
    return DriverFile(
        kind=kind,
        capability="compute",
        path=path,
        source=source,
        name=container_path.rpartition("/")[2],
        container_path=container_path,
        found_in=path,
    )
