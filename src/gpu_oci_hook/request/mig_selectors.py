"""From words to MIG devices: `0:1`, a UUID or a unique beginning of one, `MIG-GPU-<uuid>/<gi>/<ci>`, `all`.

Pure but for what it is given: NVML is asked through `instances`, and only for a word that is a UUID. Cost rule:
imported for a container that has to do with MIG; no imports of the library.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault, clip_text
from gpu_oci_hook.model.request import DeviceRequest
from gpu_oci_hook.request.environment import MIG_RIGHT_VARIABLES
from gpu_oci_hook.request.selectors import format_ids, format_ranges, is_mig_selector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.mig.mig_devices import MigDevices
    from gpu_oci_hook.model.machine import Gpu
    from gpu_oci_hook.model.mig import MigDevice
    from gpu_oci_hook.model.request import Request

_UUID_CHARACTERS = frozenset("0123456789abcdef-")
_MIN_UUID_PREFIX = 4
_UUID_LENGTH = 36
_MAX_LISTED_GPUS = 8  # whose devices an error lists

CREATE_MIG_DEVICE_HINT = "Make one (nvidia-smi mig -cci), or name the GPU itself, on which nothing can be computed then"


def read_mig_rights(
    request: Request, variables: dict[str, str], positions: dict[str, int]
) -> tuple[tuple[str, str], ...]:
    """The rights over all MIG devices that NVIDIA_MIG_CONFIG_DEVICES and NVIDIA_MIG_MONITOR_DEVICES ask for.

    One that the container's environment may not ask for is withheld.

    Raises:
        Fault: the container is not privileged, the value is not `all`, or single MIG devices are asked for besides.
    """
    found = []
    for name, right in MIG_RIGHT_VARIABLES:
        value = variables.get(name, "").strip()
        if value in ("", "none", "void"):
            continue
        origin = f"{name}={clip_text(value)} (process.env[{positions[name]}])"
        if value != "all":
            raise Fault(f'{name} has the unknown word "{clip_text(value)}"', where=origin, hint="Valid is all")
        if request.environment_refusal:
            request.withheld.append((describe_mig_right(right), f"{origin}, but {request.environment_refusal}"))
            request.warnings.append(f"{describe_mig_right(right)} is not given: {request.environment_refusal}")
            continue
        if request.unprivileged_reason:
            raise Fault(
                f"{name} is for privileged containers, and {request.unprivileged_reason}",
                where=origin,
                hint="Run it privileged (--privileged, or securityContext.privileged in Kubernetes), or unset it",
            )
        single = next((ask.selector for ask in request.device_requests if is_mig_selector(ask.selector)), "")
        if single:
            raise Fault(
                f'{name} gives a right over whole GPUs, and the MIG device "{clip_text(single)}" is only a part of one',
                where=origin,
                hint="Name whole GPUs or all, or unset it",
            )
        found.append((right, origin))
    return tuple(found)


def describe_mig_right(right: str) -> str:
    """What the right "config" or "monitor" is, for people."""
    return f"the right to {'configure' if right == 'config' else right} MIG"


def resolve_mig_devices(
    device_requests: tuple[DeviceRequest, ...], gpus: list[Gpu], mig_enabled: frozenset[int], mig_devices: MigDevices
) -> list[tuple[MigDevice, str]]:
    """The MIG devices asked for, each once, in the order of GPU and index, each with the origin of its word.

    Arguments:
        mig_enabled: indices of the GPUs in MIG mode.

    Raises:
        Fault: a word that names no MIG device, or several; lists those that exist. Or NVML would have to say which
            one is meant, and does not.
    """
    chosen: dict[tuple[int, int, int], tuple[MigDevice, str]] = {}
    for ask in device_requests:
        for one in _find_matching_devices(ask, gpus, mig_enabled, mig_devices):
            chosen.setdefault((one.gpu.index, one.gi, one.ci), (one, ask.origin))
    return sorted(chosen.values(), key=lambda found: (found[0].gpu.index, found[0].index))


def report_whole_mig_gpus(whole_gpus: list[Gpu], mig_enabled: frozenset[int], mig_devices: MigDevices) -> list[str]:
    """A warning for each GPU that is in MIG mode and asked for as a whole: CUDA finds nothing to run on."""
    found = []
    for gpu in whole_gpus:
        if gpu.index in mig_enabled:
            names = [one.name for one in mig_devices.list_for_gpu(gpu)]
            instead = f"name a part of it ({', '.join(names)}) or all" if names else "it has no MIG devices to name"
            found.append(
                f"GPU {gpu.index} is in MIG mode and is given as a whole, without the right to any of its instances: "
                f"programs see it and cannot compute on it; {instead}"
            )
    return found


def report_empty_mig_gpus(gpus: list[Gpu], mig_enabled: frozenset[int], mig_devices: MigDevices) -> list[str]:
    """A sentence for each divided GPU that has no MIG device, so that `all` means nothing of it."""
    return [
        f"GPU {gpu.index} is in MIG mode and has GPU instances, but no compute instance and so no MIG device to give"
        for gpu in gpus
        if gpu.index in mig_enabled and not mig_devices.list_for_gpu(gpu)
    ]


def add_parent_gpus(
    chosen: list[tuple[Gpu, str]], mig_devices: list[tuple[MigDevice, str]]
) -> tuple[list[tuple[Gpu, str]], frozenset[int]]:
    """The GPUs that go in, with those that MIG devices are parts of, and the indices of those that are only that."""
    given = {gpu.index: (gpu, origin) for gpu, origin in chosen}
    parents: dict[int, list[str]] = {}
    for one, origin in mig_devices:
        if one.gpu.index not in given or one.gpu.index in parents:
            parents.setdefault(one.gpu.index, []).append(one.name)
            names = ", ".join(parents[one.gpu.index])
            given[one.gpu.index] = (one.gpu, f"MIG devices {names} are parts of it: {origin}")
    return [given[index] for index in sorted(given)], frozenset(parents)


def _find_matching_devices(
    device_request: DeviceRequest, gpus: list[Gpu], mig_enabled: frozenset[int], mig_devices: MigDevices
) -> list[MigDevice]:
    word = device_request.selector.strip()
    lower = word.lower()
    if lower == "all":
        return [one for gpu in gpus if gpu.index in mig_enabled for one in mig_devices.list_for_gpu(gpu)]
    if not is_mig_selector(word):
        return []
    if lower.startswith("mig-gpu-"):
        return [_find_device_by_ids(device_request, word, gpus, mig_devices)]
    if lower.startswith("mig-"):
        return [_find_device_by_uuid(device_request, word, gpus, mig_devices)]
    index, _, place = lower.partition(":")
    for gpu in gpus:
        if gpu.index == int(index):
            for one in mig_devices.list_for_gpu(gpu):
                if one.index == int(place):
                    return [one]
    raise _make_unknown_device_fault(device_request, gpus, mig_devices)


def _find_device_by_ids(
    device_request: DeviceRequest, selector: str, gpus: list[Gpu], mig_devices: MigDevices
) -> MigDevice:
    """MIG-GPU-<uuid>/<gi>/<ci>: the kernel's own names, which need no NVML."""
    parts = selector[len("mig-") :].split("/")
    if len(parts) != 3:
        raise Fault(
            f'"{clip_text(selector)}" is no MIG device',
            where=device_request.origin,
            hint=f"This form is MIG-GPU-<uuid>/<gi>/<ci>. {_describe_mig_devices(gpus, mig_devices, 'old_name')}",
        )
    uuid = parts[0].lower()
    found = [gpu for gpu in gpus if gpu.uuid.lower() == uuid]
    if not found and len(uuid) >= len("gpu-") + _MIN_UUID_PREFIX:
        found = [gpu for gpu in gpus if gpu.uuid.lower().startswith(uuid)]
    if len(found) > 1:
        raise Fault(
            f'"{parts[0]}" is the beginning of {len(found)} UUIDs: {format_ids([gpu.uuid for gpu in found])}',
            where=device_request.origin,
            hint="Give more of it",
        )
    for gpu in found:
        for one in mig_devices.list_for_gpu(gpu):
            if [str(one.gi), str(one.ci)] == parts[1:]:
                return one
    raise _make_unknown_device_fault(device_request, gpus, mig_devices)


def _find_device_by_uuid(
    device_request: DeviceRequest, selector: str, gpus: list[Gpu], mig_devices: MigDevices
) -> MigDevice:
    lower = selector.lower()
    rest = lower[len("mig-") :]
    if len(rest) < _MIN_UUID_PREFIX or len(rest) > _UUID_LENGTH or not _UUID_CHARACTERS.issuperset(rest):
        raise _make_unknown_device_fault(device_request, gpus, mig_devices)
    if len(rest) == _UUID_LENGTH:
        known = mig_devices.find_cached_device(selector)
        if known is not None:
            return known
    if not any(mig_devices.list_for_gpu(gpu) for gpu in gpus):
        raise _make_unknown_device_fault(device_request, gpus, mig_devices)
    fresh = any(not one.uuid for gpu in gpus for one in mig_devices.list_for_gpu(gpu))
    try:
        found = [one for one in mig_devices.list_with_uuids() if one.uuid.lower().startswith(lower)]
        if not found and not fresh:
            # The memory could be of devices that were made anew under the same numbers.
            mig_devices.discard_cached_uuids()
            found = [one for one in mig_devices.list_with_uuids() if one.uuid.lower().startswith(lower)]
    except Fault as fault:
        raise Fault(
            f'only NVML knows which MIG device is "{selector}", and it fails: {fault.what}',
            where=device_request.origin,
            hint=f"Name it in a way that needs no NVML. {_describe_mig_devices(gpus, mig_devices)}",
        ) from None
    if len(found) > 1:
        raise Fault(
            f'"{selector}" is the beginning of {len(found)} UUIDs: {format_ids([one.uuid for one in found])}',
            where=device_request.origin,
            hint="Give more of it",
        )
    if not found:
        raise _make_unknown_device_fault(device_request, gpus, mig_devices)
    return found[0]


def _make_unknown_device_fault(device_request: DeviceRequest, gpus: list[Gpu], mig_devices: MigDevices) -> Fault:
    word = device_request.selector.strip()
    lower = word.lower()
    if lower.startswith("mig-"):
        what = f'there is no MIG device "{clip_text(word)}"'
        form = "old_name" if lower.startswith("mig-gpu-") else "uuid"
        return Fault(what, where=device_request.origin, hint=_describe_mig_devices(gpus, mig_devices, form))
    index = int(word.partition(":")[0])
    gpu = next((gpu for gpu in gpus if gpu.index == index), None)
    why = f": GPU {gpu.index} has no MIG devices" if gpu is not None and not mig_devices.list_for_gpu(gpu) else ""
    return Fault(
        f"there is no MIG device {word}{why}",
        where=device_request.origin,
        hint=_describe_mig_devices(gpus, mig_devices),
    )


def _describe_mig_devices(gpus: list[Gpu], mig_devices: MigDevices, attribute: str = "") -> str:
    """What there is, in words of one form and bounded.

    Arguments:
        attribute: "uuid" or "old_name", where that is known; else names such as 0:1.
    """
    by_gpu = [(gpu, there) for gpu in gpus if (there := mig_devices.list_for_gpu(gpu))]
    if not by_gpu:
        return "This machine has no MIG device"
    ids = [getattr(one, attribute) for _, there in by_gpu for one in there] if attribute else []
    if ids and all(ids):
        listed = format_ids(ids)
    else:
        listed = ", ".join(
            format_ranges([one.index for one in there], f"{gpu.index}:") for gpu, there in by_gpu[:_MAX_LISTED_GPUS]
        )
        if len(by_gpu) > _MAX_LISTED_GPUS:
            listed += f" and more on {len(by_gpu) - _MAX_LISTED_GPUS} other GPUs"
    return f"This machine has {listed} (gpu-oci-hook list names them)"
