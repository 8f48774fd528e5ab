"""The one way through: config.json to request, host to inventory, both to a plan, and the plan applied.

The shim, `explain` and `apply` all come through here, so they cannot disagree. Cost rule: hot; what is needed
only now and then (modules to load, NVML, a log file) is imported where it is needed.
"""

from __future__ import annotations

import os

from gpu_oci_hook import state, supply
from gpu_oci_hook.config import Config
from gpu_oci_hook.container import apply, image
from gpu_oci_hook.container import spec as spec_edits
from gpu_oci_hook.container.rootfs import Rootfs, root_path
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats import fastjson, proc
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.plan import build
from gpu_oci_hook.plan.edits import Plan
from gpu_oci_hook.request import read

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
    machine = supply.survey(outcome, host, config, load_modules=config.load_modules and not inside)
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
    supply.choose(outcome, host, config, version, memory)
    inventory = outcome.inventory = supply.files_of(outcome, host, config, version, memory)
    if inventory.missing:
        from gpu_oci_hook import absent

        absent.driver(host, config)
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
    facts = supply.given(outcome, machine, config, seen)
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


def _datacenter(chosen: list[tuple[Gpu, str]]) -> bool:
    """Whether all chosen GPUs are of the data-centre class; only an image with compat libraries makes us ask."""
    from gpu_oci_hook.host import versions

    return all(versions.datacenter(gpu.model) for gpu, _ in chosen)


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


def _refuse_own_root(rootfs: Rootfs) -> None:
    """Nothing is injected into the machine itself: its own driver would be replaced by links to nowhere."""
    if rootfs.is_machine():
        raise Fault(
            "the container's root file system is this machine's own, whose driver would be replaced",
            where=rootfs.path,
            cure="Start the container without asking for a GPU: it sees the machine's own driver and nodes",
        )


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
