"""Select the GPUs and MIG devices that become devices of a CDI file.

Import budget: cold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_oci_hook.cdi.own_kinds import ALL_DEVICE, NONE_DEVICE, ContentOptions
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.generate.content import SpecContent
from gpu_oci_hook.generate.device_names import list_gpu_names, list_mig_device_names
from gpu_oci_hook.inject.gather import choose_devices
from gpu_oci_hook.model.machine import Gpu
from gpu_oci_hook.model.mig import MigDevice
from gpu_oci_hook.model.outcome import ChosenDevices
from gpu_oci_hook.model.request import DeviceRequest
from gpu_oci_hook.request.selectors import is_display_card

if TYPE_CHECKING:
    from gpu_oci_hook.generate.host_facts import HostFacts


@dataclass
class PlannedDevice:
    """A device of the file.

    Attributes:
        label: its name for people.
        names: its names in the file.
        chosen_gpus: GPUs that are injected for it, with the origin of the request.
        chosen_mig_devices: MIG devices, likewise.
        in_all: whether the device `all` includes it.
        content: its own content.
    """

    label: str
    names: list[str]
    chosen_gpus: list[tuple[Gpu, str]] = field(default_factory=list)
    chosen_mig_devices: list[tuple[MigDevice, str]] = field(default_factory=list)
    in_all: bool = True
    content: SpecContent = field(default_factory=SpecContent)

    def to_chosen_devices(self, facts: HostFacts) -> ChosenDevices:
        """Return the choice of these GPUs and MIG devices for a plan."""
        if not self.chosen_mig_devices:
            return ChosenDevices(self.chosen_gpus)
        return ChosenDevices(
            self.chosen_gpus,
            mig_devices=self.chosen_mig_devices,
            mig_parents=frozenset(gpu.index for gpu, _ in self.chosen_gpus),
            all_mig_devices=facts.mig_devices,
        )


def select_devices(facts: HostFacts, options: ContentOptions, warnings: list[str]) -> list[PlannedDevice]:
    """Select the devices other than `all` and `none`, in order, without their content; appends warnings."""
    gpus, mig_enabled, strategies = facts.gpus, facts.mig_enabled, options.name_strategies
    _identify_mig_devices(facts, options, warnings)
    if ALL_DEVICE in options.selectors:
        mig_devices = [
            device for gpu in gpus if gpu.index in mig_enabled for device in facts.mig_devices.list_for_gpu(gpu)
        ]
    else:
        gpus, mig_devices = _choose_selected_devices(facts, options, warnings)
    devices = [
        PlannedDevice(
            f"GPU {gpu.index}",
            list_gpu_names(gpu, facts.gpus, strategies, warnings),
            [(gpu, "")],
            in_all=gpu.index not in mig_enabled and not is_display_card(gpu),
        )
        for gpu in gpus
    ]
    devices += [
        PlannedDevice(
            f"MIG device {mig_device.name}",
            list_mig_device_names(mig_device, strategies, warnings),
            [(mig_device.gpu, "")],
            [(mig_device, "")],
        )
        for mig_device in mig_devices
    ]
    return sorted(
        devices,
        key=lambda device: (
            device.chosen_gpus[0][0].index,
            *[mig_device.index for mig_device, _ in device.chosen_mig_devices],
        ),
    )


def _choose_selected_devices(
    facts: HostFacts, options: ContentOptions, warnings: list[str]
) -> tuple[list[Gpu], list[MigDevice]]:
    """Choose the GPUs and MIG devices that the selectors name one by one."""
    selectors = [selector for selector in options.selectors if selector != NONE_DEVICE]
    facts.request.device_requests = tuple(DeviceRequest(selector, "--device") for selector in selectors)
    chosen = choose_devices(facts.machine, facts.request, warnings)
    gpus = [gpu for gpu, _ in chosen.gpus if gpu.index not in chosen.mig_parents]
    return gpus, [device for device, _ in chosen.mig_devices]


def _identify_mig_devices(facts: HostFacts, options: ContentOptions, warnings: list[str]) -> None:
    """Query NVML for the order and UUIDs of MIG devices, which only NVML knows; append a warning if it fails."""
    mig_gpus = [gpu for gpu in facts.gpus if gpu.index in facts.mig_enabled]
    if not any(facts.mig_devices.list_for_gpu(gpu) for gpu in mig_gpus):
        return
    try:
        facts.mig_devices.list_with_uuids()
    except Fault as fault:
        if options.name_strategies == ("uuid",):
            raise
        warnings.append(
            f"MIG devices are written without their UUIDs, in the order of their ids, as NVML reports neither: {fault}"
        )
