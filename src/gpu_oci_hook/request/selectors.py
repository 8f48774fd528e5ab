"""From words to GPUs: index, range, UUID or a unique beginning of one, PCI address, `all`; pure.

Words for MIG devices are `request.mig_selectors`'s. Cost rule: hot, no imports of the library.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault, clip_text, find_close_match

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import Gpu
    from gpu_oci_hook.model.request import DeviceRequest

_HEX_DIGITS = frozenset("0123456789abcdef")

# A shorter beginning of a UUID is more likely a mistyped index.
_MIN_UUID_PREFIX = 4

# Ids, and ranges of indices, that an error lists: an engine's log shows one line, whatever the machine.
_MAX_LISTED_IDS = 4
_MAX_LISTED_RANGES = 8


def is_mig_selector(selector: str) -> bool:
    """Whether a word means a MIG device: `0:1`, `MIG-…`."""
    lower = selector.strip().lower()
    index, colon, instance = lower.partition(":")
    return lower.startswith("mig-") or (bool(colon) and _is_index(index) and _is_index(instance))


def is_hardware_selector(selector: str) -> bool:
    """Whether a word can only mean a GPU or a MIG device of the machine: its number, UUID, or PCI address."""
    lower = selector.strip().lower()
    uuid = lower.startswith("gpu-") and all(letter in "0123456789abcdef-" for letter in lower[4:])
    return uuid or _is_index(lower) or is_mig_selector(selector) or bool(normalize_pci_address(lower))


def has_all_selector(device_requests: tuple[DeviceRequest, ...]) -> bool:
    """Whether one of the words is `all`."""
    return any(ask.selector.strip().lower() == "all" for ask in device_requests)


def resolve_gpus(
    device_requests: tuple[DeviceRequest, ...], gpus: list[Gpu], mig_enabled: frozenset[int] = frozenset()
) -> list[tuple[Gpu, str]]:
    """The whole GPUs asked for, each once, in index order, with the origin of the first word that named it.

    Arguments:
        mig_enabled: indices of the GPUs in MIG mode: `all` means their MIG devices in their place.

    Raises:
        Fault: a word that names no GPU, or several; lists the ids that exist.
    """
    chosen: dict[int, str] = {}
    for ask in device_requests:
        if is_mig_selector(ask.selector):
            continue
        for gpu in find_matching_gpus(ask, gpus, mig_enabled):
            chosen.setdefault(gpu.index, ask.origin)
    return [(gpu, chosen[gpu.index]) for gpu in gpus if gpu.index in chosen]


def find_matching_gpus(
    device_request: DeviceRequest, gpus: list[Gpu], mig_enabled: frozenset[int] = frozenset()
) -> list[Gpu]:
    """The GPUs that a word names.

    Raises:
        Fault: none, or several by one beginning.
    """
    word = device_request.selector.strip()
    lower = word.lower()
    if lower == "all":
        return [gpu for gpu in gpus if gpu.index not in mig_enabled]
    if _is_index(lower):
        return [_find_gpu_by_index(device_request, lower, gpus)]
    first, dash, last = lower.partition("-")
    if dash and _is_index(first) and _is_index(last):
        return _find_gpus_in_range(device_request, int(first), int(last), gpus)
    _refuse_path(device_request, word)
    pci = normalize_pci_address(lower)
    if pci:
        found = [gpu for gpu in gpus if normalize_pci_address(gpu.pci) == pci]
    else:
        found = [gpu for gpu in gpus if gpu.uuid.lower() == lower]
        if not found and _is_uuid_prefix(lower):
            begin = lower.removeprefix("gpu-")
            found = [gpu for gpu in gpus if gpu.uuid.lower().removeprefix("gpu-").startswith(begin)]
    if not found:
        if lower.startswith("gpu-") and len(lower) < len("gpu-") + _MIN_UUID_PREFIX:
            raise Fault(
                f'"{word}" is too short for the beginning of a UUID',
                where=device_request.origin,
                hint=f"Give at least {_MIN_UUID_PREFIX} digits after GPU-",
            )
        raise _make_unknown_gpu_fault(device_request, gpus)
    if len(found) > 1:
        raise Fault(
            f'"{word}" is the beginning of {len(found)} UUIDs: {format_ids([gpu.uuid for gpu in found])}',
            where=device_request.origin,
            hint="Give more of it",
        )
    return found


def _is_index(text: str) -> bool:
    return 0 < len(text) < 10 and text.isascii() and text.isdigit()


def _find_gpu_by_index(device_request: DeviceRequest, text: str, gpus: list[Gpu]) -> Gpu:
    number = int(text)
    for gpu in gpus:
        if gpu.index == number:
            return gpu
    raise _make_unknown_gpu_fault(device_request, gpus)


def _find_gpus_in_range(device_request: DeviceRequest, first: int, last: int, gpus: list[Gpu]) -> list[Gpu]:
    if first > last:
        raise Fault(
            f'the range "{device_request.selector}" runs backwards',
            where=device_request.origin,
            hint=f"Say {last}-{first}",
        )
    found = [gpu for gpu in gpus if first <= gpu.index <= last]
    count = gpus[-1].index + 1 if gpus else 0
    if last >= count:
        least = max(first, count)
        absent = f"GPU {last} does not exist" if least == last else f"GPUs {least} to {last} do not exist"
        raise Fault(
            f'the range "{device_request.selector.strip()}" goes too far: {absent}',
            where=device_request.origin,
            hint=_describe_gpus(gpus),
        )
    if len(found) <= last - first:  # one that cannot be used keeps its index
        there = [gpu.index for gpu in found]
        absent = format_ranges([index for index in range(first, last + 1) if index not in there])
        raise Fault(
            f'the range "{device_request.selector.strip()}" has a gap: GPU {absent} cannot be used',
            where=device_request.origin,
            hint=f"gpu-oci-hook list says why. {_describe_gpus(gpus)}",
        )
    return found


def _is_uuid_prefix(lower: str) -> bool:
    text = lower.removeprefix("gpu-")
    return len(text) >= _MIN_UUID_PREFIX and all(c in _HEX_DIGITS or c == "-" for c in text)


def _refuse_path(device_request: DeviceRequest, selector: str) -> None:
    if selector.startswith("/"):
        raise Fault(
            f'"{selector}" is a path: the devices come as mounts below it, and there are none that count',
            where=device_request.origin,
            hint="Switch [request] volume-mounts on, or name the GPUs in the variable",
        )


def normalize_pci_address(text: str) -> str:
    """A PCI address as 0000:01:00.0, from the forms that NVML, procfs and lspci print; "" when it is none."""
    parts = text.lower().split(":")
    if len(parts) == 2:
        parts = ["0000", *parts]
    if len(parts) != 3:
        return ""
    domain, bus, rest = parts
    device, _, function = rest.partition(".")
    numbers = (domain, bus, device, function or "0")
    if not all(number and len(number) <= 8 and all(c in _HEX_DIGITS for c in number) for number in numbers):
        return ""
    values = [int(number, 16) for number in numbers]
    if values[1] > 0xFF or values[2] > 0x1F or values[3] > 7:
        return ""
    return f"{values[0]:04x}:{values[1]:02x}:{values[2]:02x}.{values[3]:x}"


def _make_unknown_gpu_fault(device_request: DeviceRequest, gpus: list[Gpu]) -> Fault:
    """A word that names no GPU, with ids of its own form; one of no form may be meant for another word."""
    word = device_request.selector.strip()
    lower = word.lower()
    what = f"there is no GPU {word}" if _is_index(lower) else f'there is no GPU "{clip_text(word)}"'
    if _is_index(lower):
        cure = _describe_gpus(gpus)
    elif normalize_pci_address(lower):
        cure = _describe_gpus(gpus, [gpu.pci for gpu in gpus])
    elif lower.startswith("gpu-") or _is_uuid_prefix(lower):
        cure = _describe_gpus(gpus, [gpu.uuid for gpu in gpus])
    else:
        cure = _suggest_gpu_selector(word) or _describe_gpus(gpus)
        near = find_close_match(word[:100], ("all", "none", "void"))
        hint = f'. Did you mean "{near}"?' if near else ""
        cure += f'. Valid are index, range, UUID or its beginning, PCI address, "all" and "none"{hint}'
    return Fault(what, where=device_request.origin, hint=cure)


def _suggest_gpu_selector(selector: str) -> str:
    """What a word is that has a meaning inside a CDI name alone; "" for any other."""
    from gpu_oci_hook.formats.cdi_names import parse_cdi_kind
    from gpu_oci_hook.request.cdi_requests import strip_type_prefix

    if parse_cdi_kind(selector) is not None:
        return f"It is the kind of a CDI name: say {selector}=0"
    plain = strip_type_prefix(selector.lower())
    return f"Did you mean {plain}" if plain != selector.lower() else ""


def _describe_gpus(gpus: list[Gpu], ids: list[str] | None = None) -> str:
    """What there is, in words of one form and bounded: `ids`, else indices."""
    if not gpus:
        return "This machine has no GPU"
    listed = [one for one in ids or () if one]
    if not listed and len(gpus) == 1 and not gpus[0].uuid:  # a board's own: its model says what the index means
        return f"This machine has {gpus[0].index} = {gpus[0].model}"
    there = format_ids(listed) if listed else format_ranges([gpu.index for gpu in gpus])
    return f"This machine has {there} (gpu-oci-hook list names {'it' if len(gpus) == 1 else 'them'})"


def format_ids(ids: list[str]) -> str:
    """Some of these ids, and how many more there are."""
    more = f" and {len(ids) - _MAX_LISTED_IDS} more" if len(ids) > _MAX_LISTED_IDS else ""
    return f"{', '.join(ids[:_MAX_LISTED_IDS])}{more}"


def format_ranges(numbers: list[int], prefix: str = "") -> str:
    """Numbers in rising order as "0 to 3, 5", each with something before it."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    told = [
        f"{prefix}{first}" if first == last else f"{prefix}{first} to {prefix}{last}"
        for first, last in runs[:_MAX_LISTED_RANGES]
    ]
    more = (
        f" and {sum(last - first + 1 for first, last in runs[_MAX_LISTED_RANGES:])} more"
        if len(runs) > _MAX_LISTED_RANGES
        else ""
    )
    return f"{', '.join(told)}{more}"
