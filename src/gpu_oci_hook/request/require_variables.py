"""Read a container's requirements on the host: `NVIDIA_REQUIRE_*`, and the CUDA version of a legacy image.

`request.require_expressions` has their grammar. No I/O.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.errors import clip_text
from gpu_oci_hook.model.request import Request
from gpu_oci_hook.request.environment import check_variable_size, is_legacy_cuda_image, parse_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config.keys import Config

_TRUE_VALUES = ("1", "t", "true", "y", "yes", "on", "enabled")
_FALSE_VALUES = ("", "0", "f", "false", "n", "no", "off", "disabled")


def read_requirements_only(spec: object, config: Config) -> Request:
    """Return a request with the requirements only, for a container whose devices a CDI file has chosen."""
    request = Request()
    request.environment = parse_environment(spec).values
    request.is_legacy_image = is_legacy_cuda_image(request.environment)
    read_requirements(request, config)
    return request


def read_requirements(request: Request, config: Config) -> None:
    """Add the requirements in a request's environment to the request, and what has disabled their check.

    Raises:
        Fault: a requirement is longer than a program's environment can have.
    """
    variables = request.environment
    requirements = [
        (name, value)
        for name, value in sorted(variables.items())
        if name.startswith("NVIDIA_REQUIRE_") and not name.startswith("NVIDIA_REQUIRE_JETPACK") and value.strip()
    ]
    if request.is_legacy_image:
        cuda_version = variables["CUDA_VERSION"]
        version = parse_legacy_cuda_version(cuda_version)
        if version:
            requirements.append(("CUDA_VERSION", f"cuda>={version}"))
        else:
            request.warnings.append(f"CUDA_VERSION={clip_text(cuda_version)} is not a version: not checked")
    request.requirements = tuple(requirements)
    disable_value = variables.get("NVIDIA_DISABLE_REQUIRE", "").strip()
    if requirements and disable_value.lower() not in (*_TRUE_VALUES, *_FALSE_VALUES):
        text = clip_text(variables["NVIDIA_DISABLE_REQUIRE"])
        request.warnings.append(f"NVIDIA_DISABLE_REQUIRE={text} is neither yes nor no: requirements are checked")
    if disable_value.lower() in _TRUE_VALUES:
        request.requirements_disabled_by = f"NVIDIA_DISABLE_REQUIRE={disable_value}"
    elif config.disable_require:
        request.requirements_disabled_by = "[request] disable-require in the configuration"
    else:
        for name, value in requirements:
            check_variable_size(name, value)


def parse_legacy_cuda_version(text: str) -> str:
    """Return MAJOR.MINOR of a legacy image's CUDA_VERSION, such as 9.0.116 or v11.6; "" when it is not a version."""
    parts = text.strip().removeprefix("v").split(".")
    if len(parts) > 3 or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        return ""
    return f"{int(parts[0])}.{int(parts[1]) if len(parts) > 1 else 0}"
