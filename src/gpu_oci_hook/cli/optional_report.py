"""What `list` says of a machine beside its GPUs: features, IMEX channels, and files that the configuration adds."""

from __future__ import annotations

from gpu_oci_hook.cli.printing import print_heading, print_line, print_table
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.host.device_nodes import read_device_majors
from gpu_oci_hook.host.optional.features import find_feature, find_imex_channels, format_number_ranges
from gpu_oci_hook.host.optional.user_files import inspect_user_file
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.request.feature_requests import FEATURE_SWITCHES


def describe_optional_devices(host: Host, driver: Host, config: Config) -> dict[str, object]:
    """The keys "features", "imex" and "extra" of the JSON form; described by list.schema.json."""
    numbers = read_device_majors(host)
    found = [find_feature(host, driver, numbers, key) for _, key, _ in FEATURE_SWITCHES]
    channels, absent = find_imex_channels(host, numbers)
    return {
        "features": [
            {
                "feature": one.key,
                "there": bool(one.nodes),
                "nodes": [node.path for node in one.nodes],
                "files": [file.container_path for file in one.files],
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
            for path, place, capability, kind, why in _check_user_files(host, config)
        ],
    }


def _check_user_files(host: Host, config: Config) -> list[tuple[str, str, str, str, str]]:
    """Each file of [[inject.extra]]: path, place in the container, capability, kind, and why it cannot be given."""
    return [
        (
            path,
            container or path,
            capability,
            kind,
            inspect_user_file(host, path, container or path, capability, kind)[2],
        )
        for path, container, capability, kind, _ in config.extra
    ]


def print_optional_devices(host: Host, driver: Host, config: Config) -> None:
    """The same as a table: what there is, and the variable that asks for it."""
    numbers = read_device_majors(host)
    print_heading("beside the GPUs")
    for variable, key, title in FEATURE_SWITCHES:
        found = find_feature(host, driver, numbers, key)
        there = [node.path for node in found.nodes] + [file.container_path for file in found.files]
        lacks = [(path, reason) for path, reason in found.absent if path.startswith("/dev/")]
        _print_optional_device(title, f"{variable}=enabled", there if found.nodes else [], lacks)
    channels, absent = find_imex_channels(host, numbers)
    lacks = list(absent[:4])
    _print_optional_device(
        "IMEX channels", "NVIDIA_IMEX_CHANNELS=…", [format_number_ranges(list(channels))] if channels else [], lacks
    )
    own = [
        (capability or "always", kind, path, place, why or "there")
        for path, place, capability, kind, why in _check_user_files(host, config)
    ]
    if own:
        print_heading("files that the configuration adds ([[inject.extra]])")
        print_table(("capability", "kind", "path", "in the container", "state"), own)


def _print_optional_device(title: str, requested_by: str, present: list[str], missing: list[tuple[str, str]]) -> None:
    """What is there, or what keeps it from being there, below a line that says which."""
    print_line(f"{title} ({requested_by}): {'there' if present else 'not there'}")
    if present:
        print_line(f"   {', '.join(present)}")
        return
    for path, reason in missing:
        print_line(f"   {path}: {reason.partition(', so ')[0]}")
