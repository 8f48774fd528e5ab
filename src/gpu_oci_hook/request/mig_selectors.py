"""Resolve selectors of MIG devices: `0:1`, a UUID or a unique prefix of one, `MIG-GPU-<uuid>/<gi>/<ci>`, `all`.

NVML is queried through `MigDevices`, and only for a selector that is a UUID.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault, clip_text
from gpu_oci_hook.model.request import DeviceRequest
from gpu_oci_hook.request.environment import MIG_RIGHT_VARIABLES
from gpu_oci_hook.request.selectors import (
    MIN_UUID_PREFIX,
    format_ids,
    format_ranges,
    is_mig_selector,
    make_ambiguous_prefix_fault,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.mig.mig_devices import MigDevices
    from gpu_oci_hook.model.machine import Gpu
    from gpu_oci_hook.model.mig import MigDevice
    from gpu_oci_hook.model.request import Request
    from gpu_oci_hook.request.environment import Environment

_UUID_CHARACTERS = frozenset("0123456789abcdef-")
_UUID_LENGTH = 36
_MAX_LISTED_GPUS = 8  # GPUs whose devices an error lists

CREATE_MIG_DEVICE_HINT = "Create one (nvidia-smi mig -cci), or request the GPU itself, which then cannot compute"


def read_mig_rights(request: Request, environment: Environment) -> tuple[tuple[str, str], ...]:
    """Return (right, origin) of the requested rights over all MIG devices.

    They are requested by NVIDIA_MIG_CONFIG_DEVICES and NVIDIA_MIG_MONITOR_DEVICES. A right that the container's
    environment may not request is withheld.

    Raises:
        Fault: the container is not privileged, the value is not `all`, or single MIG devices are requested as well.
    """
    rights = []
    for variable, right in MIG_RIGHT_VARIABLES:
        value = environment.values.get(variable, "").strip()
        if value in ("", "none", "void"):
            continue
        origin = environment.describe_variable(variable)
        if value != "all":
            raise Fault(f'{variable} has the unknown value "{clip_text(value)}"', where=origin, hint='Use "all"')
        if request.environment_refusal:
            title = describe_mig_right(right)
            request.withheld.append((title, f"{origin}, but {request.environment_refusal}"))
            request.warnings.append(f"{title} is not granted: {request.environment_refusal}")
            continue
        if request.unprivileged_reason:
            raise Fault(
                f"{variable} is for privileged containers, and {request.unprivileged_reason}",
                where=origin,
                hint="Run it privileged (--privileged, or securityContext.privileged in Kubernetes), or unset it",
            )
        single = find_mig_selector(request.device_requests)
        if single:
            raise Fault(
                f'{variable} grants a right over whole GPUs, and the MIG device "{clip_text(single)}" is part of one',
                where=origin,
                hint="Request whole GPUs or all, or unset it",
            )
        rights.append((right, origin))
    return tuple(rights)


def find_mig_selector(device_requests: tuple[DeviceRequest, ...]) -> str:
    """Return the first selector of a single MIG device, with which no right over all of them goes; "" if none is."""
    return next((item.selector for item in device_requests if is_mig_selector(item.selector)), "")


def describe_mig_right(right: str) -> str:
    """Return the title of the right "config" or "monitor"."""
    return f"the right to {'configure' if right == 'config' else right} MIG"


def resolve_mig_devices(
    device_requests: tuple[DeviceRequest, ...], gpus: list[Gpu], mig_enabled: frozenset[int], mig_devices: MigDevices
) -> list[tuple[MigDevice, str]]:
    """Return the requested MIG devices with the origins of their selectors, each once, ordered by GPU and index.

    Arguments:
        mig_enabled: indices of the GPUs in MIG mode.

    Raises:
        Fault: a selector matches no MIG device or several; lists the existing ones. Or NVML has to resolve it, and
            fails.
    """
    chosen: dict[tuple[int, int, int], tuple[MigDevice, str]] = {}
    for device_request in device_requests:
        for device in _find_matching_devices(device_request, gpus, mig_enabled, mig_devices):
            chosen.setdefault((device.gpu.index, device.gi, device.ci), (device, device_request.origin))
    return sorted(chosen.values(), key=lambda item: (item[0].gpu.index, item[0].index))


def report_whole_mig_gpus(whole_gpus: list[Gpu], mig_enabled: frozenset[int], mig_devices: MigDevices) -> list[str]:
    """Return a warning for each GPU in MIG mode that is requested as a whole: CUDA finds no device on it."""
    warnings = []
    for gpu in whole_gpus:
        if gpu.index in mig_enabled:
            names = [device.name for device in mig_devices.list_for_gpu(gpu)]
            advice = f"request its MIG devices ({', '.join(names)}) or all" if names else "it has no MIG devices"
            warnings.append(
                f"GPU {gpu.index} is in MIG mode and is requested as a whole, without access to any of its instances: "
                f"programs see it and cannot compute on it; {advice}"
            )
    return warnings


def report_empty_mig_gpus(gpus: list[Gpu], mig_enabled: frozenset[int], mig_devices: MigDevices) -> list[str]:
    """Return a sentence for each GPU in MIG mode without MIG devices, from which `all` selects nothing."""
    return [
        f"GPU {gpu.index} is in MIG mode and has GPU instances, but no compute instance that can be opened "
        "here, so it has no MIG device"
        for gpu in gpus
        if gpu.index in mig_enabled and not mig_devices.list_for_gpu(gpu)
    ]


def add_parent_gpus(
    chosen: list[tuple[Gpu, str]], mig_devices: list[tuple[MigDevice, str]]
) -> tuple[list[tuple[Gpu, str]], frozenset[int]]:
    """Return the chosen GPUs and the parents of MIG devices, and the indices of those that are parents only."""
    injected = {gpu.index: (gpu, origin) for gpu, origin in chosen}
    parents: dict[int, list[str]] = {}
    for device, origin in mig_devices:
        index = device.gpu.index
        if index not in injected or index in parents:
            parents.setdefault(index, []).append(device.name)
            injected[index] = (device.gpu, f"parent of MIG devices {', '.join(parents[index])}: {origin}")
    return [injected[index] for index in sorted(injected)], frozenset(parents)


def _find_matching_devices(
    device_request: DeviceRequest, gpus: list[Gpu], mig_enabled: frozenset[int], mig_devices: MigDevices
) -> list[MigDevice]:
    selector = device_request.selector.strip()
    lower = selector.lower()
    if lower == "all":
        return [device for gpu in gpus if gpu.index in mig_enabled for device in mig_devices.list_for_gpu(gpu)]
    if not is_mig_selector(selector):
        return []
    if lower.startswith("mig-gpu-"):
        return [_find_device_by_ids(device_request, selector, gpus, mig_devices)]
    if lower.startswith("mig-"):
        return [_find_device_by_uuid(device_request, selector, gpus, mig_devices)]
    gpu_index, _, device_index = lower.partition(":")
    for gpu in gpus:
        if gpu.index == int(gpu_index):
            for device in mig_devices.list_for_gpu(gpu):
                if device.index == int(device_index):
                    return [device]
    raise _make_unknown_device_fault(device_request, gpus, mig_devices)


def _find_device_by_ids(
    device_request: DeviceRequest, selector: str, gpus: list[Gpu], mig_devices: MigDevices
) -> MigDevice:
    """Find the device of MIG-GPU-<uuid>/<gi>/<ci>: these are the kernel's own names, which need no NVML."""
    parts = selector[len("mig-") :].split("/")
    if len(parts) != 3:
        raise Fault(
            f'"{clip_text(selector)}" is not a MIG device',
            where=device_request.origin,
            hint=f"Use the form MIG-GPU-<uuid>/<gi>/<ci>. {_describe_mig_devices(gpus, mig_devices, 'old_name')}",
        )
    uuid = parts[0].lower()
    matches = [gpu for gpu in gpus if gpu.uuid.lower() == uuid]
    if not matches and len(uuid) >= len("gpu-") + MIN_UUID_PREFIX:
        matches = [gpu for gpu in gpus if gpu.uuid.lower().startswith(uuid)]
    if len(matches) > 1:
        raise make_ambiguous_prefix_fault(device_request, parts[0], [gpu.uuid for gpu in matches])
    for gpu in matches:
        for device in mig_devices.list_for_gpu(gpu):
            if [str(device.gi), str(device.ci)] == parts[1:]:
                return device
    raise _make_unknown_device_fault(device_request, gpus, mig_devices)


def _find_device_by_uuid(
    device_request: DeviceRequest, selector: str, gpus: list[Gpu], mig_devices: MigDevices
) -> MigDevice:
    lower = selector.lower()
    digits = lower[len("mig-") :]
    if not MIN_UUID_PREFIX <= len(digits) <= _UUID_LENGTH or not _UUID_CHARACTERS.issuperset(digits):
        raise _make_unknown_device_fault(device_request, gpus, mig_devices)
    if len(digits) == _UUID_LENGTH:
        cached_device = mig_devices.find_cached_device(selector)
        if cached_device is not None:
            return cached_device
    if not any(mig_devices.list_for_gpu(gpu) for gpu in gpus):
        raise _make_unknown_device_fault(device_request, gpus, mig_devices)
    matches = _query_devices_by_uuid(device_request, selector, gpus, mig_devices)
    if len(matches) > 1:
        raise make_ambiguous_prefix_fault(device_request, selector, [device.uuid for device in matches])
    if not matches:
        raise _make_unknown_device_fault(device_request, gpus, mig_devices)
    return matches[0]


def _query_devices_by_uuid(
    device_request: DeviceRequest, selector: str, gpus: list[Gpu], mig_devices: MigDevices
) -> list[MigDevice]:
    """Return the devices whose UUID begins with a selector, from the cache or from NVML."""
    lower = selector.lower()
    is_uncached = any(not device.uuid for gpu in gpus for device in mig_devices.list_for_gpu(gpu))
    try:
        matches = [device for device in mig_devices.list_with_uuids() if device.uuid.lower().startswith(lower)]
        if not matches and not is_uncached:
            # The cached UUIDs may be those of deleted devices, if new ones were created under the same numbers.
            mig_devices.discard_cached_uuids()
            matches = [device for device in mig_devices.list_with_uuids() if device.uuid.lower().startswith(lower)]
    except Fault as fault:
        raise Fault(
            f'only NVML knows which MIG device is "{selector}", and it fails: {fault.what}',
            where=device_request.origin,
            hint=f"Use a name that needs no NVML. {_describe_mig_devices(gpus, mig_devices)}",
        ) from None
    return matches


def _make_unknown_device_fault(device_request: DeviceRequest, gpus: list[Gpu], mig_devices: MigDevices) -> Fault:
    selector = device_request.selector.strip()
    lower = selector.lower()
    if lower.startswith("mig-"):
        attribute = "old_name" if lower.startswith("mig-gpu-") else "uuid"
        return Fault(
            f'there is no MIG device "{clip_text(selector)}"',
            where=device_request.origin,
            hint=_describe_mig_devices(gpus, mig_devices, attribute),
        )
    index = int(selector.partition(":")[0])
    gpu = next((gpu for gpu in gpus if gpu.index == index), None)
    if gpu is not None and not mig_devices.list_for_gpu(gpu):
        hint = _describe_mig_devices(gpus, mig_devices)
        if not any(mig_devices.list_for_gpu(gpu) for gpu in gpus):
            whole_gpus = format_ranges([gpu.index for gpu in gpus])
            hint = f"Create one (nvidia-smi mig -cgi PROFILE -C), or request a whole GPU: {whole_gpus}"
        return Fault(
            f"GPU {gpu.index} has no MIG devices, so {selector} does not exist",
            where=device_request.origin,
            hint=hint,
        )
    return Fault(
        f"there is no MIG device {selector}",
        where=device_request.origin,
        hint=_describe_mig_devices(gpus, mig_devices),
    )


def _describe_mig_devices(gpus: list[Gpu], mig_devices: MigDevices, attribute: str = "") -> str:
    """List the machine's MIG devices in one form, bounded in length.

    Arguments:
        attribute: "uuid" or "old_name", if known for every device; otherwise names such as 0:1 are listed.
    """
    by_gpu = [(gpu, devices) for gpu in gpus if (devices := mig_devices.list_for_gpu(gpu))]
    if not by_gpu:
        return "This host has no MIG device"
    ids = [getattr(device, attribute) for _, devices in by_gpu for device in devices] if attribute else []
    if ids and all(ids):
        listed = format_ids(ids)
    else:
        listed = ", ".join(
            format_ranges([device.index for device in devices], f"{gpu.index}:")
            for gpu, devices in by_gpu[:_MAX_LISTED_GPUS]
        )
        if len(by_gpu) > _MAX_LISTED_GPUS:
            listed += f" and more on {len(by_gpu) - _MAX_LISTED_GPUS} other GPUs"
    return f"This host has the MIG devices {listed}; see gpu-oci-hook list"
