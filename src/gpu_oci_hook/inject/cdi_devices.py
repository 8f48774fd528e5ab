"""From the CDI names that a container asks for to edits of its plan.

Names of our own kinds are planned in memory like any word for a GPU, so that no file can be out of date; one that
this machine does not know comes from the file that defines it. Names of other kinds come from files alone, and from
such as fit this host. Cost rule: loaded where a CDI name is used; `apply` and `stale` where a file is.
"""

from __future__ import annotations

from gpu_oci_hook.cdi.registry.registry import Registry
from gpu_oci_hook.cdi.resolved_edits import ResolvedEdits
from gpu_oci_hook.errors import Fault, clip_text
from gpu_oci_hook.files.rootfs import Rootfs, read_rootfs_path
from gpu_oci_hook.files.user_namespace import is_process_in_user_namespace
from gpu_oci_hook.host.gpus import read_driver_version
from gpu_oci_hook.inject.gather import gather_mig_devices
from gpu_oci_hook.model.edits import WithheldItem
from gpu_oci_hook.model.request import DeviceRequest
from gpu_oci_hook.request.cdi_requests import ANNOTATION_ORIGIN, get_own_kinds
from gpu_oci_hook.request.selectors import find_matching_gpus, is_hardware_selector, is_mig_selector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.edits import Edit
    from gpu_oci_hook.model.machine import Cache
    from gpu_oci_hook.model.outcome import Outcome


def resolve_own_cdi_devices(
    outcome: Outcome, spec: dict[str, object], config: Config, host: Host, cache: Cache
) -> bool:
    """Finds out who knows the names of our own kinds that are asked for: this machine, a file, or the engine already.

    Returns:
        Whether the outcome is complete: nothing is left for a plan of ours.

    Raises:
        Fault: a file has to be used and cannot be.
    """
    request = outcome.request
    registry = Registry(host, config.spec_dirs, cache)
    if _is_resolved_by_engine(request.device_requests, spec, host, registry):
        text = "the engine has resolved the annotation already: the edits of the CDI file are there"
        outcome.plan.warnings.append(f"{text}, so no GPU is added")
        request.device_requests, request.needs_driver = (), False
        if not request.cdi_devices:
            outcome.plan.state = "done"
            return True
        plan_cdi_only(outcome, spec, config, host, cache)
        return True
    left: list[DeviceRequest] = []
    moved: list[DeviceRequest] = []
    unused: dict[str, list[str]] = {}
    for ask in request.device_requests:
        path = registry.find_device_file(ask.cdi_name) if ask.cdi_name else ""
        if path and not _is_known_to_host(ask, outcome, host, config, cache):
            moved.append(DeviceRequest(ask.cdi_name, ask.origin, ask.cdi_name))
            continue
        left.append(ask)
        if path:
            unused.setdefault(path, []).append(ask.cdi_name)
    for path, known in unused.items():
        from gpu_oci_hook.cdi.registry.staleness import find_spec_mismatch

        found = find_spec_mismatch(_list_part_edits(registry.resolve_devices(known)), host, read_driver_version(host))
        if found:
            from gpu_oci_hook.cdi.provenance import build_stale_hint

            are = "is" if len(known) == 1 else "are"
            outcome.plan.warnings.append(
                f"{path} is not used for {clip_text(', '.join(known))}, which {are} planned in memory: {found.describe()}. "
                f"{build_stale_hint(known[0].partition('=')[0], path, get_own_kinds(config))}"
            )
    request.device_requests = tuple(left)
    request.cdi_devices = (*moved, *request.cdi_devices)
    if left:
        return False
    request.needs_driver = False
    version = read_driver_version(host)
    if request.requirements and version is not None:
        from gpu_oci_hook.inject.requirements import check_outcome_requirements

        check_outcome_requirements(outcome, host, config, version, cache)
    plan_cdi_only(outcome, spec, config, host, cache)
    return True


def plan_cdi_only(outcome: Outcome, spec: dict[str, object], config: Config, host: Host, cache: Cache) -> None:
    """Makes the plan of a container that gets nothing but what CDI files say.

    Raises:
        Fault: see `translate_cdi_devices`.
    """
    outcome.plan.state = "inject"
    outcome.plan.withheld += [WithheldItem("request", name, reason) for name, reason in outcome.request.withheld]
    outcome.plan.edits = translate_cdi_devices(outcome, spec, config, host, cache)[0]
    outcome.rootfs = Rootfs(read_rootfs_path(spec, outcome.bundle))


def translate_cdi_devices(
    outcome: Outcome, spec: dict[str, object], config: Config, host: Host, cache: Cache
) -> tuple[list[Edit], dict[str, object]]:
    """What CDI files say about the devices of other kinds, as edits for the end of a plan of ours.

    Returns:
        The edits, and the spec that the plan of ours has to reckon with: with the files' mounts, so that neither hides
        the other and a second try finds what the first one has seen.

    Raises:
        Fault: a device that no file defines, or a file that does not fit this host; with the file and the cure.
    """
    from gpu_oci_hook.cdi.translate import translate_cdi_edits
    from gpu_oci_hook.container.cdi_spec_edits import copy_with_cdi_mounts

    asks = {ask.cdi_name: ask.origin for ask in outcome.request.cdi_devices}
    registry = Registry(host, config.spec_dirs, cache)
    unknown = [name for name in asks if not registry.find_device_file(name)]
    if unknown:
        from gpu_oci_hook.cdi.registry.unresolved import make_unresolved_fault

        raise make_unresolved_fault(unknown[0], asks[unknown[0]], len(unknown) - 1, host, config)
    parts = registry.resolve_devices(list(asks))
    _refuse_stale_files(parts, host, config)
    for part in parts:
        common = "common to the devices of its file, for " if part.where == "containerEdits" else ""
        part.reason = f"{common}{part.name} ({part.path}): {asks[part.name]}"
    outcome.cdi_devices = [(name, registry.find_device_file(name), origin) for name, origin in asks.items()]
    made = translate_cdi_edits(parts, spec, host, process_in_user_namespace=is_process_in_user_namespace())
    return made, copy_with_cdi_mounts(spec, made)


def _refuse_stale_files(parts: list[ResolvedEdits], host: Host, config: Config) -> None:
    from gpu_oci_hook.cdi.registry.staleness import find_spec_mismatch

    version = read_driver_version(host)
    for path in dict.fromkeys(part.path for part in parts):
        mine = [part for part in parts if part.path == path]
        found = find_spec_mismatch(_list_part_edits(mine), host, version)
        if found:
            from gpu_oci_hook.cdi.provenance import build_stale_hint

            names = ", ".join(dict.fromkeys(part.name for part in mine))
            kind = mine[0].name.partition("=")[0]
            cure = build_stale_hint(kind, path, get_own_kinds(config))
            raise Fault(f"{names}: the CDI file does not fit this host: {found.describe()}", where=path, hint=cure)


def _list_part_edits(parts: list[ResolvedEdits]) -> list[tuple[str, object]]:
    return [(part.where, part.edits) for part in parts]


def _is_known_to_host(
    device_request: DeviceRequest, outcome: Outcome, host: Host, config: Config, cache: Cache
) -> bool:
    """Whether it is for this machine to say what a word of our own kind names.

    Of its GPUs' numbers and UUIDs always: an old file's node of one that is gone is another GPU's by now.
    """
    if outcome.gpus and is_hardware_selector(device_request.selector):
        return True
    try:
        if is_mig_selector(device_request.selector):
            from gpu_oci_hook.request.mig_selectors import resolve_mig_devices

            version = read_driver_version(host) or ""
            instances = gather_mig_devices(outcome, host, config, version, cache)
            return bool(resolve_mig_devices((device_request,), outcome.gpus, frozenset(), instances))
        return bool(find_matching_gpus(device_request, outcome.gpus))
    except Fault:
        return False


def _is_resolved_by_engine(
    device_requests: tuple[DeviceRequest, ...], spec: dict[str, object], host: Host, registry: Registry
) -> bool:
    """Whether all of it was asked by annotations, and the edits of the files that define it are there.

    Only then has the engine resolved the annotations: it does so for all of them, or fails.
    """
    if not all(
        ask.cdi_name and ask.origin.startswith(ANNOTATION_ORIGIN) and registry.find_device_file(ask.cdi_name)
        for ask in device_requests
    ):
        return False
    from gpu_oci_hook.cdi.translate import translate_cdi_edits
    from gpu_oci_hook.container.cdi_spec_edits import has_cdi_edits

    parts = registry.resolve_devices([ask.cdi_name for ask in device_requests])
    try:
        return has_cdi_edits(
            spec, translate_cdi_edits(parts, spec, host, process_in_user_namespace=is_process_in_user_namespace())
        )
    except Fault:
        return False
