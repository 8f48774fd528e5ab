"""Printing: tables and colour on a terminal, plain lines in a pipe, JSON with a name and a version."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence

import click

from gpu_oci_hook.errors import printable


def json_document(kind: str, content: dict[str, object]) -> None:
    """Prints a JSON document whose first key names its schema and version: "gpu-oci-hook.KIND/1"."""
    click.echo(json.dumps({"schema": f"gpu-oci-hook.{kind}/1", **content}, indent=2, ensure_ascii=True))


def heading(text: str) -> None:
    """An empty line and a heading, bold on a terminal."""
    click.echo()
    click.secho(printable(text), bold=True)


def line(text: str, *, colour: str | None = None) -> None:
    """One line, whatever the text holds; coloured on a terminal only."""
    click.secho(printable(text), fg=colour)


def warning(text: str) -> None:
    """A line on stderr that begins with "warning:"."""
    click.secho(f"warning: {printable(text)}", fg="yellow", err=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table: drawn by rich on a terminal, aligned columns in a pipe, where a narrow width would cut words."""
    cells = [[printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        drawn = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
        for row in cells:
            drawn.add_row(*(Text(cell) for cell in row))
        Console(highlight=False).print(drawn)
        return
    widths = [max(len(cell) for cell in column) for column in zip(columns, *cells, strict=True)]
    for row in [list(columns), *cells]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
