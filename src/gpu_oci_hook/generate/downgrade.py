"""Downgrade a CDI file for an engine that reads older versions only, with a warning for each loss. No I/O.

An engine refuses a whole file because of one field that it does not know (facts: cdi-unknown-field-refuses-file).
`cdi.spec.versions` knows which version has which field.

Import budget: cold.
"""

from __future__ import annotations

from typing import Any

from gpu_oci_hook.cdi.spec.versions import find_minimum_version, is_newer_version
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.generate.content import ContainerEdits

# Hints by the end of a reason of `versions.find_minimum_version`.
_WORKAROUNDS = (
    # The root or the driver's root is elsewhere: a node without numbers needs the path of the host's node.
    ("hostPath", "Choose --capabilities utility, which has no nodes whose numbers change with a boot"),
    ("a dot in the class", "Choose a --class without a dot"),
)


def downgrade_spec(spec: ContainerEdits, max_version: str, target_engine: str) -> list[str]:
    """Change a file so that it needs no newer version of CDI.

    Arguments:
        spec: content of the file without `cdiVersion`; is changed.
        max_version: the greatest version that the file may need.
        target_engine: the engine that reads no newer version, for people ("podman-4.3"); "" if none was named.

    Returns:
        A sentence for each thing that is left out.

    Raises:
        Fault: the file needs a newer version for something that cannot be left out.
    """
    limit_text = (
        f"{target_engine} reads CDI {max_version} at most" if target_engine else f"--max-version is {max_version}"
    )
    warnings: list[str] = []
    if _is_older_version(max_version, "0.7.0"):
        warnings += _drop_additional_gids(spec, limit_text)
    if _is_older_version(max_version, "0.6.0"):
        warnings += _drop_annotations(spec, limit_text)
    if _is_older_version(max_version, "0.5.0"):
        warnings += _drop_digit_names(spec, limit_text)
        _drop_redundant_host_paths(spec)
    version, reason = find_minimum_version(spec)
    if _is_older_version(max_version, version):
        workaround = next((hint for ending, hint in _WORKAROUNDS if reason.endswith(ending)), "")
        allow = (
            f"write it for an engine that reads CDI {version}" if target_engine else f"choose --max-version {version}"
        )
        hint = f"{workaround}, or {allow}" if workaround else f"{allow[0].upper()}{allow[1:]}"
        raise Fault(f"the file needs CDI {version} ({reason}), and {limit_text}", hint=hint)
    return warnings


def _is_older_version(version: str, other: str) -> bool:
    return is_newer_version(other, version)


def _list_container_edits(spec: ContainerEdits) -> list[ContainerEdits]:
    """List the common edits of the file and the edits of each device."""
    return [spec.get("containerEdits", {}), *[device["containerEdits"] for device in spec["devices"]]]


def _drop_additional_gids(spec: ContainerEdits, limit_text: str) -> list[str]:
    dropped: dict[int, None] = {}
    closed_paths: dict[str, None] = {}
    for edits in _list_container_edits(spec):
        gids = edits.pop("additionalGids", [])
        dropped.update(dict.fromkeys(gids))
        closed_paths.update(
            dict.fromkeys(node["path"] for node in edits.get("deviceNodes", []) if node.get("gid") in gids)
        )
    if not dropped:
        return []
    listed = ", ".join(str(gid) for gid in sorted(dropped))
    more = f" and {len(closed_paths) - 4} more" if len(closed_paths) > 4 else ""
    text = (
        f"additionalGids ({listed}) is left out, as it needs CDI 0.7.0 and {limit_text}: in a container only root and "
        f"members of these groups can open {', '.join(list(closed_paths)[:4])}{more}"
    )
    return [text]


def _drop_annotations(spec: ContainerEdits, limit_text: str) -> list[str]:
    if not spec.pop("annotations", None):
        return []
    text = f"the annotation that the file is incomplete is left out, as it needs CDI 0.6.0 and {limit_text}"
    return [f"{text}; the hook's --incomplete and, in YAML, a comment still record it"]


def _drop_digit_names(spec: ContainerEdits, limit_text: str) -> list[str]:
    """Drop the devices whose names begin with a digit."""
    kept = [device for device in spec["devices"] if not device["name"][:1].isdigit()]
    dropped = [device["name"] for device in spec["devices"] if device["name"][:1].isdigit()]
    if not dropped:
        return []
    hint = "--name type-index writes gpu0 for 0, and mig0:1 for 0:1"
    what = f"names that begin with a digit ({', '.join(dropped[:8])}{', …' if len(dropped) > 8 else ''})"
    if not kept:
        raise Fault(f"{what} need CDI 0.5.0, and {limit_text}", hint=hint[0].upper() + hint[1:])
    spec["devices"] = kept
    return [f"{what} are left out, as they need CDI 0.5.0 and {limit_text}; {hint}"]


def _drop_redundant_host_paths(spec: ContainerEdits) -> None:
    """Drop the host path of nodes that have type and numbers, which are enough."""
    nodes: list[dict[str, Any]] = [
        node for edits in _list_container_edits(spec) for node in edits.get("deviceNodes", [])
    ]
    for node in nodes:
        if "major" in node:
            node.pop("hostPath", None)
