"""Build the JSON form of `list`, which list.schema.json describes.

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.cli.machine_listing import MachineListing
from gpu_oci_hook.cli.optional_report import describe_optional_devices
from gpu_oci_hook.host.model_tables import lookup_compute_capability, lookup_gpu_brands
from gpu_oci_hook.host.optional.graphics import list_drm_devices
from gpu_oci_hook.model.machine import DriverFile, Gpu


def build_listing(listing: MachineListing) -> dict[str, object]:
    """Build the listing of a host."""
    inventory = listing.inventory
    return {
        "root": listing.settings.root,
        "driver_root": listing.settings.driver_root,
        "platform": {"name": listing.platform, "evidence": list(listing.evidence)},
        "driver": {"module": listing.module_version or None, "libraries": inventory.library_version or None},
        "nvml": {"answers": bool(listing.nvml_gpus), "reason": listing.nvml_problem or None},
        "gpus": [_describe_gpu(listing, gpu) for gpu in listing.gpus],
        **describe_optional_devices(listing.host, listing.driver_host, listing.settings),
        "files": [_describe_file(file) for file in inventory.files],
        "absent": [{"capability": capability, "name": name} for capability, name in inventory.missing_expected],
        "places": [{"place": location, "found": result} for location, result in inventory.search_report],
        "lists": [
            {"line": line, "type": kind, "path": path, "found": result}
            for line, kind, path, result in listing.csv_lines
        ],
        "problems": listing.problems,
    }


def _describe_gpu(listing: MachineListing, gpu: Gpu) -> dict[str, object]:
    answer = listing.nvml_gpus.get(gpu.index)
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "pci": gpu.pci,
        "minor": gpu.minor if gpu.minor >= 0 else None,
        "model": gpu.model,
        "drm": [f"/dev/dri/{name}" for name, _ in list_drm_devices(listing.host, gpu)],
        "memory": answer.memory if answer else None,
        "arch": (answer.compute_capability if answer else "") or lookup_compute_capability(gpu.model) or None,
        "brands": list(lookup_gpu_brands(gpu.model)),
        "mig": [
            {"index": device.name, "gi": device.gi, "ci": device.ci, "uuid": device.uuid or None}
            for device in listing.mig_devices.list_for_gpu(gpu)
        ],
    }


def _describe_file(file: DriverFile) -> dict[str, object]:
    return {
        "kind": file.kind,
        "capability": file.capability or None,
        "name": file.name,
        "soname": file.soname or None,
        "arch": file.arch or None,
        "path": file.path,
        "container": file.container_path or None,
        "found": file.found_in,
        "needs": list(file.needs),
        "glibc": file.glibc or None,
    }
