"""`list` and `simulate`: the machine as it is, and one made of files."""

from __future__ import annotations

from pathlib import Path

import click

from gpu_oci_hook.cli.config_overrides import ReadOnlyCache, load_command_config
from gpu_oci_hook.cli.optional_report import describe_optional_devices, print_optional_devices
from gpu_oci_hook.cli.printing import (
    format_toml,
    print_gpus,
    print_heading,
    print_json,
    print_line,
    print_table,
    print_warning,
)
from gpu_oci_hook.cli.root_command import config_option, format_option, host_root_options
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.architectures import ARCHITECTURES_32BIT, HOST_ARCHITECTURES
from gpu_oci_hook.host.driver.inventory_cache import load_inventory
from gpu_oci_hook.host.gpus import read_driver_version, read_gpus, read_machine_gpus
from gpu_oci_hook.host.mig.mig_devices import MigDevices
from gpu_oci_hook.host.model_tables import lookup_compute_capability, lookup_gpu_brands
from gpu_oci_hook.host.nvml.query import NvmlGpu
from gpu_oci_hook.host.optional.graphics import list_drm_devices
from gpu_oci_hook.host.platforms.detect import detect_platform
from gpu_oci_hook.host.root import Host
from gpu_oci_hook.inject.no_gpu import NO_GPU_HINT
from gpu_oci_hook.model.machine import DriverFile, Gpu, Inventory
from gpu_oci_hook.plan.driver_problems import describe_missing_dependencies, describe_version_mismatch
from gpu_oci_hook.simulate.feature_files import FEATURES
from gpu_oci_hook.simulate.host_tree import DESKTOP_LAYOUTS, LAYOUTS, build_host

_KIND_PLURALS = {"library": "libraries", "binary": "programs", "socket": "sockets", "directory": "directories"}


@click.command("list")
@format_option()
@config_option
@host_root_options
@click.option("--nvml/--no-nvml", default=True, help="Ask NVML for memory, compute capability and MIG UUIDs, or not.")
def list_machine(form: str, config_path: str, root: str, driver_root: str, nvml: bool) -> None:
    """List GPUs, their MIG devices, driver, and every driver file with its capability and where it was found.

    Changes nothing; every place that was looked at is named. What only NVML knows is left out where it does not
    answer within 10 seconds.
    """
    settings = load_command_config(config_path, root, driver_root)
    host = Host(settings.root)
    version = read_driver_version(host) or ""
    gpus, problems, platform = read_machine_gpus(host, settings.platform)
    driver = host if settings.driver_root == "/" else host.sub_host(settings.driver_root)
    kind, evidence = detect_platform(host, read_gpus(host)[0], settings.platform)
    if platform is None:
        found = load_inventory(host, driver, settings.library_paths, version, ReadOnlyCache())
    else:
        found = platform.collect_inventory(driver, settings, gpus, version or None, ReadOnlyCache(), all_lists=False)
    lists = platform.report_list_lines() if platform else []
    mismatch = [describe_version_mismatch(found)] if found.has_version_mismatch else []
    problems = [*problems, *mismatch, *found.problems, *describe_missing_dependencies(found)]
    instances = MigDevices(host, gpus, version, ReadOnlyCache(), lambda: "")
    cards, silence = _query_nvml(host, found, gpus, instances) if nvml else ({}, "not asked")
    if form == "json":
        print_json(
            "list",
            {
                "root": settings.root,
                "driver_root": settings.driver_root,
                "platform": {"name": kind, "evidence": list(evidence)},
                "driver": {"module": version or None, "libraries": found.library_version or None},
                "nvml": {"answers": bool(cards), "reason": silence or None},
                "gpus": [_describe_gpu(host, gpu, cards.get(gpu.index), instances) for gpu in gpus],
                **describe_optional_devices(host, driver, settings),
                "files": [
                    {
                        "kind": file.kind,
                        "capability": file.capability or None,
                        "name": file.name,
                        "soname": file.soname or None,
                        "arch": file.arch or None,
                        "path": file.path,
                        "container": file.container_path or None,
                        "found": file.found_in,
                        "needs": list(file.needs),
                        "glibc": file.glibc or None,
                    }
                    for file in found.files
                ],
                "places": [{"place": place, "found": what} for place, what in found.search_report],
                "lists": [
                    {"line": line, "type": word, "path": path, "found": what} for line, word, path, what in lists
                ],
                "problems": problems,
            },
        )
        return
    print_line(f"platform       {kind}")
    for sentence in evidence:
        print_line(f"               {sentence}")
    print_line(f"kernel module  {version or 'not loaded'}")
    libraries = any(file.kind == "library" for file in found.files)
    print_line(f"libraries      {found.library_version or ('of no single version' if libraries else 'none found')}")
    print_line(f"NVML           {silence.removeprefix('NVML ') or 'answers'}")
    print_heading("GPUs" if gpus else "no GPUs")
    notes = {}
    for gpu in gpus:
        card = cards.get(gpu.index)
        nodes = [f"/dev/dri/{name}" for name, _ in list_drm_devices(host, gpu)]
        memory = [f"{card.memory >> 20} MiB"] if card and card.memory else []
        notes[gpu.index] = memory + nodes
    print_gpus(gpus, notes)
    parts = [one for gpu in gpus for one in instances.list_for_gpu(gpu)]
    if parts:
        print_heading("MIG devices")
        print_table(
            ("index", "gi", "ci", "uuid", "without NVML"),
            [(one.name, str(one.gi), str(one.ci), one.uuid or "-", one.old_name) for one in parts],
        )
    print_optional_devices(host, driver, settings)
    if lists:
        print_heading("lists of nodes and files")
        print_table(("line", "type", "path", "found"), lists)
    print_heading("driver files" if found.files else "no driver files")
    for title, paths in _group_files_by_origin(found.files).items():
        print_line(f"  {title}", colour="cyan")
        for path in paths:
            print_line(f"    {path}")
    print_heading("places looked at")
    print_table(("place", "found"), found.search_report)
    for sentence in problems:
        print_warning(sentence)
    advice = _suggest_next_step(settings, driver, module=bool(version), libraries=libraries, gpus=bool(gpus))
    if advice:
        print_line("")
        print_line(advice, bold=True)


def _group_files_by_origin(files: tuple[DriverFile, ...]) -> dict[str, list[str]]:
    """The paths of driver files, by capability, kind, and the place that told of them where their path does not."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for file in files:
        told = "" if file.path.startswith(file.found_in) else file.found_in
        found.setdefault((_format_capability(file.capability, file.arch), file.kind, told), []).append(file.path)
    return {
        f"{capability}: {_KIND_PLURALS.get(kind, kind)}" + (f", found in {told}" if told else ""): sorted(
            found[capability, kind, told]
        )
        for capability, kind, told in sorted(found)
    }


def _suggest_next_step(settings: Config, driver: Host, *, module: bool, libraries: bool, gpus: bool) -> str:
    """What to do next on a machine that has no GPU to give; "" when it has."""
    if not libraries and settings.driver_root != "/" and not driver.list_names("/"):
        return (
            f"The driver root {driver.root} is empty or missing: start the driver container, or mend [host] driver-root"
        )
    elsewhere = "If it lies elsewhere, name its root in [host] driver-root or its directory in [host] library-paths"
    if not module and not libraries:
        return f"No driver was found: install it. {elsewhere}"
    if not libraries:
        return f"The kernel module is loaded, but its libraries were not found. {elsewhere}"
    if not module:
        return "The libraries are there, but the kernel module is not loaded: modprobe nvidia"
    return "" if gpus else f"{NO_GPU_HINT[0].upper()}{NO_GPU_HINT[1:]}"


def _query_nvml(host: Host, found: Inventory, gpus: list[Gpu], instances: MigDevices) -> tuple[dict[int, NvmlGpu], str]:
    """What NVML says by the GPU's index, and why it does not about all or some; `instances` learns the UUIDs."""
    gpus = [gpu for gpu in gpus if gpu.pci]  # of others it has no name that we know
    if not gpus:
        return {}, "not asked: there is no GPU"
    from gpu_oci_hook.host.nvml.query import find_nvml_library, query_nvml_gpus

    try:
        cards = query_nvml_gpus([gpu.pci for gpu in gpus], library=find_nvml_library(host, found))
        known = [(gpu, card) for gpu, card in zip(gpus, cards, strict=True) if not card.error]
        instances.store_nvml_answer([gpu for gpu, _ in known], [card for _, card in known])
    except Fault as fault:
        return {}, str(fault)
    unknown = [f"GPU {gpu.index} ({card.error})" for gpu, card in zip(gpus, cards, strict=True) if card.error]
    silence = f"answers, but not about {', '.join(unknown)}" if unknown else ""
    return {gpu.index: card for gpu, card in known}, silence


def _describe_gpu(host: Host, gpu: Gpu, card: NvmlGpu | None, instances: MigDevices) -> dict[str, object]:
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "pci": gpu.pci,
        "minor": gpu.minor if gpu.minor >= 0 else None,
        "model": gpu.model,
        "drm": [f"/dev/dri/{name}" for name, _ in list_drm_devices(host, gpu)],
        "memory": card.memory if card else None,
        "arch": (card.compute_capability if card else "") or lookup_compute_capability(gpu.model) or None,
        "brands": list(lookup_gpu_brands(gpu.model)),
        "mig": [
            {"index": one.name, "gi": one.gi, "ci": one.ci, "uuid": one.uuid or None}
            for one in instances.list_for_gpu(gpu)
        ],
    }


def _format_capability(capability: str, arch: str) -> str:
    """The capability that brings a file; 32-bit ones go in with compat32 only."""
    word = capability or "always"
    return f"{word}+compat32" if arch in ARCHITECTURES_32BIT else word


@click.command()
@click.argument("directory")
@click.option("--gpus", default=1, show_default=True, type=click.IntRange(min=0), help="How many GPUs it has.")
@click.option("--driver", default="550.163.01", show_default=True, metavar="VERSION", help="The driver's version.")
@click.option("--model", default="NVIDIA A100-SXM4-40GB", show_default=True, metavar="NAME", help="The GPUs' model.")
@click.option(
    "--layout",
    default="debian",
    show_default=True,
    type=click.Choice(LAYOUTS),
    help="Where the driver's files lie.",
)
@click.option(
    "--arch",
    default="",
    type=click.Choice(("", *HOST_ARCHITECTURES)),
    show_choices=False,
    metavar="MACHINE",
    help=f"The machine that it is: {' or '.join(HOST_ARCHITECTURES)}; this machine's kind by default.",
)
@click.option(
    "--mig",
    multiple=True,
    metavar="WORD",
    help="Divide GPUs into MIG devices: a number of them, or profiles (3g,2g,1g). Given once: all GPUs; else one each.",
)
@click.option("--imex", default=0, show_default=True, type=click.IntRange(0, 2048), help="How many IMEX channels.")
@click.option(
    "--features",
    default="",
    metavar="LIST",
    help=f"What it has besides, of {', '.join(FEATURES)}: their nodes, modules and files.",
)
@format_option()
def simulate(
    directory: str,
    gpus: int,
    driver: str,
    model: str,
    layout: str,
    arch: str,
    mig: tuple[str, ...],
    imex: int,
    features: str,
    form: str,
) -> None:
    """Build a GPU host made of files in DIRECTORY: /proc, /dev, driver libraries that load, a loader cache.

    For tests of GPU container set-ups on a machine without a GPU: name it as [host] root, or look at it
    with `gpu-oci-hook list --root DIRECTORY`. Device nodes are real ones if root builds it. A directory that
    holds anything else is refused; a host made before is made anew.
    """
    place = str(Path(directory).absolute())
    report = build_host(
        place,
        gpus=gpus,
        driver=driver,
        model=model,
        layout=layout,
        arch=arch,
        mig=mig,
        imex=imex,
        features=tuple(features.replace(",", " ").split()),
    )
    if form == "json":
        print_json(
            "simulate",
            {
                "directory": place,
                "layout": report.layout,
                "driver": report.driver,
                "driver_root": report.driver_root,
                "libraries": report.libraries,
                "gpus": [
                    {
                        "index": g.index,
                        "uuid": g.uuid,
                        "pci": g.pci,
                        "minor": g.minor,
                        "model": g.model,
                        "mig": [{"gi": one.gi, "ci": one.ci, "uuid": one.uuid} for one in g.mig],
                    }
                    for g in report.gpus
                ],
                "nodes": list(report.nodes),
                "left_out": list(report.left_out),
            },
        )
        return
    if report.layout not in DESKTOP_LAYOUTS and gpus:
        count = f"{gpus} GPU{'' if gpus == 1 else 's'}"
    else:
        count = f"{len(report.gpus)} GPU{'' if len(report.gpus) == 1 else 's'}"
    parts = sum(len(gpu.mig) for gpu in report.gpus)
    count += f" and {parts} MIG device{'' if parts == 1 else 's'}" if parts else ""
    print_line(f"built a host with {count} in {place} (layout {report.layout}, driver {report.driver})")
    for sentence in report.left_out:
        print_warning(sentence)
    separate = f', driver-root = "{report.driver_root}"' if report.driver_root != "/" else ""
    print_line(f"to use it, say in the config file's table [host]: root = {format_toml(place)}{separate}")
