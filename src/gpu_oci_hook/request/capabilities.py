"""Choose the driver capabilities of a container: NVIDIA_DRIVER_CAPABILITIES, limited by the administrator's list.

No I/O.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault, clip_text, find_close_match
from gpu_oci_hook.request.environment import split_list

CAPABILITIES_VARIABLE = "NVIDIA_DRIVER_CAPABILITIES"

# The capabilities that NVIDIA documents, in the order of our output.
KNOWN_CAPABILITIES = ("compute", "compat32", "graphics", "utility", "video", "display", "ngx")

# NVENC and NVDEC load libcuda, a display needs the GL libraries (facts: capability-implies).
IMPLIED_CAPABILITIES = {"video": ("compute",), "display": ("graphics",)}


def choose_capabilities(
    value: str | None, *, is_legacy_image: bool, default: tuple[str, ...], supported: tuple[str, ...], where: str
) -> tuple[tuple[str, ...], str]:
    """Return the capabilities in fixed order, and the origin of the choice.

    Arguments:
        value: the variable's value; None when it is not set.
        is_legacy_image: the image is older than the variable; it gets every supported capability.
        default: the capabilities for an unset or empty variable.
        supported: the administrator's list; "all" allows every capability.
        where: the entry, for an error.

    Raises:
        Fault: a capability is unknown or not in the administrator's list.
    """
    allowed = KNOWN_CAPABILITIES if "all" in supported else tuple([c for c in KNOWN_CAPABILITIES if c in supported])
    requested = split_list(value or "")
    if not requested:
        if is_legacy_image and value is None:
            return allowed, "legacy CUDA image: all supported capabilities"
        chosen = allowed if "all" in default else tuple([c for c in allowed if c in default])
        limit = ""
        if len(chosen) < len(KNOWN_CAPABILITIES if "all" in default else set(default)):
            limit = ", limited by [request] supported-capabilities"
        return chosen, f"{CAPABILITIES_VARIABLE} is {'not set' if value is None else 'empty'}: the default{limit}"
    for capability in requested:
        _check_capability(capability, allowed, where)
    chosen = allowed if "all" in requested else tuple([c for c in KNOWN_CAPABILITIES if c in requested])
    return chosen, f"{CAPABILITIES_VARIABLE}={value}"


def _check_capability(capability: str, allowed: tuple[str, ...], where: str) -> None:
    if capability == "all" or capability in allowed:
        return
    if capability in KNOWN_CAPABILITIES:
        raise Fault(
            f'the capability "{capability}" is not allowed on this host',
            where=where,
            hint=f"Allowed are {', '.join(allowed) or 'none'} ([request] supported-capabilities)",
        )
    near = find_close_match(capability[:100], (*KNOWN_CAPABILITIES, "all"))
    suggestion = f'. Did you mean "{near}"?' if near else ""
    raise Fault(
        f'unknown capability "{clip_text(capability)}"',
        where=where,
        hint=f"Use {', '.join(KNOWN_CAPABILITIES)} or all{suggestion}",
    )


def add_implied_capabilities(capabilities: tuple[str, ...]) -> dict[str, str]:
    """Return every capability whose libraries are injected, each with the requested capability that implies it."""
    implied_by = {capability: capability for capability in capabilities}
    for capability in capabilities:
        for implied in IMPLIED_CAPABILITIES.get(capability, ()):
            implied_by.setdefault(implied, capability)
    return implied_by
