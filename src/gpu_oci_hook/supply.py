"""What the machine gives for a request: its GPUs, nodes and files, from everybody below `host` who knows some of it.

For a container that is being made and for the CDI file of one that may come, alike. Cost rule: hot; what only some
machines or containers have to do with is imported where it is needed.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host import gpus as host_gpus
from gpu_oci_hook.host import inventory as host_inventory
from gpu_oci_hook.host import nodes as host_nodes
from gpu_oci_hook.host.extra import Extra
from gpu_oci_hook.plan.facts import Facts
from gpu_oci_hook.request import devices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config import Config
    from gpu_oci_hook.host.inventory import Inventory, Memory
    from gpu_oci_hook.host.mig import Instances
    from gpu_oci_hook.host.platform import Special
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.pipeline import Outcome
    from gpu_oci_hook.request import Request


class Machine:
    """What the kernel's own files say, whoever asks.

    Attributes:
        version: of the running kernel module; None when it is not loaded.
        problems: sentences about what is odd, by everyone who comes across it.
    """

    __slots__ = ("defaults", "host", "numbers", "problems", "version")

    def __init__(
        self, host: Host, numbers: host_nodes.Majors, defaults: host_nodes.Params, version: str | None
    ) -> None:
        self.host = host
        self.numbers = numbers
        self.defaults = defaults
        self.version = version
        self.problems: list[str] = []


def survey(outcome: Outcome, host: Host, config: Config, *, load_modules: bool) -> Machine:
    """The machine, and its GPUs in `outcome`.

    Arguments:
        load_modules: a module that the request needs and that is not loaded may be loaded.
    """
    numbers = host_nodes.majors(host)
    special = outcome.special = _special(host, config, loaded=numbers.loaded)
    if special is None and load_modules and _lacks_module(numbers, outcome.request):
        from gpu_oci_hook.host import modules

        numbers = modules.load(host, numbers, outcome.request.capabilities, outcome.plan.warnings)
    machine = Machine(host, numbers, host_nodes.params(host), host_gpus.version(host))
    outcome.gpus, machine.problems = host_gpus.gpus(host)
    if special is not None:
        outcome.gpus = special.gpus(outcome.gpus)
    return machine


def given(outcome: Outcome, machine: Machine, config: Config, spec: dict[str, object]) -> Facts:
    """What the machine gives for the devices that were chosen; the container's own side is not in it.

    Raises:
        Fault: something that was asked for is not there.
    """
    assert outcome.inventory is not None
    host, special = machine.host, outcome.special
    facts = Facts()
    facts.spec, facts.request, facts.config, facts.inventory = spec, outcome.request, config, outcome.inventory
    facts.gpus, facts.chosen = outcome.gpus, outcome.chosen
    facts.nodes, facts.absent_nodes = [], []
    if special is None or special.ordinary([gpu for gpu, _ in outcome.chosen]):
        facts.nodes, facts.absent_nodes = host_nodes.control_nodes(
            host, machine.numbers, machine.defaults, machine.problems
        )
    facts.gpu_nodes = {
        gpu.minor: host_nodes.gpu_node(host, machine.numbers, gpu.minor, machine.defaults, machine.problems)
        for gpu, _ in outcome.chosen
        if gpu.minor >= 0
    }
    facts.extra = extras(host, machine.numbers, machine.defaults, outcome, config, machine.problems)
    if special is not None:
        special.fill(facts)
    return facts


def _special(host: Host, config: Config, *, loaded: bool) -> Special | None:
    """What a machine that is no desktop has of its own; None for a desktop, which is found out by two looks."""
    if config.platform == "auto" and not host_gpus.unusual(host, loaded=loaded):
        return None
    if config.platform == "desktop":
        return None
    from gpu_oci_hook.host import platform

    return platform.find(host, config.platform)


def files_of(outcome: Outcome, host: Host, config: Config, version: str, memory: Memory) -> Inventory:
    """The driver's files, remembered or searched."""
    driver = driver_host(host, config)
    if outcome.special is None:
        return host_inventory.load(host, driver, config.library_paths, version, memory)
    chosen = [gpu for gpu, _ in outcome.chosen]
    every = outcome.request.every_list
    return outcome.special.inventory(driver, config, chosen, version or None, memory, every=every)


def choose(outcome: Outcome, host: Host, config: Config, version: str, memory: Memory) -> None:
    """Which GPUs and MIG devices the request's words mean.

    Raises:
        Fault: a word that names none, or several.
    """
    asks, gpus = outcome.request.asks, outcome.gpus
    if outcome.request.management:
        outcome.chosen = [(gpu, outcome.request.management) for gpu in gpus]
        return
    # Only where it counts: one directory for each GPU is little, but it is on the way of every start.
    everything = devices.everything(asks)
    parts = everything and not outcome.request.mig_rights  # who configures and watches MIG gets whole GPUs
    divided = host_gpus.in_mig_mode(host, gpus) if parts else frozenset()
    outcome.chosen = devices.resolve(asks, gpus, divided)
    whole = [gpu for gpu, _ in outcome.chosen]
    split = host_gpus.in_mig_mode(host, whole) if divided or not everything else frozenset()
    if divided or split or outcome.request.mig_rights or any(devices.names_mig(ask.word) for ask in asks):
        from gpu_oci_hook.request import mig

        outcome.instances = mig_instances(outcome, host, config, version, memory)
        outcome.mig = mig.resolve(asks, gpus, divided, outcome.instances)
        if split and not outcome.request.mig_rights:
            outcome.plan.warnings += mig.undivided(whole, split, outcome.instances)
        outcome.chosen, outcome.parents = mig.with_parents(outcome.chosen, outcome.mig)
        barren = mig.barren(gpus, divided, outcome.instances)
        if barren and not outcome.chosen and config.missing_gpu == "fail":
            raise Fault(barren[0], where=asks[0].origin, cure=mig.MAKE)
        outcome.plan.warnings += barren


def mig_instances(outcome: Outcome, host: Host, config: Config, version: str, memory: Memory) -> Instances:
    """All MIG devices of the machine."""
    from gpu_oci_hook.host import mig

    return mig.Instances(
        host, outcome.gpus, version, memory, lambda: nvml_library(host, config, version, memory)
    )


def nvml_library(host: Host, config: Config, version: str, memory: Memory) -> str:
    """The path of the host's NVML library, looked for when it has to be asked; see `nvml.library`."""
    from gpu_oci_hook.host import nvml

    return nvml.library(
        host, host_inventory.load(host, driver_host(host, config), config.library_paths, version, memory)
    )


def extras(
    host: Host,
    numbers: host_nodes.Majors,
    defaults: host_nodes.Params,
    outcome: Outcome,
    config: Config,
    problems: list[str],
) -> Extra:
    """Everything beside the driver's own nodes and files; each kind's module is imported only when it is asked for."""
    extra = Extra()
    if outcome.instances is not None:
        from gpu_oci_hook.host import mig_nodes

        given = [gpu for gpu, _ in outcome.chosen]
        rights = outcome.request.mig_rights
        mig_nodes.fill(extra, outcome.instances, outcome.mig, rights, given, (numbers, defaults, problems))
    wanted = outcome.request.capabilities
    if "graphics" in wanted or "display" in wanted:
        from gpu_oci_hook.host import graphics

        # A part of a GPU brings no right to its display and its graphics; one without an address has its own lists.
        chosen = {gpu.index: gpu for gpu, _ in outcome.chosen if gpu.pci and gpu.index not in outcome.parents}
        graphics.fill(extra, host, list(chosen.values()), [gpu for gpu in outcome.gpus if gpu.pci], problems)
    if _besides(outcome.request, config) and outcome.inventory is not None:
        from gpu_oci_hook.host import besides

        chosen_gpus = [gpu for gpu, _ in outcome.chosen]
        driver = driver_host(host, config)
        besides.fill(extra, host, driver, numbers, outcome.request, config, outcome.inventory, chosen_gpus)
    return extra


def driver_host(host: Host, config: Config) -> Host:
    """The root that has the driver's files: the machine's own, or a driver container's below it."""
    return host if config.driver_root == "/" else host.below(config.driver_root)


def _besides(request: Request, config: Config) -> bool:
    """Whether the container or the configuration asks for anything that `host.besides` knows."""
    return bool(
        request.features
        or request.channels
        or request.management
        or config.extra
        or config.remove
        or config.mps_pipe_directory
        or config.mps_log_directory
        or config.mps_shm
        or "CUDA_MPS_PIPE_DIRECTORY" in request.environment
        or "CUDA_MPS_LOG_DIRECTORY" in request.environment
    )


def _lacks_module(numbers: host_nodes.Majors, request: Request) -> bool:
    if not numbers.loaded:
        return True
    compute = "compute" in request.capabilities or "video" in request.capabilities
    return compute and numbers.uvm is None
