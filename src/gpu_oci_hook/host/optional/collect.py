"""Add the optional devices and files that the container or the configuration requests, except MIG and graphics.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.host.device_nodes import CONTROL_NODES
from gpu_oci_hook.request.capabilities import add_implied_capabilities

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.host.device_nodes import DeviceMajors
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.machine import Gpu, Inventory
    from gpu_oci_hook.model.optional_devices import OptionalItems
    from gpu_oci_hook.model.request import Request


def add_features_and_files(
    items: OptionalItems,
    host: Host,
    driver: Host,
    majors: DeviceMajors,
    request: Request,
    config: Config,
    inventory: Inventory,
    chosen: list[Gpu],
) -> None:
    """Add features, IMEX channels, nodes of a management container, MPS, and the files of `[[inject.extra]]`.

    Each kind's module is imported only if that kind is requested.

    Arguments:
        host: the machine. driver: the root with the driver's files.
        chosen: the GPUs that are injected.

    Raises:
        Fault: something that the container requests, or that the configuration requires, does not exist.
    """
    if request.features or request.imex_channels:
        from gpu_oci_hook.host.optional.features import add_features

        add_features(items, host, driver, majors, request.features, request.imex_channels)
    if request.management_origin:
        from gpu_oci_hook.host.optional.management import add_management_nodes

        taken_paths = {f"/dev/nvidia{gpu.minor}" for gpu in chosen} | {path for path, _, _, _ in CONTROL_NODES}
        add_management_nodes(items, host, majors, taken_paths, request.management_origin)
    requested = "CUDA_MPS_PIPE_DIRECTORY" in request.environment or "CUDA_MPS_LOG_DIRECTORY" in request.environment
    if requested or config.mps_pipe_directory or config.mps_log_directory or config.mps_shm:
        from gpu_oci_hook.host.optional.mps import add_mps_directories

        add_mps_directories(items, host, request, config, inventory)
    if config.extra or config.remove:
        from gpu_oci_hook.host.optional.user_files import add_user_files, exclude_driver_files

        add_user_files(items, host, config, add_implied_capabilities(request.capabilities))
        exclude_driver_files(items, config, inventory)
