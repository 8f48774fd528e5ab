"""From the CDI names that a container asks for to edits of its plan.

Names of our own kinds are planned in memory like any word for a GPU, so that no file can be out of date; one that
this machine does not know comes from the file that defines it. Names of other kinds come from files alone, and from
such as fit this host. Cost rule: loaded where a CDI name is used; `apply` and `stale` where a file is.
"""

from __future__ import annotations

from gpu_oci_hook import pipeline, supply
from gpu_oci_hook.cdi.registry import Part, Registry
from gpu_oci_hook.container.rootfs import Rootfs, root_path
from gpu_oci_hook.errors import Fault, clipped
from gpu_oci_hook.host import gpus as host_gpus
from gpu_oci_hook.plan.edits import Withheld
from gpu_oci_hook.request import Ask, devices
from gpu_oci_hook.request.cdi import ANNOTATION, own_kinds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config import Config
    from gpu_oci_hook.host.inventory import Memory
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.pipeline import Outcome
    from gpu_oci_hook.plan.edits import Edit


def settle(outcome: Outcome, spec: dict[str, object], config: Config, host: Host, memory: Memory) -> bool:
    """Finds out who knows the names of our own kinds that are asked for: this machine, a file, or the engine already.

    Returns:
        Whether the outcome is complete: nothing is left for a plan of ours.

    Raises:
        Fault: a file has to be used and cannot be.
    """
    request = outcome.request
    registry = Registry(host, config.spec_dirs, memory)
    if _resolved_by_engine(request.asks, spec, host, registry):
        text = "the engine has resolved the annotation already: the edits of the CDI file are there"
        outcome.plan.warnings.append(f"{text}, so no GPU is added")
        request.asks, request.driver = (), False
        if not request.foreign:
            outcome.plan.state = "done"
            return True
        alone(outcome, spec, config, host, memory)
        return True
    left: list[Ask] = []
    moved: list[Ask] = []
    unused: dict[str, list[str]] = {}
    for ask in request.asks:
        path = registry.file(ask.name) if ask.name else ""
        if path and not _known(ask, outcome, host, config, memory):
            moved.append(Ask(ask.name, ask.origin, ask.name))
            continue
        left.append(ask)
        if path:
            unused.setdefault(path, []).append(ask.name)
    for path, known in unused.items():
        from gpu_oci_hook.cdi import stale

        found = stale.look(_said(registry.resolve(known)), host, host_gpus.version(host))
        if found:
            are = "is" if len(known) == 1 else "are"
            outcome.plan.warnings.append(
                f"{path} is not used for {clipped(', '.join(known))}, which {are} planned in memory: {found.text()}. "
                f"{stale.cure(known[0].partition('=')[0], path, own_kinds(config))}"
            )
    request.asks = tuple(left)
    request.foreign = (*moved, *request.foreign)
    if left:
        return False
    request.driver = False
    version = host_gpus.version(host)
    if request.requirements and version is not None:
        from gpu_oci_hook import conditions

        conditions.check(outcome, host, config, version, memory)
    alone(outcome, spec, config, host, memory)
    return True


def alone(outcome: Outcome, spec: dict[str, object], config: Config, host: Host, memory: Memory) -> None:
    """Makes the plan of a container that gets nothing but what CDI files say.

    Raises:
        Fault: see `beside`.
    """
    outcome.plan.state = "inject"
    outcome.plan.withheld += [Withheld("request", name, reason) for name, reason in outcome.request.withheld]
    outcome.plan.edits = beside(outcome, spec, config, host, memory)[0]
    outcome.rootfs = Rootfs(root_path(spec, outcome.bundle))


def beside(
    outcome: Outcome, spec: dict[str, object], config: Config, host: Host, memory: Memory
) -> tuple[list[Edit], dict[str, object]]:
    """What CDI files say about the devices of other kinds, as edits for the end of a plan of ours.

    Returns:
        The edits, and the spec that the plan of ours has to reckon with: with the files' mounts, so that neither hides
        the other and a second try finds what the first one has seen.

    Raises:
        Fault: a device that no file defines, or a file that does not fit this host; with the file and the cure.
    """
    from gpu_oci_hook.cdi import apply

    asks = {ask.name: ask.origin for ask in outcome.request.foreign}
    registry = Registry(host, config.spec_dirs, memory)
    unknown = [name for name in asks if not registry.file(name)]
    if unknown:
        from gpu_oci_hook.cdi import causes

        raise causes.fault(unknown[0], asks[unknown[0]], len(unknown) - 1, host, config)
    parts = registry.resolve(list(asks))
    _refuse_stale(parts, host, config)
    for part in parts:
        common = "common to the devices of its file, for " if part.where == "containerEdits" else ""
        part.reason = f"{common}{part.name} ({part.path}): {asks[part.name]}"
    outcome.cdi = [(name, registry.file(name), origin) for name, origin in asks.items()]
    made = apply.edits(parts, spec, host, inside=pipeline.inside_user_namespace())
    return made, apply.with_mounts(spec, made)


def _refuse_stale(parts: list[Part], host: Host, config: Config) -> None:
    from gpu_oci_hook.cdi import stale

    version = host_gpus.version(host)
    for path in dict.fromkeys(part.path for part in parts):
        mine = [part for part in parts if part.path == path]
        found = stale.look(_said(mine), host, version)
        if found:
            names = ", ".join(dict.fromkeys(part.name for part in mine))
            kind = mine[0].name.partition("=")[0]
            cure = stale.cure(kind, path, own_kinds(config))
            raise Fault(f"{names}: the CDI file does not fit this host: {found.text()}", where=path, cure=cure)


def _said(parts: list[Part]) -> list[tuple[str, object]]:
    return [(part.where, part.edits) for part in parts]


def _known(ask: Ask, outcome: Outcome, host: Host, config: Config, memory: Memory) -> bool:
    """Whether it is for this machine to say what a word of our own kind names.

    Of its GPUs' numbers and UUIDs always: an old file's node of one that is gone is another GPU's by now.
    """
    if outcome.gpus and devices.names_hardware(ask.word):
        return True
    try:
        if devices.names_mig(ask.word):
            from gpu_oci_hook.request import mig

            version = host_gpus.version(host) or ""
            instances = supply.mig_instances(outcome, host, config, version, memory)
            return bool(mig.resolve((ask,), outcome.gpus, frozenset(), instances))
        return bool(devices.matching(ask, outcome.gpus))
    except Fault:
        return False


def _resolved_by_engine(asks: tuple[Ask, ...], spec: dict[str, object], host: Host, registry: Registry) -> bool:
    """Whether all of it was asked by annotations, and the edits of the files that define it are there.

    Only then has the engine resolved the annotations: it does so for all of them, or fails.
    """
    if not all(ask.name and ask.origin.startswith(ANNOTATION) and registry.file(ask.name) for ask in asks):
        return False
    from gpu_oci_hook.cdi import apply

    parts = registry.resolve([ask.name for ask in asks])
    try:
        return apply.made(spec, apply.edits(parts, spec, host, inside=pipeline.inside_user_namespace()))
    except Fault:
        return False
