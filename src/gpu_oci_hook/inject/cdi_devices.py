"""Resolve the CDI names of a request: our own kinds are planned in memory, other kinds come from CDI files.

A device of our own kind is planned like any selector for a GPU, so that no file can be out of date. One that this
machine does not know comes from the file that defines it. A file that does not fit this host is refused.

Import budget: CDI.
"""

from __future__ import annotations

from gpu_oci_hook.cdi.registry.registry import Registry
from gpu_oci_hook.cdi.resolved_edits import ResolvedEdits, list_part_devices
from gpu_oci_hook.errors import Fault, clip_text
from gpu_oci_hook.files.user_namespace import is_process_in_user_namespace
from gpu_oci_hook.host.gpus import read_driver_version
from gpu_oci_hook.inject.gather import gather_mig_devices
from gpu_oci_hook.model.edits import AddDeviceNode, AddMount
from gpu_oci_hook.model.request import DeviceRequest
from gpu_oci_hook.request.cdi_requests import ANNOTATION_ORIGIN, get_own_kinds
from gpu_oci_hook.request.selectors import find_matching_gpus, is_hardware_selector, is_mig_selector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.inject.gather import Machine
    from gpu_oci_hook.model.edits import Edit
    from gpu_oci_hook.model.machine import Cache
    from gpu_oci_hook.model.outcome import CdiDevice
    from gpu_oci_hook.model.request import Request


class CdiEdits:
    """The edits that CDI files make for a request.

    Attributes:
        edits: they belong at the end of a plan.
        devices: the devices that the files define.
        spec: the config.json with the files' mounts. Our own plan is made for this one, so that neither hides a mount
            of the other, and a second run plans the same as the first.
    """

    __slots__ = ("devices", "edits", "spec")

    def __init__(self, edits: list[Edit], devices: list[CdiDevice], spec: dict[str, object]) -> None:
        self.edits = edits
        self.devices = devices
        self.spec = spec


def resolve_own_cdi_devices(machine: Machine, request: Request, spec: dict[str, object], warnings: list[str]) -> bool:
    """Decide for each requested device of our own kinds where its edits come from; update the request accordingly.

    A device that this machine knows stays in `request.device_requests`. One that only a CDI file defines moves to
    `request.cdi_devices`. If the engine has made the edits already, all of them are removed. `request.needs_driver`
    becomes false if no device request is left.

    Returns:
        Whether the engine has made the edits already.

    Raises:
        Fault: a file has to be used and cannot be.
    """
    registry = Registry(machine.host, machine.config.spec_dirs, machine.cache)
    if _is_resolved_by_engine(request.device_requests, spec, machine.host, registry):
        text = "the engine has resolved the annotation already: the edits of the CDI file are there"
        warnings.append(f"{text}, so no GPU is added")
        request.device_requests, request.needs_driver = (), False
        return True
    known: list[DeviceRequest] = []
    from_file: list[DeviceRequest] = []
    unused_files: dict[str, list[str]] = {}
    for device_request in request.device_requests:
        name = device_request.cdi_name
        path = registry.find_device_file(name) if name else ""
        if path and not _is_known_to_machine(device_request, machine):
            from_file.append(DeviceRequest(name, device_request.origin, name))
            continue
        known.append(device_request)
        if path:
            unused_files.setdefault(path, []).append(name)
    for path, names in unused_files.items():
        _warn_about_stale_file(path, names, registry, machine, warnings)
    request.device_requests = tuple(known)
    request.cdi_devices = (*from_file, *request.cdi_devices)
    request.needs_driver = bool(known)
    return False


def _warn_about_stale_file(
    path: str, names: list[str], registry: Registry, machine: Machine, warnings: list[str]
) -> None:
    """Add a warning if a file for devices that are planned in memory does not fit this host."""
    from gpu_oci_hook.cdi.registry.staleness import find_spec_mismatch

    parts = registry.resolve_devices(names)
    mismatch = find_spec_mismatch(
        _list_part_edits(parts), machine.host, read_driver_version(machine.host), list_part_devices(parts)
    )
    if mismatch:
        from gpu_oci_hook.cdi.provenance import build_stale_hint

        verb = "is" if len(names) == 1 else "are"
        hint = build_stale_hint(
            names[0].partition("=")[0], path, get_own_kinds(machine.config), missing_program=mismatch.missing_program
        )
        warnings.append(
            f"{path} is not used for {clip_text(', '.join(names))}, which {verb} planned in memory: "
            f"{mismatch.describe()}. {hint}"
        )


def translate_cdi_devices(
    request: Request, spec: dict[str, object], config: Config, host: Host, cache: Cache, warnings: list[str]
) -> CdiEdits:
    """Translate what CDI files define for the requested devices to edits of a plan.

    Arguments:
        warnings: takes a sentence for each requirement of the image that is not checked.

    Raises:
        Fault: no file defines a device, or a file does not fit this host, with the file and a hint; or a file brings
            NVIDIA's nodes, and the image's requirements are not met.
    """
    from gpu_oci_hook.cdi.translate import translate_cdi_edits
    from gpu_oci_hook.container.cdi_spec_edits import copy_with_cdi_mounts

    origins = {device_request.cdi_name: device_request.origin for device_request in request.cdi_devices}
    registry = Registry(host, config.spec_dirs, cache)
    undefined = [name for name in origins if not registry.find_device_file(name)]
    if undefined:
        from gpu_oci_hook.cdi.registry.unresolved import make_unresolved_fault

        raise make_unresolved_fault(undefined[0], origins[undefined[0]], len(undefined) - 1, host, config)
    parts = registry.resolve_devices(list(origins))
    _refuse_stale_files(parts, host, config)
    for part in parts:
        common = "common to the devices of its file, for " if part.where == "containerEdits" else ""
        part.reason = f"{common}{part.name} ({part.path}): {origins[part.name]}"
    devices = [(name, registry.find_device_file(name), origin) for name, origin in origins.items()]
    edits = translate_cdi_edits(parts, spec, host, process_in_user_namespace=is_process_in_user_namespace())
    _check_cdi_requirements(edits, spec, config, host, cache, warnings)
    return CdiEdits(edits, devices, copy_with_cdi_mounts(spec, edits))


def _check_cdi_requirements(
    edits: list[Edit], spec: dict[str, object], config: Config, host: Host, cache: Cache, warnings: list[str]
) -> None:
    """Check the image's requirements if a CDI file brings NVIDIA's nodes, as for a GPU that is planned in memory.

    Raises:
        Fault: a requirement is not met; see `inject.requirements`.
    """
    paths = [edit.path for edit in edits if isinstance(edit, AddDeviceNode)]
    paths += [edit.destination for edit in edits if isinstance(edit, AddMount)]
    if not any(path.startswith("/dev/nvidia") for path in paths):
        return
    from gpu_oci_hook.request.require_variables import read_requirements_only

    request = read_requirements_only(spec, config)
    version = read_driver_version(host)
    if not request.requirements or version is None:
        return
    from gpu_oci_hook.host.gpus import read_machine_gpus
    from gpu_oci_hook.inject.requirements import check_host_requirements

    found = read_machine_gpus(host, config.platform)
    gpus = found.gpus if found.platform else [gpu for gpu in found.gpus if f"/dev/nvidia{gpu.minor}" in paths]
    new_warnings = [text for text in request.warnings if text not in warnings]
    check_host_requirements(request, gpus, found.platform, host, config, version, cache, new_warnings)
    warnings += [text for text in new_warnings if text not in warnings]


def _refuse_stale_files(parts: list[ResolvedEdits], host: Host, config: Config) -> None:
    from gpu_oci_hook.cdi.registry.staleness import find_spec_mismatch

    version = read_driver_version(host)
    for path in dict.fromkeys(part.path for part in parts):
        file_parts = [part for part in parts if part.path == path]
        mismatch = find_spec_mismatch(_list_part_edits(file_parts), host, version, list_part_devices(file_parts))
        if mismatch:
            from gpu_oci_hook.cdi.provenance import build_stale_hint

            names = ", ".join(dict.fromkeys(part.name for part in file_parts))
            kind = file_parts[0].name.partition("=")[0]
            own_kinds = get_own_kinds(config)
            hint = build_stale_hint(kind, path, own_kinds, missing_program=mismatch.missing_program)
            raise Fault(f"{names}: the CDI file does not fit this host: {mismatch.describe()}", where=path, hint=hint)


def _list_part_edits(parts: list[ResolvedEdits]) -> list[tuple[str, object]]:
    return [(part.where, part.edits) for part in parts]


def _is_known_to_machine(device_request: DeviceRequest, machine: Machine) -> bool:
    """Tell whether this machine itself decides what a selector of our own kind names.

    For indices and UUIDs of GPUs it always does: the node of a GPU that an old file names can be another GPU's by now.
    """
    if machine.gpus and is_hardware_selector(device_request.selector):
        return True
    try:
        if is_mig_selector(device_request.selector):
            from gpu_oci_hook.request.mig_selectors import resolve_mig_devices

            version = machine.driver_version or ""
            mig_devices = gather_mig_devices(machine.host, machine.config, machine.gpus, version, machine.cache)
            return bool(resolve_mig_devices((device_request,), machine.gpus, frozenset(), mig_devices))
        return bool(find_matching_gpus(device_request, machine.gpus))
    except Fault:
        return False


def _is_resolved_by_engine(
    device_requests: tuple[DeviceRequest, ...], spec: dict[str, object], host: Host, registry: Registry
) -> bool:
    """Tell whether the engine has resolved the annotations that request the devices.

    An engine resolves all annotations or fails. So it has if every device comes from an annotation and the edits of
    its file are in the config.json.
    """
    if not all(
        device_request.cdi_name
        and device_request.origin.startswith(ANNOTATION_ORIGIN)
        and registry.find_device_file(device_request.cdi_name)
        for device_request in device_requests
    ):
        return False
    from gpu_oci_hook.cdi.translate import translate_cdi_edits
    from gpu_oci_hook.container.cdi_spec_edits import has_cdi_edits

    parts = registry.resolve_devices([device_request.cdi_name for device_request in device_requests])
    try:
        return has_cdi_edits(
            spec, translate_cdi_edits(parts, spec, host, process_in_user_namespace=is_process_in_user_namespace())
        )
    except Fault:
        return False
