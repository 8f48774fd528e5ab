"""Read this host for a CDI file: GPUs, driver files, MIG devices, and the plan input for chosen devices.

Import budget: cold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_oci_hook.cdi.own_kinds import NONE_DEVICE, ContentOptions, build_generate_request
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.generate.content import build_unknown_container
from gpu_oci_hook.host.mig.capability_files import read_mig_enabled_gpus
from gpu_oci_hook.host.mig.mig_devices import MigDevices
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.inject.gather import (
    gather_inventory,
    gather_machine,
    gather_mig_devices,
    gather_plan_input,
)
from gpu_oci_hook.inject.no_gpu import describe_missing_gpu, join_hints
from gpu_oci_hook.inject.nvml_queries import identify_machine_gpus
from gpu_oci_hook.model.outcome import ChosenDevices
from gpu_oci_hook.model.plan_input import PlanInput
from gpu_oci_hook.model.request import Request
from gpu_oci_hook.plan.driver_problems import describe_version_mismatch
from gpu_oci_hook.request.capabilities import add_implied_capabilities

if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import Cache


class NoDriverError(Fault):
    """No driver or no GPU on this host; there is no CDI file to write."""


class HostFacts:
    """Everything that the host contributes to one file; the constructor reads it.

    Attributes:
        request: the container request that the options stand for.
        machine: device nodes, kernel modules and configuration.
        gpus: all GPUs.
        platform: what differs from a PC or server; None if nothing does.
        driver_version: version of the loaded kernel module; "" if none is loaded.
        all_gpus: the choice of all GPUs.
        inventory: driver files.
        mig_devices: MIG devices.
        mig_enabled: indices of the GPUs in MIG mode.
        implied_by: driver capabilities, implied ones included, see `add_implied_capabilities`.
        load_problems: sentences about kernel modules and nodes that could not be loaded or created.
        warnings: sentences about the host, these included.

    Raises:
        NoDriverError: there is no driver or no GPU.
        Fault: the driver is half upgraded, and the configuration does not allow that.
    """

    def __init__(self, config: Config, options: ContentOptions, cache: Cache) -> None:
        self.request = build_generate_request(config, options)
        self.warnings: list[str] = []
        self.host = Host(config.root)
        self.machine = gather_machine(
            self.request, self.host, config, cache, load_modules=config.load_modules, warnings=self.warnings
        )
        self.load_problems = tuple(self.warnings)
        self.gpus, self.platform = self.machine.gpus, self.machine.platform
        self.warnings += self.machine.left_out
        version = self.machine.driver_version
        is_gpu_missing = not self.gpus and options.selectors != (NONE_DEVICE,)
        if self.platform is None and (version is None or is_gpu_missing):
            text, hints = describe_missing_gpu(self.machine)
            raise NoDriverError(text, hint=join_hints(hints))
        self.driver_version = version or ""
        self.all_gpus = ChosenDevices([(gpu, "") for gpu in self.gpus])
        if "uuid" in options.name_strategies and any("?" in gpu.uuid for gpu in self.gpus):
            self._identify_gpus()
        self.inventory = gather_inventory(self.machine, self.request, self.all_gpus.gpus)
        if self.inventory.has_version_mismatch and config.version_mismatch == "fail":
            raise Fault(describe_version_mismatch(self.inventory))
        self.mig_devices: MigDevices = gather_mig_devices(self.host, config, self.gpus, self.driver_version, cache)
        self.mig_enabled = read_mig_enabled_gpus(self.host, self.gpus)
        self.implied_by = add_implied_capabilities(self.request.capabilities)

    def _identify_gpus(self) -> None:
        """Fill in the UUIDs that the driver does not know yet, or add a warning."""
        try:
            identify_machine_gpus(self.machine)
        except Fault as fault:
            self.warnings.append(f"GPUs that were not used since boot are written without their UUIDs: {fault}")

    def list_mig_ids(self) -> list[tuple[int, int, int]]:
        """List (GPU index, GPU instance, compute instance) of all MIG devices."""
        return [
            (gpu.index, device.gi, device.ci)
            for gpu in self.gpus
            if gpu.index in self.mig_enabled
            for device in self.mig_devices.list_for_gpu(gpu)
        ]

    def build_plan_input(self, request: Request, chosen: ChosenDevices) -> PlanInput:
        """Build the plan input for these devices and a container that does not exist yet."""
        container = build_unknown_container(self.host.machine)
        return gather_plan_input(self.machine, request, chosen, self.inventory, container)
