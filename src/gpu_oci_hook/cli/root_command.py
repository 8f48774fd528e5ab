"""The `gpu-oci-hook` command group; a command's module is loaded when that command is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from gpu_oci_hook import VERSION
from gpu_oci_hook.cli.lazy_group import LazyGroup

# Command, its module in this package, the attribute there, and the line that --help shows.
_COMMANDS = {
    "list": ("list_command", "list_machine", "GPUs, driver and driver files of this machine."),
    "explain": ("explain_command", "explain", "What a container would get and why; changes nothing."),
    "apply": ("explain_command", "apply", "Make the edits that explain shows, by hand."),
    "simulate": ("list_command", "simulate", "Build a GPU host made of files, for tests without a GPU."),
    "cdi": ("cdi_command", "cdi", "CDI files: make, check, list and resolve them."),
    "hook": ("hook_command", "hook", "What CDI files call in a container; not for people."),
    "config": ("config_command", "config", "Show, check and document the configuration."),
    "install": ("install_command", "install", "Write the launchers that engines call."),
}


@click.group(cls=LazyGroup, commands=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="gpu-oci-hook")
def root_command() -> None:
    """Gives containers the NVIDIA GPUs they ask for, and says why."""


def format_option(*additional: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The --format option: text for reading, json for programs, and what a command has beside these."""
    return click.option(
        "--format",
        "form",
        type=click.Choice(["text", "json", *additional]),
        default="text",
        show_default=True,
        help="How the answer is printed.",
    )


config_option = click.option(
    "--config",
    "config_path",
    metavar="FILE",
    default="",
    help="The config file.  [default: $GPU_OCI_HOOK_CONFIG, else /etc/gpu-oci-hook/config.toml]",
)


def host_root_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options --root and --driver-root, which take the place of the config's keys."""
    for name, text in (
        ("--driver-root", "Another driver-root than the config's: a driver container's, below the host root."),
        ("--root", "Another host root than the config's: a host made by simulate."),
    ):
        command = click.option(name, metavar="DIR", default="", help=text)(command)
    return command
