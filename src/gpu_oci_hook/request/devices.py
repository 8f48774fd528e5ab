"""From words to GPUs: index, range, UUID or a unique beginning of one, PCI address, `all`; pure.

Words for MIG devices are `request.mig`'s. Cost rule: hot, no imports of the library.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault, clipped, nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.inventory import Gpu
    from gpu_oci_hook.request import Ask

_HEX = frozenset("0123456789abcdef")

# A shorter beginning of a UUID is more likely a mistyped index.
_SHORTEST_UUID = 4

# Ids, and ranges of indices, that an error lists: an engine's log shows one line, whatever the machine.
_LISTED = 4
_RANGES = 8


def names_mig(word: str) -> bool:
    """Whether a word means a MIG device: `0:1`, `MIG-…`."""
    lower = word.strip().lower()
    index, colon, instance = lower.partition(":")
    return lower.startswith("mig-") or (bool(colon) and _digits(index) and _digits(instance))


def names_hardware(word: str) -> bool:
    """Whether a word can only mean a GPU or a MIG device of the machine: its number, UUID, or PCI address."""
    lower = word.strip().lower()
    uuid = lower.startswith("gpu-") and all(letter in "0123456789abcdef-" for letter in lower[4:])
    return uuid or _digits(lower) or names_mig(word) or bool(pci_address(lower))


def everything(asks: tuple[Ask, ...]) -> bool:
    """Whether one of the words is `all`."""
    return any(ask.word.strip().lower() == "all" for ask in asks)


def resolve(
    asks: tuple[Ask, ...], gpus: list[Gpu], divided: frozenset[int] = frozenset()
) -> list[tuple[Gpu, str]]:
    """The whole GPUs asked for, each once, in index order, with the origin of the first word that named it.

    Arguments:
        divided: indices of the GPUs in MIG mode: `all` means their MIG devices in their place.

    Raises:
        Fault: a word that names no GPU, or several; lists the ids that exist.
    """
    chosen: dict[int, str] = {}
    for ask in asks:
        if names_mig(ask.word):
            continue
        for gpu in matching(ask, gpus, divided):
            chosen.setdefault(gpu.index, ask.origin)
    return [(gpu, chosen[gpu.index]) for gpu in gpus if gpu.index in chosen]


def matching(ask: Ask, gpus: list[Gpu], divided: frozenset[int] = frozenset()) -> list[Gpu]:
    """The GPUs that a word names.

    Raises:
        Fault: none, or several by one beginning.
    """
    word = ask.word.strip()
    lower = word.lower()
    if lower == "all":
        return [gpu for gpu in gpus if gpu.index not in divided]
    if _digits(lower):
        return [_index(ask, lower, gpus)]
    first, dash, last = lower.partition("-")
    if dash and _digits(first) and _digits(last):
        return _range(ask, int(first), int(last), gpus)
    _refuse_path(ask, word)
    pci = pci_address(lower)
    if pci:
        found = [gpu for gpu in gpus if pci_address(gpu.pci) == pci]
    else:
        found = [gpu for gpu in gpus if gpu.uuid.lower() == lower]
        if not found and _beginning(lower):
            begin = lower.removeprefix("gpu-")
            found = [gpu for gpu in gpus if gpu.uuid.lower().removeprefix("gpu-").startswith(begin)]
    if not found:
        if lower.startswith("gpu-") and len(lower) < len("gpu-") + _SHORTEST_UUID:
            raise Fault(
                f'"{word}" is too short for the beginning of a UUID',
                where=ask.origin,
                cure=f"Give at least {_SHORTEST_UUID} digits after GPU-",
            )
        raise _unknown(ask, gpus)
    if len(found) > 1:
        raise Fault(
            f'"{word}" is the beginning of {len(found)} UUIDs: {few([gpu.uuid for gpu in found])}',
            where=ask.origin,
            cure="Give more of it",
        )
    return found


def _digits(text: str) -> bool:
    return 0 < len(text) < 10 and text.isascii() and text.isdigit()


def _index(ask: Ask, text: str, gpus: list[Gpu]) -> Gpu:
    number = int(text)
    for gpu in gpus:
        if gpu.index == number:
            return gpu
    raise _unknown(ask, gpus)


def _range(ask: Ask, first: int, last: int, gpus: list[Gpu]) -> list[Gpu]:
    if first > last:
        raise Fault(f'the range "{ask.word}" runs backwards', where=ask.origin, cure=f"Say {last}-{first}")
    found = [gpu for gpu in gpus if first <= gpu.index <= last]
    count = gpus[-1].index + 1 if gpus else 0
    if last >= count:
        least = max(first, count)
        absent = f"GPU {last} does not exist" if least == last else f"GPUs {least} to {last} do not exist"
        raise Fault(f'the range "{ask.word.strip()}" goes too far: {absent}', where=ask.origin, cure=_inventory(gpus))
    if len(found) <= last - first:  # one that cannot be used keeps its index
        there = [gpu.index for gpu in found]
        absent = ranges([index for index in range(first, last + 1) if index not in there])
        raise Fault(
            f'the range "{ask.word.strip()}" has a gap: GPU {absent} cannot be used',
            where=ask.origin,
            cure=f"gpu-oci-hook list says why. {_inventory(gpus)}",
        )
    return found


def _beginning(lower: str) -> bool:
    text = lower.removeprefix("gpu-")
    return len(text) >= _SHORTEST_UUID and all(c in _HEX or c == "-" for c in text)


def _refuse_path(ask: Ask, word: str) -> None:
    if word.startswith("/"):
        raise Fault(
            f'"{word}" is a path: the devices come as mounts below it, and there are none that count',
            where=ask.origin,
            cure="Switch [request] volume-mounts on, or name the GPUs in the variable",
        )


def pci_address(text: str) -> str:
    """A PCI address as 0000:01:00.0, from the forms that NVML, procfs and lspci print; "" when it is none."""
    parts = text.lower().split(":")
    if len(parts) == 2:
        parts = ["0000", *parts]
    if len(parts) != 3:
        return ""
    domain, bus, rest = parts
    device, _, function = rest.partition(".")
    numbers = (domain, bus, device, function or "0")
    if not all(number and len(number) <= 8 and all(c in _HEX for c in number) for number in numbers):
        return ""
    values = [int(number, 16) for number in numbers]
    if values[1] > 0xFF or values[2] > 0x1F or values[3] > 7:
        return ""
    return f"{values[0]:04x}:{values[1]:02x}:{values[2]:02x}.{values[3]:x}"


def _unknown(ask: Ask, gpus: list[Gpu]) -> Fault:
    """A word that names no GPU, with ids of its own form; one of no form may be meant for another word."""
    word = ask.word.strip()
    lower = word.lower()
    what = f"there is no GPU {word}" if _digits(lower) else f'there is no GPU "{clipped(word)}"'
    if _digits(lower):
        cure = _inventory(gpus)
    elif pci_address(lower):
        cure = _inventory(gpus, [gpu.pci for gpu in gpus])
    elif lower.startswith("gpu-") or _beginning(lower):
        cure = _inventory(gpus, [gpu.uuid for gpu in gpus])
    else:
        cure = _meant(word) or _inventory(gpus)
        near = nearest(word[:100], ("all", "none", "void"))
        hint = f'. Did you mean "{near}"?' if near else ""
        cure += f'. Valid are index, range, UUID or its beginning, PCI address, "all" and "none"{hint}'
    return Fault(what, where=ask.origin, cure=cure)


def _meant(word: str) -> str:
    """What a word is that has a meaning inside a CDI name alone; "" for any other."""
    from gpu_oci_hook.cdi import names
    from gpu_oci_hook.request import cdi

    if names.kind(word) is not None:
        return f"It is the kind of a CDI name: say {word}=0"
    plain = cdi.plain(word.lower())
    return f"Did you mean {plain}" if plain != word.lower() else ""


def _inventory(gpus: list[Gpu], ids: list[str] | None = None) -> str:
    """What there is, in words of one form and bounded: `ids`, else indices."""
    if not gpus:
        return "This machine has no GPU"
    listed = [one for one in ids or () if one]
    if not listed and len(gpus) == 1 and not gpus[0].uuid:  # a board's own: its model says what the index means
        return f"This machine has {gpus[0].index} = {gpus[0].model}"
    there = few(listed) if listed else ranges([gpu.index for gpu in gpus])
    return f"This machine has {there} (gpu-oci-hook list names {'it' if len(gpus) == 1 else 'them'})"


def few(ids: list[str]) -> str:
    """Some of these ids, and how many more there are."""
    more = f" and {len(ids) - _LISTED} more" if len(ids) > _LISTED else ""
    return f"{', '.join(ids[:_LISTED])}{more}"


def ranges(numbers: list[int], before: str = "") -> str:
    """Numbers in rising order as "0 to 3, 5", each with something before it."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    told = [
        f"{before}{first}" if first == last else f"{before}{first} to {before}{last}" for first, last in runs[:_RANGES]
    ]
    more = f" and {sum(last - first + 1 for first, last in runs[_RANGES:])} more" if len(runs) > _RANGES else ""
    return f"{', '.join(told)}{more}"
