"""Printing: aligned columns, colour on a terminal that wants it, JSON with a name and a version."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

import click

from gpu_oci_hook.errors import Fault, describe_os_error, make_printable
from gpu_oci_hook.host.model_tables import lookup_compute_capability, lookup_gpu_brands

if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import Gpu


def _echo_text(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Prints at once.

    Raises:
        Fault: the disk behind the stream is full, or the like. A reader that has gone is left to click.
    """
    try:
        click.echo(text, file=sys.stderr if err else sys.stdout, nl=nl)
    except BrokenPipeError:
        raise
    except OSError as error:
        where = "standard error" if err else "standard output"
        raise Fault(f"the answer cannot be written: {describe_os_error(error, writing=True)}", where=where) from error


def print_document(text: str) -> None:
    """A whole text of our own, as it is."""
    _echo_text(text, nl=False)


def print_json(schema_name: str, content: dict[str, object]) -> None:
    """Prints a JSON document whose first key names its schema and version: "gpu-oci-hook.KIND/1"."""
    _echo_text(json.dumps({"schema": f"gpu-oci-hook.{schema_name}/1", **content}, indent=2, ensure_ascii=True))


def print_heading(text: str) -> None:
    """An empty line and a heading, bold on a terminal."""
    _echo_text()
    _echo_text(_style_text(text, sys.stdout, bold=True))


def print_line(text: str, *, colour: str | None = None, bold: bool = False) -> None:
    """One line, whatever the text holds; coloured and bold on a terminal only."""
    _echo_text(_style_text(text, sys.stdout, colour=colour, bold=bold))


def print_warning(text: str) -> None:
    """A line on stderr that begins with "warning:"."""
    _echo_text(_style_text(f"warning: {text}", sys.stderr, colour="yellow"), err=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Aligned columns, on a terminal as in a pipe: words that somebody will copy are never cut or broken."""
    cells = [[make_printable(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(columns, *cells, strict=True)]
    head, *body = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in [list(columns), *cells]]
    print_line(head, colour="cyan")
    for row in body:
        print_line(row)


def print_gpus(gpus: Iterable[Gpu], notes: Mapping[int, Sequence[str]] | None = None) -> None:
    """Two lines per GPU, or three: all by which it can be asked for, and what a requirement can ask about it.

    Architecture and brand are those of our tables; NVML knows them of every GPU.

    Arguments:
        notes: more words on a GPU, by its index, on a line of their own.
    """
    for gpu in gpus:
        print_line("  ".join(word for word in (str(gpu.index), gpu.uuid, gpu.model) if word))
        node = [f"/dev/nvidia{gpu.minor}"] if gpu.minor >= 0 else []
        arch = lookup_compute_capability(gpu.model) or "unknown to our tables"
        brand = " or ".join(lookup_gpu_brands(gpu.model)) or "unknown to our tables"
        own = [gpu.pci] if gpu.pci else []
        print_line("   " + ", ".join([*own, *node, f"arch {arch}", f"brand {brand}"]))
        more = (notes or {}).get(gpu.index, ())
        if more:
            print_line("   " + ", ".join(more))


def _style_text(text: str, stream: TextIO | None, *, colour: str | None = None, bold: bool = False) -> str:
    """The text on one line, with escape sequences only if there is something to show and somebody to see it.

    NO_COLOR counts when it is not empty (no-color.org); a dumb terminal shows the sequences themselves.
    """
    text = make_printable(text)
    wanted = stream is not None and stream.isatty() and not os.environ.get("NO_COLOR")
    if not (colour or bold) or not wanted or os.environ.get("TERM") == "dumb":
        return text
    return click.style(text, fg=colour, bold=bold or None)


def format_toml(value: object) -> str:
    """A string, boolean, table, or list of them as TOML (whose strings are JSON's, but for DEL)."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {format_toml(entry)}" for key, entry in value.items()) + " }"
    if isinstance(value, tuple | list):
        return f"[{', '.join(format_toml(item) for item in value)}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
