"""Print text, tables and JSON to standard output, in colour on a terminal.

Import budget: cold.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

import click

from gpu_oci_hook.cli.common_options import QUIET
from gpu_oci_hook.errors import make_printable
from gpu_oci_hook.host.model_tables import lookup_compute_capability, lookup_gpu_brands
from gpu_oci_hook.reporting.failure import make_output_fault

if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import Gpu


DATA_FORMS = ("json", "yaml")
"""The output formats of `print_data`."""


def _echo_text(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text and flush it.

    Raises:
        Fault: the stream cannot be written, for example because the disk is full. A broken pipe is left to click.
    """
    try:
        click.echo(text, file=sys.stderr if err else sys.stdout, nl=nl)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise make_output_fault(error, "standard error" if err else "standard output") from error


def print_document(text: str) -> None:
    """Print a text of our own unchanged."""
    _echo_text(text, nl=False)


def print_data(form: str, schema_name: str, content: dict[str, object]) -> None:
    """Print a JSON or YAML document whose first key names its schema and version: "gpu-oci-hook.NAME/1".

    Arguments:
        form: "json" or "yaml".
    """
    document = {"schema": f"gpu-oci-hook.{schema_name}/1", **content}
    text = json.dumps(document, indent=2, ensure_ascii=True)
    if form == "json":
        _echo_text(text)
        return
    import yaml

    # Through JSON, so that both forms have the same types: tuples become lists, and nothing needs a tag or an alias.
    _echo_text(yaml.safe_dump(json.loads(text), sort_keys=False, width=10**6), nl=False)


def print_heading(text: str) -> None:
    """Print an empty line and a heading."""
    _echo_text()
    _echo_text(_style_text(text, sys.stdout, bold=True))


def print_line(text: str, *, colour: str | None = None, bold: bool = False) -> None:
    """Print exactly one line, with unprintable characters escaped."""
    _echo_text(_style_text(text, sys.stdout, colour=colour, bold=bold))


def print_progress(text: str, *, colour: str | None = None) -> None:
    """Print a line about something that was done or is to be done next, unless --quiet is given."""
    if not is_quiet():
        print_line(text, colour=colour)


def is_quiet() -> bool:
    """Tell whether the running command was called with --quiet."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(QUIET))


def print_note(text: str) -> None:
    """Print a line on standard error about where a fact comes from, unless --quiet is given."""
    if not is_quiet():
        _echo_text(make_printable(text), err=True)


def print_warning(text: str) -> None:
    """Print a line on standard error that begins with "warning:", unless --quiet is given."""
    if is_quiet():
        return
    _echo_text(_style_text(f"warning: {text}", sys.stderr, colour="yellow"), err=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print aligned columns. Cells are never cut or wrapped, since people copy them."""
    columns = [column.upper() for column in columns]
    cells = [[make_printable(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(columns, *cells, strict=True)]
    head, *body = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in [columns, *cells]]
    print_line(head, colour="cyan")
    for row in body:
        print_line(row)


def print_gpus(gpus: Iterable[Gpu], notes: Mapping[int, Sequence[str]] | None = None) -> None:
    """Print two or three lines per GPU: every name that selects it, and what requirements can ask of it.

    Architecture and brand come from our tables, since NVML may not be available.

    Arguments:
        notes: by GPU index, more facts for a line of their own.
    """
    for gpu in gpus:
        print_line("  ".join(part for part in (str(gpu.index), gpu.uuid, gpu.model) if part))
        address = [gpu.pci] if gpu.pci else []
        node = [f"/dev/nvidia{gpu.minor}"] if gpu.minor >= 0 else []
        arch = lookup_compute_capability(gpu.model) or "unknown"
        brand = " or ".join(lookup_gpu_brands(gpu.model)) or "unknown"
        print_line("   " + ", ".join([*address, *node, f"compute capability {arch}", f"brand {brand}"]))
        gpu_notes = (notes or {}).get(gpu.index, ())
        if gpu_notes:
            print_line("   " + ", ".join(gpu_notes))


def _style_text(text: str, stream: TextIO | None, *, colour: str | None = None, bold: bool = False) -> str:
    """Return the text on one line, with escape sequences only on a terminal that shows them.

    NO_COLOR counts if it is not empty (no-color.org). A dumb terminal prints the sequences themselves.
    """
    text = make_printable(text)
    is_terminal = stream is not None and stream.isatty() and not os.environ.get("NO_COLOR")
    if not (colour or bold) or not is_terminal or os.environ.get("TERM") == "dumb":
        return text
    return click.style(text, fg=colour, bold=bold or None)
