"""Plan what a container gets, and apply the plan: config.json to request, host to devices and files, both to a plan.

The shim, `explain` and `apply` all use this module, so they cannot disagree.

Import budget: GPU container.
"""

from __future__ import annotations

import os

from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.container.injection_record import has_record, write_record
from gpu_oci_hook.container.rootfs_edits import GENERATED_DIR, apply_to_rootfs, prepare_shared_directories
from gpu_oci_hook.container.spec_edits import apply_to_spec, undo_earlier_edits
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.files.replace import replace_file
from gpu_oci_hook.files.rootfs import Rootfs, read_rootfs_path, refuse_host_root
from gpu_oci_hook.files.user_namespace import is_process_in_user_namespace
from gpu_oci_hook.formats.fastjson import dump_changed_spec, parse_config_json
from gpu_oci_hook.host.device_nodes import is_null_device
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.inject.device_links import make_device_links, plan_device_links
from gpu_oci_hook.inject.gather import (
    choose_devices,
    gather_container_facts,
    gather_inventory,
    gather_machine,
    gather_plan_input,
    lacks_requested_gpu,
)
from gpu_oci_hook.model.edits import Plan, WithheldItem
from gpu_oci_hook.model.outcome import Outcome
from gpu_oci_hook.plan.build import build_plan, find_injecting_cdi_hook, list_gpu_hook_removals
from gpu_oci_hook.request.read import read_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.inject.cdi_devices import CdiEdits
    from gpu_oci_hook.inject.gather import Machine
    from gpu_oci_hook.model.machine import Cache, Gpu, Inventory
    from gpu_oci_hook.model.outcome import ChosenDevices
    from gpu_oci_hook.model.request import Request
    from gpu_oci_hook.reporting.log import StartLog


def inject_gpus(
    path: str,
    data: bytes,
    bundle: str,
    cached_config: object,
    *,
    called_by_engine: bool = False,
    container_id: str = "",
) -> None:
    """Inject the requested GPUs into a container: plan, write below its root, then rewrite its config.json.

    Arguments:
        path: the bundle's config.json; `data` are its bytes.
        bundle: the bundle's directory.
        cached_config: the configuration as `Config.to_data` returns it; None if it could not be read.
        called_by_engine: an engine has called. Its stderr is the container's, so nothing is written there on success.
        container_id: the container's id, for the log.

    Raises:
        Fault: the container requests something that it cannot have, or the machine lacks what it needs.
    """
    spec = parse_config_json(data, path)
    config = Config.from_data(cached_config) or load_config_for_request(spec)
    if config is None:
        apply_to_spec(spec, list_gpu_hook_removals(spec))
        _replace_config_json(path, dump_changed_spec(spec, path, data))
        return
    log = _open_log(config, container_id, called_by_engine=called_by_engine)
    try:
        outcome = prepare_injection(spec, config, bundle, state_dir.StateCache())
        changes = apply_plan(outcome, spec, path, data)
    except Exception as error:
        if log is not None:
            log.log_failure(os.path.abspath(bundle), error)
        raise
    if log is not None:
        log.log_outcome(outcome.bundle, outcome, changes)


def _open_log(config: Config, container_id: str, *, called_by_engine: bool) -> StartLog | None:
    """Open the log file that the configuration names; None if it names none or it cannot be written."""
    if not config.log_file:
        return None
    from gpu_oci_hook.reporting.log import open_start_log

    log = open_start_log(config, container_id)
    if not isinstance(log, str):
        return log
    if not called_by_engine:
        from gpu_oci_hook.reporting.failure import report_warning

        report_warning(f"{config.log_file}: the log cannot be written: {log}")
    return None


def load_config_for_request(spec: dict[str, object]) -> Config | None:
    """Load the configuration; None for a container without a request, which starts even if the file is faulty."""
    try:
        from gpu_oci_hook.config.load import load_config

        return load_config()
    except Fault:
        try:
            request = read_request(spec, Config(), is_null_device)
            if not request.needs_driver and not request.cdi_devices:
                return None
        except Fault:
            pass
        raise


def prepare_injection(
    spec: dict[str, object], config: Config, bundle: str, cache: Cache, rootfs: Rootfs | None = None
) -> Outcome:
    """Plan what a container gets; change nothing. Raises as `inject_gpus` does.

    `rootfs` is the container's root without its mounts; None opens the one that the config.json names.
    """
    bundle = os.path.abspath(bundle)
    if not has_record(generated_dir := f"{bundle}/{GENERATED_DIR}"):
        return _plan_bundle(spec, config, bundle, cache, rootfs)
    from gpu_oci_hook.inject.earlier_injection import plan_again

    return plan_again(spec, generated_dir, lambda stripped: _plan_bundle(stripped, config, bundle, cache))


def _plan_bundle(
    spec: dict[str, object], config: Config, bundle: str, cache: Cache, rootfs: Rootfs | None = None
) -> Outcome:
    """Plan for a bundle into which nothing has been injected."""
    outcome = _plan_container(spec, config, bundle, cache, rootfs)
    if outcome.plan.edits and config.root == "/":
        links, problems = plan_device_links(spec, outcome.plan.edits)
        outcome.plan.edits += links
        outcome.plan.warnings += problems
    # Other programs' GPU hooks go, whatever the request came to.
    outcome.plan.edits[:0] = list_gpu_hook_removals(spec)
    return outcome


def _plan_container(
    spec: dict[str, object], config: Config, bundle: str, cache: Cache, rootfs: Rootfs | None
) -> Outcome:
    """Plan what a container gets, in five steps.

    1. Read the request.
    2. CDI only: a container that does not need the driver gets its CDI devices only.
    3. Gather the machine: GPUs, device numbers, driver version.
    4. Choose the devices, and check the image's requirements against them.
    5. Plan: nodes, driver files and the container's own facts make the list of edits.

    Raises:
        Fault: see `inject_gpus`.
    """
    # 1. Read the request.
    request = read_request(spec, config, is_null_device)
    warnings = [*request.warnings]

    # 2. A container that does not need the driver gets its CDI devices only.
    host = Host(config.root)
    injected = request.needs_driver and bool(program := find_injecting_cdi_hook(spec))
    if injected:
        warnings.append(f"a CDI file has injected already (its hook is {program}): nothing is added")
    if injected or not request.needs_driver:
        cdi = _translate_cdi_devices(request, spec, config, host, cache, warnings)
        return _finish_without_driver(request, spec, bundle, cdi, warnings, injected=injected)

    # 3. Gather the machine.
    load_modules = config.load_modules and not is_process_in_user_namespace()
    machine = gather_machine(request, host, config, cache, load_modules=load_modules, warnings=warnings)
    if any(device_request.cdi_name for device_request in request.device_requests):
        from gpu_oci_hook.inject.cdi_devices import resolve_own_cdi_devices

        injected = resolve_own_cdi_devices(machine, request, spec, warnings)
        if not request.needs_driver:
            if not injected and machine.driver_version is not None:
                _check_requirements(machine, request, [], warnings)
            cdi = _translate_cdi_devices(request, spec, config, host, cache, warnings)
            return _finish_without_driver(request, spec, bundle, cdi, warnings, injected=injected, gpus=machine.gpus)
    if lacks_requested_gpu(machine, request):
        from gpu_oci_hook.inject.no_gpu import report_missing_gpu

        report_missing_gpu(machine, request, warnings)
        return Outcome(request, Plan("nothing", warnings), bundle, gpus=machine.gpus)

    # 4. Choose the devices.
    chosen = choose_devices(machine, request, warnings)
    inventory = gather_matching_inventory(machine, request, chosen)
    _check_requirements(machine, request, chosen.gpus, warnings)

    # 5. Plan.
    cdi = _translate_cdi_devices(request, spec, config, host, cache, warnings)
    planned_spec = cdi.spec if cdi else spec
    rootfs = rootfs or Rootfs(read_rootfs_path(planned_spec, bundle), follow=False)
    return _plan_driver(request, planned_spec, bundle, rootfs, machine, chosen, inventory, cdi, warnings)


def _translate_cdi_devices(
    request: Request, spec: dict[str, object], config: Config, host: Host, cache: Cache, warnings: list[str]
) -> CdiEdits | None:
    """Return the edits of the CDI files that the request needs; None if it needs none."""
    if not request.cdi_devices:
        return None
    from gpu_oci_hook.inject.cdi_devices import translate_cdi_devices

    return translate_cdi_devices(request, spec, config, host, cache, warnings)


def _finish_without_driver(
    request: Request,
    spec: dict[str, object],
    bundle: str,
    cdi: CdiEdits | None,
    warnings: list[str],
    *,
    injected: bool,
    gpus: list[Gpu] | None = None,
) -> Outcome:
    """Return the outcome for a container that gets the edits of CDI files only, or nothing.

    Arguments:
        injected: the driver is in the container already.
    """
    if cdi is None:
        return Outcome(request, Plan("done" if injected else "nothing", warnings), bundle, gpus=gpus)
    plan = Plan("inject", warnings)
    plan.edits = cdi.edits
    plan.withheld = [WithheldItem("request", name, reason) for name, reason in request.withheld]
    rootfs = Rootfs(read_rootfs_path(spec, bundle), follow=False)
    return Outcome(request, plan, bundle, gpus=gpus, rootfs=rootfs, cdi_devices=cdi.devices)


def gather_matching_inventory(machine: Machine, request: Request, chosen: ChosenDevices) -> Inventory:
    """Return the driver's files.

    Raises:
        Fault: their whole root is missing, or they belong to another driver version and policy forbids that.
    """
    inventory = gather_inventory(machine, request, chosen.gpus)
    if inventory.missing_libraries:
        from gpu_oci_hook.inject.no_gpu import check_driver_root

        check_driver_root(machine, request, inventory)
    if inventory.has_version_mismatch:
        from gpu_oci_hook.plan.driver_problems import describe_version_mismatch

        mismatch = describe_version_mismatch(inventory)
        if machine.config.version_mismatch == "fail":
            raise Fault(mismatch)
        machine.problems.append(mismatch)
    return inventory


def _check_requirements(
    machine: Machine, request: Request, chosen_gpus: list[tuple[Gpu, str]], warnings: list[str]
) -> None:
    """Check the image's requirements, if it has any.

    Raises:
        Fault: see `inject.requirements`.
    """
    if request.requirements:
        from gpu_oci_hook.inject.requirements import check_machine_requirements

        check_machine_requirements(machine, request, chosen_gpus, warnings)


def _plan_driver(
    request: Request,
    spec: dict[str, object],
    bundle: str,
    rootfs: Rootfs,
    machine: Machine,
    chosen: ChosenDevices,
    inventory: Inventory,
    cdi: CdiEdits | None,
    warnings: list[str],
) -> Outcome:
    """Build the plan of a container that gets the driver, with the edits of CDI files at its end."""
    refuse_host_root(rootfs)
    container = gather_container_facts(spec, bundle, rootfs, machine, chosen)
    plan = build_plan(gather_plan_input(machine, request, chosen, inventory, container))
    plan.warnings[:] = dict.fromkeys([*plan.warnings, *warnings])
    plan.warnings += [*machine.problems, *inventory.problems]
    if cdi is not None:
        plan.edits += cdi.edits
    return Outcome(
        request,
        plan,
        bundle,
        gpus=machine.gpus,
        chosen=chosen,
        inventory=inventory,
        rootfs=rootfs,
        image=container.image,
        cdi_devices=cdi.devices if cdi is not None else None,
    )


def apply_plan(outcome: Outcome, spec: dict[str, object], path: str, data: bytes) -> list[str]:
    """Make the edits of a plan.

    Files below the container's root come first, config.json last and by rename. If this process is killed at any
    moment, the next run starts from the old config.json or finds the new one.

    Arguments:
        spec: the parsed config.json; changed in place.
        data: the bytes that it was parsed from.

    Returns:
        One line for each change.
    """
    content, changes = make_edits(outcome, spec, path, data)
    return changes + _replace_config_json(path, content)


def make_edits(outcome: Outcome, spec: dict[str, object], path: str, data: bytes) -> tuple[bytes, list[str]]:
    """Make the edits of a plan everywhere but in the file config.json; see `apply_plan`.

    Returns:
        The new content of config.json, b"" if it stays as it is; and one line for each change.
    """
    edits = outcome.plan.edits
    if not edits:
        return b"", []
    generated_dir = f"{outcome.bundle}/{GENERATED_DIR}"
    prepare_shared_directories(edits, generated_dir)
    original, edits = undo_earlier_edits(spec, edits, data)
    apply_to_spec(spec, edits)
    # A spec that is invalid shows here, before anything is written.
    content = dump_changed_spec(spec, path, data)
    changes = apply_to_rootfs(outcome.rootfs, edits, generated_dir) if outcome.rootfs is not None else []
    if content:
        write_record(generated_dir, original, content)
    return content, changes + make_device_links(outcome.plan)


def _replace_config_json(path: str, content: bytes) -> list[str]:
    """Replace config.json, unless there is nothing to write; return a line about it."""
    if content:
        replace_file(path, content, stale_after=0)
    return [f"rewrote {path}"] if content else []
