"""Report the optional devices of a host in `list`: features, IMEX channels and the files of [[inject.extra]].

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.cli.printing import print_heading, print_line, print_table
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.host.device_nodes import read_device_majors
from gpu_oci_hook.host.optional.features import find_feature, find_imex_channels
from gpu_oci_hook.host.optional.user_files import inspect_user_file
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.request.environment import FEATURE_SWITCHES
from gpu_oci_hook.request.selectors import format_ranges


def describe_optional_devices(host: Host, driver_host: Host, config: Config) -> dict[str, object]:
    """Build the keys "features", "imex" and "extra" of the JSON form."""
    majors = read_device_majors(host)
    features = [find_feature(host, driver_host, majors, key) for _, key, _ in FEATURE_SWITCHES]
    channels, missing_channels = find_imex_channels(host, majors)
    return {
        "features": [
            {
                "feature": feature.key,
                "there": bool(feature.nodes),
                "nodes": [node.path for node in feature.nodes],
                "files": [file.container_path for file in feature.files],
                "missing": _describe_missing(feature.absent),
            }
            for feature in features
        ],
        "imex": {"channels": list(channels), "missing": _describe_missing(missing_channels)},
        "extra": [
            {
                "path": path,
                "container": destination,
                "capability": capability or None,
                "kind": kind,
                "missing": problem or None,
            }
            for path, destination, capability, kind, problem in _check_user_files(host, config)
        ],
    }


def _describe_missing(missing: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"path": path, "reason": reason} for path, reason in missing]


def _check_user_files(host: Host, config: Config) -> list[tuple[str, str, str, str, str]]:
    """List (path, path in the container, capability, kind, problem) for each file of [[inject.extra]]."""
    checked = []
    for path, container, capability, kind, _ in config.extra:
        destination = container or path
        problem = inspect_user_file(host, path, destination, capability, kind)[2]
        checked.append((path, destination, capability, kind, problem))
    return checked


def print_optional_devices(host: Host, driver_host: Host, config: Config) -> None:
    """Print the optional devices with the variable that requests each of them."""
    majors = read_device_majors(host)
    print_heading("optional devices")
    for variable, key, title in FEATURE_SWITCHES:
        feature = find_feature(host, driver_host, majors, key)
        paths = [node.path for node in feature.nodes] + [file.container_path for file in feature.files]
        missing = [(path, reason) for path, reason in feature.absent if path.startswith("/dev/")]
        _print_optional_device(title, f"{variable}=enabled", paths if feature.nodes else [], missing)
    channels, missing = find_imex_channels(host, majors)
    numbers = [format_ranges(list(channels))] if channels else []
    _print_optional_device("IMEX channels", "NVIDIA_IMEX_CHANNELS=…", numbers, missing[:4])


def summarize_optional_devices(host: Host, driver_host: Host) -> tuple[list[str], list[str]]:
    """Return the optional devices that this host has, with the variables that request them, and those that it lacks."""
    majors = read_device_majors(host)
    present, absent = [], []
    for variable, key, title in FEATURE_SWITCHES:
        if find_feature(host, driver_host, majors, key).nodes:
            present.append(f"{title} ({variable}=enabled)")
        else:
            absent.append(title)
    channels, _ = find_imex_channels(host, majors)
    if channels:
        present.append(f"IMEX channels {format_ranges(list(channels))} (NVIDIA_IMEX_CHANNELS=…)")
    else:
        absent.append("IMEX channels")
    return present, absent


def print_user_files(host: Host, config: Config) -> None:
    """Print the files of [[inject.extra]], if the configuration names any."""
    rows = [
        (capability or "every GPU container", kind, path, destination, problem or "available")
        for path, destination, capability, kind, problem in _check_user_files(host, config)
    ]
    if rows:
        print_heading("files added by the configuration ([[inject.extra]])")
        print_table(("capability", "kind", "path", "path in the container", "state"), rows)


def _print_optional_device(title: str, request: str, present: list[str], missing: list[tuple[str, str]]) -> None:
    """Print whether a device is available, then its nodes, or the reason why each of them is missing."""
    print_line(f"{title} ({request}): {'available' if present else 'not available'}")
    if present:
        print_line(f"   {', '.join(present)}")
        return
    for path, reason in missing:
        # The rest of the reason says what follows for a container.
        print_line(f"   {path}: {reason.partition(', so ')[0]}")
