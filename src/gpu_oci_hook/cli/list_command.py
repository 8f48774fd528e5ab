"""`gpu-oci-hook list`: show the GPUs, driver and driver files of a host.

Import budget: cold.
"""

from __future__ import annotations

import click

from gpu_oci_hook.cli.command_config import load_command_config
from gpu_oci_hook.cli.common_options import QUIET, config_option, format_option, host_root_options, verbose_option
from gpu_oci_hook.cli.list_data import build_listing
from gpu_oci_hook.cli.list_text import ListSections, print_gpu_names, print_listing
from gpu_oci_hook.cli.machine_listing import collect_machine_listing
from gpu_oci_hook.cli.printing import DATA_FORMS, print_data


@click.command("list")
@format_option()
@click.option("-q", "--quiet", is_flag=True, help="Print only the UUIDs of the GPUs, and no warnings.")
@verbose_option("Also print details of the GPUs, optional devices, files and searched locations.")
@click.option("--files", is_flag=True, help="Also print each driver file with its capability and origin.")
@click.option("--places", is_flag=True, help="Also print every searched location with the result.")
@config_option
@host_root_options
@click.option("--nvml/--no-nvml", default=True, help="Query NVML for memory and MIG UUIDs.  [default: nvml]")
def list_machine(
    form: str,
    quiet: bool,
    verbose: bool,
    files: bool,
    places: bool,
    config_path: str,
    root: str,
    driver_root: str,
    nvml: bool,
) -> None:
    """List the GPUs and MIG devices of this host, and its driver.

    Changes nothing. What only NVML knows is left out if NVML does not answer within 10 seconds. JSON and YAML output
    have everything.
    """
    click.get_current_context().meta[QUIET] = quiet
    settings = load_command_config(config_path, root, driver_root)
    listing = collect_machine_listing(settings, use_nvml=nvml)
    if form in DATA_FORMS:
        print_data(form, "list", build_listing(listing))
    elif quiet:
        print_gpu_names(listing)
    else:
        print_listing(listing, ListSections(files or verbose, places or verbose, verbose))
