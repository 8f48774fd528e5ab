"""Build the JSON form of `explain`, which explain.schema.json describes.

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.cli.bundle import Bundle
from gpu_oci_hook.cli.explain_facts import MIG_NOT_REQUESTED, detect_host_platform, list_mig_devices, list_withheld
from gpu_oci_hook.cli.explain_presence import Presence
from gpu_oci_hook.cli.explain_ways import RUNTIME_WAY, find_place
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host.device_nodes import is_null_device
from gpu_oci_hook.model.mig import MigDevice
from gpu_oci_hook.model.outcome import Outcome
from gpu_oci_hook.model.request import Request
from gpu_oci_hook.request.read import read_request


def build_explanation(
    bundle: Bundle, outcome: Outcome, settings: Config, presence: Presence, warnings: list[str], way: str
) -> dict[str, object]:
    """Build the explanation of a container whose plan could be made.

    Arguments:
        way: one of `explain_ways.WAYS`.
    """
    made_by = RUNTIME_WAY if presence.is_complete else way  # what config.json has is made by nobody else
    return {
        **_describe_bundle(bundle),
        "way": way,
        "config": settings.path or None,
        "state": outcome.plan.state,
        "reason": outcome.request.origin,
        "platform": _describe_platform(settings),
        "driver": (outcome.inventory.version or None) if outcome.inventory else None,
        "request": _describe_request(outcome.request),
        "gpus": _describe_gpus(outcome, list_mig_devices(outcome, settings)),
        "cdi": [{"name": name, "file": file, "reason": origin} for name, file, origin in outcome.cdi_devices],
        "libcuda": outcome.plan.find_libcuda().to_data() if outcome.plan.find_libcuda else None,
        "edits": [
            {
                "kind": edit.kind,
                "reason": edit.reason,
                "text": edit.describe(),
                **edit.to_data(),
                **find_place(edit, made_by),
            }
            for edit in outcome.plan.edits
        ],
        "withheld": [
            {"kind": kind, "name": name, "reason": reason}
            for kind, name, reason in list_withheld(bundle, outcome, settings)
        ],
        "found": {
            "complete": presence.is_complete,
            "edits_present": presence.present,
            "edits_total": presence.total,
            "injectors": presence.evidence.injectors,
            "pending_hooks": presence.evidence.pending,
            "nodes": [{"path": path, "device": device} for path, device in presence.evidence.nodes],
            "mounts": [
                {"source": source, "destination": destination} for source, destination in presence.evidence.mounts
            ],
            "cdi": [{"name": name, "file": file} for name, file in presence.cdi_devices],
            "missing_sources": [
                {"mount": index, "source": source, "destination": destination}
                for index, source, destination in presence.missing_sources
            ],
        },
        "warnings": warnings,
    }


def build_refusal(bundle: Bundle, settings: Config, fault: Fault, way: str) -> dict[str, object]:
    """Build the explanation of a container that does not start.

    The request is left out if the request itself is invalid.
    """
    try:
        request: Request | None = read_request(bundle.spec, settings, is_null_device)
    except Fault:
        request = None
    return {
        **_describe_bundle(bundle),
        "way": way,
        "config": settings.path or None,
        "state": "refused",
        "reason": str(fault),
        "platform": _describe_platform(settings),
        "driver": None,
        "request": _describe_request(request) if request else None,
        "gpus": [],
        "cdi": [],
        "libcuda": None,
        "edits": [],
        "withheld": [],
        "found": None,
        "warnings": request.warnings if request else [],
        "reality": None,
    }


def _describe_bundle(bundle: Bundle) -> dict[str, object]:
    return {
        "bundle": None if bundle.is_assumed else bundle.absolute_directory,
        "container": bundle.title or None,
        "running": bundle.is_running,
        "attached": list(bundle.attached),
        "detached": list(bundle.detached),
    }


def _describe_platform(settings: Config) -> dict[str, object]:
    kind, evidence = detect_host_platform(settings)
    return {"name": kind, "evidence": list(evidence)}


def _describe_gpus(outcome: Outcome, mig_devices: list[tuple[MigDevice, str]]) -> list[dict[str, object]]:
    origins = {gpu.index: origin for gpu, origin in outcome.chosen_gpus}
    return [
        {
            "index": gpu.index,
            "uuid": gpu.uuid,
            "pci": gpu.pci,
            "minor": gpu.minor if gpu.minor >= 0 else None,
            "model": gpu.model,
            "given": gpu.index in origins,
            "reason": origins.get(gpu.index, "this GPU was not requested"),
            "mig": [
                {
                    "index": device.name,
                    "gi": device.gi,
                    "ci": device.ci,
                    "uuid": device.uuid or None,
                    "given": bool(origin),
                    "reason": origin or MIG_NOT_REQUESTED,
                }
                for device, origin in mig_devices
                if device.gpu.index == gpu.index
            ],
        }
        for gpu in outcome.gpus
    ]


def _describe_request(request: Request) -> dict[str, object]:
    return {
        "driver": request.needs_driver,
        "origin": request.origin,
        "devices": [{"word": device.selector, "origin": device.origin} for device in request.device_requests],
        "cdi": [{"word": device.selector, "origin": device.origin} for device in request.cdi_devices],
        "capabilities": list(request.capabilities),
        "capabilities_origin": request.capabilities_origin,
        "requirements": [{"variable": name, "expression": text} for name, text in request.requirements],
        "requirements_off": request.requirements_disabled_by,
        "channels": [{"word": channel.selector, "origin": channel.origin} for channel in request.imex_channels],
        "features": [{"feature": feature.key, "origin": feature.origin} for feature in request.features],
        "management": request.management_origin or None,
        "privileged": not request.unprivileged_reason,
        "legacy": request.is_legacy_image,
    }
