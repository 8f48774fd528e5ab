"""Which driver capabilities a container gets: NVIDIA_DRIVER_CAPABILITIES under the administrator's list; pure.

Cost rule: hot, no imports of the library.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault, clipped, nearest

VARIABLE = "NVIDIA_DRIVER_CAPABILITIES"

# NVIDIA's documented words, in the order in which we print them.
KNOWN = ("compute", "compat32", "graphics", "utility", "video", "display", "ngx")

# What a capability cannot work without: NVENC and NVDEC call libcuda, a display needs the GL libraries
# (libnvidia-container facts 1.3).
BRINGS = {"video": ("compute",), "display": ("graphics",)}


def choose(
    said: str | None, *, legacy: bool, default: tuple[str, ...], supported: tuple[str, ...], where: str
) -> tuple[tuple[str, ...], str]:
    """The capabilities in fixed order, and who chose them.

    Arguments:
        said: the variable's value; None when it is not set.
        legacy: the image is from before the variable existed: everything that is supported.
        default: what an unset or empty variable means.
        supported: the administrator's list; "all" allows every one.
        where: the entry, for an error.

    Raises:
        Fault: a word that is unknown, or that the administrator's list leaves out.
    """
    allowed = KNOWN if "all" in supported else tuple(word for word in KNOWN if word in supported)
    words = [word for word in (part.strip() for part in (said or "").split(",")) if word]
    if not words:
        if legacy and said is None:
            return allowed, "legacy CUDA image: everything supported"
        chosen = allowed if "all" in default else tuple(word for word in allowed if word in default)
        return chosen, f"{VARIABLE} is {'not set' if said is None else 'empty'}: the default"
    for word in words:
        if word != "all" and word not in KNOWN:
            near = nearest(word[:100], (*KNOWN, "all"))
            hint = f' Did you mean "{near}"?' if near else ""
            raise Fault(
                f'{VARIABLE} has the unknown word "{clipped(word)}"',
                where=where,
                cure=f"Valid are {', '.join(KNOWN)} and all.{hint}".rstrip("."),
            )
        if word != "all" and word not in allowed:
            raise Fault(
                f'{VARIABLE} asks for "{word}", which this machine\'s administrator does not allow',
                where=where,
                cure=f"Allowed are {', '.join(allowed) or 'none'} ([request] supported-capabilities)",
            )
    chosen = allowed if "all" in words else tuple(word for word in KNOWN if word in words)
    return chosen, f"{VARIABLE}={said}"


def with_brought(chosen: tuple[str, ...]) -> dict[str, str]:
    """Every capability whose libraries go in, with the one that brings it (itself, when asked for)."""
    brought = {word: word for word in chosen}
    for word in chosen:
        for more in BRINGS.get(word, ()):
            brought.setdefault(more, word)
    return brought
