"""What goes in beside GPUs, MIG and graphics: the one place that knows who adds which of the extras.

Cost rule: imported only when the container or the configuration asks for one of them, and of each kind then
only what is asked for.
"""

from __future__ import annotations

from gpu_oci_hook.host.nodes import CONTROL
from gpu_oci_hook.request.capabilities import with_brought

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config import Config
    from gpu_oci_hook.host.extra import Extra
    from gpu_oci_hook.host.inventory import Gpu, Inventory
    from gpu_oci_hook.host.nodes import Majors
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.request import Request


def fill(
    extra: Extra,
    host: Host,
    driver: Host,
    numbers: Majors,
    request: Request,
    config: Config,
    inventory: Inventory,
    chosen: list[Gpu],
) -> None:
    """Adds features, channels, a management container's nodes, MPS, and the administrator's own files.

    Arguments:
        host: the machine. driver: the root with the driver's files.
        chosen: the GPUs that go in.

    Raises:
        Fault: something that the container asks for, or the administrator requires, is not there.
    """
    if request.features or request.channels:
        from gpu_oci_hook.host import features

        features.add(extra, host, driver, numbers, request.features, request.channels)
    if request.management:
        from gpu_oci_hook.host import management

        known = {f"/dev/nvidia{gpu.minor}" for gpu in chosen} | {path for path, _, _, _ in CONTROL}
        management.add(extra, host, numbers, known, request.management)
    said = "CUDA_MPS_PIPE_DIRECTORY" in request.environment or "CUDA_MPS_LOG_DIRECTORY" in request.environment
    if said or config.mps_pipe_directory or config.mps_log_directory or config.mps_shm:
        from gpu_oci_hook.host import mps

        mps.add(extra, host, request, config, inventory)
    if config.extra or config.remove:
        from gpu_oci_hook.host import additions

        additions.add(extra, host, config, with_brought(request.capabilities))
        additions.remove(extra, config, inventory)
