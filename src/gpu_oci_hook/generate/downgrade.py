"""What an engine that reads only older CDI cannot read is left out of a file, or the file is refused; pure.

An engine refuses a whole file for one field that it does not know (field report A3-08), so a file for it has to do
without. Which version brought what is `versions`' business; here is what each loss means. Cost rule: cold.
"""

from __future__ import annotations

from typing import Any

from gpu_oci_hook.cdi.spec.versions import find_minimum_version, is_newer_version
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.generate.content import ContainerEdits

# How to do without, by what a reason of `versions.find_minimum_version` ends with.
_WORKAROUNDS = (
    # With the root or the driver's root elsewhere; nodes without numbers have to say where the host's node is.
    ("hostPath", "Choose --capabilities utility, which has no nodes whose numbers change with a boot"),
    ("a dot in the class", "Choose a --class without a dot"),
)


def downgrade_spec(spec: ContainerEdits, max_version: str, target_engine: str) -> list[str]:
    """Changes a file so that it needs no more than a version of CDI; a sentence for each thing that is left out.

    Arguments:
        max_version: the greatest version that may be needed. target_engine: who reads no more, for people ("podman-4.3").

    Raises:
        Fault: it cannot do without.
    """
    who = f"{target_engine} reads CDI {max_version} at most" if target_engine else f"--max-version is {max_version}"
    left: list[str] = []
    if _is_older_version(max_version, "0.7.0"):
        left += _drop_additional_gids(spec, who)
    if _is_older_version(max_version, "0.6.0"):
        left += _drop_annotations(spec, who)
    if _is_older_version(max_version, "0.5.0"):
        left += _drop_digit_names(spec, who)
        _drop_redundant_host_paths(spec)
    version, why = find_minimum_version(spec)
    if _is_older_version(max_version, version):
        without = next((cure for word, cure in _WORKAROUNDS if why.endswith(word)), "")
        allow = (
            f"write it for an engine that reads CDI {version}" if target_engine else f"choose --max-version {version}"
        )
        cure = f"{without}, or {allow}" if without else f"{allow[0].upper()}{allow[1:]}"
        raise Fault(f"the file needs CDI {version} ({why}), and {who}", hint=cure)
    return left


def _is_older_version(version: str, other: str) -> bool:
    return is_newer_version(other, version)


def _list_container_edits(spec: ContainerEdits) -> list[ContainerEdits]:
    """The file's own edits and each device's."""
    return [spec.get("containerEdits", {}), *[device["containerEdits"] for device in spec["devices"]]]


def _drop_additional_gids(spec: ContainerEdits, limit_text: str) -> list[str]:
    dropped: dict[int, None] = {}
    nodes: dict[str, None] = {}
    for edits in _list_container_edits(spec):
        gids = edits.pop("additionalGids", [])
        dropped.update(dict.fromkeys(gids))
        closed = [node["path"] for node in edits.get("deviceNodes", []) if node.get("gid") in gids]
        nodes.update(dict.fromkeys(closed))
    if not dropped:
        return []
    listed = ", ".join(str(gid) for gid in sorted(dropped))
    shown = ", ".join(list(nodes)[:4]) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")
    text = f"additionalGids ({listed}) is left out, as it needs CDI 0.7.0 and {limit_text}: of a container's users only root"
    return [f"{text}, and those who are in these groups, can open {shown}"]


def _drop_annotations(spec: ContainerEdits, limit_text: str) -> list[str]:
    if not spec.pop("annotations", None):
        return []
    text = f"the annotation that the file is incomplete is left out, as it needs CDI 0.6.0 and {limit_text}"
    return [f"{text}; the hook's --incomplete, and a comment in YAML, say it"]


def _drop_digit_names(spec: ContainerEdits, limit_text: str) -> list[str]:
    """Devices whose names begin with a digit."""
    kept = [device for device in spec["devices"] if not device["name"][:1].isdigit()]
    dropped = [device["name"] for device in spec["devices"] if device["name"][:1].isdigit()]
    if not dropped:
        return []
    cure = "--name type-index writes gpu0 for 0, and mig0:1 for 0:1"
    what = f"names that begin with a digit ({', '.join(dropped[:8])}{', …' if len(dropped) > 8 else ''})"
    if not kept:
        raise Fault(f"{what} need CDI 0.5.0, and {limit_text}", hint=cure[0].upper() + cure[1:])
    spec["devices"] = kept
    return [f"{what} are left out, as they need CDI 0.5.0 and {limit_text}; {cure}"]


def _drop_redundant_host_paths(spec: ContainerEdits) -> None:
    """The host's path of a node says nothing more where type and numbers are written."""
    nodes: list[dict[str, Any]] = [
        node for edits in _list_container_edits(spec) for node in edits.get("deviceNodes", [])
    ]
    for node in nodes:
        if "major" in node:
            node.pop("hostPath", None)
