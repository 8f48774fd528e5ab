"""Holds what an image demands (`NVIDIA_REQUIRE_*`) against the host; loaded only where something is demanded.

Cost rule: hot for CUDA images; NVML is asked only for what no table knows.
"""

from __future__ import annotations

from gpu_oci_hook.host import versions
from gpu_oci_hook.request import requirements

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config import Config
    from gpu_oci_hook.host.inventory import Gpu, Memory
    from gpu_oci_hook.host.platform import Special
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.pipeline import Outcome
    from gpu_oci_hook.request import Request


def check(outcome: Outcome, host: Host, config: Config, version: str, memory: Memory) -> None:
    """Holds the requirements of a container that goes the shim's way against the host; see `hold`."""
    chosen = [gpu for gpu, _ in outcome.chosen]
    hold(outcome.request, chosen, outcome.special, host, config, version, memory, outcome.plan.warnings)


def hold(
    request: Request,
    chosen: list[Gpu],
    special: Special | None,
    host: Host,
    config: Config,
    version: str,
    memory: Memory,
    warnings: list[str],
) -> None:
    """Holds `NVIDIA_REQUIRE_*` against the host, GPU by GPU; NVML is asked only for what no table knows.

    Arguments:
        chosen: the container's GPUs. special: the machine's own way, None for a desktop's. version: the driver's.
        warnings: takes what does not stop a start, one sentence each.

    Raises:
        Fault: one is not met, or cannot be decided.
    """
    if request.requirements_off:
        warnings.append(f"requirements are not checked: {request.requirements_off}")
        return
    subjects: list[Gpu | None] = [*chosen]
    hosts = [_values(special, gpu, version) for gpu in subjects or [None]]
    unknown = requirements.check(request.requirements, hosts, warnings)
    if not unknown:
        return
    from gpu_oci_hook.host import answers

    def library() -> str:
        if special is not None:
            return special.nvml()
        from gpu_oci_hook.supply import nvml_library

        return nvml_library(host, config, version, memory)

    identity = version if special is None else special.identity()
    reason = answers.fill(hosts, chosen, identity, unknown, memory, library)
    unknown = requirements.check(request.requirements, hosts, [])
    if unknown and special is not None:
        # Such machines have no place that tells, so that no image with the usual conditions would ever start there.
        warnings.append(
            f"requirements that depend on the host's {', '.join(unknown)} are not checked: platform "
            f"{special.name} does not tell it ({reason or 'nor does NVML'})"
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
