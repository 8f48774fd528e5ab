"""What an engine that reads only older CDI cannot read is left out of a file, or the file is refused; pure.

An engine refuses a whole file for one field that it does not know (field report A3-08), so a file for it has to do
without. Which version brought what is `versions`' business; here is what each loss means. Cost rule: cold.
"""

from __future__ import annotations

from typing import Any

from gpu_oci_hook.cdi import versions
from gpu_oci_hook.cdi.content import Edits
from gpu_oci_hook.errors import Fault

# How to do without, by what a reason of `versions.needed` ends with.
_WITHOUT = (
    # With the root or the driver's root elsewhere; nodes without numbers have to say where the host's node is.
    ("hostPath", "Choose --capabilities utility, which has no nodes whose numbers change with a boot"),
    ("a dot in the class", "Choose a --class without a dot"),
)


def fit(spec: Edits, maximum: str, reader: str) -> list[str]:
    """Changes a file so that it needs no more than a version of CDI; a sentence for each thing that is left out.

    Arguments:
        maximum: the greatest version that may be needed. reader: who reads no more, for people ("podman-4.3").

    Raises:
        Fault: it cannot do without.
    """
    who = f"{reader} reads CDI {maximum} at most" if reader else f"--max-version is {maximum}"
    left: list[str] = []
    if _below(maximum, "0.7.0"):
        left += _groups(spec, who)
    if _below(maximum, "0.6.0"):
        left += _annotations(spec, who)
    if _below(maximum, "0.5.0"):
        left += _names(spec, who)
        _host_paths(spec)
    version, why = versions.needed(spec)
    if _below(maximum, version):
        without = next((cure for word, cure in _WITHOUT if why.endswith(word)), "")
        allow = f"write it for an engine that reads CDI {version}" if reader else f"choose --max-version {version}"
        cure = f"{without}, or {allow}" if without else f"{allow[0].upper()}{allow[1:]}"
        raise Fault(f"the file needs CDI {version} ({why}), and {who}", cure=cure)
    return left


def _below(version: str, other: str) -> bool:
    return versions.greater(other, version)


def _everywhere(spec: Edits) -> list[Edits]:
    """The file's own edits and each device's."""
    return [spec.get("containerEdits", {}), *[device["containerEdits"] for device in spec["devices"]]]


def _groups(spec: Edits, who: str) -> list[str]:
    dropped: dict[int, None] = {}
    nodes: dict[str, None] = {}
    for edits in _everywhere(spec):
        gids = edits.pop("additionalGids", [])
        dropped.update(dict.fromkeys(gids))
        closed = [node["path"] for node in edits.get("deviceNodes", []) if node.get("gid") in gids]
        nodes.update(dict.fromkeys(closed))
    if not dropped:
        return []
    listed = ", ".join(str(gid) for gid in sorted(dropped))
    shown = ", ".join(list(nodes)[:4]) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")
    text = f"additionalGids ({listed}) is left out, as it needs CDI 0.7.0 and {who}: of a container's users only root"
    return [f"{text}, and those who are in these groups, can open {shown}"]


def _annotations(spec: Edits, who: str) -> list[str]:
    if not spec.pop("annotations", None):
        return []
    text = f"the annotation that the file is incomplete is left out, as it needs CDI 0.6.0 and {who}"
    return [f"{text}; the hook's --incomplete, and a comment in YAML, say it"]


def _names(spec: Edits, who: str) -> list[str]:
    """Devices whose names begin with a digit."""
    kept = [device for device in spec["devices"] if not device["name"][:1].isdigit()]
    dropped = [device["name"] for device in spec["devices"] if device["name"][:1].isdigit()]
    if not dropped:
        return []
    cure = "--name type-index writes gpu0 for 0, and mig0:1 for 0:1"
    what = f"names that begin with a digit ({', '.join(dropped[:8])}{', …' if len(dropped) > 8 else ''})"
    if not kept:
        raise Fault(f"{what} need CDI 0.5.0, and {who}", cure=cure[0].upper() + cure[1:])
    spec["devices"] = kept
    return [f"{what} are left out, as they need CDI 0.5.0 and {who}; {cure}"]


def _host_paths(spec: Edits) -> None:
    """The host's path of a node says nothing more where type and numbers are written."""
    nodes: list[dict[str, Any]] = [node for edits in _everywhere(spec) for node in edits.get("deviceNodes", [])]
    for node in nodes:
        if "major" in node:
            node.pop("hostPath", None)
