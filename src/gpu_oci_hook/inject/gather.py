"""What the machine gives for a request: its GPUs, nodes and files, from everybody below `host` who knows some of it.

For a container that is being made and for the CDI file of one that may come, alike. Cost rule: hot; what only some
machines or containers have to do with is imported where it is needed.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host.device_nodes import (
    DeviceMajors,
    ModuleParameters,
    read_device_majors,
    read_module_parameters,
    resolve_control_nodes,
    resolve_gpu_node,
)
from gpu_oci_hook.host.driver.inventory_cache import load_inventory
from gpu_oci_hook.host.gpus import read_driver_version, read_gpus, read_machine_gpus
from gpu_oci_hook.host.mig.capability_files import read_mig_enabled_gpus
from gpu_oci_hook.model.optional_devices import OptionalItems
from gpu_oci_hook.model.plan_input import PlanInput
from gpu_oci_hook.request.selectors import has_all_selector, is_mig_selector, resolve_gpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.host.mig.mig_devices import MigDevices
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.machine import Cache, Inventory
    from gpu_oci_hook.model.outcome import Outcome
    from gpu_oci_hook.model.request import Request


class Machine:
    """What the kernel's own files say, whoever asks.

    Attributes:
        driver_version: of the running kernel module; None when it is not loaded.
        problems: sentences about what is odd, by everyone who comes across it.
    """

    __slots__ = ("driver_version", "host", "majors", "module_params", "problems")

    def __init__(
        self, host: Host, majors: DeviceMajors, module_params: ModuleParameters, driver_version: str | None
    ) -> None:
        self.host = host
        self.majors = majors
        self.module_params = module_params
        self.driver_version = driver_version
        self.problems: list[str] = []


def gather_machine(outcome: Outcome, host: Host, config: Config, *, load_modules: bool) -> Machine:
    """The machine, and its GPUs in `outcome`.

    Arguments:
        load_modules: a module that the request needs and that is not loaded may be loaded.
    """
    majors = read_device_majors(host)
    outcome.gpus, problems, outcome.platform = read_machine_gpus(host, config.platform)
    if outcome.platform is None and load_modules and _lacks_kernel_module(majors, outcome.request):
        from gpu_oci_hook.host.kernel_modules import load_needed_modules

        majors = load_needed_modules(host, majors, outcome.request.capabilities, outcome.plan.warnings)
        outcome.gpus, problems = read_gpus(host)  # a module that was just loaded shows its GPUs only now
    machine = Machine(host, majors, read_module_parameters(host), read_driver_version(host))
    machine.problems = problems
    return machine


def gather_plan_input(outcome: Outcome, machine: Machine, config: Config, spec: dict[str, object]) -> PlanInput:
    """What the machine gives for the devices that were chosen; the container's own side is not in it.

    Raises:
        Fault: something that was asked for is not there.
    """
    assert outcome.inventory is not None
    host, special = machine.host, outcome.platform
    facts = PlanInput()
    facts.spec, facts.request, facts.config, facts.inventory = spec, outcome.request, config, outcome.inventory
    facts.gpus, facts.chosen_gpus = outcome.gpus, outcome.chosen_gpus
    facts.control_nodes, facts.absent_control_nodes = [], []
    if special is None or special.needs_desktop_driver([gpu for gpu, _ in outcome.chosen_gpus]):
        facts.control_nodes, facts.absent_control_nodes = resolve_control_nodes(
            host, machine.majors, machine.module_params, machine.problems
        )
    facts.gpu_nodes = {
        gpu.minor: resolve_gpu_node(host, machine.majors, gpu.minor, machine.module_params, machine.problems)
        for gpu, _ in outcome.chosen_gpus
        if gpu.minor >= 0
    }
    facts.optional_items = gather_optional_items(
        host, machine.majors, machine.module_params, outcome, config, machine.problems
    )
    if special is not None:
        special.complete_plan_input(facts)
    return facts


def gather_inventory(outcome: Outcome, host: Host, config: Config, version: str, cache: Cache) -> Inventory:
    """The driver's files, remembered or searched."""
    driver = get_driver_host(host, config)
    if outcome.platform is None:
        return load_inventory(host, driver, config.library_paths, version, cache)
    chosen = [gpu for gpu, _ in outcome.chosen_gpus]
    every = outcome.request.use_all_csv_lists
    return outcome.platform.collect_inventory(driver, config, chosen, version or None, cache, all_lists=every)


def choose_devices(outcome: Outcome, host: Host, config: Config, version: str, cache: Cache) -> None:
    """Which GPUs and MIG devices the request's words mean.

    Raises:
        Fault: a word that names none, or several.
    """
    asks, gpus = outcome.request.device_requests, outcome.gpus
    if outcome.request.management_origin:
        outcome.chosen_gpus = [(gpu, outcome.request.management_origin) for gpu in gpus]
        return
    # Only where it counts: one directory for each GPU is little, but it is on the way of every start.
    everything = has_all_selector(asks)
    parts = everything and not outcome.request.mig_rights  # who configures and watches MIG gets whole GPUs
    divided = read_mig_enabled_gpus(host, gpus) if parts else frozenset()
    outcome.chosen_gpus = resolve_gpus(asks, gpus, divided)
    whole = [gpu for gpu, _ in outcome.chosen_gpus]
    split = read_mig_enabled_gpus(host, whole) if divided or not everything else frozenset()
    if divided or split or outcome.request.mig_rights or any(is_mig_selector(ask.selector) for ask in asks):
        from gpu_oci_hook.request.mig_selectors import (
            CREATE_MIG_DEVICE_HINT,
            add_parent_gpus,
            report_empty_mig_gpus,
            report_whole_mig_gpus,
            resolve_mig_devices,
        )

        outcome.mig_devices = gather_mig_devices(outcome, host, config, version, cache)
        outcome.chosen_mig_devices = resolve_mig_devices(asks, gpus, divided, outcome.mig_devices)
        if split and not outcome.request.mig_rights:
            outcome.plan.warnings += report_whole_mig_gpus(whole, split, outcome.mig_devices)
        outcome.chosen_gpus, outcome.mig_parents = add_parent_gpus(outcome.chosen_gpus, outcome.chosen_mig_devices)
        barren = report_empty_mig_gpus(gpus, divided, outcome.mig_devices)
        if barren and not outcome.chosen_gpus and config.missing_gpu == "fail":
            raise Fault(barren[0], where=asks[0].origin, hint=CREATE_MIG_DEVICE_HINT)
        outcome.plan.warnings += barren


def gather_mig_devices(outcome: Outcome, host: Host, config: Config, version: str, cache: Cache) -> MigDevices:
    """All MIG devices of the machine."""
    from gpu_oci_hook.host.mig.mig_devices import MigDevices

    return MigDevices(host, outcome.gpus, version, cache, lambda: locate_nvml_library(host, config, version, cache))


def locate_nvml_library(host: Host, config: Config, version: str, cache: Cache) -> str:
    """The path of the host's NVML library, looked for when it has to be asked; see `query.find_nvml_library`."""
    from gpu_oci_hook.host.nvml.query import find_nvml_library

    return find_nvml_library(
        host, load_inventory(host, get_driver_host(host, config), config.library_paths, version, cache)
    )


def gather_optional_items(
    host: Host,
    majors: DeviceMajors,
    module_params: ModuleParameters,
    outcome: Outcome,
    config: Config,
    problems: list[str],
) -> OptionalItems:
    """Everything beside the driver's own nodes and files; each kind's module is imported only when it is asked for."""
    extra = OptionalItems()
    if outcome.mig_devices is not None:
        from gpu_oci_hook.host.mig.mig_nodes import add_mig_nodes

        given = [gpu for gpu, _ in outcome.chosen_gpus]
        rights = outcome.request.mig_rights
        add_mig_nodes(
            extra, outcome.mig_devices, outcome.chosen_mig_devices, rights, given, (majors, module_params, problems)
        )
    wanted = outcome.request.capabilities
    if "graphics" in wanted or "display" in wanted:
        from gpu_oci_hook.host.optional.graphics import add_graphics_items

        # A part of a GPU brings no right to its display and its graphics; one without an address has its own lists.
        chosen = {gpu.index: gpu for gpu, _ in outcome.chosen_gpus if gpu.pci and gpu.index not in outcome.mig_parents}
        add_graphics_items(extra, host, list(chosen.values()), [gpu for gpu in outcome.gpus if gpu.pci], problems)
    if _needs_optional_items(outcome.request, config) and outcome.inventory is not None:
        from gpu_oci_hook.host.optional.collect import add_features_and_files

        chosen_gpus = [gpu for gpu, _ in outcome.chosen_gpus]
        driver = get_driver_host(host, config)
        add_features_and_files(extra, host, driver, majors, outcome.request, config, outcome.inventory, chosen_gpus)
    return extra


def get_driver_host(host: Host, config: Config) -> Host:
    """The root that has the driver's files: the machine's own, or a driver container's below it."""
    return host if config.driver_root == "/" else host.sub_host(config.driver_root)


def _needs_optional_items(request: Request, config: Config) -> bool:
    """Whether the container or the configuration asks for anything that `host.optional.collect` knows."""
    return bool(
        request.features
        or request.imex_channels
        or request.management_origin
        or config.extra
        or config.remove
        or config.mps_pipe_directory
        or config.mps_log_directory
        or config.mps_shm
        or "CUDA_MPS_PIPE_DIRECTORY" in request.environment
        or "CUDA_MPS_LOG_DIRECTORY" in request.environment
    )


def _lacks_kernel_module(majors: DeviceMajors, request: Request) -> bool:
    if not majors.nvidia_loaded:
        return True
    compute = "compute" in request.capabilities or "video" in request.capabilities
    return compute and majors.uvm is None
