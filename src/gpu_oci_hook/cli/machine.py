"""`list` and `simulate`: the machine as it is, and one made of files."""

from __future__ import annotations

from pathlib import Path

import click

from gpu_oci_hook import simulate as simulation
from gpu_oci_hook.cli import output
from gpu_oci_hook.cli.app import config_file, formats, host_roots
from gpu_oci_hook.cli.common import Silent, settings_for, toml
from gpu_oci_hook.formats import MACHINES, SMALL
from gpu_oci_hook.host import gpus as host_gpus
from gpu_oci_hook.host import inventory as host_inventory
from gpu_oci_hook.host.root import Host


@click.command("list")
@formats()
@config_file
@host_roots
def list_(form: str, config_path: str, root: str, driver_root: str) -> None:
    """List GPUs, driver, and every driver file with its capability and where it was found.

    Changes nothing; every place that was looked at is named.
    """
    settings = settings_for(config_path, root, driver_root)
    host = Host(settings.root)
    version = host_gpus.version(host) or ""
    gpus, problems = host_gpus.gpus(host)
    driver = host if settings.driver_root == "/" else host.below(settings.driver_root)
    found = host_inventory.load(host, driver, settings.library_paths, version, Silent())
    problems = [*problems, *found.problems]
    if form == "json":
        output.json_document(
            "list",
            {
                "root": settings.root,
                "driver_root": settings.driver_root,
                "driver": {"module": version or None, "libraries": found.libraries or None},
                "gpus": [
                    {"index": g.index, "uuid": g.uuid, "pci": g.pci, "minor": g.minor, "model": g.model} for g in gpus
                ],
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
                "problems": problems,
            },
        )
        return
    output.line(f"kernel module  {version or 'not loaded'}")
    output.line(f"libraries      {found.libraries or ('none' if not found.files else 'of no single version')}")
    output.heading("GPUs" if gpus else "no GPUs")
    if gpus:
        output.table(
            ("index", "uuid", "pci", "minor", "model"),
            [(str(gpu.index), gpu.uuid, gpu.pci, str(gpu.minor), gpu.model) for gpu in gpus],
        )
    output.heading("driver files" if found.files else "no driver files")
    if found.files:
        rows = [
            (_capability(file.capability, file.arch), file.kind, file.soname or file.name, file.path, file.found)
            for file in found.files
        ]
        output.table(("capability", "kind", "name", "path", "found in"), sorted(rows))
    output.heading("places looked at")
    output.table(("place", "found"), found.places)
    for sentence in problems:
        output.warning(sentence)


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
@formats()
def simulate(directory: str, gpus: int, driver: str, model: str, layout: str, arch: str, form: str) -> None:
    """Build a GPU host made of files in DIRECTORY: /proc, /dev, driver libraries that load, a loader cache.

    For tests of GPU container set-ups on a machine without a GPU: name it as [host] root, or look at it
    with `gpu-oci-hook list --root DIRECTORY`. Device nodes are real ones if root builds it. A directory that
    holds anything else is refused; a host made before is made anew.
    """
    place = str(Path(directory).absolute())
    report = simulation.build(place, gpus=gpus, driver=driver, model=model, layout=layout, arch=arch)
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
                    {"index": g.index, "uuid": g.uuid, "pci": g.pci, "minor": g.minor, "model": g.model}
                    for g in report.gpus
                ],
                "nodes": list(report.nodes),
                "left_out": list(report.left_out),
            },
        )
        return
    count = f"{len(report.gpus)} GPU{'' if len(report.gpus) == 1 else 's'}"
    output.line(f"built a host with {count} in {place} (layout {report.layout}, driver {report.driver})")
    for sentence in report.left_out:
        output.warning(sentence)
    separate = f', driver-root = "{report.driver_root}"' if report.driver_root != "/" else ""
    output.line(f"to use it, say in the config file's table [host]: root = {toml(place)}{separate}")
