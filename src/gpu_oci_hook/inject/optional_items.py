"""Gather the optional nodes and files of a container; each kind's module is imported only when the request needs it.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.host.device_nodes import CONTROL_NODES
from gpu_oci_hook.model.optional_devices import OptionalItems
from gpu_oci_hook.request.capabilities import add_implied_capabilities

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.inject.gather import Machine
    from gpu_oci_hook.model.machine import Inventory
    from gpu_oci_hook.model.outcome import ChosenDevices
    from gpu_oci_hook.model.request import Request


def gather_optional_items(
    machine: Machine, request: Request, chosen: ChosenDevices, inventory: Inventory
) -> OptionalItems:
    """Gather the optional nodes and files."""
    items = OptionalItems()
    host, problems = machine.host, machine.problems
    gpus = [gpu for gpu, _ in chosen.gpus]
    if chosen.all_mig_devices is not None:
        from gpu_oci_hook.host.mig.mig_nodes import add_mig_nodes

        node_context = (machine.majors, machine.module_params, problems)
        add_mig_nodes(items, chosen.all_mig_devices, chosen.mig_devices, request.mig_rights, gpus, node_context)
    if "graphics" in request.capabilities or "display" in request.capabilities:
        from gpu_oci_hook.host.optional.graphics import add_graphics_items

        # A MIG device rarely brings its GPU's graphics. A GPU without an address has its own lists.
        drawing = {gpu.index: gpu for gpu in gpus if gpu.pci and gpu.index not in chosen.mig_parents}
        if any("RTX" in device.gpu.model for device, _ in chosen.mig_devices):
            from gpu_oci_hook.inject.nvml_queries import add_drawing_mig_parents

            add_drawing_mig_parents(drawing, chosen, items)
        add_graphics_items(items, host, list(drawing.values()), [gpu for gpu in machine.gpus if gpu.pci], problems)
    if request.features or request.imex_channels:
        from gpu_oci_hook.host.optional.features import add_features

        add_features(items, host, machine.driver_host, machine.majors, request.features, request.imex_channels)
    if request.management_origin:
        from gpu_oci_hook.host.optional.management import add_management_nodes

        taken_paths = {f"/dev/nvidia{gpu.minor}" for gpu in gpus} | {path for path, _, _, _ in CONTROL_NODES}
        add_management_nodes(items, host, machine.majors, taken_paths, request.management_origin)
    config = machine.config
    if _needs_mps_directories(request, config):
        from gpu_oci_hook.host.optional.mps import add_mps_directories

        add_mps_directories(items, host, request, config, inventory)
    if config.extra or config.remove:
        from gpu_oci_hook.host.optional.user_files import add_user_files, exclude_driver_files

        add_user_files(items, host, config, add_implied_capabilities(request.capabilities))
        exclude_driver_files(items, config, inventory)
    return items


def _needs_mps_directories(request: Request, config: Config) -> bool:
    """Tell whether the container or the configuration names a directory of an MPS daemon."""
    return bool(
        config.mps_pipe_directory
        or config.mps_log_directory
        or config.mps_shm
        or "CUDA_MPS_PIPE_DIRECTORY" in request.environment
        or "CUDA_MPS_LOG_DIRECTORY" in request.environment
    )
