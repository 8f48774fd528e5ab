"""`nvidia-container-cli info`: print the driver and the GPUs in the incumbent's fields, as text or CSV.

Import budget: cold.
"""

from __future__ import annotations

import csv
import io

from gpu_oci_hook.cli.command_config import ReadOnlyCache
from gpu_oci_hook.cli.container_cli.command_line import DeviceOptions, GlobalOptions
from gpu_oci_hook.cli.container_cli.container_request import build_request
from gpu_oci_hook.cli.container_cli.machine_query import load_machine_config, open_machine
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host.nvml.answer_cache import fill_unknown_values
from gpu_oci_hook.inject.gather import Machine
from gpu_oci_hook.inject.nvml_queries import identify_machine_gpus, locate_nvml_library
from gpu_oci_hook.inject.requirements import read_host_properties
from gpu_oci_hook.model.machine import Gpu
from gpu_oci_hook.request.require_expressions import HostProperties

UNKNOWN = "N/A"
DRIVER_FIELDS = ("NVRM version", "CUDA version")
GPU_FIELDS = ("Device Index", "Device Minor", "Model", "Brand", "GPU UUID", "Bus Location", "Architecture")

# The incumbent's spelling of brands; requirements write them in lower case.
_BRAND_SPELLINGS = (
    "Quadro", "Tesla", "NVS", "GRID", "GeForce", "TITAN", "vApps", "vPC", "vCS", "vWS", "CloudGaming", "QuadroRTX",
    "NvidiaRTX", "Nvidia", "GeForceRTX", "TitanRTX",
)  # fmt: skip
_LABEL_WIDTH = 15


def report_machine(global_options: GlobalOptions, *, as_csv: bool) -> str:
    """Return what `info` prints. What neither /proc, our tables nor NVML know is "N/A".

    Raises:
        PhaseFault: the driver is not loaded.
    """
    config = load_machine_config(global_options)
    request = build_request(DeviceOptions((), (), ()), (), (), config)
    machine = open_machine(request, config, ReadOnlyCache(), [])
    driver, gpus = _collect_fields(machine)
    return format_csv(driver, gpus) if as_csv else format_text(driver, gpus)


def format_csv(driver: tuple[str, ...], gpus: list[tuple[str, ...]]) -> str:
    """Format two tables, separated by an empty line."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerows([DRIVER_FIELDS, driver])
    file.write("\n")
    writer.writerows([GPU_FIELDS, *gpus])
    return file.getvalue()


def format_text(driver: tuple[str, ...], gpus: list[tuple[str, ...]]) -> str:
    """Format one line for each field, with an empty line before each GPU."""
    blocks = [zip(DRIVER_FIELDS, driver, strict=True), *(zip(GPU_FIELDS, gpu, strict=True) for gpu in gpus)]
    return "\n".join("".join(f"{name + ':':<{_LABEL_WIDTH}} {value}\n" for name, value in block) for block in blocks)


def _collect_fields(machine: Machine) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Collect the values of DRIVER_FIELDS, and of GPU_FIELDS for each GPU."""
    version = machine.driver_version or ""
    subjects: list[Gpu | None] = [*machine.gpus]
    properties = [read_host_properties(machine.platform, gpu, version) for gpu in subjects or [None]]
    _ask_nvml(machine, properties)
    driver = (version or UNKNOWN, properties[0].cuda or UNKNOWN)
    return driver, [_describe_gpu(gpu, values) for gpu, values in zip(machine.gpus, properties, strict=False)]


def _ask_nvml(machine: Machine, properties: list[HostProperties]) -> None:
    """Ask NVML for UUIDs that /proc does not show and for properties that no table has; it may not answer."""
    try:
        if any("?" in gpu.uuid for gpu in machine.gpus):
            identify_machine_gpus(machine)
    except Fault:
        pass  # the UUID stays unknown
    for values in properties:
        if len(values.brand) > 1:
            values.brand = ()  # it depends on the driver, and NVML knows
    if all(values.cuda and (not machine.gpus or (values.arch and values.brand)) for values in properties):
        return
    platform, version = machine.platform, machine.driver_version or ""

    def locate_library() -> str:
        if platform is not None:
            return platform.locate_nvml_library()
        return locate_nvml_library(machine.host, machine.config, version, machine.cache)

    identity = version if platform is None else platform.read_driver_identity()
    fill_unknown_values(properties, machine.gpus, identity, ("cuda", "arch", "brand"), machine.cache, locate_library)


def _describe_gpu(gpu: Gpu, values: HostProperties) -> tuple[str, ...]:
    brand = values.brand[0] if len(values.brand) == 1 else ""
    spelling = next((name for name in _BRAND_SPELLINGS if name.lower() == brand), brand)
    return (
        str(gpu.index),
        str(gpu.minor) if gpu.minor >= 0 else UNKNOWN,
        gpu.model or UNKNOWN,
        spelling or UNKNOWN,
        gpu.uuid if gpu.uuid and "?" not in gpu.uuid else UNKNOWN,
        format_bus_location(gpu.pci),
        values.arch or UNKNOWN,
    )


def format_bus_location(pci: str) -> str:
    """Format a PCI address as NVML does, with eight digits for the domain."""
    domain, _, rest = pci.partition(":")
    return f"{int(domain, 16):08x}:{rest}" if rest else UNKNOWN
