"""Printing: aligned columns in a pipe, a drawn table on a terminal, nothing from an image as an escape."""

from __future__ import annotations

import io
import json
import sys

import pytest

from gpu_oci_hook.cli import output

ROWS = [("a", "long text"), ("bb", "x\x1b[31m\n[bold]")]


def test_in_a_pipe_a_table_is_aligned_columns(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("id", "what"), ROWS)
    assert capsys.readouterr().out == "id  what\na   long text\nbb  x\\x1b[31m\\n[bold]\n"


def test_on_a_terminal_a_table_is_drawn_and_markup_stays_text(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    output.table(("id", "what"), ROWS)
    text = terminal.getvalue()
    assert "long text" in text and "x\\x1b[31m\\n[bold]" in text and "─" in text


def test_a_json_document_names_its_schema_first_and_is_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    output.json_document("thing", {"name": "ü\x1b"})
    printed = capsys.readouterr().out
    assert printed.isascii() and "\x1b" not in printed
    assert next(iter(json.loads(printed).items())) == ("schema", "gpu-oci-hook.thing/1")


def test_no_colour_reaches_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    output.heading("head")
    output.line("text", colour="red")
    output.warning("careful\n")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("\nhead\ntext\n", "warning: careful\\n\n")
