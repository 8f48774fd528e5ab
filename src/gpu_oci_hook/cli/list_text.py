"""Print the text form of `list`.

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.cli.machine_listing import MachineListing
from gpu_oci_hook.cli.optional_report import print_optional_devices
from gpu_oci_hook.cli.printing import print_gpus, print_heading, print_line, print_table, print_warning
from gpu_oci_hook.formats.architectures import ARCHITECTURES_32BIT
from gpu_oci_hook.host.optional.graphics import list_drm_devices
from gpu_oci_hook.inject.no_gpu import NO_GPU_HINT
from gpu_oci_hook.model.machine import DriverFile

_KIND_PLURALS = {"library": "libraries", "binary": "programs", "socket": "sockets", "directory": "directories"}


def print_listing(listing: MachineListing) -> None:
    """Print the listing of a host, and what to do next if it has no usable GPU."""
    _print_driver(listing)
    _print_gpus(listing)
    print_optional_devices(listing.host, listing.driver_host, listing.settings)
    _print_files(listing)
    for problem in listing.problems:
        print_warning(problem)
    next_step = _suggest_next_step(listing)
    if next_step:
        print_line("")
        print_line(next_step, bold=True)


def _print_driver(listing: MachineListing) -> None:
    print_line(f"platform       {listing.platform}")
    for sentence in listing.evidence:
        print_line(f"               {sentence}")
    print_line(f"kernel module  {listing.module_version or 'not loaded'}")
    unknown = "version unknown" if _has_libraries(listing) else "none found"
    print_line(f"libraries      {listing.inventory.library_version or unknown}")
    print_line(f"NVML           {listing.nvml_problem.removeprefix('NVML ') or 'available'}")


def _print_gpus(listing: MachineListing) -> None:
    print_heading("GPUs" if listing.gpus else "no GPUs")
    notes = {}
    for gpu in listing.gpus:
        answer = listing.nvml_gpus.get(gpu.index)
        memory = [f"{answer.memory >> 20} MiB"] if answer and answer.memory else []
        notes[gpu.index] = memory + [f"/dev/dri/{name}" for name, _ in list_drm_devices(listing.host, gpu)]
    print_gpus(listing.gpus, notes)
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


def _print_files(listing: MachineListing) -> None:
    if listing.csv_lines:
        print_heading("CSV lists of device nodes and files")
        print_table(("line", "type", "path", "result"), listing.csv_lines)
    print_heading("driver files" if listing.inventory.files else "no driver files")
    for title, paths in _group_files_by_origin(listing.inventory.files).items():
        print_line(f"  {title}", colour="cyan")
        for path in paths:
            print_line(f"    {path}")
    if listing.inventory.missing_expected:
        print_heading("not on this host")
        print_table(("capability", "file"), listing.inventory.missing_expected)
    print_heading("searched locations")
    print_table(("location", "result"), listing.inventory.search_report)


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
    name = capability or "always"
    return f"{name}+compat32" if arch in ARCHITECTURES_32BIT else name


def _has_libraries(listing: MachineListing) -> bool:
    return any(file.kind == "library" for file in listing.inventory.files)


def _suggest_next_step(listing: MachineListing) -> str:
    """Return what to do next on a host without a usable GPU, "" if it has one."""
    libraries, driver_host = _has_libraries(listing), listing.driver_host
    if not libraries and listing.settings.driver_root != "/" and not driver_host.list_names("/"):
        return (
            f"The driver root {driver_host.root} is empty or missing: start the driver container, "
            "or correct [host] driver-root"
        )
    setting = "set [host] driver-root to the root or [host] library-paths to the directory"
    if not listing.module_version and not libraries:
        return f"No driver was found: install it. If it is installed elsewhere, {setting}"
    if not libraries:
        return (
            "The kernel module is loaded, but the driver libraries were not found. "
            f"If they are installed elsewhere, {setting}"
        )
    if not listing.module_version and not listing.gpus:  # WSL2 and Jetson show GPUs without this module
        return "The driver libraries are installed, but the kernel module is not loaded. Load it: modprobe nvidia"
    return "" if listing.gpus else f"{NO_GPU_HINT[0].upper()}{NO_GPU_HINT[1:]}"
