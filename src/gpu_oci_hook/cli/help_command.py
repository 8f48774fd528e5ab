"""`gpu-oci-hook help [COMMAND...]` and `gpu-oci-hook version`, which users of other command lines type.

Import budget: cold.
"""

from __future__ import annotations

import click

from gpu_oci_hook import VERSION
from gpu_oci_hook.cli.printing import print_document


@click.command("help")
@click.argument("names", metavar="[COMMAND...]", nargs=-1)
@click.pass_context
def show_help(context: click.Context, names: tuple[str, ...]) -> None:
    """Show the help of a command, as --help does."""
    shown = context.find_root()
    for name in names:
        group = shown.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"{shown.command_path} has no commands", shown)
        command = group.resolve_command(shown, [name])[1]
        assert command is not None  # resolve_command raises for an unknown name
        shown = click.Context(command, parent=shown, info_name=name)
    print_document(f"{shown.get_help()}\n")


@click.command("version")
def show_version() -> None:
    """Show the version, as --version does."""
    print_document(f"gpu-oci-hook version {VERSION}\n")
