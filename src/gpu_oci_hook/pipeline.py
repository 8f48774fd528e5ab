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
from gpu_oci_hook.container.rootfs import Rootfs
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats import fastjson, proc
from gpu_oci_hook.host import gpus as host_gpus
from gpu_oci_hook.host import inventory as host_inventory
from gpu_oci_hook.host import nodes as host_nodes
from gpu_oci_hook.host import versions
from gpu_oci_hook.host.extra import Extra
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.plan import build
from gpu_oci_hook.plan.edits import Plan
from gpu_oci_hook.plan.facts import Facts
from gpu_oci_hook.request import devices, member, read, requirements

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.inventory import Gpu, Inventory, Memory
    from gpu_oci_hook.request import Request

GENERATED = "gpu-oci-hook"


class Outcome:
    """What became of one bundle's request.

    Attributes:
        request, plan: see their classes.
        gpus: all GPUs of the machine; `chosen` those that go in.
        inventory: None when the container does not get as far.
        rootfs: the container's root file system, held; None when the container does not get as far.
        image: facts about it.
    """

    __slots__ = ("bundle", "chosen", "gpus", "image", "inventory", "plan", "request", "rootfs")

    def __init__(self, request: Request, plan: Plan) -> None:
        self.request = request
        self.plan = plan
        self.gpus: list[Gpu] = []
        self.chosen: list[tuple[Gpu, str]] = []
        self.inventory: Inventory | None = None
        self.rootfs: Rootfs | None = None
        self.image: image.Image | None = None
        self.bundle = ""


def parse(data: bytes, path: str) -> dict[str, object]:
    """The object in a config.json's bytes.

    Raises:
        Fault: not JSON, or not an object.
    """
    try:
        found = fastjson.loads(data)
    except Fault as fault:
        raise Fault(f"the bundle's configuration is refused: {fault}", where=path) from None
    if not isinstance(found, dict):
        raise Fault("the bundle's configuration is refused: it is not an object", where=path)
    return found


def inject(path: str, data: bytes, bundle: str, remembered: object, *, engine: bool = False) -> None:
    """Gives a container its GPUs: plans, writes below its root, then rewrites its config.json.

    Arguments:
        path: the bundle's config.json, whose bytes are `data`.
        bundle: the bundle's directory.
        remembered: the configuration as `Config.to_data` gave it; None when it could not be read.
        engine: an engine has called: its stderr is the container's, so nothing is said there on success.

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

        opened = log_module.open_log(config)
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
            log.failed(bundle, error)
        raise
    if log is not None:
        log.done(bundle, outcome, changed)


def _config_again(spec: dict[str, object]) -> Config | None:
    """The configuration, or None for a container that asks for nothing: that one starts whatever is wrong."""
    try:
        from gpu_oci_hook import config

        return config.load()
    except Fault:
        try:
            if not read(spec, Config()).driver:
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
    if not request.driver:
        return outcome
    done_by = build.already_done(spec)
    if done_by:
        outcome.plan.state = "done"
        outcome.plan.warnings.append(f"a CDI file has injected already (its hook is {done_by}): nothing is added")
        return outcome
    host = Host(config.root)
    inside = _inside_user_namespace()
    numbers = host_nodes.majors(host)
    if config.load_modules and not inside and _lacks_module(numbers, request):
        from gpu_oci_hook.host import modules

        numbers = modules.load(host, numbers, request.capabilities, outcome.plan.warnings)
    version = host_gpus.version(host)
    outcome.gpus, problems = host_gpus.gpus(host)
    if version is None or (request.asks and not outcome.gpus):
        return _missing(outcome, host, config, numbers, version, memory)
    outcome.chosen = devices.resolve(request.asks, outcome.gpus)
    inventory = host_inventory.load(host, driver_host(host, config), config.library_paths, version, memory)
    outcome.inventory = inventory
    if inventory.mismatch:
        text = inventory.problems[0]
        if config.version_mismatch == "fail":
            raise Fault(text)
    check_requirements(request, [gpu for gpu, _ in outcome.chosen], version, memory, outcome.plan.warnings)

    facts = Facts()
    facts.spec, facts.request, facts.config, facts.inventory = spec, request, config, inventory
    facts.gpus, facts.chosen, facts.inside = outcome.gpus, outcome.chosen, inside
    defaults = host_nodes.params(host)
    facts.nodes, facts.absent_nodes = host_nodes.control_nodes(host, numbers, defaults, problems)
    facts.gpu_nodes = {
        gpu.minor: host_nodes.gpu_node(host, numbers, gpu.minor, defaults, problems) for gpu, _ in outcome.chosen
    }
    facts.extra = extras(host, numbers, defaults, outcome, config, problems)
    facts.params = _visible_params(host)
    facts.mount_program = os.path.exists(build.MOUNT_PROGRAM)
    facts.datacenter = all(versions.datacenter(gpu.model) for gpu, _ in outcome.chosen)
    facts.rootfs = root_path(spec, outcome.bundle)
    facts.generated = f"{outcome.bundle}/{GENERATED}"
    facts.prepared = state.place() or facts.generated
    outcome.rootfs = Rootfs(facts.rootfs)
    _refuse_own_root(outcome.rootfs)
    facts.target = outcome.rootfs
    facts.image = outcome.image = image.survey(outcome.rootfs, host.machine)
    plan = build.build(facts)
    plan.warnings += [text for text in outcome.plan.warnings if text not in plan.warnings]
    plan.warnings += [*problems, *inventory.problems]
    outcome.plan = plan
    return outcome


def extras(
    host: Host,
    numbers: host_nodes.Majors,
    defaults: host_nodes.Params,
    outcome: Outcome,
    config: Config,
    problems: list[str],
) -> Extra:
    """Everything beside the driver's own nodes and files; each kind's module is imported only when it is asked for."""
    return Extra()


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


def root_path(spec: object, bundle: str) -> str:
    """The absolute path of the container's root file system.

    Raises:
        Fault: `root.path` is missing or no text.
    """
    path = member(spec, "root", "path")
    if not isinstance(path, str) or not path or "\0" in path:
        raise Fault('"root.path" is missing', where=f"{bundle}/config.json")
    return os.path.abspath(os.path.join(bundle, path))


def _refuse_own_root(rootfs: Rootfs) -> None:
    """Nothing is injected into the machine itself: its own driver would be replaced by links to nowhere."""
    status = rootfs.status("/")
    if status is not None and os.path.samestat(status, os.stat("/")):
        raise Fault(
            "the container's root file system is this machine's own, whose driver would be replaced",
            where=rootfs.path,
            cure="Start the container without asking for a GPU: it sees the machine's own driver and nodes",
        )


def check_requirements(
    request: Request, chosen: list[Gpu], version: str, memory: Memory, warnings: list[str]
) -> None:
    """Holds `NVIDIA_REQUIRE_*` against the host, GPU by GPU; NVML is asked only for what no table knows.

    Raises:
        Fault: one is not met, or cannot be decided.
    """
    if not request.requirements:
        return
    if request.requirements_off:
        warnings.append(f"requirements are not checked: {request.requirements_off}")
        return
    exact, at_least = versions.cuda_version(version)
    hosts = [
        requirements.Values(
            f"GPU {gpu.index} ({gpu.model})",
            cuda=exact,
            cuda_at_least=at_least,
            driver=version,
            arch=versions.arch(gpu.model),
            brand=versions.brands(gpu.model),
        )
        for gpu in chosen
    ] or [
        requirements.Values(
            "this host", cuda=exact, cuda_at_least=at_least, driver=version, arch="", brand=()
        )
    ]
    unknown = requirements.check(request.requirements, hosts, warnings)
    if not unknown:
        return
    from gpu_oci_hook.host import answers

    reason = answers.fill(hosts, chosen, version, unknown, memory)
    unknown = requirements.check(request.requirements, hosts, [])
    if unknown:
        raise requirements.unanswered(request.requirements, hosts, unknown, reason)


def _missing(
    outcome: Outcome,
    host: Host,
    config: Config,
    numbers: host_nodes.Majors,
    version: str | None,
    memory: Memory,
) -> Outcome:
    """No GPU on the machine: fails or warns, by policy, with what is missing."""
    found = host_inventory.load(host, driver_host(host, config), config.library_paths, version, memory)
    missing = []
    if version is None:
        loaded = "its device numbers are there" if numbers.loaded else "no nvidia in /proc/devices"
        missing.append(f"the kernel module nvidia is not loaded ({loaded}, no /proc/driver/nvidia/version)")
    elif not outcome.gpus:
        missing.append(f"the kernel module {version} is loaded but has no GPU in /proc/driver/nvidia/gpus")
    missing.append(
        "driver libraries are installed"
        if any(file.kind == "library" for file in found.files)
        else "no driver libraries are installed (see gpu-oci-hook list)"
    )
    text = f"this machine has no NVIDIA GPU to give: {'; '.join(missing)}"
    if config.missing_gpu == "fail":
        raise Fault(
            text,
            where=outcome.request.origin,
            cure='Install or load the driver, or set [request] missing-gpu = "warn" to start without a GPU',
        )
    outcome.plan.warnings.append(f"{text}; the container starts without a GPU")
    return outcome


def _lacks_module(numbers: host_nodes.Majors, request: Request) -> bool:
    if not numbers.loaded:
        return True
    compute = "compute" in request.capabilities or "video" in request.capabilities
    return compute and numbers.uvm is None


def _inside_user_namespace() -> bool:
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
