"""From words to MIG devices: `0:1`, a UUID or a unique beginning of one, `MIG-GPU-<uuid>/<gi>/<ci>`, `all`.

Pure but for what it is given: NVML is asked through `instances`, and only for a word that is a UUID. Cost rule:
imported for a container that has to do with MIG; no imports of the library.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault, clipped
from gpu_oci_hook.request import MIG_RIGHTS, Ask, devices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.inventory import Gpu
    from gpu_oci_hook.host.mig import Instances, Mig
    from gpu_oci_hook.request import Request

_HEX = frozenset("0123456789abcdef-")
_SHORTEST_UUID = 4
_FULL_UUID = 36
_GPUS = 8  # whose devices an error lists

MAKE = "Make one (nvidia-smi mig -cci), or name the GPU itself, on which nothing can be computed then"


def rights(request: Request, values: dict[str, str], places: dict[str, int]) -> tuple[tuple[str, str], ...]:
    """The rights over all MIG devices that NVIDIA_MIG_CONFIG_DEVICES and NVIDIA_MIG_MONITOR_DEVICES ask for.

    One that the container's environment may not ask for is withheld.

    Raises:
        Fault: the container is not privileged, the value is not `all`, or single MIG devices are asked for besides.
    """
    found = []
    for name, right in MIG_RIGHTS:
        value = values.get(name, "").strip()
        if value in ("", "none", "void"):
            continue
        origin = f"{name}={clipped(value)} (process.env[{places[name]}])"
        if value != "all":
            raise Fault(f'{name} has the unknown word "{clipped(value)}"', where=origin, cure="Valid is all")
        if request.refusal:
            request.withheld.append((title(right), f"{origin}, but {request.refusal}"))
            request.warnings.append(f"{title(right)} is not given: {request.refusal}")
            continue
        if request.unprivileged:
            raise Fault(
                f"{name} is for privileged containers, and {request.unprivileged}",
                where=origin,
                cure="Run it privileged (--privileged, or securityContext.privileged in Kubernetes), or unset it",
            )
        single = next((ask.word for ask in request.asks if devices.names_mig(ask.word)), "")
        if single:
            raise Fault(
                f'{name} gives a right over whole GPUs, and the MIG device "{clipped(single)}" is only a part of one',
                where=origin,
                cure="Name whole GPUs or all, or unset it",
            )
        found.append((right, origin))
    return tuple(found)


def title(right: str) -> str:
    """What the right "config" or "monitor" is, for people."""
    return f"the right to {'configure' if right == 'config' else right} MIG"


def resolve(
    asks: tuple[Ask, ...], gpus: list[Gpu], divided: frozenset[int], instances: Instances
) -> list[tuple[Mig, str]]:
    """The MIG devices asked for, each once, in the order of GPU and index, each with the origin of its word.

    Arguments:
        divided: indices of the GPUs in MIG mode.

    Raises:
        Fault: a word that names no MIG device, or several; lists those that exist. Or NVML would have to say which
            one is meant, and does not.
    """
    chosen: dict[tuple[int, int, int], tuple[Mig, str]] = {}
    for ask in asks:
        for one in _matching(ask, gpus, divided, instances):
            chosen.setdefault((one.gpu.index, one.gi, one.ci), (one, ask.origin))
    return sorted(chosen.values(), key=lambda found: (found[0].gpu.index, found[0].index))


def undivided(whole: list[Gpu], split: frozenset[int], instances: Instances) -> list[str]:
    """A warning for each GPU that is in MIG mode and asked for as a whole: CUDA finds nothing to run on."""
    found = []
    for gpu in whole:
        if gpu.index in split:
            names = [one.name for one in instances.of(gpu)]
            instead = f"name a part of it ({', '.join(names)}) or all" if names else "it has no MIG devices to name"
            found.append(
                f"GPU {gpu.index} is in MIG mode and is given as a whole, without the right to any of its instances: "
                f"programs see it and cannot compute on it; {instead}"
            )
    return found


def barren(gpus: list[Gpu], divided: frozenset[int], instances: Instances) -> list[str]:
    """A sentence for each divided GPU that has no MIG device, so that `all` means nothing of it."""
    return [
        f"GPU {gpu.index} is in MIG mode and has GPU instances, but no compute instance and so no MIG device to give"
        for gpu in gpus
        if gpu.index in divided and not instances.of(gpu)
    ]


def with_parents(
    chosen: list[tuple[Gpu, str]], parts: list[tuple[Mig, str]]
) -> tuple[list[tuple[Gpu, str]], frozenset[int]]:
    """The GPUs that go in, with those that MIG devices are parts of, and the indices of those that are only that."""
    given = {gpu.index: (gpu, origin) for gpu, origin in chosen}
    parents: dict[int, list[str]] = {}
    for one, origin in parts:
        if one.gpu.index not in given or one.gpu.index in parents:
            parents.setdefault(one.gpu.index, []).append(one.name)
            names = ", ".join(parents[one.gpu.index])
            given[one.gpu.index] = (one.gpu, f"MIG devices {names} are parts of it: {origin}")
    return [given[index] for index in sorted(given)], frozenset(parents)


def _matching(ask: Ask, gpus: list[Gpu], divided: frozenset[int], instances: Instances) -> list[Mig]:
    word = ask.word.strip()
    lower = word.lower()
    if lower == "all":
        return [one for gpu in gpus if gpu.index in divided for one in instances.of(gpu)]
    if not devices.names_mig(word):
        return []
    if lower.startswith("mig-gpu-"):
        return [_by_ids(ask, word, gpus, instances)]
    if lower.startswith("mig-"):
        return [_by_uuid(ask, word, gpus, instances)]
    index, _, place = lower.partition(":")
    for gpu in gpus:
        if gpu.index == int(index):
            for one in instances.of(gpu):
                if one.index == int(place):
                    return [one]
    raise _unknown(ask, gpus, instances)


def _by_ids(ask: Ask, word: str, gpus: list[Gpu], instances: Instances) -> Mig:
    """MIG-GPU-<uuid>/<gi>/<ci>: the kernel's own names, which need no NVML."""
    parts = word[len("mig-") :].split("/")
    if len(parts) != 3:
        raise Fault(
            f'"{clipped(word)}" is no MIG device',
            where=ask.origin,
            cure=f"This form is MIG-GPU-<uuid>/<gi>/<ci>. {_known(gpus, instances, 'old_name')}",
        )
    uuid = parts[0].lower()
    found = [gpu for gpu in gpus if gpu.uuid.lower() == uuid]
    if not found and len(uuid) >= len("gpu-") + _SHORTEST_UUID:
        found = [gpu for gpu in gpus if gpu.uuid.lower().startswith(uuid)]
    if len(found) > 1:
        raise Fault(
            f'"{parts[0]}" is the beginning of {len(found)} UUIDs: {devices.few([gpu.uuid for gpu in found])}',
            where=ask.origin,
            cure="Give more of it",
        )
    for gpu in found:
        for one in instances.of(gpu):
            if [str(one.gi), str(one.ci)] == parts[1:]:
                return one
    raise _unknown(ask, gpus, instances)


def _by_uuid(ask: Ask, word: str, gpus: list[Gpu], instances: Instances) -> Mig:
    lower = word.lower()
    rest = lower[len("mig-") :]
    if len(rest) < _SHORTEST_UUID or len(rest) > _FULL_UUID or not _HEX.issuperset(rest):
        raise _unknown(ask, gpus, instances)
    if len(rest) == _FULL_UUID:
        known = instances.remembered(word)
        if known is not None:
            return known
    if not any(instances.of(gpu) for gpu in gpus):
        raise _unknown(ask, gpus, instances)
    fresh = any(not one.uuid for gpu in gpus for one in instances.of(gpu))
    try:
        found = [one for one in instances.identified() if one.uuid.lower().startswith(lower)]
        if not found and not fresh:
            # The memory could be of devices that were made anew under the same numbers.
            instances.forget()
            found = [one for one in instances.identified() if one.uuid.lower().startswith(lower)]
    except Fault as fault:
        raise Fault(
            f'only NVML knows which MIG device is "{word}", and it fails: {fault.what}',
            where=ask.origin,
            cure=f"Name it in a way that needs no NVML. {_known(gpus, instances)}",
        ) from None
    if len(found) > 1:
        raise Fault(
            f'"{word}" is the beginning of {len(found)} UUIDs: {devices.few([one.uuid for one in found])}',
            where=ask.origin,
            cure="Give more of it",
        )
    if not found:
        raise _unknown(ask, gpus, instances)
    return found[0]


def _unknown(ask: Ask, gpus: list[Gpu], instances: Instances) -> Fault:
    word = ask.word.strip()
    lower = word.lower()
    if lower.startswith("mig-"):
        what = f'there is no MIG device "{clipped(word)}"'
        form = "old_name" if lower.startswith("mig-gpu-") else "uuid"
        return Fault(what, where=ask.origin, cure=_known(gpus, instances, form))
    index = int(word.partition(":")[0])
    gpu = next((gpu for gpu in gpus if gpu.index == index), None)
    why = f": GPU {gpu.index} has no MIG devices" if gpu is not None and not instances.of(gpu) else ""
    return Fault(f"there is no MIG device {word}{why}", where=ask.origin, cure=_known(gpus, instances))


def _known(gpus: list[Gpu], instances: Instances, form: str = "") -> str:
    """What there is, in words of one form and bounded.

    Arguments:
        form: "uuid" or "old_name", where that is known; else names such as 0:1.
    """
    by_gpu = [(gpu, there) for gpu in gpus if (there := instances.of(gpu))]
    if not by_gpu:
        return "This machine has no MIG device"
    ids = [getattr(one, form) for _, there in by_gpu for one in there] if form else []
    if ids and all(ids):
        listed = devices.few(ids)
    else:
        listed = ", ".join(
            devices.ranges([one.index for one in there], f"{gpu.index}:") for gpu, there in by_gpu[:_GPUS]
        )
        if len(by_gpu) > _GPUS:
            listed += f" and more on {len(by_gpu) - _GPUS} other GPUs"
    return f"This machine has {listed} (gpu-oci-hook list names them)"
