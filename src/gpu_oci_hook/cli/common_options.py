"""Options that several commands share: output format, config file and roots.

Import budget: cold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def format_option(*additional: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the --output option with the choices text, json and yaml. --format is the same option.

    Arguments:
        additional: more formats of this command.
    """
    return click.option(
        "-o",
        "--output",
        "--format",
        "form",
        type=click.Choice(["text", "json", "yaml", *additional]),
        default="text",
        show_default=True,
        help="Output format.",
    )


def _store_quiet(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.meta[QUIET] = value


QUIET = "gpu_oci_hook.quiet"
"""Key of `click.Context.meta`: whether warnings and progress lines are left out."""

quiet_option = click.option(
    "-q",
    "--quiet",
    is_flag=True,
    is_eager=True,  # before options whose values print something
    expose_value=False,
    callback=_store_quiet,
    help="Print no warnings and no progress, only results and errors.",
)

strict_option = click.option("--strict", is_flag=True, help="Exit with status 1 for warnings too.")


def verbose_option(help_text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the -v option of a command, as the parameter `verbose`.

    Arguments:
        help_text: what it adds.
    """
    return click.option("-v", "--verbose", is_flag=True, help=help_text)


config_option = click.option(
    "--config",
    "config_path",
    metavar="FILE",
    default="",
    help="Config file.  [default: $GPU_OCI_HOOK_CONFIG, else /etc/gpu-oci-hook/config.toml]",
)

root_option = click.option(
    "--root", metavar="DIR", default="", help="Override `[host] root`, for example with a host built by simulate."
)

_driver_root_option = click.option(
    "--driver-root",
    metavar="DIR",
    default="",
    help="Override `[host] driver-root`: a driver container's root, as seen from the host root.",
)


def host_root_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --root and --driver-root to a command."""
    return root_option(_driver_root_option(command))
