"""Holds what an image demands (`NVIDIA_REQUIRE_*`) against the host; loaded only where something is demanded.

Cost rule: hot for CUDA images; NVML is asked only for what no table knows.
"""

from __future__ import annotations

from gpu_oci_hook.host.model_tables import lookup_compute_capability, lookup_cuda_version, lookup_gpu_brands
from gpu_oci_hook.request.require_expressions import HostProperties, evaluate_requirements, make_unknown_property_fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.host.platforms.platform import Platform
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.machine import Cache, Gpu
    from gpu_oci_hook.model.outcome import Outcome
    from gpu_oci_hook.model.request import Request


def check_outcome_requirements(outcome: Outcome, host: Host, config: Config, version: str, cache: Cache) -> None:
    """Holds the requirements of a container that goes the shim's way against the host; see `check_host_requirements`."""
    chosen = [gpu for gpu, _ in outcome.chosen_gpus]
    check_host_requirements(
        outcome.request, chosen, outcome.platform, host, config, version, cache, outcome.plan.warnings
    )


def check_host_requirements(
    request: Request,
    chosen_gpus: list[Gpu],
    platform: Platform | None,
    host: Host,
    config: Config,
    version: str,
    cache: Cache,
    warnings: list[str],
) -> None:
    """Holds `NVIDIA_REQUIRE_*` against the host, GPU by GPU; NVML is asked only for what no table knows.

    Arguments:
        chosen_gpus: the container's GPUs. platform: the machine's own way, None for a desktop's. version: the driver's.
        warnings: takes what does not stop a start, one sentence each.

    Raises:
        Fault: one is not met, or cannot be decided.
    """
    if request.requirements_disabled_by:
        warnings.append(f"requirements are not checked: {request.requirements_disabled_by}")
        return
    subjects: list[Gpu | None] = [*chosen_gpus]
    hosts = [_read_host_properties(platform, gpu, version) for gpu in subjects or [None]]
    unknown = evaluate_requirements(request.requirements, hosts, warnings)
    if not unknown:
        return
    from gpu_oci_hook.host.nvml.answer_cache import fill_unknown_values

    def library() -> str:
        if platform is not None:
            return platform.locate_nvml_library()
        from gpu_oci_hook.inject.gather import locate_nvml_library

        return locate_nvml_library(host, config, version, cache)

    identity = version if platform is None else platform.read_driver_identity()
    reason = fill_unknown_values(hosts, chosen_gpus, identity, unknown, cache, library)
    unknown = evaluate_requirements(request.requirements, hosts, [])
    if unknown and platform is not None:
        # Such machines have no place that tells, so that no image with the usual conditions would ever start there.
        warnings.append(
            f"requirements that depend on the host's {', '.join(unknown)} are not checked: platform "
            f"{platform.name} does not tell it ({reason or 'nor does NVML'})"
        )
    elif unknown:
        raise make_unknown_property_fault(request.requirements, hosts, unknown, reason)


def _read_host_properties(platform: Platform | None, gpu: Gpu | None, version: str) -> HostProperties:
    """What requirements are held against: the host with one of its GPUs, or with none."""
    label = f"GPU {gpu.index} ({gpu.model})" if gpu else "this host"
    if platform is not None:
        return platform.read_host_properties(label, gpu, version)
    exact, at_least = lookup_cuda_version(version)
    arch, brand = (lookup_compute_capability(gpu.model), lookup_gpu_brands(gpu.model)) if gpu else ("", ())
    return HostProperties(label, cuda=exact, cuda_at_least=at_least, driver=version, arch=arch, brand=brand)
