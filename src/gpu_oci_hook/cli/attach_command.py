"""`gpu-oci-hook attach`: give a GPU to a container that runs.

Import budget: cold.
"""

from __future__ import annotations

import click

from gpu_oci_hook.attach.operations import ContainerOperations
from gpu_oci_hook.cli.change_report import print_results
from gpu_oci_hook.cli.command_config import load_command_config
from gpu_oci_hook.cli.common_options import config_option, format_option, host_root_options, quiet_option
from gpu_oci_hook.cli.running_target import find_running_container, running_target_options
from gpu_oci_hook.cli.usage_errors import UsageFault
from gpu_oci_hook.formats.cdi_names import parse_cdi_kind
from gpu_oci_hook.request.capabilities import KNOWN_CAPABILITIES
from gpu_oci_hook.request.environment import split_list

_NO_GPU_WORDS = ("", "none", "void")


@click.command()
@running_target_options
@click.option("--gpus", metavar="WORD", required=True, help="GPUs: all, or indices, UUIDs, MIG devices.")
@click.option(
    "--capabilities",
    metavar="LIST",
    default="",
    help="Driver capabilities.  [default: NVIDIA_DRIVER_CAPABILITIES of the container, else the configured ones]",
)
@format_option()
@quiet_option
@config_option
@host_root_options
def attach(
    container: str,
    pid: int,
    gpus: str,
    capabilities: str,
    form: str,
    config_path: str,
    root: str,
    driver_root: str,
) -> None:
    """Give GPUs to a container that runs, without a restart.

    CONTAINER is docker:NAME, podman:NAME, containerd:NAMESPACE/ID, crio:ID, runc:ID, crun:ID, or a name that only one
    running container has. WORD is what NVIDIA_VISIBLE_DEVICES takes, such as 0 or GPU-8f3c or all.

    Needs root. If a step fails, everything is taken back.
    """
    check_gpu_word(gpus)
    names = tuple(split_list(capabilities))
    for name in names:
        if name not in (*KNOWN_CAPABILITIES, "all"):
            raise UsageFault(
                f'unknown capability "{name}"',
                where="--capabilities",
                hint=f"Use {', '.join(KNOWN_CAPABILITIES)} or all",
            )
    found = find_running_container(container, pid)
    settings = load_command_config(config_path, root, driver_root)
    with ContainerOperations(found, settings) as operations:
        result = operations.attach(gpus, names)
    print_results(form, [result], [])


def check_gpu_word(word: str) -> None:
    """Check that a word can name GPUs.

    Raises:
        UsageFault: it cannot.
    """
    for item in split_list(word) or [""]:
        if item.lower() in _NO_GPU_WORDS:
            raise UsageFault(f'"{item}" names no GPU', where="--gpus", hint="Use all, an index or a UUID")
        if parse_cdi_kind(item.partition("=")[0]) is not None:
            raise UsageFault(
                f'"{item}" is a CDI name',
                where="--gpus",
                hint="Use all, an index or a UUID; CDI devices are for starts",
            )
