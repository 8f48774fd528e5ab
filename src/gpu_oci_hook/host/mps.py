"""The directories of a Multi-Process Service daemon on the host, as the configuration names them.

What is mounted is the administrator's word alone; a container's variables choose only whether, and at which of
two places it finds them. Cost rule: imported only when the configuration or the container names such a directory.
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook.errors import clipped
from gpu_oci_hook.host.inventory import DriverFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config import Config
    from gpu_oci_hook.host.extra import Extra
    from gpu_oci_hook.host.inventory import Inventory
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.request import Request

PIPE, LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
# Where clients and the daemon look without those variables (NVIDIA's MPS documentation, environment variables).
PIPE_PLACE, LOG_PLACE = "/tmp/nvidia-mps", "/var/log/nvidia-mps"  # noqa: S108


def add(extra: Extra, host: Host, request: Request, config: Config, inventory: Inventory) -> None:
    """Puts the pipe and log directories and the shared memory among the extras, or among what is withheld."""
    if not config.sockets or "compute" not in request.capabilities:
        return  # the plan says so of the one that it knows, and nobody else has asked
    live = next((file for file in inventory.files if file.container == PIPE_PLACE), None)
    source = config.mps_pipe_directory or (live.source if live else "")
    said = request.environment.get(PIPE)
    place, why = _place(said, PIPE_PLACE, config.mps_pipe_directory or (live.path if live else ""), PIPE)
    if live and (config.mps_pipe_directory or place != PIPE_PLACE):
        extra.refused[live.source] = why or "[inject] mps-pipe-directory names another one"
    if why:
        if source or said:
            extra.withheld.append(("directory", "MPS pipes", why))
        return
    if config.mps_pipe_directory:
        if not _directory(extra, host, config.mps_pipe_directory, place, "mps-pipe-directory"):
            return
    elif live and place != PIPE_PLACE:
        extra.files.append((_file(live.path, live.source, place), f"{PIPE}={place}"))
    elif not live:
        if said:
            extra.withheld.append(("directory", "MPS pipes", f"{PIPE} is set, but no MPS daemon's directory is there"))
        return
    if config.mps_shm:
        _directory(extra, host, config.mps_shm, "/dev/shm", "mps-shm", kind="shm")  # noqa: S108
    if LOG not in request.environment:
        return
    if not config.mps_log_directory:
        extra.withheld.append(("directory", "MPS logs", f"{LOG} is set, but [inject] mps-log-directory is not"))
        return
    place, why = _place(request.environment[LOG], LOG_PLACE, config.mps_log_directory, LOG)
    if why:
        extra.withheld.append(("directory", "MPS logs", why))
    else:
        _directory(extra, host, config.mps_log_directory, place, "mps-log-directory")


def _place(said: str | None, usual: str, source: str, variable: str) -> tuple[str, str]:
    """Where a container looks for a directory, or "" and why it gets none."""
    if said is None:
        return usual, ""
    wanted = said.rstrip("/") if len(said) > 1 else said
    if wanted in (usual, source.rstrip("/")):
        return wanted, ""
    if not wanted:
        return "", f"{variable} is empty: the container wants none"
    return "", (
        f"{variable}={clipped(said)} is neither {usual} nor the host's directory ({source or 'there is none'}), and no "
        "path of a container's decides what is mounted"
    )


def _directory(extra: Extra, host: Host, path: str, place: str, key: str, *, kind: str = "directory") -> bool:
    """Adds a directory that the configuration names; says why when it cannot be given."""
    status = host.status(path, follow=False)
    real = host.resolve(path)
    why = ""
    if status is None or real is None:
        why = f"{host.path(path)} is missing"
    elif not stat.S_ISDIR(status.st_mode):
        why = f"{host.path(path)} is no directory"
    elif status.st_uid not in (0, os.geteuid()):
        # Below /tmp it may be anybody's.
        why = f"{host.path(path)} belongs to user {status.st_uid}, so it is not given to containers"
    if why or real is None:
        extra.withheld.append(("directory", place, f"[inject] {key}: {why}"))
        extra.warnings.append(f"[inject] {key} is not given: {why}")
        return False
    extra.files.append((_file(real, host.path(real), place, kind), f"[inject] {key}"))
    return True


def _file(path: str, source: str, place: str, kind: str = "directory") -> DriverFile:
    return DriverFile(
        kind=kind,
        capability="compute",
        path=path,
        source=source,
        name=place.rpartition("/")[2],
        container=place,
        found=path,
    )
