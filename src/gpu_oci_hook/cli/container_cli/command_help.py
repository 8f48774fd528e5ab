"""Write the texts of `nvidia-container-cli` about itself: help, usage and version. No I/O.

Import budget: cold.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpu_oci_hook import VERSION
from gpu_oci_hook.cli.container_cli.command_line import COMMAND_OPTIONS, GLOBAL_OPTIONS
from gpu_oci_hook.cli.container_cli.option_parser import COMMON_OPTIONS, Option
from gpu_oci_hook.formats.program_names import HOOK_PROGRAM, NVIDIA_CONTAINER_CLI

COMPATIBLE_VERSION = "1.19.0"
"""The release of libnvidia-container whose command line this is. Clients compare it (facts: container-cli-version)."""

_COMMAND_HELP = {
    "info": "Print the driver's version and the GPUs.",
    "list": "Print the paths of device nodes and driver files; without options, all of them.",
    "configure": "Give GPUs and the driver's files to a container that is set up and has not started.",
}
_ARGUMENTS = {"": "COMMAND [ARGUMENT]...", "configure": "ROOTFS"}


def format_version() -> str:
    """Format the version in the incumbent's lines."""
    return (
        f"cli-version: {COMPATIBLE_VERSION}\nlib-version: {COMPATIBLE_VERSION}\n"
        f"build revision: {HOOK_PROGRAM} {VERSION}\n"
    )


def format_usage(command: str = "") -> str:
    """Format the usage line of a command, or of the program for ""."""
    words = [NVIDIA_CONTAINER_CLI, command, "[OPTION]...", _ARGUMENTS.get(command, "")]
    return f"Usage: {' '.join(word for word in words if word)}\n"


def format_help(command: str = "") -> str:
    """Format the help of a command, or of the program for ""."""
    text = _COMMAND_HELP.get(command, f"Work on containers with NVIDIA GPUs. This program is {HOOK_PROGRAM}.")
    lines = [format_usage(command) + text, "", "Options:"]
    options = COMMAND_OPTIONS[command] if command else GLOBAL_OPTIONS
    lines += _format_rows([(_format_option(option), option.help) for option in (*options, *COMMON_OPTIONS)])
    if not command:
        lines += ["", "Commands:", *_format_rows(list(_COMMAND_HELP.items()))]
    return "\n".join(lines) + "\n"


def _format_option(option: Option) -> str:
    value = f"[={option.value}]" if option.value_optional else f"={option.value}" if option.value else ""
    return f"{f'-{option.letter},' if option.letter else '   '} --{option.name}{value}"


def _format_rows(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in rows)
    return [f"  {name:<{width}}  {text}" for name, text in rows]
