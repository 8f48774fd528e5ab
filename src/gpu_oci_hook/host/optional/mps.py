"""The directories of a Multi-Process Service daemon on the host, as the configuration names them.

What is mounted is the administrator's word alone; a container's variables choose only whether, and at which of
two places it finds them. Cost rule: imported only when the configuration or the container names such a directory.
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook.errors import clip_text
from gpu_oci_hook.model.machine import DriverFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.machine import Inventory
    from gpu_oci_hook.model.optional_devices import OptionalItems
    from gpu_oci_hook.model.request import Request

PIPE_VARIABLE, LOG_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
# Where clients and the daemon look without those variables (NVIDIA's MPS documentation, environment variables).
DEFAULT_PIPE_DIRECTORY, DEFAULT_LOG_DIRECTORY = "/tmp/nvidia-mps", "/var/log/nvidia-mps"  # noqa: S108


def add_mps_directories(
    items: OptionalItems, host: Host, request: Request, config: Config, inventory: Inventory
) -> None:
    """Puts the pipe and log directories and the shared memory among the extras, or among what is withheld."""
    if not config.sockets or "compute" not in request.capabilities:
        return  # the plan says so of the one that it knows, and nobody else has asked
    live = next((file for file in inventory.files if file.container_path == DEFAULT_PIPE_DIRECTORY), None)
    source = config.mps_pipe_directory or (live.source if live else "")
    said = request.environment.get(PIPE_VARIABLE)
    place, why = _choose_container_path(
        said, DEFAULT_PIPE_DIRECTORY, config.mps_pipe_directory or (live.path if live else ""), PIPE_VARIABLE
    )
    if live and (config.mps_pipe_directory or place != DEFAULT_PIPE_DIRECTORY):
        items.excluded_files[live.source] = why or "[inject] mps-pipe-directory names another one"
    if why:
        if source or said:
            items.withheld.append(("directory", "MPS pipes", why))
        return
    if config.mps_pipe_directory:
        if not _add_configured_directory(items, host, config.mps_pipe_directory, place, "mps-pipe-directory"):
            return
    elif live and place != DEFAULT_PIPE_DIRECTORY:
        items.files.append((_build_directory_file(live.path, live.source, place), f"{PIPE_VARIABLE}={place}"))
    elif not live:
        if said:
            items.withheld.append(
                ("directory", "MPS pipes", f"{PIPE_VARIABLE} is set, but no MPS daemon's directory is there")
            )
        return
    if config.mps_shm:
        _add_configured_directory(items, host, config.mps_shm, "/dev/shm", "mps-shm", kind="shm")  # noqa: S108
    if LOG_VARIABLE not in request.environment:
        return
    if not config.mps_log_directory:
        items.withheld.append(
            ("directory", "MPS logs", f"{LOG_VARIABLE} is set, but [inject] mps-log-directory is not")
        )
        return
    place, why = _choose_container_path(
        request.environment[LOG_VARIABLE], DEFAULT_LOG_DIRECTORY, config.mps_log_directory, LOG_VARIABLE
    )
    if why:
        items.withheld.append(("directory", "MPS logs", why))
    else:
        _add_configured_directory(items, host, config.mps_log_directory, place, "mps-log-directory")


def _choose_container_path(requested: str | None, default: str, source: str, variable: str) -> tuple[str, str]:
    """Where a container looks for a directory, or "" and why it gets none."""
    if requested is None:
        return default, ""
    wanted = requested.rstrip("/") if len(requested) > 1 else requested
    if wanted in (default, source.rstrip("/")):
        return wanted, ""
    if not wanted:
        return "", f"{variable} is empty: the container wants none"
    return "", (
        f"{variable}={clip_text(requested)} is neither {default} nor the host's directory ({source or 'there is none'}), and no "
        "path of a container's decides what is mounted"
    )


def _add_configured_directory(
    items: OptionalItems, host: Host, path: str, container_path: str, key: str, *, kind: str = "directory"
) -> bool:
    """Adds a directory that the configuration names; says why when it cannot be given."""
    status = host.stat_path(path, follow=False)
    real = host.resolve_path(path)
    why = ""
    if status is None or real is None:
        why = f"{host.full_path(path)} is missing"
    elif not stat.S_ISDIR(status.st_mode):
        why = f"{host.full_path(path)} is no directory"
    elif status.st_uid not in (0, os.geteuid()):
        # Below /tmp it may be anybody's.
        why = f"{host.full_path(path)} belongs to user {status.st_uid}, so it is not given to containers"
    if why or real is None:
        items.withheld.append(("directory", container_path, f"[inject] {key}: {why}"))
        items.warnings.append(f"[inject] {key} is not given: {why}")
        return False
    items.files.append((_build_directory_file(real, host.full_path(real), container_path, kind), f"[inject] {key}"))
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
