"""`nvidia-container-cli list`: print the paths of nodes and driver files, one a line.

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.cli.command_config import ReadOnlyCache
from gpu_oci_hook.cli.container_cli.command_line import GlobalOptions, ListOptions
from gpu_oci_hook.cli.container_cli.container_request import build_request
from gpu_oci_hook.cli.container_cli.machine_query import choose_requested_devices, load_machine_config, open_machine
from gpu_oci_hook.cli.container_cli.phase_faults import name_phase
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host.mig.capability_files import CAPABILITIES_DIR, CAPS_DIRECTORY
from gpu_oci_hook.host.optional.features import IMEX_CHANNEL_DIRECTORY
from gpu_oci_hook.host.optional.user_files import exclude_driver_files
from gpu_oci_hook.inject.gather import Machine, gather_inventory, gather_nodes
from gpu_oci_hook.model.machine import DriverFile, Inventory
from gpu_oci_hook.model.optional_devices import OptionalItems
from gpu_oci_hook.model.outcome import ChosenDevices
from gpu_oci_hook.model.request import Request

_LIBRARY_NOT_FOUND = "load library failed: libnvidia-ml.so.1: cannot open shared object file"


def list_components(global_options: GlobalOptions, options: ListOptions) -> tuple[list[str], list[str]]:
    """Return the paths on the host in the incumbent's order, and warnings.

    Paths of driver files are below the driver root, as they will be in a container (facts: container-cli-list).

    Raises:
        PhaseFault: the driver is not loaded or has no libraries, or a device is unknown.
    """
    config = load_machine_config(global_options)
    request = build_request(options.devices, (), (), config)
    warnings: list[str] = []
    machine = open_machine(request, config, ReadOnlyCache(), warnings)
    chosen = choose_requested_devices(machine, request, warnings)
    with name_phase("detection"):
        inventory = gather_inventory(machine, request, chosen.gpus)
    if not any(file.kind == "library" for file in inventory.files):
        with name_phase("initialization"):
            raise Fault(_LIBRARY_NOT_FOUND, hint="Install the driver's libraries; gpu-oci-hook list shows the places")
    with name_phase("imex" if options.devices.imex_channels else "detection"):
        nodes = _list_nodes(machine, request, chosen, inventory, options)
    files = _list_files(machine, inventory, options)
    prefix = machine.host.root.rstrip("/")  # of a host made of files
    return [prefix + path for path in dict.fromkeys([*nodes, *files])], warnings


def _list_nodes(
    machine: Machine, request: Request, chosen: ChosenDevices, inventory: Inventory, options: ListOptions
) -> list[str]:
    """List the nodes that exist, and the files in /proc that stand for MIG capabilities."""
    control_nodes, _, gpu_nodes, items = gather_nodes(machine, request, chosen, inventory)
    optional_nodes = [node.path for node, _ in (*items.nodes, *items.best_effort_nodes)]
    channels = [path for path in optional_nodes if path.startswith(f"{IMEX_CHANNEL_DIRECTORY}/")]
    others = [path for path in optional_nodes if path not in channels]
    paths: list[str] = []
    if options.lists_devices:
        paths += [node.path for _, node in control_nodes]
        paths += [gpu_nodes[gpu.minor].path for gpu, _ in chosen.gpus if gpu.minor in gpu_nodes]
        for device, _ in chosen.mig_devices if not options.devices.mig_rights else ():
            instance = f"{CAPABILITIES_DIR}/gpu{device.gpu.minor}/mig/gi{device.gi}"
            paths += [f"{instance}/access", f"{instance}/ci{device.ci}/access"]
        if not options.devices.mig_rights:
            paths += others
    paths += channels
    mig_trees = [f"{CAPABILITIES_DIR}/gpu{gpu.minor}/mig" for gpu, _ in chosen.gpus if gpu.minor >= 0]
    mig_trees = [path for path in mig_trees if machine.host.stat_path(path) is not None]
    if options.devices.mig_rights and mig_trees:
        paths += [f"{CAPABILITIES_DIR}/mig/{right}" for right in options.devices.mig_rights]
        paths += [*mig_trees, CAPS_DIRECTORY, *others]
    return [path for path in paths if machine.host.stat_path(path) is not None]


def _list_files(machine: Machine, inventory: Inventory, options: ListOptions) -> list[str]:
    """List the driver's files, by kind; without those that the configuration keeps from containers."""
    items = OptionalItems()
    exclude_driver_files(items, machine.config, inventory)
    files = [file for file in inventory.files if file.source not in items.excluded_files]
    native = machine.host.machine
    libraries = [file for file in files if file.kind == "library"]
    wanted: list[DriverFile] = []
    if options.binaries:
        wanted += [file for file in files if file.kind == "binary"]
    if options.libraries:
        wanted += [file for file in libraries if file.arch == native]
        wanted += [file for file in libraries if file.arch != native and options.compat32]
    if options.ipcs:
        wanted += [file for file in files if file.kind in ("socket", "directory") and not is_withheld(file, options)]
    if options.firmwares:
        wanted += [file for file in files if file.kind == "firmware"]
    return [file.path for file in wanted]


def is_withheld(file: DriverFile, options: ListOptions) -> bool:
    """Tell whether a file is the socket of a daemon that an option leaves out."""
    return any(f"/{name}/" in file.path for name in options.withheld_sockets)
