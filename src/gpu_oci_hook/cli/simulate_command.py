"""`gpu-oci-hook simulate`: build a GPU host out of files.

Import budget: cold.
"""

from __future__ import annotations

from pathlib import Path

import click

from gpu_oci_hook.cli.common_options import format_option, quiet_option
from gpu_oci_hook.cli.printing import DATA_FORMS, print_data, print_progress, print_warning
from gpu_oci_hook.cli.usage_errors import raise_usage_faults
from gpu_oci_hook.formats.architectures import HOST_ARCHITECTURES
from gpu_oci_hook.formats.toml_values import format_toml
from gpu_oci_hook.simulate.feature_files import FEATURES
from gpu_oci_hook.simulate.host_tree import DESKTOP_LAYOUTS, LAYOUTS, SimulatedHost, build_host, check_arguments


@click.command()
@click.argument("directory")
@click.option("--gpus", default=1, show_default=True, type=click.IntRange(min=0), help="Number of GPUs.")
@click.option("--driver", default="550.163.01", show_default=True, metavar="VERSION", help="Driver version.")
@click.option("--model", default="NVIDIA A100-SXM4-40GB", show_default=True, metavar="NAME", help="GPU model.")
@click.option(
    "--layout", default="debian", show_default=True, type=click.Choice(LAYOUTS), help="Layout of the driver files."
)
@click.option(
    "--arch",
    type=click.Choice(HOST_ARCHITECTURES),
    show_choices=False,
    metavar="MACHINE",
    help=f"Machine type: {' or '.join(HOST_ARCHITECTURES)}.  [default: that of this machine]",
)
@click.option(
    "--mig",
    multiple=True,
    metavar="LIST",
    help="Divide GPUs into MIG devices: a number of devices, or profiles (3g,2g,1g). If given once it applies to all "
    "GPUs, otherwise once per GPU.",
)
@click.option("--imex", default=0, show_default=True, type=click.IntRange(0, 2048), help="Number of IMEX channels.")
@click.option(
    "--features",
    default="",
    metavar="LIST",
    help=f"Optional devices with their nodes, modules and files: any of {', '.join(FEATURES)}.",
)
@format_option()
@quiet_option
def simulate(
    directory: str,
    gpus: int,
    driver: str,
    model: str,
    layout: str,
    arch: str | None,
    mig: tuple[str, ...],
    imex: int,
    features: str,
    form: str,
) -> None:
    """Build a simulated GPU host in DIRECTORY: /proc, /dev, loadable driver libraries and a loader cache.

    It lets GPU container setups be tested on a machine without a GPU: set [host] root to it, or inspect it with
    `gpu-oci-hook list --root DIRECTORY`. Run as root, it creates real device nodes. A directory with other content is
    refused; an earlier simulated host is rebuilt.
    """
    optional_devices = tuple(features.replace(",", " ").split())
    with raise_usage_faults():
        check_arguments(layout, driver, gpus, model, arch or "", mig, imex, optional_devices)
    path = str(Path(directory).absolute())
    report = build_host(
        path,
        gpus=gpus,
        driver=driver,
        model=model,
        layout=layout,
        arch=arch or "",
        mig=mig,
        imex=imex,
        features=optional_devices,
    )
    if form in DATA_FORMS:
        print_data(form, "simulate", _describe_report(path, report))
    else:
        _print_report(path, report, gpus)


def _describe_report(path: str, report: SimulatedHost) -> dict[str, object]:
    return {
        "directory": path,
        "layout": report.layout,
        "driver": report.driver,
        "driver_root": report.driver_root,
        "libraries": report.libraries,
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "pci": gpu.pci,
                "minor": gpu.minor,
                "model": gpu.model,
                "mig": [{"gi": device.gi, "ci": device.ci, "uuid": device.uuid} for device in gpu.mig],
            }
            for gpu in report.gpus
        ],
        "nodes": list(report.nodes),
        "left_out": list(report.left_out),
    }


def _print_report(path: str, report: SimulatedHost, requested_gpus: int) -> None:
    # report.gpus has only GPUs below /proc/driver/nvidia, where WSL and Jetson hosts do not show all of theirs.
    count = requested_gpus if report.layout not in DESKTOP_LAYOUTS and requested_gpus else len(report.gpus)
    contents = _format_count(count, "GPU")
    mig_count = sum(len(gpu.mig) for gpu in report.gpus)
    if mig_count:
        contents += f" and {_format_count(mig_count, 'MIG device')}"
    print_progress(f"built a host with {contents} in {path} (layout {report.layout}, driver {report.driver})")
    for sentence in report.left_out:
        print_warning(sentence)
    driver_root = f', driver-root = "{report.driver_root}"' if report.driver_root != "/" else ""
    print_progress(f"to use it, set in table [host] of the config file: root = {format_toml(path)}{driver_root}")


def _format_count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
