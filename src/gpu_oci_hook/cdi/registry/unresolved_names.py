"""Compare an unresolvable CDI name with the known devices and kinds: typing errors, missing devices, other kinds.

`unresolved` has the table of these checks.

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.cdi.own_kinds import GPU_MODE, map_kinds_to_modes
from gpu_oci_hook.cdi.registry.unresolved_query import (
    MAX_SHOWN,
    CdiNameQuery,
    UnresolvedCause,
    describe_searched_dirs,
    get_name_kind,
)
from gpu_oci_hook.errors import clip_text, find_close_match
from gpu_oci_hook.formats.cdi_names import is_device_name, parse_cdi_kind, parse_qualified_name
from gpu_oci_hook.request.cdi_requests import RUNTIME_KIND, get_own_kinds, strip_type_prefix
from gpu_oci_hook.request.environment import MANAGEMENT_DEVICE


def check_name_syntax(query: CdiNameQuery) -> UnresolvedCause | None:
    """Check whether the name is a qualified CDI name."""
    if parse_qualified_name(query.name) is not None:
        return None
    is_kind = parse_cdi_kind(query.name) is not None
    kind = query.name if is_kind else query.config.default_kind
    if is_kind and kind not in get_own_kinds(query.config):
        hint = f"Use {kind}=DEVICE"
    else:
        device = query.name if is_device_name(query.name) else "0"
        hint = f"Use {'' if is_kind else 'vendor/class=device, such as '}{kind}={device}"
    return UnresolvedCause("name", (), "it is not a fully qualified CDI name", hint)


def check_missing_device(query: CdiNameQuery) -> UnresolvedCause | None:
    """Check whether files define other devices of the name's kind."""
    names = [known for known in query.scan.winners if get_name_kind(known) == query.kind]
    if not names:
        return None
    files = tuple(dict.fromkeys(query.scan.winners[known][0].path for known in names))
    verb = "has" if len(files) == 1 else "have"
    text = f"{', '.join(files[:MAX_SHOWN])} {verb} no device {clip_text(query.device)} of {query.kind}"
    missing = query.own_devices.find_missing_fault(query.selector) if query.is_own_kind else None
    if missing is not None:
        return UnresolvedCause("device", files, f"{text}, and {missing.what}", missing.hint)
    shown = ", ".join(clip_text(known) for known in names[:MAX_SHOWN])
    text += f", only {shown}{f' and {len(names) - MAX_SHOWN} more' if len(names) > MAX_SHOWN else ''}"
    return UnresolvedCause("device", files, text, _suggest_known_device(query, names, files[0]))


def _suggest_known_device(query: CdiNameQuery, names: list[str], path: str) -> str:
    """Return the hint for a name whose kind has only these devices.

    Arguments:
        names: qualified names of the kind's devices.
        path: a file that defines devices of the kind.
    """
    kind, device = query.kind, query.device
    devices = [known.partition("=")[2] for known in names]
    if query.is_own_kind:
        for known in devices:
            if query.own_devices.is_same_device(query.selector, strip_type_prefix(known)):
                return f"Use {kind}={known}"
    if query.describe_without_file():
        regenerate = query.suggest_regeneration(path)
        if devices != ["all"]:
            return regenerate
        return f"Use {names[0]} for all devices. For {device} alone {regenerate[:1].lower()}{regenerate[1:]}"
    if devices == ["all"]:
        return f"Use {names[0]}"
    # A number is not a typing error for another number.
    close_match = "" if device.isdigit() else find_close_match(device[:100], devices)
    return f"Use {f'{kind}={close_match}' if close_match else names[0] if len(names) == 1 else 'one of them'}"


def check_absent_hardware(query: CdiNameQuery) -> UnresolvedCause | None:
    """Check whether this host lacks the device, so that no generated file could define it."""
    missing = query.own_devices.find_missing_fault(query.selector) if query.is_own_kind else None
    if missing is None:
        return None
    return UnresolvedCause("absent", (), f"no CDI file defines it, and {missing.what}", missing.hint)


def check_mistyped_kind(query: CdiNameQuery) -> UnresolvedCause | None:
    """Check whether the kind is a known kind with a typing error."""
    kinds = [
        query.config.default_kind,
        *map_kinds_to_modes(query.config),
        RUNTIME_KIND,
        *map(get_name_kind, query.scan.winners),
    ]
    if query.kind in kinds:
        return None
    for kind in dict.fromkeys(kinds):
        if _is_similar_kind(query.kind, kind):
            text = f"no file defines devices of the kind {query.kind}; looked in {describe_searched_dirs(query.scan)}"
            return UnresolvedCause("kind", (), text, f"Did you mean {kind}={query.device}?")
    return None


def _is_similar_kind(kind: str, known_kind: str) -> bool:
    """Tell whether one half of two kinds is equal and the other half differs by a typing error.

    Vendors' names look alike because of their endings, so they have to be closer.
    """
    vendor, _, category = kind.partition("/")
    known_vendor, _, known_category = known_kind.partition("/")
    if vendor == known_vendor:
        return bool(find_close_match(category, [known_category]))
    return category == known_category and bool(find_close_match(vendor, [known_vendor], cutoff=0.85))


def check_runtime_kind(query: CdiNameQuery) -> UnresolvedCause | None:
    """Check whether the name has the kind that only our runtime resolves, without files."""
    if query.kind != RUNTIME_KIND or query.config.default_kind == RUNTIME_KIND:
        return None
    name = f"{query.config.default_kind}={query.device}"
    text = f"no CDI file defines it: gpu-oci-runtime resolves such names without a CDI file, and engines need {name}"
    winner = query.scan.winners.get(name)
    if winner is not None:
        return UnresolvedCause("kind", (winner[0].path,), text, f"Use {name}, which {winner[0].path} defines")
    command = CdiNameQuery(name, query.scan, query.config, query.own_devices).suggest_generate_command()
    return UnresolvedCause("kind", (), text, f"With engines use {name}, and generate its file: {command}")


def check_generated_kind(query: CdiNameQuery) -> UnresolvedCause | None:
    """Check whether `cdi generate` writes the kind in another mode than that for GPUs.

    Files of other kinds do not help then.
    """
    if query.generate_mode in ("", GPU_MODE):
        return None
    text = f"no CDI file defines it; looked in {describe_searched_dirs(query.scan)}"
    if query.name != MANAGEMENT_DEVICE and f"{query.kind}=all" == MANAGEMENT_DEVICE:
        return UnresolvedCause(
            "undefined", (), f"{text}, and this kind only has the device all", f"Use {MANAGEMENT_DEVICE}"
        )
    hint = _suggest_generating(query)
    if query.name == MANAGEMENT_DEVICE:
        hint += "; gpu-oci-runtime resolves this name without a CDI file"
    return UnresolvedCause("undefined", (), text, hint)


def check_other_kind(query: CdiNameQuery) -> UnresolvedCause | None:
    """Check whether files define a device of the same name, vendor or class under another kind."""
    scan, kind, device = query.scan, query.kind, query.device
    vendor, _, category = kind.partition("/")

    def is_alike(name: str) -> bool:
        known_vendor, _, known_category = get_name_kind(name).partition("/")
        return name.partition("=")[2] == device or vendor == known_vendor or category == known_category

    names = [known for known in scan.winners if is_alike(known)]
    if not names:
        return None
    # The nearest first: the same device name and class of another vendor.
    names.sort(key=lambda known: (known.partition("=")[2] != device, not get_name_kind(known).endswith(f"/{category}")))
    nearest_kind = get_name_kind(names[0])
    devices = [known for known in names if get_name_kind(known) == nearest_kind]
    path = scan.winners[names[0]][0].path
    listed = ", ".join(devices[:MAX_SHOWN])
    text = f"no file defines devices of the kind {kind}; {path} has {listed} of the kind {nearest_kind}"
    hint = f"Use {devices[0]}, or find the setting that names the kind {kind}"
    if query.describe_without_file():
        hint = _suggest_generating(query)
    return UnresolvedCause("kind", (path,), text, hint)


def describe_undefined_name(query: CdiNameQuery) -> UnresolvedCause:
    """Return the answer for a name of which nothing else is known."""
    if query.is_own_kind and not query.own_devices.gpus:
        hint = "This host has no GPU; run gpu-oci-hook list to see what was checked"
    elif query.generate_mode:
        hint = _suggest_generating(query)
    else:
        hint = "Generate one with the vendor's tool, or add its directory to [cdi] spec-dirs"
    text = f"no CDI file defines it; looked in {describe_searched_dirs(query.scan)}"
    return UnresolvedCause("undefined", (), text, hint)


def _suggest_generating(query: CdiNameQuery) -> str:
    return f"Generate one for engines that resolve CDI names themselves: {query.suggest_generate_command()}"
