"""What `list` says of a machine beside its GPUs: features, IMEX channels, and files that the configuration adds."""

from __future__ import annotations

from gpu_oci_hook.cli import output
from gpu_oci_hook.config import Config
from gpu_oci_hook.host import additions, features
from gpu_oci_hook.host import nodes as host_nodes
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.request.extras import SWITCHES


def survey(host: Host, driver: Host, config: Config) -> dict[str, object]:
    """The keys "features", "imex" and "extra" of the JSON form; described by list.schema.json."""
    numbers = host_nodes.majors(host)
    found = [features.find(host, driver, numbers, key) for _, key, _ in SWITCHES]
    channels, absent = features.channels_of(host, numbers)
    return {
        "features": [
            {
                "feature": one.key,
                "there": bool(one.nodes),
                "nodes": [node.path for node in one.nodes],
                "files": [file.container for file in one.files],
                "missing": [{"path": path, "reason": reason} for path, reason in one.absent],
            }
            for one in found
        ],
        "imex": {
            "channels": list(channels),
            "missing": [{"path": path, "reason": reason} for path, reason in absent],
        },
        "extra": [
            {"path": path, "container": place, "capability": capability or None, "kind": kind, "missing": why or None}
            for path, place, capability, kind, why in _extra(host, config)
        ],
    }


def _extra(host: Host, config: Config) -> list[tuple[str, str, str, str, str]]:
    """Each file of [[inject.extra]]: path, place in the container, capability, kind, and why it cannot be given."""
    return [
        (path, container or path, capability, kind, additions.look(host, path, container or path, capability, kind)[2])
        for path, container, capability, kind, _ in config.extra
    ]


def show(host: Host, driver: Host, config: Config) -> None:
    """The same as a table: what there is, and the variable that asks for it."""
    numbers = host_nodes.majors(host)
    output.heading("beside the GPUs")
    for variable, key, title in SWITCHES:
        found = features.find(host, driver, numbers, key)
        there = [node.path for node in found.nodes] + [file.container for file in found.files]
        lacks = [(path, reason) for path, reason in found.absent if path.startswith("/dev/")]
        _show(title, f"{variable}=enabled", there if found.nodes else [], lacks)
    channels, absent = features.channels_of(host, numbers)
    lacks = list(absent[:4])
    _show("IMEX channels", "NVIDIA_IMEX_CHANNELS=…", [features.ranges(list(channels))] if channels else [], lacks)
    own = [
        (capability or "always", kind, path, place, why or "there")
        for path, place, capability, kind, why in _extra(host, config)
    ]
    if own:
        output.heading("files that the configuration adds ([[inject.extra]])")
        output.table(("capability", "kind", "path", "in the container", "state"), own)


def _show(title: str, asked: str, there: list[str], lacks: list[tuple[str, str]]) -> None:
    """What is there, or what keeps it from being there, below a line that says which."""
    output.line(f"{title} ({asked}): {'there' if there else 'not there'}")
    if there:
        output.line(f"   {', '.join(there)}")
        return
    for path, reason in lacks:
        output.line(f"   {path}: {reason.partition(', so ')[0]}")
