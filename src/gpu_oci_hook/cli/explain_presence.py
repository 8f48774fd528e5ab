"""Compare a plan with what config.json has already: which edits are there, what others have put there, what is missing.

Import budget: cold.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from gpu_oci_hook.cdi.registry.registry import Registry
from gpu_oci_hook.cdi.translate import translate_cdi_edits
from gpu_oci_hook.cli.bundle import Bundle
from gpu_oci_hook.cli.command_config import ReadOnlyCache
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.container.cdi_spec_edits import has_cdi_edits
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files.user_namespace import is_process_in_user_namespace
from gpu_oci_hook.formats.oci import get_list, get_member, get_text, is_bind_mount
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.model.edits import AddDeviceNode, AddHook, AddMount
from gpu_oci_hook.model.outcome import Outcome
from gpu_oci_hook.plan.injection_evidence import RUNTIME, InjectionEvidence, find_injection_evidence

_MAX_DEVICES = 500  # of CDI files that are compared with config.json


class Presence(NamedTuple):
    """What config.json has of a plan, and what it has beyond it.

    Attributes:
        present, total: how many of the plan's nodes, mounts and hooks config.json has, and how many there are.
        is_complete: the plan changes nothing in config.json.
        evidence: what config.json has of GPUs beyond the plan, and who has put it there.
        cdi_devices: (name, file) of each CDI device whose edits are all in config.json.
        missing_sources: (position in mounts, source, destination) of each bind mount whose source this host lacks.
    """

    present: int
    total: int
    is_complete: bool
    evidence: InjectionEvidence
    cdi_devices: list[tuple[str, str]]
    missing_sources: list[tuple[int, str, str]]

    @property
    def is_by_runtime(self) -> bool:
        """Whether gpu-oci-runtime has injected into this config.json before."""
        return any(who.startswith(RUNTIME) for who in self.evidence.injectors)


def compare_with_spec(bundle: Bundle, planned_spec: dict[str, Any], outcome: Outcome, settings: Config) -> Presence:
    """Compare an outcome's plan with the bundle's config.json.

    Arguments:
        planned_spec: the config.json with the plan's edits.
    """
    spec = bundle.spec
    # A list, since values of a wrong type cannot be members of a set.
    nodes = [
        tuple(get_member(node, key) for key in ("path", "type", "major", "minor"))
        for node in get_list(spec, "linux", "devices")
    ]
    mounts = {(get_text(mount, "source"), get_text(mount, "destination")) for mount in get_list(spec, "mounts")}
    planned: set[tuple[str, str]] = set()
    present = total = 0
    for edit in outcome.plan.edits:
        if isinstance(edit, AddDeviceNode):
            is_there = (edit.path, edit.type, edit.major, edit.minor) in nodes
            planned.add((edit.path, f"{edit.type} {edit.major}:{edit.minor}"))
        elif isinstance(edit, AddMount):
            # Where a file is mounted depends on the image, which is not the container's own here.
            same = {mount for mount in mounts if mount[0] == edit.source} if bundle.has_assumed_root else set()
            is_there = bool(same) or (edit.source, edit.destination) in mounts
            planned |= {(edit.source, edit.destination), (edit.destination, f"bound from {edit.source}"), *same}
        elif isinstance(edit, AddHook) and not bundle.has_assumed_root:  # its arguments name the root
            is_there = any(
                get_text(hook, "path") == edit.path and get_list(hook, "args") == list(edit.args)
                for hook in get_list(spec, "hooks", edit.stage)
            )
        else:
            continue
        total += 1
        present += is_there
    # What the plan removes is among its own edits.
    before, remaining = (find_injection_evidence(each, frozenset(planned)) for each in (spec, planned_spec))
    evidence = InjectionEvidence(
        injectors=before.injectors,
        nodes=[node for node in before.nodes if node in remaining.nodes],
        mounts=[mount for mount in before.mounts if mount in remaining.mounts],
        pending=before.pending if bundle.is_running else remaining.pending,
    )
    return Presence(
        present=present,
        total=total,
        is_complete=planned_spec == spec or (bundle.has_assumed_root and 0 < present == total),
        evidence=evidence,
        cdi_devices=_find_cdi_devices(spec, settings) if evidence.nodes or evidence.mounts else [],
        missing_sources=_find_missing_sources(planned_spec, planned),
    )


def _find_missing_sources(spec: dict[str, Any], planned: set[tuple[str, str]]) -> list[tuple[int, str, str]]:
    """Find bind mounts whose source this host lacks. Sources that this user may not look at are not among them.

    The plan's own do not count: they were found, or are made at the start.
    """
    missing = []
    for index, mount in enumerate(get_list(spec, "mounts")):
        source = get_text(mount, "source")
        is_planned = (source, get_text(mount, "destination")) in planned
        if is_bind_mount(mount) and source.startswith("/") and not is_planned:
            try:
                os.stat(source)
            except (FileNotFoundError, NotADirectoryError):
                missing.append((index, source, get_text(mount, "destination")))
            except (OSError, ValueError):
                continue
    return missing


def _find_cdi_devices(spec: dict[str, Any], settings: Config) -> list[tuple[str, str]]:
    """Find the CDI devices whose edits are all in a config.json."""
    host = Host(settings.root)
    registry = Registry(host, settings.spec_dirs, ReadOnlyCache())
    found = []
    for name in registry.list_device_names()[:_MAX_DEVICES]:
        try:
            parts = registry.resolve_devices([name])
            edits = translate_cdi_edits(parts, spec, host, process_in_user_namespace=is_process_in_user_namespace())
        except Fault:
            continue
        if edits and has_cdi_edits(spec, edits):
            found.append((name, registry.find_device_file(name)))
    return found
