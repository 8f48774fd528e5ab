"""`gpu-oci-hook repair`: put back what running containers have lost of their GPUs.

Import budget: cold.
"""

from __future__ import annotations

import sys

import click

from gpu_oci_hook.attach.operations import ContainerOperations, Result
from gpu_oci_hook.attach.repairable import list_repairable_containers
from gpu_oci_hook.cli.change_report import print_results
from gpu_oci_hook.cli.command_config import load_command_config
from gpu_oci_hook.cli.common_options import config_option, format_option, host_root_options, quiet_option
from gpu_oci_hook.cli.printing import DATA_FORMS, print_progress
from gpu_oci_hook.cli.running_target import find_running_container, running_target_options
from gpu_oci_hook.cli.usage_errors import UsageFault
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault


@click.command()
@running_target_options
@click.option("--all", "repair_all", is_flag=True, help="Repair every running container that has a GPU.")
@format_option()
@quiet_option
@config_option
@host_root_options
def repair(
    container: str,
    pid: int,
    repair_all: bool,
    form: str,
    config_path: str,
    root: str,
    driver_root: str,
) -> None:
    """Put back what running containers have lost of their GPUs.

    A container loses device rules after `systemctl daemon-reload` or an update of its limits, and driver files after an
    upgrade of the driver. What was detached stays away.

    CONTAINER is as for attach. With --all, the exit status is 1 if a container could not be repaired.
    """
    if repair_all and (container or pid):
        raise UsageFault("--all and a container cannot be named together", hint="Give one of them")
    settings = load_command_config(config_path, root, driver_root)
    if repair_all:
        sys.exit(_repair_all(form, settings))
    with ContainerOperations(find_running_container(container, pid), settings) as operations:
        result = operations.repair()
    print_results(form, [result], [])


def _repair_all(form: str, settings: Config) -> int:
    """Repair every running container that has a GPU; return the exit status."""
    results: list[Result] = []
    failures: list[tuple[str, str]] = []
    for found in list_repairable_containers():
        try:
            with ContainerOperations(found, settings) as operations:
                results.append(operations.repair())
        except Fault as fault:
            failures.append((found.title.removesuffix(", running"), str(fault)))
    print_results(form, results, failures)
    if not results and not failures and form not in DATA_FORMS:
        print_progress("no running container has a GPU")
    return 1 if failures else 0
