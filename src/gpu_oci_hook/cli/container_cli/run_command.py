"""Run `nvidia-container-cli`: every failure is one line with its phase, and exit status 1.

Import budget: cold.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from gpu_oci_hook.cli.container_cli.command_help import format_help, format_usage, format_version
from gpu_oci_hook.cli.container_cli.command_line import (
    COMMAND_OPTIONS,
    CommandLine,
    find_shown_text,
    read_command_line,
    read_configure_options,
    read_csv_option,
    read_list_options,
)
from gpu_oci_hook.cli.container_cli.option_parser import OptionFault, parse_command_line
from gpu_oci_hook.errors import Fault, make_printable
from gpu_oci_hook.formats.program_names import NVIDIA_CONTAINER_CLI
from gpu_oci_hook.reporting.failure import describe_error, make_output_fault

_EXIT_FAILURE = 1  # also for a wrong command line (facts: container-cli-errors)


def run_container_cli(words: Sequence[str]) -> int:
    """Run one command and return its exit status.

    Arguments:
        words: the command line without the program.
    """
    command = debug_file = ""
    try:
        if sys.stdout is None:
            raise Fault("standard output is closed, so there is nowhere to print to")
        line = read_command_line(words)
        command, debug_file = line.command, line.options.debug_file
        write_debug_lines(debug_file, [f"{NVIDIA_CONTAINER_CLI} {' '.join(words)}"])
        _write_stdout(_run_command(line))
        return 0
    except OptionFault as fault:
        program = f"{NVIDIA_CONTAINER_CLI} {command}".strip()
        text = f"{fault}\nSee '{program} --help'"
    except BrokenPipeError:
        return _EXIT_FAILURE  # `list | grep -q` has seen enough
    except Exception as error:
        text = describe_error(error)
    write_debug_lines(debug_file, text.split("\n"))
    _print_stderr(text)
    return _EXIT_FAILURE


def _run_command(line: CommandLine) -> str:
    """Run one command; return what it prints on standard output."""
    if line.shown:
        return _format_shown(line.shown, "")
    parsed = parse_command_line(line.words, COMMAND_OPTIONS[line.command], stop_at_argument=False)
    shown = find_shown_text(parsed)
    if shown:
        return _format_shown(shown, line.command)
    # Each command is imported when it is called.
    if line.command == "info":
        from gpu_oci_hook.cli.container_cli.machine_info import report_machine

        return report_machine(line.options, as_csv=read_csv_option(parsed))
    if line.command == "list":
        from gpu_oci_hook.cli.container_cli.list_components import list_components

        paths, warnings = list_components(line.options, read_list_options(parsed))
        _report(warnings, line.options.debug_file)
        return "".join(f"{path}\n" for path in paths)
    from gpu_oci_hook.cli.container_cli.configure_container import configure_container, ignore_environment

    with ignore_environment():
        changes, warnings = configure_container(line.options, read_configure_options(parsed))
    write_debug_lines(line.options.debug_file, changes)
    _report(warnings, line.options.debug_file)
    return ""


def _report(warnings: list[str], debug_file: str) -> None:
    lines = [f"warning: {warning}" for warning in warnings]
    write_debug_lines(debug_file, lines)
    for line in lines:
        _print_stderr(line)


def write_debug_lines(path: str, lines: Sequence[str]) -> None:
    """Append lines to the file of --debug; a file that cannot be written stops nothing."""
    if not path:
        return
    text = "".join(f"{make_printable(line)}\n" for line in lines)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, text.encode("utf-8", "backslashreplace"))
        finally:
            os.close(fd)
    except (OSError, ValueError):
        pass


def _format_shown(shown: str, command: str) -> str:
    if shown == "version":
        return format_version()
    return format_help(command) if shown == "help" else format_usage(command)


def _write_stdout(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise make_output_fault(error) from error


def _print_stderr(text: str) -> None:
    if sys.stderr is not None:
        for number, line in enumerate(text.split("\n")):
            prefix = "" if number else f"{NVIDIA_CONTAINER_CLI}: "
            print(f"{prefix}{make_printable(line)}", file=sys.stderr)
