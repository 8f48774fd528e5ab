"""Check the container's NVIDIA_REQUIRE_* constraints against this host.

NVML is asked only for values that no table has.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.host.model_tables import lookup_compute_capability, lookup_cuda_version, lookup_gpu_brands
from gpu_oci_hook.request.require_expressions import HostProperties, evaluate_requirements, make_unknown_property_fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.host.platforms.platform import Platform
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.inject.gather import Machine
    from gpu_oci_hook.model.machine import Cache, Gpu
    from gpu_oci_hook.model.request import Request


def check_machine_requirements(
    machine: Machine, request: Request, chosen_gpus: list[tuple[Gpu, str]], warnings: list[str]
) -> None:
    """Check the requirements of a container that the shim starts; see `check_host_requirements`."""
    check_host_requirements(
        request,
        [gpu for gpu, _ in chosen_gpus],
        machine.platform,
        machine.host,
        machine.config,
        machine.driver_version or "",
        machine.cache,
        warnings,
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
    """Check the `NVIDIA_REQUIRE_*` constraints of a request against the host, GPU by GPU.

    Arguments:
        chosen_gpus: the container's GPUs.
        platform: the machine's platform; None for a desktop or server.
        version: the driver's version.
        warnings: takes a sentence for each constraint that is not checked.

    Raises:
        Fault: a constraint is not met, or cannot be decided.
    """
    if request.requirements_disabled_by:
        warnings.append(f"requirements are not checked: {request.requirements_disabled_by}")
        return
    subjects: list[Gpu | None] = [*chosen_gpus]
    hosts = [read_host_properties(platform, gpu, version) for gpu in subjects or [None]]
    unknown = evaluate_requirements(request.requirements, hosts, warnings)
    if not unknown:
        return
    from gpu_oci_hook.host.nvml.answer_cache import fill_unknown_values

    def locate_library() -> str:
        if platform is not None:
            return platform.locate_nvml_library()
        from gpu_oci_hook.inject.nvml_queries import locate_nvml_library

        return locate_nvml_library(host, config, version, cache)

    identity = version if platform is None else platform.read_driver_identity()
    reason = fill_unknown_values(hosts, chosen_gpus, identity, unknown, cache, locate_library)
    unknown = evaluate_requirements(request.requirements, hosts, [])
    if unknown and platform is not None:
        # Nothing on such a machine has these values. Images with the usual constraints would never start there.
        warnings.append(
            f"requirements that depend on the host's {', '.join(unknown)} are not checked: platform "
            f"{platform.name} does not provide them ({reason or 'nor does NVML'})"
        )
    elif unknown:
        raise make_unknown_property_fault(request.requirements, hosts, unknown, reason)


def read_host_properties(platform: Platform | None, gpu: Gpu | None, version: str) -> HostProperties:
    """Read the values that constraints are checked against: the host's, with one of its GPUs or without."""
    label = f"GPU {gpu.index} ({gpu.model})" if gpu else "this host"
    if platform is not None:
        return platform.read_host_properties(label, gpu, version)
    exact, at_least = lookup_cuda_version(version)
    arch, brand = (lookup_compute_capability(gpu.model), lookup_gpu_brands(gpu.model)) if gpu else ("", ())
    return HostProperties(label, cuda=exact, cuda_at_least=at_least, driver=version, arch=arch, brand=brand)
