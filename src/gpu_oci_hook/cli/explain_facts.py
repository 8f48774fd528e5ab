"""Collect what `explain` reports in addition to the plan's edits: platform, MIG devices, withheld items and warnings.

Import budget: cold.
"""

from __future__ import annotations

import os

from gpu_oci_hook.cli.bundle import Bundle
from gpu_oci_hook.cli.command_config import ReadOnlyCache
from gpu_oci_hook.cli.explain_visible_gpus import check_cuda_visible_devices
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.container.hook_environment import lint_hook_environments
from gpu_oci_hook.container.lint import find_misspelt_variables, lint_image
from gpu_oci_hook.files.user_namespace import is_process_in_user_namespace
from gpu_oci_hook.formats.oci import get_list, get_text
from gpu_oci_hook.host.gpus import read_gpus
from gpu_oci_hook.host.platforms.detect import detect_platform
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.inject.gather import gather_mig_devices
from gpu_oci_hook.model.edits import AddMount
from gpu_oci_hook.model.mig import MigDevice
from gpu_oci_hook.model.outcome import Outcome
from gpu_oci_hook.plan.devices import decide_node_binding
from gpu_oci_hook.plan.open_devices import OpenDevices
from gpu_oci_hook.request.environment import MIG_RIGHT_VARIABLES
from gpu_oci_hook.request.mig_selectors import describe_mig_right

MIG_NOT_REQUESTED = "this MIG device was not requested"


def detect_host_platform(settings: Config) -> tuple[str, tuple[str, ...]]:
    """Return the kind of host and the evidence for it."""
    host = Host(settings.root)
    return detect_platform(host, read_gpus(host)[0], settings.platform)


def list_mig_devices(outcome: Outcome, settings: Config) -> list[tuple[MigDevice, str]]:
    """List every MIG device of the host with the origin of the request for it, "" if it is not injected.

    A container start reads only the MIG devices that it injects. NVML is not queried.
    """
    if outcome.inventory is None:
        return []
    mig_devices = outcome.mig_devices or gather_mig_devices(
        Host(settings.root), settings, outcome.gpus, outcome.inventory.version, ReadOnlyCache()
    )
    origins = {(device.gpu.index, device.gi, device.ci): origin for device, origin in outcome.chosen_mig_devices}
    # The right to configure or monitor MIG opens every MIG device of the injected GPUs.
    all_devices_origin = next((origin for _, origin in outcome.request.mig_rights), outcome.request.management_origin)
    chosen = {gpu.index for gpu, _ in outcome.chosen_gpus}
    return [
        (device, origins.get((gpu.index, device.gi, device.ci), all_devices_origin if gpu.index in chosen else ""))
        for gpu in outcome.gpus
        for device in mig_devices.list_for_gpu(gpu)
    ]


def list_withheld(bundle: Bundle, outcome: Outcome, settings: Config) -> list[tuple[str, str, str]]:
    """List (kind, name, reason) of everything that is not injected, the request's own entries first."""
    withheld = [("request", name, reason) for name, reason in outcome.request.withheld]
    withheld += [(item.kind, item.name, item.reason) for item in outcome.plan.withheld]
    if outcome.plan.state == "inject" and not _allows_every_device(bundle):
        withheld += [
            ("device", f"MIG device {device.name} ({device.uuid or device.old_name})", MIG_NOT_REQUESTED)
            for device, origin in list_mig_devices(outcome, settings)
            if not origin
        ]
        withheld += [("request", name, reason) for name, reason in list_withheld_mig_rights(outcome, settings)]
    return list(dict.fromkeys(withheld))


def _allows_every_device(bundle: Bundle) -> bool:
    in_user_namespace = is_process_in_user_namespace()
    _, rules_enforced = decide_node_binding(bundle.spec, process_in_user_namespace=in_user_namespace)
    return OpenDevices(bundle.spec, rules_enforced=rules_enforced).allows_every_device


def list_withheld_mig_rights(outcome: Outcome, settings: Config) -> list[tuple[str, str]]:
    """List (right, reason) of the rights over MIG that the container does not have, on a host with MIG devices."""
    if outcome.request.management_origin or not list_mig_devices(outcome, settings):
        return []
    rights = {right for right, _ in outcome.request.mig_rights}
    environment = outcome.request.environment
    return [
        (describe_mig_right(right), f"{variable}=all is not set")
        for variable, right in MIG_RIGHT_VARIABLES
        if right not in rights and environment.get(variable) != "all"
    ]


def collect_warnings(bundle: Bundle, outcome: Outcome) -> list[str]:
    """Return the plan's warnings and those that only a check of the image finds."""
    environment = outcome.request.environment
    warnings = [*outcome.plan.warnings, *find_misspelt_variables(environment)]
    warnings += lint_hook_environments(bundle.spec)
    if outcome.plan.state == "inject":
        warnings += check_cuda_visible_devices(environment, outcome)
    if outcome.rootfs is None or outcome.image is None or outcome.inventory is None:
        return warnings
    mounts = [edit for edit in outcome.plan.edits if isinstance(edit, AddMount)]
    sources = {edit.source for edit in mounts}
    files = [file for file in outcome.inventory.files if file.source in sources]
    # An empty file where a driver file is mounted, or will be, can be the mount point of an earlier start.
    mounted = [get_text(mount, "destination") for mount in get_list(bundle.spec, "mounts")]
    mounted += [edit.destination for edit in mounts]
    if outcome.plan.find_libcuda:
        warnings += [text for text in outcome.plan.find_libcuda().list_warnings() if text not in warnings]
    warnings += lint_image(outcome.rootfs, outcome.image, files, environment, mounted)
    if bundle.has_assumed_root:
        warnings.append(
            "the root file system is not mounted while the container does not run: an image like Debian's is assumed"
        )
    elif not outcome.rootfs.list_names("/", 1):
        warnings.append(
            f"the root file system {outcome.rootfs.path} is empty, as engines leave it while a container does not run: "
            "the plan for its libraries may be another one at the start"
        )
    if not outcome.image.writable and os.geteuid() != 0:
        warnings.append(
            "this user cannot write to the root file system, so the plan is the one for a read-only root; "
            "run explain as the user that the engine runs as"
        )
    return warnings
