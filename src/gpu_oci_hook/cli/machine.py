"""`list` and `simulate`: the machine as it is, and one made of files."""

from __future__ import annotations

from pathlib import Path

import click

from gpu_oci_hook import simulate as simulation
from gpu_oci_hook.absent import NO_GPUS
from gpu_oci_hook.cli import besides, output
from gpu_oci_hook.cli.app import config_file, formats, host_roots
from gpu_oci_hook.cli.common import Silent, settings_for, toml
from gpu_oci_hook.config import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats import MACHINES, SMALL
from gpu_oci_hook.host import gpus as host_gpus
from gpu_oci_hook.host import graphics, platform, versions
from gpu_oci_hook.host import inventory as host_inventory
from gpu_oci_hook.host import mig as host_mig
from gpu_oci_hook.host.inventory import DriverFile, Gpu, Inventory
from gpu_oci_hook.host.nvml import Card
from gpu_oci_hook.host.root import Host

_MANY = {"library": "libraries", "binary": "programs", "socket": "sockets", "directory": "directories"}


@click.command("list")
@formats()
@config_file
@host_roots
@click.option("--nvml/--no-nvml", default=True, help="Ask NVML for memory, compute capability and MIG UUIDs, or not.")
def list_(form: str, config_path: str, root: str, driver_root: str, nvml: bool) -> None:
    """List GPUs, their MIG devices, driver, and every driver file with its capability and where it was found.

    Changes nothing; every place that was looked at is named. What only NVML knows is left out where it does not
    answer within 10 seconds.
    """
    settings = settings_for(config_path, root, driver_root)
    host = Host(settings.root)
    version = host_gpus.version(host) or ""
    gpus, problems = host_gpus.gpus(host)
    driver = host if settings.driver_root == "/" else host.below(settings.driver_root)
    kind, evidence = platform.detect(host, settings.platform)
    special = platform.find(host, settings.platform)
    if special is None:
        found = host_inventory.load(host, driver, settings.library_paths, version, Silent())
    else:
        gpus = special.gpus(gpus)
        found = special.inventory(driver, settings, gpus, version or None, Silent(), every=False)
    lists = special.report() if special else []
    lacking = dict.fromkeys(f"{name} needs {soname}, not found on host" for _, name, soname in found.incomplete)
    problems = [*problems, *found.problems, *lacking]
    instances = host_mig.Instances(host, gpus, version, Silent(), lambda: "")
    cards, silence = _ask_nvml(host, found, gpus, instances) if nvml else ({}, "not asked")
    if form == "json":
        output.json_document(
            "list",
            {
                "root": settings.root,
                "driver_root": settings.driver_root,
                "platform": {"name": kind, "evidence": list(evidence)},
                "driver": {"module": version or None, "libraries": found.libraries or None},
                "nvml": {"answers": bool(cards), "reason": silence or None},
                "gpus": [_gpu(host, gpu, cards.get(gpu.index), instances) for gpu in gpus],
                **besides.survey(host, driver, settings),
                "files": [
                    {
                        "kind": file.kind,
                        "capability": file.capability or None,
                        "name": file.name,
                        "soname": file.soname or None,
                        "arch": file.arch or None,
                        "path": file.path,
                        "container": file.container or None,
                        "found": file.found,
                        "needs": list(file.needs),
                        "glibc": file.glibc or None,
                    }
                    for file in found.files
                ],
                "places": [{"place": place, "found": what} for place, what in found.places],
                "lists": [
                    {"line": line, "type": word, "path": path, "found": what} for line, word, path, what in lists
                ],
                "problems": problems,
            },
        )
        return
    output.line(f"platform       {kind}")
    for sentence in evidence:
        output.line(f"               {sentence}")
    output.line(f"kernel module  {version or 'not loaded'}")
    libraries = any(file.kind == "library" for file in found.files)
    output.line(f"libraries      {found.libraries or ('of no single version' if libraries else 'none found')}")
    output.line(f"NVML           {silence.removeprefix('NVML ') or 'answers'}")
    output.heading("GPUs" if gpus else "no GPUs")
    notes = {}
    for gpu in gpus:
        card = cards.get(gpu.index)
        nodes = [f"/dev/dri/{name}" for name, _ in graphics.drm(host, gpu)]
        memory = [f"{card.memory >> 20} MiB"] if card and card.memory else []
        notes[gpu.index] = memory + nodes
    output.gpus(gpus, notes)
    parts = [one for gpu in gpus for one in instances.of(gpu)]
    if parts:
        output.heading("MIG devices")
        output.table(
            ("index", "gi", "ci", "uuid", "without NVML"),
            [(one.name, str(one.gi), str(one.ci), one.uuid or "-", one.old_name) for one in parts],
        )
    besides.show(host, driver, settings)
    if lists:
        output.heading("lists of nodes and files")
        output.table(("line", "type", "path", "found"), lists)
    output.heading("driver files" if found.files else "no driver files")
    for title, paths in _by_origin(found.files).items():
        output.line(f"  {title}", colour="cyan")
        for path in paths:
            output.line(f"    {path}")
    output.heading("places looked at")
    output.table(("place", "found"), found.places)
    for sentence in problems:
        output.warning(sentence)
    advice = _advice(settings, driver, module=bool(version), libraries=libraries, gpus=bool(gpus))
    if advice:
        output.line("")
        output.line(advice, bold=True)


def _by_origin(files: tuple[DriverFile, ...]) -> dict[str, list[str]]:
    """The paths of driver files, by capability, kind, and the place that told of them where their path does not."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for file in files:
        told = "" if file.path.startswith(file.found) else file.found
        found.setdefault((_capability(file.capability, file.arch), file.kind, told), []).append(file.path)
    return {
        f"{capability}: {_MANY.get(kind, kind)}" + (f", found in {told}" if told else ""): sorted(
            found[capability, kind, told]
        )
        for capability, kind, told in sorted(found)
    }


def _advice(settings: Config, driver: Host, *, module: bool, libraries: bool, gpus: bool) -> str:
    """What to do next on a machine that has no GPU to give; "" when it has."""
    if not libraries and settings.driver_root != "/" and not driver.names("/"):
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
    return "" if gpus else f"{NO_GPUS[0].upper()}{NO_GPUS[1:]}"


def _ask_nvml(
    host: Host, found: Inventory, gpus: list[Gpu], instances: host_mig.Instances
) -> tuple[dict[int, Card], str]:
    """What NVML says by the GPU's index, and why it does not about all or some; `instances` learns the UUIDs."""
    gpus = [gpu for gpu in gpus if gpu.pci]  # of others it has no name that we know
    if not gpus:
        return {}, "not asked: there is no GPU"
    from gpu_oci_hook.host import nvml

    try:
        cards = nvml.survey([gpu.pci for gpu in gpus], library=nvml.library(host, found))
        known = [(gpu, card) for gpu, card in zip(gpus, cards, strict=True) if not card.error]
        instances.learn([gpu for gpu, _ in known], [card for _, card in known])
    except Fault as fault:
        return {}, str(fault)
    unknown = [f"GPU {gpu.index} ({card.error})" for gpu, card in zip(gpus, cards, strict=True) if card.error]
    silence = f"answers, but not about {', '.join(unknown)}" if unknown else ""
    return {gpu.index: card for gpu, card in known}, silence


def _gpu(host: Host, gpu: Gpu, card: Card | None, instances: host_mig.Instances) -> dict[str, object]:
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "pci": gpu.pci,
        "minor": gpu.minor if gpu.minor >= 0 else None,
        "model": gpu.model,
        "drm": [f"/dev/dri/{name}" for name, _ in graphics.drm(host, gpu)],
        "memory": card.memory if card else None,
        "arch": (card.arch if card else "") or versions.arch(gpu.model) or None,
        "brands": list(versions.brands(gpu.model)),
        "mig": [
            {"index": one.name, "gi": one.gi, "ci": one.ci, "uuid": one.uuid or None} for one in instances.of(gpu)
        ],
    }


def _capability(capability: str, arch: str) -> str:
    """The capability that brings a file; 32-bit ones go in with compat32 only."""
    word = capability or "always"
    return f"{word}+compat32" if arch in SMALL else word


@click.command()
@click.argument("directory")
@click.option("--gpus", default=1, show_default=True, type=click.IntRange(min=0), help="How many GPUs it has.")
@click.option("--driver", default="550.163.01", show_default=True, metavar="VERSION", help="The driver's version.")
@click.option("--model", default="NVIDIA A100-SXM4-40GB", show_default=True, metavar="NAME", help="The GPUs' model.")
@click.option(
    "--layout",
    default="debian",
    show_default=True,
    type=click.Choice(simulation.LAYOUTS),
    help="Where the driver's files lie.",
)
@click.option(
    "--arch",
    default="",
    type=click.Choice(("", *MACHINES)),
    show_choices=False,
    metavar="MACHINE",
    help=f"The machine that it is: {' or '.join(MACHINES)}; this machine's kind by default.",
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
    help=f"What it has besides, of {', '.join(simulation.FEATURES)}: their nodes, modules and files.",
)
@formats()
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
    report = simulation.build(
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
        output.json_document(
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
    if report.layout not in simulation.DESKTOPS and gpus:
        count = f"{gpus} GPU{'' if gpus == 1 else 's'}"
    else:
        count = f"{len(report.gpus)} GPU{'' if len(report.gpus) == 1 else 's'}"
    parts = sum(len(gpu.mig) for gpu in report.gpus)
    count += f" and {parts} MIG device{'' if parts == 1 else 's'}" if parts else ""
    output.line(f"built a host with {count} in {place} (layout {report.layout}, driver {report.driver})")
    for sentence in report.left_out:
        output.warning(sentence)
    separate = f', driver-root = "{report.driver_root}"' if report.driver_root != "/" else ""
    output.line(f"to use it, say in the config file's table [host]: root = {toml(place)}{separate}")
