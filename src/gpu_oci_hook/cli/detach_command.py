"""`gpu-oci-hook detach`: take a GPU away from a container that runs.

Import budget: cold.
"""

from __future__ import annotations

import click

from gpu_oci_hook.attach.operations import ContainerOperations
from gpu_oci_hook.cli.attach_command import check_gpu_word
from gpu_oci_hook.cli.change_report import print_results
from gpu_oci_hook.cli.command_config import load_command_config
from gpu_oci_hook.cli.common_options import config_option, format_option, host_root_options, quiet_option
from gpu_oci_hook.cli.running_target import find_running_container, running_target_options


@click.command()
@running_target_options
@click.option("--gpus", metavar="WORD", default="", help="GPUs.  [default: all that were attached]")
@format_option()
@quiet_option
@config_option
@host_root_options
def detach(container: str, pid: int, gpus: str, form: str, config_path: str, root: str, driver_root: str) -> None:
    """Take GPUs away from a container that runs.

    A GPU that the container was started with can be named too. Once the last attached GPU is gone, so are the driver
    files that attach has mounted. Processes that hold a GPU open keep it until they close it; they are named.

    CONTAINER and WORD are as for attach.
    """
    if gpus:
        check_gpu_word(gpus)
    found = find_running_container(container, pid)
    settings = load_command_config(config_path, root, driver_root)
    settings.load_modules = False
    with ContainerOperations(found, settings) as operations:
        result = operations.detach(gpus)
    print_results(form, [result], [])
