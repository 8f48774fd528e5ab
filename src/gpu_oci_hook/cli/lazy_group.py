"""A click command group whose commands are imported when they are called, so that --help need not import them all.

Import budget: cold.
"""

from __future__ import annotations

import importlib
from typing import Any

import click


class LazyGroup(click.Group):
    """A click group whose commands are listed as data.

    Arguments:
        commands: (module in `gpu_oci_hook.cli`, attribute there, line that --help shows) by name, in the order shown.
    """

    def __init__(self, *args: Any, commands: dict[str, tuple[str, str, str]], **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.command_table = commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See `click.Group`."""
        return list(self.command_table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See `click.Group`."""
        if cmd_name not in self.command_table:
            return None
        module, attribute, _ = self.command_table[cmd_name]
        command: click.Command = getattr(importlib.import_module(f"gpu_oci_hook.cli.{module}"), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `click.Group`."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry[2]) for name, entry in self.command_table.items()])
