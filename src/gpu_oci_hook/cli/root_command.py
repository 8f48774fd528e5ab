"""The `gpu-oci-hook` command group, which loads a command's module when that command is called.

Import budget: cold.
"""

from __future__ import annotations

import click

from gpu_oci_hook import VERSION
from gpu_oci_hook.cli.lazy_group import LazyGroup

# Command: its module in this package, the attribute there, and the line that --help shows ("": hidden).
_COMMANDS = {
    "list": ("list_command", "list_machine", "List this host's GPUs and driver."),
    "explain": ("explain_command", "explain", "Show what a container would get and why; changes nothing."),
    "apply": ("apply_command", "apply", "Apply the edits that explain shows to a bundle."),
    "attach": ("attach_command", "attach", "Give GPUs to a container that runs."),
    "detach": ("detach_command", "detach", "Take GPUs away from a container that runs."),
    "repair": ("repair_command", "repair", "Put back what running containers have lost of their GPUs."),
    "simulate": ("simulate_command", "simulate", "Build a GPU host out of files, for tests without a GPU."),
    "cdi": ("cdi_command", "cdi", "Generate, check and inspect CDI files."),
    "hook": ("hook_command", "hook", ""),  # hidden: only CDI files and hooks.d refer to these
    "prestart": ("hook_command", "prestart", ""),
    "precreate": ("hook_command", "precreate", ""),
    "help": ("help_command", "show_help", ""),
    "version": ("help_command", "show_version", ""),
    "config": ("config_command", "config", "Show, check and document the configuration."),
    "warm": ("warm_command", "warm", "Fill the caches before the first GPU container."),
    "install": ("install_command", "install", "Install the launchers that container engines call."),
    "configure": ("configure_command", "configure", "Set up container engines, check that, or take it back."),
}


@click.group(cls=LazyGroup, commands=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="gpu-oci-hook", message="%(prog)s version %(version)s")
def root_command() -> None:
    """Give containers the NVIDIA GPUs that they request, and explain every decision."""
