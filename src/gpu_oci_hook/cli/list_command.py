"""`gpu-oci-hook list`: show the GPUs, driver and driver files of a host.

Import budget: cold.
"""

from __future__ import annotations

import click

from gpu_oci_hook.cli.command_config import load_command_config
from gpu_oci_hook.cli.common_options import config_option, format_option, host_root_options
from gpu_oci_hook.cli.list_data import build_listing
from gpu_oci_hook.cli.list_text import print_listing
from gpu_oci_hook.cli.machine_listing import collect_machine_listing
from gpu_oci_hook.cli.printing import DATA_FORMS, print_data


@click.command("list")
@format_option()
@config_option
@host_root_options
@click.option(
    "--nvml/--no-nvml", default=True, help="Query NVML for memory, compute capability and MIG UUIDs.  [default: nvml]"
)
def list_machine(form: str, config_path: str, root: str, driver_root: str, nvml: bool) -> None:
    """List GPUs, MIG devices, the driver, and each driver file with its capability and origin.

    Changes nothing. Every searched location is shown. What only NVML knows is left out if NVML does not answer within
    10 seconds.
    """
    settings = load_command_config(config_path, root, driver_root)
    listing = collect_machine_listing(settings, use_nvml=nvml)
    if form in DATA_FORMS:
        print_data(form, "list", build_listing(listing))
    else:
        print_listing(listing)
