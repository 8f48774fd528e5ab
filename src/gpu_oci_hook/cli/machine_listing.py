"""Collect what `list` reports about a host: platform, GPUs, driver files and search results.

Import budget: cold.
"""

from __future__ import annotations

from typing import NamedTuple

from gpu_oci_hook.cli.command_config import ReadOnlyCache
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.program_names import SIMULATED_HOST_MARKER
from gpu_oci_hook.host.driver.inventory_cache import load_inventory
from gpu_oci_hook.host.gpus import read_driver_version, read_gpus, read_machine_gpus
from gpu_oci_hook.host.mig.mig_devices import MigDevices
from gpu_oci_hook.host.nvml.query import NvmlGpu
from gpu_oci_hook.host.platforms.detect import detect_platform
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.model.machine import Gpu, Inventory
from gpu_oci_hook.plan.driver_problems import describe_missing_dependencies, describe_version_mismatch


class MachineListing(NamedTuple):
    """A host as `list` shows it.

    Attributes:
        driver_host: the root with the driver's files.
        module_version: version of the loaded kernel module, "" if it is not loaded.
        nvml_gpus: NVML's answers by GPU index.
        nvml_problem: why NVML does not answer for all GPUs, "" if it does.
        csv_lines: (line, type, path, result) for each line of a Jetson's CSV lists.
        problems: one sentence each.
    """

    settings: Config
    host: Host
    driver_host: Host
    platform: str
    evidence: tuple[str, ...]
    module_version: str
    gpus: list[Gpu]
    mig_devices: MigDevices
    inventory: Inventory
    nvml_gpus: dict[int, NvmlGpu]
    nvml_problem: str
    csv_lines: list[tuple[str, str, str, str]]
    problems: list[str]


def collect_machine_listing(settings: Config, *, use_nvml: bool) -> MachineListing:
    """Collect the listing. Changes nothing on the host."""
    host = Host(settings.root)
    driver_host = host.driver_host(settings.driver_root)
    version = read_driver_version(host) or ""
    found = read_machine_gpus(host, settings.platform)
    gpus, platform = found.gpus, found.platform
    kind, evidence = detect_platform(host, read_gpus(host)[0], settings.platform)
    if platform is None:
        inventory = load_inventory(host, driver_host, settings.library_paths, version, ReadOnlyCache())
    else:
        inventory = platform.collect_inventory(
            driver_host, settings, gpus, version or None, ReadOnlyCache(), all_lists=False
        )
    mismatch = [describe_version_mismatch(inventory)] if inventory.has_version_mismatch else []
    mig_devices = MigDevices(host, gpus, version, ReadOnlyCache(), lambda: "")
    nvml_gpus: dict[int, NvmlGpu] = {}
    nvml_problem = "not queried"
    if use_nvml:
        nvml_gpus, nvml_problem = _query_nvml(host, inventory, gpus, mig_devices)
    return MachineListing(
        settings=settings,
        host=host,
        driver_host=driver_host,
        platform=kind,
        evidence=tuple(evidence),
        module_version=version,
        gpus=gpus,
        mig_devices=mig_devices,
        inventory=inventory,
        nvml_gpus=nvml_gpus,
        nvml_problem=nvml_problem,
        csv_lines=list(platform.report_list_lines()) if platform else [],
        problems=[
            *_list_empty_mig_gpus(gpus, nvml_gpus, mig_devices),
            *found.problems,
            *found.left_out,
            *mismatch,
            *inventory.problems,
            *describe_missing_dependencies(inventory),
        ],
    )


def _list_empty_mig_gpus(gpus: list[Gpu], nvml_gpus: dict[int, NvmlGpu], mig_devices: MigDevices) -> list[str]:
    """Return a sentence for each GPU in MIG mode without a MIG device, which /proc shows like a whole one."""
    return [
        f"GPU {gpu.index} is in MIG mode and has no MIG device, so programs cannot compute on it: create one "
        f"(nvidia-smi mig -cgi PROFILE -C), or turn MIG off (nvidia-smi -i {gpu.index} -mig 0)"
        for gpu in gpus
        if gpu.index in nvml_gpus and nvml_gpus[gpu.index].mig_mode and not mig_devices.list_for_gpu(gpu)
    ]


def _query_nvml(
    host: Host, inventory: Inventory, gpus: list[Gpu], mig_devices: MigDevices
) -> tuple[dict[int, NvmlGpu], str]:
    """Query NVML. Return its answers by GPU index, and why some are missing.

    Arguments:
        mig_devices: receives the UUIDs of MIG devices.
    """
    if not gpus:
        return {}, "not queried: there is no GPU"
    gpus = [gpu for gpu in gpus if gpu.pci]  # NVML is asked by PCI address
    if not gpus:
        return {}, "not queried: the GPUs of this platform have no PCI address"
    from gpu_oci_hook.host.nvml.query import find_nvml_library, query_nvml_gpus

    try:
        answers = query_nvml_gpus([gpu.pci for gpu in gpus], library=find_nvml_library(host, inventory))
        answered = [(gpu, answer) for gpu, answer in zip(gpus, answers, strict=True) if not answer.error]
        mig_devices.store_nvml_answer([gpu for gpu, _ in answered], [answer for _, answer in answered])
    except Fault as fault:
        # The library of a simulated host can be loaded, but has no functions.
        if "Function Not Found" in fault.what and host.stat_path(f"/{SIMULATED_HOST_MARKER}") is not None:
            return {}, "NVML is not available on a simulated host"
        return {}, f"{fault.what}. {fault.hint}" if fault.hint else fault.what
    for gpu, answer in answered:
        if "?" in gpu.uuid:
            gpu.uuid = answer.uuid  # the driver did not know it before NVML opened the GPU
    failed = [f"GPU {gpu.index} ({answer.error})" for gpu, answer in zip(gpus, answers, strict=True) if answer.error]
    problem = f"answers, but not for {', '.join(failed)}" if failed else ""
    return {gpu.index: answer for gpu, answer in answered}, problem
