"""Printing: aligned columns, colour where it is wanted, nothing from an image as an escape."""

from __future__ import annotations

import io
import json
import sys

import click
import pytest

from gpu_oci_hook.cli import printing

ROWS = [("a", "long text"), ("bb", "x\x1b[31m\n[bold]")]


def test_in_a_pipe_a_table_is_aligned_columns(capsys: pytest.CaptureFixture[str]) -> None:
    printing.print_table(("id", "what"), ROWS)
    assert capsys.readouterr().out == "ID  WHAT\na   long text\nbb  x\\x1b[31m\\n[bold]\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Called by the test itself: pytest has its own stdout while it makes fixtures."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return terminal


def test_on_a_terminal_no_word_of_a_table_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    printing.print_table(("id", "what"), [("a", "/long/path" * 20), *ROWS])
    lines = click.unstyle(terminal.getvalue()).split("\n")
    assert lines[1] == "a   " + "/long/path" * 20
    assert lines[3] == "bb  x\\x1b[31m\\n[bold]"


def test_on_a_terminal_only_what_has_a_style_has_escape_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    printing.print_line("plain")
    printing.print_line("green", colour="green")
    printing.print_heading("head")
    assert terminal.getvalue() == "plain\n\x1b[32mgreen\x1b[0m\n\n\x1b[1mhead\x1b[0m\n"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_who_wants_no_colour_gets_no_escape_sequence(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    terminal = on_terminal(monkeypatch)
    monkeypatch.setenv(name, value)
    printing.print_line("green", colour="green")
    printing.print_heading("head")
    printing.print_table(("id", "what"), [("1", "x")])
    assert "\x1b" not in terminal.getvalue()


def test_a_json_document_names_its_schema_first_and_is_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    printing.print_data("json", "thing", {"name": "ü\x1b"})
    printed = capsys.readouterr().out
    assert printed.isascii() and "\x1b" not in printed
    assert next(iter(json.loads(printed).items())) == ("schema", "gpu-oci-hook.thing/1")


def test_no_colour_reaches_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    printing.print_heading("head")
    printing.print_line("text", colour="red")
    printing.print_warning("careful\n")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("\nhead\ntext\n", "warning: careful\\n\n")
