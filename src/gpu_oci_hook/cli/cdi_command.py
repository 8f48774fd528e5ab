"""The `gpu-oci-hook cdi` command group, which loads a command's module when that command is called.

Import budget: cold.
"""

from __future__ import annotations

import click

from gpu_oci_hook.cli.lazy_group import LazyGroup


@click.group(
    cls=LazyGroup,
    # Command: its module in this package, the attribute there, and the line that --help shows.
    commands={
        "generate": ("cdi_generate", "generate", "Write a CDI file for this host's GPUs."),
        "refresh": ("cdi_refresh", "refresh", "Rewrite a CDI file if the host has changed."),
        "list": ("cdi_list", "list_cdi_devices", "List CDI devices and the files that define them."),
        "resolve": ("cdi_resolve", "resolve", "Show the edits of a CDI device, or why it is unresolvable."),
        "validate": ("cdi_validate", "validate", "Check CDI files and directories."),
    },
)
def cdi() -> None:
    """Generate, check and inspect CDI files."""
