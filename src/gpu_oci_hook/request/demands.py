"""What a container demands of the host: `NVIDIA_REQUIRE_*`, and the CUDA of a legacy image; pure.

Their grammar is the business of `requirements`. Cost rule: loaded where an environment has such a variable.
"""

from __future__ import annotations

from gpu_oci_hook.errors import clipped
from gpu_oci_hook.request import Request, bounded, environment, legacy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config import Config

_TRUE = ("1", "t", "true", "y", "yes", "on", "enabled")
_FALSE = ("", "0", "f", "false", "n", "no", "off", "disabled")


def alone(spec: object, config: Config) -> Request:
    """The requirements alone, for a container whose devices somebody else has chosen (a CDI file)."""
    request = Request()
    values, _ = environment(spec)
    request.environment = values
    request.legacy = legacy(values)
    read(request, values, config)
    return request


def read(request: Request, values: dict[str, str], config: Config) -> None:
    """Puts the requirements into a request, and who has switched them off.

    Arguments:
        values: the container's environment.

    Raises:
        Fault: one is longer than any program can be given.
    """
    found = [
        (name, value)
        for name, value in sorted(values.items())
        if name.startswith("NVIDIA_REQUIRE_") and not name.startswith("NVIDIA_REQUIRE_JETPACK") and value.strip()
    ]
    if request.legacy:
        version = legacy_cuda(values["CUDA_VERSION"])
        if version:
            found.append(("CUDA_VERSION", f"cuda>={version}"))
        else:
            request.warnings.append(f"CUDA_VERSION={clipped(values['CUDA_VERSION'])} is no version: not checked")
    request.requirements = tuple(found)
    disabled = values.get("NVIDIA_DISABLE_REQUIRE", "").strip().lower()
    if found and disabled not in (*_TRUE, *_FALSE):
        text = clipped(values["NVIDIA_DISABLE_REQUIRE"])
        request.warnings.append(f"NVIDIA_DISABLE_REQUIRE={text} is neither yes nor no: requirements are checked")
    if disabled in _TRUE:
        request.requirements_off = f"NVIDIA_DISABLE_REQUIRE={values['NVIDIA_DISABLE_REQUIRE'].strip()}"
    elif config.disable_require:
        request.requirements_off = "[request] disable-require in the configuration"
    else:
        for name, value in found:
            bounded(name, value)


def legacy_cuda(text: str) -> str:
    """MAJOR.MINOR of a legacy image's CUDA_VERSION, such as 9.0.116 or v11.6; "" when it is no version."""
    parts = text.strip().removeprefix("v").split(".")
    if len(parts) > 3 or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        return ""
    return f"{int(parts[0])}.{int(parts[1]) if len(parts) > 1 else 0}"
