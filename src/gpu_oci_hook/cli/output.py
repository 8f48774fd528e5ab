"""Printing: aligned columns, colour on a terminal that wants it, JSON with a name and a version."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

import click

from gpu_oci_hook.errors import Fault, printable, words
from gpu_oci_hook.host import versions

if TYPE_CHECKING:
    from gpu_oci_hook.host.inventory import Gpu


def _echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
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
        raise Fault(f"the answer cannot be written: {words(error, writing=True)}", where=where) from error


def document(text: str) -> None:
    """A whole text of our own, as it is."""
    _echo(text, nl=False)


def json_document(kind: str, content: dict[str, object]) -> None:
    """Prints a JSON document whose first key names its schema and version: "gpu-oci-hook.KIND/1"."""
    _echo(json.dumps({"schema": f"gpu-oci-hook.{kind}/1", **content}, indent=2, ensure_ascii=True))


def heading(text: str) -> None:
    """An empty line and a heading, bold on a terminal."""
    _echo()
    _echo(_styled(text, sys.stdout, bold=True))


def line(text: str, *, colour: str | None = None, bold: bool = False) -> None:
    """One line, whatever the text holds; coloured and bold on a terminal only."""
    _echo(_styled(text, sys.stdout, colour=colour, bold=bold))


def warning(text: str) -> None:
    """A line on stderr that begins with "warning:"."""
    _echo(_styled(f"warning: {text}", sys.stderr, colour="yellow"), err=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Aligned columns, on a terminal as in a pipe: words that somebody will copy are never cut or broken."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(columns, *cells, strict=True)]
    head, *body = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in [list(columns), *cells]]
    line(head, colour="cyan")
    for row in body:
        line(row)


def gpus(found: Iterable[Gpu], notes: Mapping[int, Sequence[str]] | None = None) -> None:
    """Two lines per GPU, or three: all by which it can be asked for, and what a requirement can ask about it.

    Architecture and brand are those of our tables; NVML knows them of every GPU.

    Arguments:
        notes: more words on a GPU, by its index, on a line of their own.
    """
    for gpu in found:
        line("  ".join(word for word in (str(gpu.index), gpu.uuid, gpu.model) if word))
        node = [f"/dev/nvidia{gpu.minor}"] if gpu.minor >= 0 else []
        arch = versions.arch(gpu.model) or "unknown to our tables"
        brand = " or ".join(versions.brands(gpu.model)) or "unknown to our tables"
        own = [gpu.pci] if gpu.pci else []
        line("   " + ", ".join([*own, *node, f"arch {arch}", f"brand {brand}"]))
        more = (notes or {}).get(gpu.index, ())
        if more:
            line("   " + ", ".join(more))

def _styled(text: str, stream: TextIO | None, *, colour: str | None = None, bold: bool = False) -> str:
    """The text on one line, with escape sequences only if there is something to show and somebody to see it.

    NO_COLOR counts when it is not empty (no-color.org); a dumb terminal shows the sequences themselves.
    """
    text = printable(text)
    wanted = stream is not None and stream.isatty() and not os.environ.get("NO_COLOR")
    if not (colour or bold) or not wanted or os.environ.get("TERM") == "dumb":
        return text
    return click.style(text, fg=colour, bold=bold or None)
