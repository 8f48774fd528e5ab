"""Holds what an image demands (`NVIDIA_REQUIRE_*`) against the host; loaded only where something is demanded.

Cost rule: hot for CUDA images; NVML is asked only for what no table knows.
"""

from __future__ import annotations

from gpu_oci_hook.host import versions
from gpu_oci_hook.pipeline import nvml_library
from gpu_oci_hook.request import requirements

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config import Config
    from gpu_oci_hook.host.inventory import Gpu, Memory
    from gpu_oci_hook.host.platform import Special
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.pipeline import Outcome


def check(outcome: Outcome, host: Host, config: Config, version: str, memory: Memory) -> None:
    """Holds `NVIDIA_REQUIRE_*` against the host, GPU by GPU; NVML is asked only for what no table knows.

    Raises:
        Fault: one is not met, or cannot be decided.
    """
    request, warnings = outcome.request, outcome.plan.warnings
    chosen = [gpu for gpu, _ in outcome.chosen]
    if request.requirements_off:
        warnings.append(f"requirements are not checked: {request.requirements_off}")
        return
    subjects: list[Gpu | None] = [*chosen]
    hosts = [_values(outcome.special, gpu, version) for gpu in subjects or [None]]
    unknown = requirements.check(request.requirements, hosts, warnings)
    if not unknown:
        return
    from gpu_oci_hook.host import answers

    identity = version if outcome.special is None else outcome.special.identity()
    library = outcome.special.nvml if outcome.special else lambda: nvml_library(host, config, version, memory)
    reason = answers.fill(hosts, chosen, identity, unknown, memory, library)
    unknown = requirements.check(request.requirements, hosts, [])
    if unknown and outcome.special is not None:
        # Such machines have no place that tells, so that no image with the usual conditions would ever start there.
        warnings.append(
            f"requirements that depend on the host's {', '.join(unknown)} are not checked: platform "
            f"{outcome.special.name} does not tell it ({reason or 'nor does NVML'})"
        )
    elif unknown:
        raise requirements.unanswered(request.requirements, hosts, unknown, reason)


def _values(special: Special | None, gpu: Gpu | None, version: str) -> requirements.Values:
    """What requirements are held against: the host with one of its GPUs, or with none."""
    label = f"GPU {gpu.index} ({gpu.model})" if gpu else "this host"
    if special is not None:
        return special.values(label, gpu, version)
    exact, at_least = versions.cuda_version(version)
    arch, brand = (versions.arch(gpu.model), versions.brands(gpu.model)) if gpu else ("", ())
    return requirements.Values(
        label, cuda=exact, cuda_at_least=at_least, driver=version, arch=arch, brand=brand
    )
