"""What a container demands of the host: `NVIDIA_REQUIRE_*`, and the CUDA of a legacy image; pure.

Their grammar is the business of `requirements`. Cost rule: loaded where an environment has such a variable.
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
    """The requirements alone, for a container whose devices somebody else has chosen (a CDI file)."""
    request = Request()
    values, _ = parse_environment(spec)
    request.environment = values
    request.is_legacy_image = is_legacy_cuda_image(values)
    read_requirements(request, values, config)
    return request


def read_requirements(request: Request, variables: dict[str, str], config: Config) -> None:
    """Puts the requirements into a request, and who has switched them off.

    Arguments:
        variables: the container's environment.

    Raises:
        Fault: one is longer than any program can be given.
    """
    found = [
        (name, value)
        for name, value in sorted(variables.items())
        if name.startswith("NVIDIA_REQUIRE_") and not name.startswith("NVIDIA_REQUIRE_JETPACK") and value.strip()
    ]
    if request.is_legacy_image:
        version = parse_legacy_cuda_version(variables["CUDA_VERSION"])
        if version:
            found.append(("CUDA_VERSION", f"cuda>={version}"))
        else:
            request.warnings.append(f"CUDA_VERSION={clip_text(variables['CUDA_VERSION'])} is no version: not checked")
    request.requirements = tuple(found)
    disabled = variables.get("NVIDIA_DISABLE_REQUIRE", "").strip().lower()
    if found and disabled not in (*_TRUE_VALUES, *_FALSE_VALUES):
        text = clip_text(variables["NVIDIA_DISABLE_REQUIRE"])
        request.warnings.append(f"NVIDIA_DISABLE_REQUIRE={text} is neither yes nor no: requirements are checked")
    if disabled in _TRUE_VALUES:
        request.requirements_disabled_by = f"NVIDIA_DISABLE_REQUIRE={variables['NVIDIA_DISABLE_REQUIRE'].strip()}"
    elif config.disable_require:
        request.requirements_disabled_by = "[request] disable-require in the configuration"
    else:
        for name, value in found:
            check_variable_size(name, value)


def parse_legacy_cuda_version(text: str) -> str:
    """MAJOR.MINOR of a legacy image's CUDA_VERSION, such as 9.0.116 or v11.6; "" when it is no version."""
    parts = text.strip().removeprefix("v").split(".")
    if len(parts) > 3 or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        return ""
    return f"{int(parts[0])}.{int(parts[1]) if len(parts) > 1 else 0}"
