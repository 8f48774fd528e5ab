"""The one way through: config.json to request, host to inventory, both to a plan, and the plan applied.

The shim, `explain` and `apply` all come through here, so they cannot disagree. Cost rule: hot; what is needed
only now and then (modules to load, NVML, a log file) is imported where it is needed.
"""

from __future__ import annotations

import os

from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.container.image import inspect_image
from gpu_oci_hook.container.rootfs_edits import GENERATED_DIR, apply_to_rootfs, replace_file
from gpu_oci_hook.container.spec_edits import apply_to_spec
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.files.rootfs import Rootfs, read_rootfs_path
from gpu_oci_hook.files.user_namespace import is_process_in_user_namespace
from gpu_oci_hook.formats.fastjson import dump_json, parse_config_json
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.inject.gather import choose_devices, gather_inventory, gather_machine, gather_plan_input
from gpu_oci_hook.model.edits import Plan
from gpu_oci_hook.model.outcome import Outcome
from gpu_oci_hook.plan.build import DRIVER_PARAMS, MOUNT_PROGRAM, build_plan, find_injecting_cdi_hook
from gpu_oci_hook.request.read import read_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.edits import Edit
    from gpu_oci_hook.model.machine import Cache, Gpu


def parse_bundle_spec(data: bytes, path: str) -> dict[str, object]:
    """The object in a config.json's bytes.

    Raises:
        Fault: not JSON, or not an object.
    """
    return parse_config_json(data, path)


def inject_gpus(
    path: str,
    data: bytes,
    bundle: str,
    cached_config: object,
    *,
    called_by_engine: bool = False,
    container_id: str = "",
) -> None:
    """Gives a container its GPUs: plans, writes below its root, then rewrites its config.json.

    Arguments:
        path: the bundle's config.json, whose bytes are `data`.
        bundle: the bundle's directory.
        cached_config: the configuration as `Config.to_data` gave it; None when it could not be read.
        called_by_engine: an engine has called: its stderr is the container's, so nothing is said there on success.
        container_id: its id, for the log.

    Raises:
        Fault: the container asks for something that it cannot have, or the machine lacks what it needs.
    """
    spec = parse_bundle_spec(data, path)
    config = Config.from_data(cached_config)
    if config is None:
        config = _reload_config(spec)
        if config is None:
            return
    log = None
    if config.log_file:
        from gpu_oci_hook.reporting.log import open_start_log

        opened = open_start_log(config, container_id)
        if not isinstance(opened, str):
            log = opened
        elif not called_by_engine:
            from gpu_oci_hook.reporting.failure import report_warning

            report_warning(f"{config.log_file}: the log cannot be written: {opened}")
    try:
        outcome = prepare_injection(spec, config, bundle, state_dir.StateCache())
        changed = apply_plan(outcome, spec, path, data)
    except Exception as error:
        if log is not None:
            log.log_failure(os.path.abspath(bundle), error)
        raise
    if log is not None:
        log.log_outcome(outcome.bundle, outcome, changed)


def _reload_config(spec: dict[str, object]) -> Config | None:
    """The configuration, or None for a container that asks for nothing: that one starts whatever is wrong."""
    try:
        from gpu_oci_hook.config.load import load_config

        return load_config()
    except Fault:
        try:
            found = read_request(spec, Config())
            if not found.needs_driver and not found.cdi_devices:
                return None
        except Fault:
            pass
        raise


def prepare_injection(spec: dict[str, object], config: Config, bundle: str, cache: Cache) -> Outcome:
    """Everything up to the plan; changes nothing.

    Raises:
        Fault: see `inject_gpus`.
    """
    request = read_request(spec, config)
    outcome = Outcome(request, Plan("nothing"))
    outcome.bundle = os.path.abspath(bundle)
    outcome.plan.warnings += request.warnings
    if not request.needs_driver and not request.cdi_devices:
        return outcome
    done_by = find_injecting_cdi_hook(spec) if request.needs_driver else ""
    if done_by:
        outcome.plan.state = "done"
        outcome.plan.warnings.append(f"a CDI file has injected already (its hook is {done_by}): nothing is added")
    host = Host(config.root)
    if done_by or not request.needs_driver:
        if request.cdi_devices:
            from gpu_oci_hook.inject.cdi_devices import plan_cdi_only

            plan_cdi_only(outcome, spec, config, host, cache)
        return outcome
    inside = is_process_in_user_namespace()
    machine = gather_machine(outcome, host, config, load_modules=config.load_modules and not inside)
    if any(ask.cdi_name for ask in request.device_requests):
        from gpu_oci_hook.inject.cdi_devices import resolve_own_cdi_devices

        if resolve_own_cdi_devices(outcome, spec, config, host, cache):
            return outcome
    version = machine.driver_version
    if outcome.platform is None and (version is None or (request.device_requests and not outcome.gpus)):
        from gpu_oci_hook.inject.no_gpu import report_missing_gpu

        report_missing_gpu(outcome, host, config, version, cache, nvidia_loaded=machine.majors.nvidia_loaded)
        return outcome
    version = version or ""
    choose_devices(outcome, host, config, version, cache)
    inventory = outcome.inventory = gather_inventory(outcome, host, config, version, cache)
    if inventory.missing_libraries:
        from gpu_oci_hook.inject.no_gpu import check_driver_root

        check_driver_root(host, config)
    problems = list(inventory.problems)
    if inventory.has_version_mismatch:
        from gpu_oci_hook.plan.driver_problems import describe_version_mismatch

        problems.insert(0, describe_version_mismatch(inventory))
        if config.version_mismatch == "fail":
            raise Fault(problems[0])
    if request.requirements:
        from gpu_oci_hook.inject.requirements import check_outcome_requirements

        check_outcome_requirements(outcome, host, config, version, cache)

    foreign: list[Edit] = []
    seen = spec
    if request.cdi_devices:
        from gpu_oci_hook.inject.cdi_devices import translate_cdi_devices

        foreign, seen = translate_cdi_devices(outcome, spec, config, host, cache)
    facts = gather_plan_input(outcome, machine, config, seen)
    facts.process_in_user_namespace = inside
    facts.driver_params = _read_visible_params(host)
    facts.has_mount_program = os.path.exists(MOUNT_PROGRAM)
    facts.rootfs_path = read_rootfs_path(spec, outcome.bundle)
    facts.generated_dir = f"{outcome.bundle}/{GENERATED_DIR}"
    facts.shared_dir = state_dir.find_state_directory() or facts.generated_dir
    outcome.rootfs = Rootfs(facts.rootfs_path)
    _refuse_host_root(outcome.rootfs)
    facts.rootfs_reader = outcome.rootfs
    facts.image = outcome.image = inspect_image(outcome.rootfs, host.machine)
    facts.datacenter_only = bool(facts.image.compat_libcudas) and _are_all_datacenter_gpus(outcome.chosen_gpus)
    plan = build_plan(facts)
    plan.warnings += [text for text in outcome.plan.warnings if text not in plan.warnings]
    plan.warnings += [*machine.problems, *problems]
    plan.edits += foreign
    outcome.plan = plan
    return outcome


def _are_all_datacenter_gpus(chosen: list[tuple[Gpu, str]]) -> bool:
    """Whether all chosen GPUs are of the data-centre class; only an image with compat libraries makes us ask."""
    from gpu_oci_hook.host.model_tables import is_datacenter_gpu

    return all(is_datacenter_gpu(gpu.model) for gpu, _ in chosen)


def apply_plan(outcome: Outcome, spec: dict[str, object], path: str, data: bytes) -> list[str]:
    """Makes the edits of a plan; what was changed, one line each.

    Below the root first, config.json last and by rename: killed at any moment, the next try starts from the
    old config.json or finds the new one.

    Arguments:
        spec: the parsed config.json, changed in place; `data` are the bytes that it was parsed from.
    """
    if outcome.rootfs is None:
        return []
    apply_to_spec(spec, outcome.plan.edits)
    # What is wrong with the spec shows here, before anything is touched.
    fresh = dump_json(spec) + b"\n" if spec != parse_bundle_spec(data, path) else b""
    done = apply_to_rootfs(outcome.rootfs, outcome.plan.edits, f"{outcome.bundle}/{GENERATED_DIR}")
    if fresh:
        replace_file(path, fresh)
        done.append(f"rewrote {path}")
    return done


def _refuse_host_root(rootfs: Rootfs) -> None:
    """Nothing is injected into the machine itself: its own driver would be replaced by links to nowhere."""
    if rootfs.is_host_root():
        raise Fault(
            "the container's root file system is this machine's own, whose driver would be replaced",
            where=rootfs.path,
            hint="Start the container without asking for a GPU: it sees the machine's own driver and nodes",
        )


def _read_visible_params(host: Host) -> bytes | None:
    """The module's parameters, if a container will see that file.

    A container's procfs is always the running kernel's, so a simulated host's parameters cannot be seen there.
    """
    if not os.path.exists(DRIVER_PARAMS):
        return None
    try:
        return host.read_file(DRIVER_PARAMS, 65536)
    except Fault:
        return None
