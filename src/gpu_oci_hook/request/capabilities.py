"""Which driver capabilities a container gets: NVIDIA_DRIVER_CAPABILITIES under the administrator's list; pure.

Cost rule: hot, no imports of the library.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault, clip_text, find_close_match

CAPABILITIES_VARIABLE = "NVIDIA_DRIVER_CAPABILITIES"

# NVIDIA's documented words, in the order in which we print them.
KNOWN_CAPABILITIES = ("compute", "compat32", "graphics", "utility", "video", "display", "ngx")

# What a capability cannot work without: NVENC and NVDEC call libcuda, a display needs the GL libraries
# (libnvidia-container facts 1.3).
IMPLIED_CAPABILITIES = {"video": ("compute",), "display": ("graphics",)}


def choose_capabilities(
    value: str | None, *, is_legacy_image: bool, default: tuple[str, ...], supported: tuple[str, ...], where: str
) -> tuple[tuple[str, ...], str]:
    """The capabilities in fixed order, and who chose them.

    Arguments:
        value: the variable's value; None when it is not set.
        is_legacy_image: the image is from before the variable existed: everything that is supported.
        default: what an unset or empty variable means.
        supported: the administrator's list; "all" allows every one.
        where: the entry, for an error.

    Raises:
        Fault: a word that is unknown, or that the administrator's list leaves out.
    """
    allowed = (
        KNOWN_CAPABILITIES if "all" in supported else tuple(word for word in KNOWN_CAPABILITIES if word in supported)
    )
    words = [word for word in (part.strip() for part in (value or "").split(",")) if word]
    if not words:
        if is_legacy_image and value is None:
            return allowed, "legacy CUDA image: everything supported"
        chosen = allowed if "all" in default else tuple(word for word in allowed if word in default)
        return chosen, f"{CAPABILITIES_VARIABLE} is {'not set' if value is None else 'empty'}: the default"
    for word in words:
        if word != "all" and word not in KNOWN_CAPABILITIES:
            near = find_close_match(word[:100], (*KNOWN_CAPABILITIES, "all"))
            hint = f' Did you mean "{near}"?' if near else ""
            raise Fault(
                f'{CAPABILITIES_VARIABLE} has the unknown word "{clip_text(word)}"',
                where=where,
                hint=f"Valid are {', '.join(KNOWN_CAPABILITIES)} and all.{hint}".rstrip("."),
            )
        if word != "all" and word not in allowed:
            raise Fault(
                f'{CAPABILITIES_VARIABLE} asks for "{word}", which this machine\'s administrator does not allow',
                where=where,
                hint=f"Allowed are {', '.join(allowed) or 'none'} ([request] supported-capabilities)",
            )
    chosen = allowed if "all" in words else tuple(word for word in KNOWN_CAPABILITIES if word in words)
    return chosen, f"{CAPABILITIES_VARIABLE}={value}"


def add_implied_capabilities(capabilities: tuple[str, ...]) -> dict[str, str]:
    """Every capability whose libraries go in, with the one that brings it (itself, when asked for)."""
    brought = {word: word for word in capabilities}
    for word in capabilities:
        for more in IMPLIED_CAPABILITIES.get(word, ()):
            brought.setdefault(more, word)
    return brought
