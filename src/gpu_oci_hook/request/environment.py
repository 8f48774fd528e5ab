"""Read the container's environment variables."""

from __future__ import annotations

from gpu_oci_hook.errors import Fault, clip_text
from gpu_oci_hook.formats.oci import get_list

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"


# Rights over all of a machine's MIG devices: variable, and the capability's name; `mig` reads them.
MIG_RIGHT_VARIABLES = (("NVIDIA_MIG_CONFIG_DEVICES", "config"), ("NVIDIA_MIG_MONITOR_DEVICES", "monitor"))


# Everything that a driver-management container needs, by the CDI name that it has where engines resolve those.
MANAGEMENT_DEVICE = "management.nvidia.com/gpu=all"


# Linux passes no longer entry to a program (MAX_ARG_STRLEN, with pages of 4 KiB). To take a longer one apart
# would cost an image's word some hundred megabytes of ours.
VARIABLE_SIZE_LIMIT = 128 << 10


def parse_environment(spec: object, warnings: list[str] | None = None) -> tuple[dict[str, str], dict[str, int]]:
    """The container's environment and the place of each name in `process.env`; the last entry wins.

    Entries that are no text or have no `=` are nobody's business (runc's before 1.3 passed them on).
    """
    values: dict[str, str] = {}
    places: dict[str, int] = {}
    twice = ""
    for place, entry in enumerate(get_list(spec, "process", "env")):
        if not isinstance(entry, str):
            continue
        name, equals, value = entry.partition("=")
        if not equals:
            continue
        if warnings is not None and name == VISIBLE_DEVICES and name in values and values[name] != value:
            twice = (
                f"{name} is set twice: process.env[{place}] ({clip_text(value)}) wins over "
                f"process.env[{places[name]}] ({clip_text(values[name])})"
            )
        values[name] = value
        places[name] = place
    if warnings is not None and twice:
        warnings.append(twice)
    return values, places


def is_legacy_cuda_image(variables: dict[str, str]) -> bool:
    """Whether an environment is that of a CUDA image of before `NVIDIA_REQUIRE_CUDA`."""
    return bool(variables.get("CUDA_VERSION")) and not variables.get("NVIDIA_REQUIRE_CUDA")


def check_variable_size(name: str, value: str | None) -> str | None:
    """The value, if a program could be started with it.

    Raises:
        Fault: it is longer than any program can be given.
    """
    if value is not None and len(name) + len(value) >= VARIABLE_SIZE_LIMIT:
        raise Fault(
            f"{name} is longer than {VARIABLE_SIZE_LIMIT >> 10} KiB",
            where="process.env",
            hint="No program can be started with such a variable",
        )
    return value
