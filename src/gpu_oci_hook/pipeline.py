"""The one way through: config.json to request, host to inventory, both to a plan, and the plan applied.

The shim, `explain` and `apply` all come through here, so they cannot disagree. Cost rule: hot; what is needed
only now and then (modules to load, NVML, a log file) is imported where it is needed.
"""

from __future__ import annotations

import os

from gpu_oci_hook import state
from gpu_oci_hook.config import Config
from gpu_oci_hook.container import apply, image
from gpu_oci_hook.container import spec as spec_edits
from gpu_oci_hook.container.rootfs import Rootfs, root_path
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats import fastjson, proc
from gpu_oci_hook.host import gpus as host_gpus
from gpu_oci_hook.host import inventory as host_inventory
from gpu_oci_hook.host import nodes as host_nodes
from gpu_oci_hook.host.extra import Extra
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.plan import build
from gpu_oci_hook.plan.edits import Plan
from gpu_oci_hook.plan.facts import Facts
from gpu_oci_hook.request import devices, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.inventory import Gpu, Inventory, Memory
    from gpu_oci_hook.host.mig import Instances, Mig
    from gpu_oci_hook.host.platform import Special
    from gpu_oci_hook.plan.edits import Edit
    from gpu_oci_hook.request import Request

GENERATED = apply.GENERATED


class Outcome:
    """What became of one bundle's request.

    Attributes:
        request, plan: see their classes.
        gpus: all GPUs of the machine; `chosen` those that go in, the parents of MIG devices among them.
        mig: the MIG devices that go in; `parents`: indices of the GPUs that go in for their sake alone.
        instances: all MIG devices; None where nobody had to look.
        inventory: None when the container does not get as far.
        rootfs: the container's root file system, held; None when the container does not get as far.
        image: facts about it.
        special: the machine's own way of doing things; None for a desktop's or server's.
        cdi: the devices that come from CDI files: (qualified name, file, whose word).
    """

    __slots__ = (
        "bundle", "cdi", "chosen", "gpus", "image", "instances", "inventory", "mig", "parents", "plan", "request",
        "rootfs", "special",
    )  # fmt: skip

    def __init__(self, request: Request, plan: Plan) -> None:
        self.request = request
        self.plan = plan
        self.gpus: list[Gpu] = []
        self.chosen: list[tuple[Gpu, str]] = []
        self.mig: list[tuple[Mig, str]] = []
        self.parents: frozenset[int] = frozenset()
        self.instances: Instances | None = None
        self.inventory: Inventory | None = None
        self.special: Special | None = None
        self.rootfs: Rootfs | None = None
        self.image: image.Image | None = None
        self.bundle = ""
        self.cdi: list[tuple[str, str, str]] = []


def parse(data: bytes, path: str) -> dict[str, object]:
    """The object in a config.json's bytes.

    Raises:
        Fault: not JSON, or not an object.
    """
    return fastjson.config_json(data, path)


def inject(
    path: str, data: bytes, bundle: str, remembered: object, *, engine: bool = False, container: str = ""
) -> None:
    """Gives a container its GPUs: plans, writes below its root, then rewrites its config.json.

    Arguments:
        path: the bundle's config.json, whose bytes are `data`.
        bundle: the bundle's directory.
        remembered: the configuration as `Config.to_data` gave it; None when it could not be read.
        engine: an engine has called: its stderr is the container's, so nothing is said there on success.
        container: its id, for the log.

    Raises:
        Fault: the container asks for something that it cannot have, or the machine lacks what it needs.
    """
    spec = parse(data, path)
    config = Config.from_data(remembered)
    if config is None:
        config = _config_again(spec)
        if config is None:
            return
    log = None
    if config.log_file:
        from gpu_oci_hook import log as log_module

        opened = log_module.open_log(config, container)
        if not isinstance(opened, str):
            log = opened
        elif not engine:
            from gpu_oci_hook import failure

            failure.warn(f"{config.log_file}: the log cannot be written: {opened}")
    try:
        outcome = prepare(spec, config, bundle, state.Memory())
        changed = perform(outcome, spec, path, data)
    except Exception as error:
        if log is not None:
            log.failed(os.path.abspath(bundle), error)
        raise
    if log is not None:
        log.done(outcome.bundle, outcome, changed)


def _config_again(spec: dict[str, object]) -> Config | None:
    """The configuration, or None for a container that asks for nothing: that one starts whatever is wrong."""
    try:
        from gpu_oci_hook import config

        return config.load()
    except Fault:
        try:
            found = read(spec, Config())
            if not found.driver and not found.foreign:
                return None
        except Fault:
            pass
        raise


def prepare(spec: dict[str, object], config: Config, bundle: str, memory: Memory) -> Outcome:
    """Everything up to the plan; changes nothing.

    Raises:
        Fault: see `inject`.
    """
    request = read(spec, config)
    outcome = Outcome(request, Plan("nothing"))
    outcome.bundle = os.path.abspath(bundle)
    outcome.plan.warnings += request.warnings
    if not request.driver and not request.foreign:
        return outcome
    done_by = build.already_done(spec) if request.driver else ""
    if done_by:
        outcome.plan.state = "done"
        outcome.plan.warnings.append(f"a CDI file has injected already (its hook is {done_by}): nothing is added")
    host = Host(config.root)
    if done_by or not request.driver:
        if request.foreign:
            from gpu_oci_hook.cdi import resolution

            resolution.alone(outcome, spec, config, host, memory)
        return outcome
    inside = inside_user_namespace()
    machine = survey(outcome, host, config, load_modules=config.load_modules and not inside)
    if any(ask.name for ask in request.asks):
        from gpu_oci_hook.cdi import resolution

        if resolution.settle(outcome, spec, config, host, memory):
            return outcome
    version = machine.version
    if outcome.special is None and (version is None or (request.asks and not outcome.gpus)):
        from gpu_oci_hook import absent

        absent.tell(outcome, host, config, version, memory, loaded=machine.numbers.loaded)
        return outcome
    version = version or ""
    choose(outcome, host, config, version, memory)
    inventory = outcome.inventory = files_of(outcome, host, config, version, memory)
    if inventory.mismatch:
        text = inventory.problems[0]
        if config.version_mismatch == "fail":
            raise Fault(text)
    if request.requirements:
        from gpu_oci_hook import conditions

        conditions.check(outcome, host, config, version, memory)

    foreign: list[Edit] = []
    seen = spec
    if request.foreign:
        from gpu_oci_hook.cdi import resolution

        foreign, seen = resolution.beside(outcome, spec, config, host, memory)
    facts = given(outcome, machine, config, seen)
    facts.inside = inside
    facts.params = _visible_params(host)
    facts.mount_program = os.path.exists(build.MOUNT_PROGRAM)
    facts.rootfs = root_path(spec, outcome.bundle)
    facts.generated = f"{outcome.bundle}/{GENERATED}"
    facts.prepared = state.place() or facts.generated
    outcome.rootfs = Rootfs(facts.rootfs)
    _refuse_own_root(outcome.rootfs)
    facts.target = outcome.rootfs
    facts.image = outcome.image = image.survey(outcome.rootfs, host.machine)
    facts.datacenter = bool(facts.image.compat) and _datacenter(outcome.chosen)
    plan = build.build(facts)
    plan.warnings += [text for text in outcome.plan.warnings if text not in plan.warnings]
    plan.warnings += [*machine.problems, *inventory.problems]
    plan.edits += foreign
    outcome.plan = plan
    return outcome


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


def _datacenter(chosen: list[tuple[Gpu, str]]) -> bool:
    """Whether all chosen GPUs are of the data-centre class; only an image with compat libraries makes us ask."""
    from gpu_oci_hook.host import versions

    return all(versions.datacenter(gpu.model) for gpu, _ in chosen)


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


def perform(outcome: Outcome, spec: dict[str, object], path: str, data: bytes) -> list[str]:
    """Makes the edits of a plan; what was changed, one line each.

    Below the root first, config.json last and by rename: killed at any moment, the next try starts from the
    old config.json or finds the new one.

    Arguments:
        spec: the parsed config.json, changed in place; `data` are the bytes that it was parsed from.
    """
    if outcome.rootfs is None:
        return []
    spec_edits.apply(spec, outcome.plan.edits)
    # What is wrong with the spec shows here, before anything is touched.
    fresh = fastjson.dumps(spec) + b"\n" if spec != parse(data, path) else b""
    done = apply.below_root(outcome.rootfs, outcome.plan.edits, f"{outcome.bundle}/{GENERATED}")
    if fresh:
        apply.replace(path, fresh)
        done.append(f"rewrote {path}")
    return done


def driver_host(host: Host, config: Config) -> Host:
    """The root that has the driver's files: the machine's own, or a driver container's below it."""
    return host if config.driver_root == "/" else host.below(config.driver_root)


def _refuse_own_root(rootfs: Rootfs) -> None:
    """Nothing is injected into the machine itself: its own driver would be replaced by links to nowhere."""
    if rootfs.is_machine():
        raise Fault(
            "the container's root file system is this machine's own, whose driver would be replaced",
            where=rootfs.path,
            cure="Start the container without asking for a GPU: it sees the machine's own driver and nodes",
        )


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


def inside_user_namespace() -> bool:
    """Whether this very process runs in a user namespace; without /proc we take it that it does not."""
    try:
        fd = os.open("/proc/self/uid_map", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not proc.identity_map(os.read(fd, 4096))
    finally:
        os.close(fd)


def _visible_params(host: Host) -> bytes | None:
    """The module's parameters, if a container will see that file.

    A container's procfs is always the running kernel's, so a simulated host's parameters cannot be seen there.
    """
    if not os.path.exists(build.PARAMS):
        return None
    try:
        return host.read(build.PARAMS, 65536)
    except Fault:
        return None
