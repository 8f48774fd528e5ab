"""Parse the container's environment variables.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault, clip_text
from gpu_oci_hook.formats.oci import get_list

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"

# Rights over all MIG devices of the machine: variable, and the name of the capability.
MIG_RIGHT_VARIABLES = (("NVIDIA_MIG_CONFIG_DEVICES", "config"), ("NVIDIA_MIG_MONITOR_DEVICES", "monitor"))

IMEX_CHANNELS_VARIABLE = "NVIDIA_IMEX_CHANNELS"
# Variable, key in [inject], title for people. NVIDIA's runtime has the same four (facts: feature-variables).
FEATURE_SWITCHES = (
    ("NVIDIA_GDS", "gds", "GPUDirect Storage"),
    ("NVIDIA_MOFED", "mofed", "RDMA devices"),
    ("NVIDIA_GDRCOPY", "gdrcopy", "GDRCopy"),
    ("NVIDIA_NVSWITCH", "nvswitch", "NVSwitch devices"),
)
# Every variable that requests something other than GPUs.
FEATURE_VARIABLES = (IMEX_CHANNELS_VARIABLE, *[variable for variable, _, _ in FEATURE_SWITCHES])

# The CDI name of all devices and driver files, for containers that manage the driver.
MANAGEMENT_DEVICE = "management.nvidia.com/gpu=all"

# Docker Swarm gives a task its generic resources in variables of this prefix.
SWARM_PREFIX = "DOCKER_RESOURCE_"

# Linux passes no longer entry to a program (MAX_ARG_STRLEN, with pages of 4 KiB). Splitting a longer value, which an
# image can contain, would take some hundred megabytes of memory.
VARIABLE_SIZE_LIMIT = 128 << 10

_MAX_LISTED_ENTRIES = 3


class Environment:
    """The container's environment variables.

    Attributes:
        values: the value of each variable.
        positions: the index of each variable in `process.env`.
    """

    __slots__ = ("positions", "values")

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.positions: dict[str, int] = {}

    def choose_device_variables(self, preferred: tuple[str, ...]) -> tuple[str, ...]:
        """Return the variables that request devices: those of `preferred` that are set, else NVIDIA_VISIBLE_DEVICES.

        Empty if none is set. The rules are those of NVIDIA's swarm-resource (facts: swarm-resource).
        """
        chosen = tuple([name for name in dict.fromkeys(preferred) if name in self.values])
        return chosen or ((VISIBLE_DEVICES,) if VISIBLE_DEVICES in self.values else ())

    def describe_variable(self, name: str) -> str:
        """Return the origin of what a variable requests: NAME=VALUE and where the config.json has it."""
        return f"{name}={clip_text(self.values[name])} (process.env[{self.positions[name]}])"


def parse_environment(spec: object, warnings: list[str] | None = None) -> Environment:
    """Parse `process.env` of a config.json. Of repeated entries the last wins.

    Entries that are not text or have no `=` are ignored (runc passed them on before 1.3).

    Arguments:
        warnings: gets a warning when VISIBLE_DEVICES is set to several values.
    """
    environment = Environment()
    values, positions = environment.values, environment.positions
    entries: list[tuple[int, str]] = []  # of VISIBLE_DEVICES
    for position, entry in enumerate(get_list(spec, "process", "env")):
        if not isinstance(entry, str):
            continue
        name, equals, value = entry.partition("=")
        if not equals:
            continue
        if name == VISIBLE_DEVICES:
            entries.append((position, value))
        values[name] = value
        positions[name] = position
    if warnings is not None and any(value != entries[-1][1] for _, value in entries):
        warnings.append(_describe_repeated_entries(entries))
    return environment


def _describe_repeated_entries(entries: list[tuple[int, str]]) -> str:
    """Say which entry of VISIBLE_DEVICES counts; engines write one for each device request of a container."""
    names = [f"process.env[{position}] ({clip_text(value)})" for position, value in entries[-_MAX_LISTED_ENTRIES:]]
    count = "twice" if len(entries) == 2 else f"{len(entries)} times"
    return (
        f"{VISIBLE_DEVICES} is set {count}: {names[-1]} wins over {', '.join(names[:-1])}; "
        "name all devices in one request"
    )


def split_list(value: str) -> list[str]:
    """Split a comma-separated list; spaces around items and empty items do not count."""
    return [item for item in (part.strip() for part in value.split(",")) if item]


def split_variable(value: str) -> list[str]:
    """Split a variable's comma-separated list; a value that is too long is cut, for `check_variable_size` to refuse."""
    return split_list(value[: VARIABLE_SIZE_LIMIT + 1])


def find_ignored_swarm_variables(environment: Environment, device_variables: tuple[str, ...]) -> list[str]:
    """Return the variables with which Docker Swarm assigns GPUs and that `[request] device-variables` does not name."""
    return [
        name
        for name, value in environment.values.items()
        if name.startswith(SWARM_PREFIX)
        and name not in device_variables
        and ("GPU" in name.upper() or any(item[:4].upper() in ("GPU-", "MIG-") for item in split_variable(value)))
    ]


def is_legacy_cuda_image(variables: dict[str, str]) -> bool:
    """Tell whether the environment is that of a CUDA image from before `NVIDIA_REQUIRE_CUDA`."""
    return bool(variables.get("CUDA_VERSION")) and not variables.get("NVIDIA_REQUIRE_CUDA")


def check_variable_size(name: str, value: str | None) -> str | None:
    """Return the value.

    Raises:
        Fault: it is longer than a program's environment can have.
    """
    if value is not None and len(name) + len(value) >= VARIABLE_SIZE_LIMIT:
        raise Fault(
            f"{name} is longer than {VARIABLE_SIZE_LIMIT >> 10} KiB",
            where="process.env",
            hint="Shorten it: no program can be started with such a variable",
        )
    return value
