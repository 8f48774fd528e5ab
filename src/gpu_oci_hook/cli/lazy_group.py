"""Command groups that suggest commands, and one whose commands are imported when they are called.

Import budget: cold.
"""

from __future__ import annotations

import importlib
from typing import Any

import click

from gpu_oci_hook.cli.usage_errors import EXIT_USAGE
from gpu_oci_hook.errors import clip_text, find_close_match


class SuggestingGroup(click.Group):
    """A click group that suggests a command for a mistyped one, and prints its help when called without a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See `click.Command`. Versions of click before 8.2 succeed without a command."""
        if not args and not ctx.resilient_parsing:  # which a shell's completion sets
            click.echo(ctx.get_help(), err=True)
            ctx.exit(EXIT_USAGE)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """See `click.Command`. Adds the command to errors of click that do not name it."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            if error.ctx is None and command is not None:
                error.ctx = click.Context(command, parent=ctx, info_name=ctx.invoked_subcommand)
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See `click.Group`."""
        if args and not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"unknown command {clip_text(args[0])}{self._suggest_command(ctx, args[0])}")
        return super().resolve_command(ctx, args)

    def _suggest_command(self, ctx: click.Context, name: str) -> str:
        """Return the commands that a mistyped one most likely means, as a sentence; "" when none is similar.

        A command of a group below is suggested when its name is exact: `generate` for `cdi generate`.
        """
        known = self.list_commands(ctx)
        groups = [(known_name, self.get_command(ctx, known_name)) for known_name in known]
        meant = [
            f"{known_name} {name}"
            for known_name, group in groups
            if isinstance(group, click.Group) and name in group.list_commands(ctx)
        ]
        if not meant:
            close = find_close_match(name, known)
            meant = [close] if close else []
        return f". Did you mean {' or '.join(meant)}?" if meant else ""


class LazyGroup(SuggestingGroup):
    """A click group whose commands are listed as data, so that --help need not import them all.

    Arguments:
        commands: (module in `gpu_oci_hook.cli`, attribute there, line that --help shows, "" to hide the command) by
            name, in the order shown.
    """

    def __init__(self, *args: Any, commands: dict[str, tuple[str, str, str]], **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.command_table = commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See `click.Group`."""
        return [name for name, (_, _, help_line) in self.command_table.items() if help_line]

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
            formatter.write_dl([(name, self.command_table[name][2]) for name in self.list_commands(ctx)])
