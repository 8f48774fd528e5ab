"""`gpu-oci-hook cdi`: CDI files made, checked, listed and resolved; a command's module is loaded when it is called."""

from __future__ import annotations

import click

from gpu_oci_hook.cli.lazy_group import LazyGroup


@click.group(
    cls=LazyGroup,
    # Command, its module in this package, the attribute there, and the line that --help shows.
    commands={
        "generate": ("cdi_generate", "generate", "Write this machine's GPUs as a CDI file."),
        "refresh": ("cdi_generate", "refresh", "Write CDI files anew when the machine has changed."),
        "list": ("cdi_inspect", "list_cdi_devices", "The CDI devices of this machine, and the files they come from."),
        "resolve": ("cdi_inspect", "resolve", "What a CDI name brings, or why it brings nothing."),
        "validate": ("cdi_validate", "validate", "Every fault of a CDI file or a directory of them."),
    },
)
def cdi() -> None:
    """The plan as a CDI file, and other people's files as plans."""
