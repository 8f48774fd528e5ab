"""Options that several commands share: output format, config file and roots.

Import budget: cold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def format_option(*additional: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the --format option with the choices text and json.

    Arguments:
        additional: more formats of this command.
    """
    return click.option(
        "--format",
        "form",
        type=click.Choice(["text", "json", *additional]),
        default="text",
        show_default=True,
        help="Output format.",
    )


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
