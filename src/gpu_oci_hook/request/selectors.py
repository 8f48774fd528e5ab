"""Resolve selectors of whole GPUs: index, range, UUID or a unique prefix of one, PCI address, `all`.

`request.mig_selectors` resolves selectors of MIG devices. No I/O.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault, clip_text, find_close_match

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import Gpu
    from gpu_oci_hook.model.request import DeviceRequest

# A shorter prefix of a UUID is more likely a mistyped index.
MIN_UUID_PREFIX = 4

_DISPLAY_CARDS = ("DGX Display", "NVIDIA DGX Display")

_HEX_DIGITS = frozenset("0123456789abcdef")

# How many ids, and ranges of indices, an error lists: an engine's log shows one line, however large the machine.
_MAX_LISTED_IDS = 4
_MAX_LISTED_RANGES = 8


def is_mig_selector(selector: str) -> bool:
    """Tell whether a selector is one of a MIG device: `0:1`, `MIG-…`."""
    lower = selector.strip().lower()
    gpu_index, colon, device_index = lower.partition(":")
    return lower.startswith("mig-") or (bool(colon) and _is_index(gpu_index) and _is_index(device_index))


def is_hardware_selector(selector: str) -> bool:
    """Tell whether a selector can only be an index, UUID or PCI address of a GPU or a MIG device."""
    lower = selector.strip().lower()
    is_uuid = lower.startswith("gpu-") and all(letter in "0123456789abcdef-" for letter in lower[4:])
    return is_uuid or _is_index(lower) or is_mig_selector(selector) or bool(normalize_pci_address(lower))


def is_display_card(gpu: Gpu) -> bool:
    """Tell whether a GPU only drives the display of a DGX Station: `all` does not include it (facts: dgx-display)."""
    return gpu.model in _DISPLAY_CARDS


def is_uuid_selector(selector: str) -> bool:
    """Tell whether a selector, in lower case, can be the UUID of a GPU or a prefix of one, and nothing else."""
    digits = selector.removeprefix("gpu-")
    is_plain_number = digits == selector and (_is_index(selector) or _is_range(selector))
    return _is_uuid_prefix(selector) and not is_plain_number


def _is_range(text: str) -> bool:
    first, dash, last = text.partition("-")
    return bool(dash) and _is_index(first) and _is_index(last)


def has_all_selector(device_requests: tuple[DeviceRequest, ...]) -> bool:
    """Tell whether one of the selectors is `all`."""
    return any(device_request.selector.strip().lower() == "all" for device_request in device_requests)


def resolve_gpus(
    device_requests: tuple[DeviceRequest, ...], gpus: list[Gpu], mig_enabled: frozenset[int] = frozenset()
) -> list[tuple[Gpu, str]]:
    """Return the requested whole GPUs in index order, each once, with the origin of its first selector.

    Arguments:
        mig_enabled: indices of the GPUs in MIG mode. `all` selects their MIG devices instead of the whole GPUs.

    Raises:
        Fault: a selector matches no GPU or several; lists the existing ids.
    """
    chosen: dict[int, str] = {}
    for device_request in device_requests:
        if is_mig_selector(device_request.selector):
            continue
        for gpu in find_matching_gpus(device_request, gpus, mig_enabled):
            chosen.setdefault(gpu.index, device_request.origin)
    return [(gpu, chosen[gpu.index]) for gpu in gpus if gpu.index in chosen]


def find_matching_gpus(
    device_request: DeviceRequest, gpus: list[Gpu], mig_enabled: frozenset[int] = frozenset()
) -> list[Gpu]:
    """Return the GPUs that a selector matches.

    Raises:
        Fault: it matches none, or is a prefix of several UUIDs.
    """
    selector = device_request.selector.strip()
    lower = selector.lower()
    if lower == "all":
        return [gpu for gpu in gpus if gpu.index not in mig_enabled and not is_display_card(gpu)]
    if _is_index(lower):
        return [_find_gpu_by_index(device_request, int(lower), gpus)]
    first, dash, last = lower.partition("-")
    if dash and _is_index(first) and _is_index(last):
        return _find_gpus_in_range(device_request, int(first), int(last), gpus)
    _refuse_path(device_request, selector)
    pci = normalize_pci_address(lower)
    if pci:
        matches = [gpu for gpu in gpus if normalize_pci_address(gpu.pci) == pci]
    else:
        matches = _find_gpus_by_uuid(lower, gpus)
    if len(matches) > 1 and len({gpu.uuid.lower() for gpu in matches}) == 1:
        raise Fault(
            f'"{clip_text(selector)}" is the UUID of GPUs {", ".join(str(gpu.index) for gpu in matches)}',
            where=device_request.origin,
            hint="Request one by its index or PCI address",
        )
    if len(matches) > 1:
        raise make_ambiguous_prefix_fault(device_request, selector, [gpu.uuid for gpu in matches])
    if matches:
        return matches
    if lower.startswith("gpu-") and len(lower) < len("gpu-") + MIN_UUID_PREFIX:
        raise Fault(
            f'"{selector}" is too short for a UUID prefix',
            where=device_request.origin,
            hint=f"Give at least {MIN_UUID_PREFIX} digits after GPU-",
        )
    raise _make_unknown_gpu_fault(device_request, gpus)


def _is_index(text: str) -> bool:
    return 0 < len(text) < 10 and text.isascii() and text.isdigit()


def _find_gpu_by_index(device_request: DeviceRequest, index: int, gpus: list[Gpu]) -> Gpu:
    for gpu in gpus:
        if gpu.index == index:
            return gpu
    raise _make_unknown_gpu_fault(device_request, gpus)


def _find_gpus_in_range(device_request: DeviceRequest, first: int, last: int, gpus: list[Gpu]) -> list[Gpu]:
    selector = device_request.selector.strip()
    if first > last:
        raise Fault(f'the range "{selector}" runs backwards', where=device_request.origin, hint=f"Use {last}-{first}")
    matches = [gpu for gpu in gpus if first <= gpu.index <= last]
    count = gpus[-1].index + 1 if gpus else 0
    if last >= count:
        first_missing = max(first, count)
        missing = (
            f"GPU {last} does not exist" if first_missing == last else f"GPUs {first_missing} to {last} do not exist"
        )
        raise Fault(
            f'the range "{selector}" goes too far: {missing}', where=device_request.origin, hint=_describe_gpus(gpus)
        )
    if len(matches) <= last - first:  # a GPU that cannot be used keeps its index
        usable = [gpu.index for gpu in matches]
        unusable = format_ranges([index for index in range(first, last + 1) if index not in usable])
        raise Fault(
            f'the range "{selector}" has a gap: GPU {unusable} cannot be used',
            where=device_request.origin,
            hint=f"Run gpu-oci-hook list to see why. {_describe_gpus(gpus)}",
        )
    return matches


def _find_gpus_by_uuid(lower: str, gpus: list[Gpu]) -> list[Gpu]:
    matches = [gpu for gpu in gpus if gpu.uuid.lower() == lower]
    if not matches and _is_uuid_prefix(lower):
        prefix = lower.removeprefix("gpu-")
        matches = [gpu for gpu in gpus if gpu.uuid.lower().removeprefix("gpu-").startswith(prefix)]
    return matches


def _is_uuid_prefix(lower: str) -> bool:
    digits = lower.removeprefix("gpu-")
    return len(digits) >= MIN_UUID_PREFIX and all(digit in _HEX_DIGITS or digit == "-" for digit in digits)


def _refuse_path(device_request: DeviceRequest, selector: str) -> None:
    if selector.startswith("/"):
        raise Fault(
            f'"{selector}" is a path: it requests the devices mounted below it, and no such mount counts',
            where=device_request.origin,
            hint="Switch [request] volume-mounts on, or name the GPUs in the variable",
        )


def normalize_pci_address(text: str) -> str:
    """Return a PCI address as 0000:01:00.0, from the forms of NVML, procfs and lspci; "" when it is not one."""
    parts = text.lower().split(":")
    if len(parts) == 2:
        parts = ["0000", *parts]
    if len(parts) != 3:
        return ""
    domain, bus, device_and_function = parts
    device, _, function = device_and_function.partition(".")
    numbers = (domain, bus, device, function or "0")
    if not all(number and len(number) <= 8 and all(digit in _HEX_DIGITS for digit in number) for number in numbers):
        return ""
    values = [int(number, 16) for number in numbers]
    if values[1] > 0xFF or values[2] > 0x1F or values[3] > 7:
        return ""
    return f"{values[0]:04x}:{values[1]:02x}:{values[2]:02x}.{values[3]:x}"


def make_ambiguous_prefix_fault(device_request: DeviceRequest, prefix: str, uuids: list[str]) -> Fault:
    """Return the fault for a UUID prefix that several devices have."""
    return Fault(
        f'"{prefix}" is a prefix of {len(uuids)} UUIDs: {format_ids(uuids)}',
        where=device_request.origin,
        hint="Use a longer prefix",
    )


def _make_unknown_gpu_fault(device_request: DeviceRequest, gpus: list[Gpu]) -> Fault:
    """Return the fault for a selector without a match; lists ids of the selector's form, or suggests a selector."""
    selector = device_request.selector.strip()
    lower = selector.lower()
    if _is_index(lower):
        return Fault(f"there is no GPU {selector}", where=device_request.origin, hint=_describe_gpus(gpus))
    if normalize_pci_address(lower):
        hint = _describe_gpus(gpus, [gpu.pci for gpu in gpus])
    elif lower.startswith("gpu-") or _is_uuid_prefix(lower):
        hint = _describe_gpus(gpus, [gpu.uuid for gpu in gpus])
    else:
        near = find_close_match(selector[:100], ("all", "none", "void"))
        suggestion = f'. Did you mean "{near}"?' if near else ""
        hint = (
            f"{_suggest_gpu_selector(selector) or _describe_gpus(gpus)}. "
            f'Valid are index, range, UUID or a prefix of one, PCI address, "all" and "none"{suggestion}'
        )
    return Fault(f'there is no GPU "{clip_text(selector)}"', where=device_request.origin, hint=hint)


def _suggest_gpu_selector(selector: str) -> str:
    """Return a hint for a selector that is valid inside a CDI name only; "" for any other."""
    # Imported here: only after a mistake.
    from gpu_oci_hook.formats.cdi_names import parse_cdi_kind
    from gpu_oci_hook.request.cdi_requests import strip_type_prefix

    if parse_cdi_kind(selector) is not None:
        return f"It is a CDI kind: use {selector}=0"
    plain = strip_type_prefix(selector.lower())
    return f"Did you mean {plain}" if plain != selector.lower() else ""


def _describe_gpus(gpus: list[Gpu], ids: list[str] | None = None) -> str:
    """List the machine's GPUs, bounded in length.

    Arguments:
        ids: the ids to list; without any the indices are listed.
    """
    if not gpus:
        return "This host has no GPU"
    known_ids = [gpu_id for gpu_id in ids or () if gpu_id]
    if not known_ids and len(gpus) == 1 and not gpus[0].uuid:  # an integrated GPU: its model explains the index
        return f"This host has GPU {gpus[0].index} ({gpus[0].model})"
    noun = "GPU" if len(gpus) == 1 else "GPUs"
    listed = format_ids(known_ids) if known_ids else f"{noun} {format_ranges([gpu.index for gpu in gpus])}"
    return f"This host has {listed}; see gpu-oci-hook list"


def format_ids(ids: list[str]) -> str:
    """Return the first ids and the number of the remaining ones."""
    more = f" and {len(ids) - _MAX_LISTED_IDS} more" if len(ids) > _MAX_LISTED_IDS else ""
    return f"{', '.join(ids[:_MAX_LISTED_IDS])}{more}"


def group_ranges(numbers: list[int]) -> list[list[int]]:
    """Group numbers in rising order into ranges, [first, last] each."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges


def format_ranges(numbers: list[int], prefix: str = "") -> str:
    """Return numbers in rising order as "0 to 3, 5", each after a prefix."""
    ranges = group_ranges(numbers)
    shown = [
        f"{prefix}{first}" if first == last else f"{prefix}{first} to {prefix}{last}"
        for first, last in ranges[:_MAX_LISTED_RANGES]
    ]
    remaining = sum(last - first + 1 for first, last in ranges[_MAX_LISTED_RANGES:])
    return f"{', '.join(shown)}{f' and {remaining} more' if remaining else ''}"
