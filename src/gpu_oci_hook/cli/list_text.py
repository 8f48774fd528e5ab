"""Print the text form of `list`.

Import budget: cold.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from gpu_oci_hook.cli.machine_listing import MachineListing
from gpu_oci_hook.cli.optional_report import print_optional_devices, print_user_files, summarize_optional_devices
from gpu_oci_hook.cli.printing import print_gpus, print_heading, print_line, print_table, print_warning
from gpu_oci_hook.formats.architectures import ARCHITECTURES_32BIT
from gpu_oci_hook.host.driver.other_roots import find_other_driver_root, suggest_driver_root
from gpu_oci_hook.host.optional.graphics import list_drm_devices
from gpu_oci_hook.host.platforms.detect import describe_platform_name
from gpu_oci_hook.inject.no_gpu import NO_GPU_HINT, describe_config_source
from gpu_oci_hook.model.machine import DriverFile

_KIND_PLURALS = {
    "library": "libraries",
    "binary": "programs",
    "config": "other files",
    "socket": "sockets",
    "directory": "directories",
}


class ListSections(NamedTuple):
    """What `list` prints in addition to the GPUs and the summary of the driver."""

    files: bool
    places: bool
    details: bool


def print_gpu_names(listing: MachineListing) -> None:
    """Print only the name of each GPU, for scripts: its UUID, or its index where it has none."""
    for gpu in listing.gpus:
        print_line(gpu.uuid or str(gpu.index))


def print_listing(listing: MachineListing, sections: ListSections) -> None:
    """Print the listing of a host, and what to do next if it has no usable GPU."""
    _print_gpus(listing)
    _print_mig_devices(listing)
    print_line("")
    _print_summary(listing, sections)
    if sections.details:
        _print_gpu_details(listing)
        print_optional_devices(listing.host, listing.driver_host, listing.settings)
    print_user_files(listing.host, listing.settings)
    if sections.files:
        _print_files(listing)
    if listing.inventory.missing_expected and _has_libraries(listing):
        print_heading("not on this host")
        print_table(("capability", "file"), listing.inventory.missing_expected)
    if sections.places:
        print_heading("searched locations")
        print_table(("location", "result"), listing.inventory.search_report)
    for problem in listing.problems:
        print_warning(problem)
    next_steps = _suggest_next_steps(listing)
    if next_steps:
        print_line("")
    for sentence in next_steps:
        print_line(sentence, bold=True)


def _print_gpus(listing: MachineListing) -> None:
    if not listing.gpus:
        print_line("no GPUs", bold=True)
        return
    rows = []
    for gpu in listing.gpus:
        answer = listing.nvml_gpus.get(gpu.index)
        memory = f"{answer.memory >> 20} MiB" if answer and answer.memory else "-"
        node = f"/dev/nvidia{gpu.minor}" if gpu.minor >= 0 else "-"
        rows.append((str(gpu.index), gpu.uuid or "-", gpu.model or "-", node, memory))
    columns = ("index", "uuid", "model", "node", "memory")
    # WSL2 and Jetson show no UUIDs and no nodes, and only NVML knows the memory.
    shown = [column for column in range(len(columns)) if column == 0 or any(row[column] != "-" for row in rows)]
    print_table([columns[column] for column in shown], [[row[column] for column in shown] for row in rows])


def _print_mig_devices(listing: MachineListing) -> None:
    mig_devices = [device for gpu in listing.gpus for device in listing.mig_devices.list_for_gpu(gpu)]
    if mig_devices:
        print_heading("MIG devices")
        print_table(
            ("index", "gi", "ci", "uuid", "legacy name (works without NVML)"),
            [
                (device.name, str(device.gi), str(device.ci), device.uuid or "-", device.old_name)
                for device in mig_devices
            ],
        )


def _print_summary(listing: MachineListing, sections: ListSections) -> None:
    """Print a line for each property of the host. What a line only counts has an option that shows it."""
    print_line(f"platform       {describe_platform_name(listing.platform)}")
    if sections.details:
        for sentence in listing.evidence:
            print_line(f"               {sentence}")
    print_line(f"kernel module  {listing.module_version or 'not loaded'}")
    files = listing.inventory.files
    unknown = "version unknown" if _has_libraries(listing) else "none found"
    print_line(f"libraries      {listing.inventory.library_version or unknown}")
    print_line(f"NVML           {listing.nvml_problem.removeprefix('NVML ').removeprefix('is ') or 'available'}")
    print_line(f"driver files   {len(files) or 'none'}{'' if sections.files or not files else '; --files lists them'}")
    if not sections.details:
        present, absent = summarize_optional_devices(listing.host, listing.driver_host)
        print_line(f"optional       {'; '.join(present) or 'none'}")
        if absent:
            print_line(f"not present    {', '.join(absent)}; -v says why")


def _print_gpu_details(listing: MachineListing) -> None:
    if listing.gpus:
        print_heading("GPU details")
        notes = {
            gpu.index: [f"/dev/dri/{name}" for name, _ in list_drm_devices(listing.host, gpu)] for gpu in listing.gpus
        }
        print_gpus(listing.gpus, notes)


def _print_files(listing: MachineListing) -> None:
    if listing.csv_lines:
        print_heading("CSV lists of device nodes and files")
        print_table(("line", "type", "path", "result"), listing.csv_lines)
    print_heading("driver files" if listing.inventory.files else "no driver files")
    for title, paths in _group_files_by_origin(listing.inventory.files).items():
        print_line(f"  {title}", colour="cyan")
        for path in paths:
            print_line(f"    {path}")


def _group_files_by_origin(files: tuple[DriverFile, ...]) -> dict[str, list[str]]:
    """Group paths of driver files by capability, kind, and the location that named them if their path does not."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for file in files:
        origin = "" if file.path.startswith(file.found_in) else file.found_in
        groups.setdefault((_format_capability(file.capability, file.arch), file.kind, origin), []).append(file.path)
    return {
        f"{capability}: {_KIND_PLURALS.get(kind, kind)}" + (f", found in {origin}" if origin else ""): sorted(
            groups[capability, kind, origin]
        )
        for capability, kind, origin in sorted(groups)
    }


def _format_capability(capability: str, arch: str) -> str:
    """Return the capability that injects a file; 32-bit files need compat32 as well."""
    name = capability or "every GPU container"
    return f"{name} and compat32" if arch in ARCHITECTURES_32BIT else name


def _has_libraries(listing: MachineListing) -> bool:
    return any(file.kind == "library" for file in listing.inventory.files)


def _suggest_next_steps(listing: MachineListing) -> list[str]:
    """Return what is missing and what to do next on a host without a usable GPU, [] if it has one."""
    settings, driver_host = listing.settings, listing.driver_host
    libraries = _has_libraries(listing)
    if not libraries:
        other_root = find_other_driver_root(listing.host, settings, listing.module_version)
        if other_root:
            return [_capitalize(suggest_driver_root(other_root, settings))]
        if settings.driver_root != "/" and not driver_host.list_names("/"):
            problem = f"The driver root {driver_host.root} is empty or missing"
            return [f"{problem}: start the driver container, or correct [host] driver-root"]
        return _suggest_missing_libraries(listing)
    if not listing.module_version and not listing.gpus:  # WSL2 and Jetson show GPUs without this module
        return ["The driver libraries are installed, but the kernel module is not loaded. Load it: modprobe nvidia"]
    return [] if listing.gpus else [_capitalize(NO_GPU_HINT)]


def _suggest_missing_libraries(listing: MachineListing) -> list[str]:
    settings = listing.settings
    steps = [
        "The kernel module is loaded, but the driver libraries were not found."
        if listing.module_version
        else "No driver was found: install it.",
        "If it is installed elsewhere, set [host] driver-root to its root or [host] library-paths to its directory;",
        "gpu-oci-hook list --places shows where it was looked for.",
    ]
    if not settings.path and not os.environ.get("GPU_OCI_HOOK_CONFIG"):
        steps.append(
            f"This is the {describe_config_source(settings)}: name another config file with GPU_OCI_HOOK_CONFIG."
        )
    return steps


def _capitalize(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"
