"""Read the machine for a command of `nvidia-container-cli`: configuration, driver, GPUs and chosen devices.

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.cli.command_config import load_command_config
from gpu_oci_hook.cli.container_cli.command_line import GlobalOptions
from gpu_oci_hook.cli.container_cli.phase_faults import name_phase
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files.user_namespace import is_process_in_user_namespace
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.inject.gather import Machine, choose_devices, gather_machine
from gpu_oci_hook.inject.no_gpu import describe_missing_gpu, join_hints
from gpu_oci_hook.model.outcome import ChosenDevices
from gpu_oci_hook.model.request import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import Cache

# Scripts look for these words (facts: container-cli-errors).
DRIVER_NOT_LOADED = "nvml error: driver not loaded"
UNKNOWN_DEVICE = "unknown device"


def load_machine_config(options: GlobalOptions) -> Config:
    """Load the configuration with the roots and the permission to load modules of the command line.

    Raises:
        PhaseFault: it cannot be read or is invalid, or the root is missing.
    """
    with name_phase("initialization"):
        config = load_command_config(options.config_path, "", options.driver_root, warn=False)
    config.load_modules = config.load_modules and options.load_modules
    return config


def open_machine(request: Request, config: Config, cache: Cache, warnings: list[str]) -> Machine:
    """Read the machine.

    Arguments:
        warnings: takes a sentence for each module or node that could not be loaded or created.

    Raises:
        PhaseFault: the driver is not loaded.
    """
    load_modules = config.load_modules and not is_process_in_user_namespace()
    with name_phase("initialization"):
        machine = gather_machine(
            request, Host(config.root), config, cache, load_modules=load_modules, warnings=warnings
        )
        if machine.platform is None and machine.driver_version is None:
            what, hints = describe_missing_gpu(machine)
            raise Fault(f"{DRIVER_NOT_LOADED}: {what}", hint=join_hints(hints))
    return machine


def choose_requested_devices(machine: Machine, request: Request, warnings: list[str]) -> ChosenDevices:
    """Choose the devices of --device; on a machine without a GPU there are none, whatever it names.

    Raises:
        PhaseFault: a selector names no device, or several.
    """
    if not machine.gpus:
        return ChosenDevices([])
    with name_phase("device", UNKNOWN_DEVICE):
        return choose_devices(machine, request, warnings)
