"""The options of `cdi generate` and `cdi refresh`, and the options that a CDI file of ours records.

Import budget: cold.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from gpu_oci_hook.cdi.own_kinds import GPU_MODE, MODES
from gpu_oci_hook.cdi.provenance import build_lost_options_hint, read_recorded_options
from gpu_oci_hook.cli.common_options import config_option, host_root_options, quiet_option
from gpu_oci_hook.cli.engine_target import EngineTarget
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.program_names import HOOK_PROGRAM
from gpu_oci_hook.generate.emit import OUTPUT_FORMATS


def require_nonempty(value: str) -> str:
    """Return a value that is not empty.

    An empty value usually comes from an unset variable of a script, so it does not mean the default.
    """
    if not value:
        raise click.BadParameter("must not be empty")
    return value


GENERATE_OPTIONS = (
    quiet_option,
    click.option(
        "--mode",
        type=click.Choice(MODES),
        default=GPU_MODE,
        show_default=True,
        help="Kind of devices: GPUs with their MIG devices; all device nodes, for driver management; or one kind of "
        "optional device, as a class of its own.",
    ),
    click.option(
        "--device",
        "devices",
        multiple=True,
        type=require_nonempty,
        metavar="SELECTOR",
        help="Write only these devices, selected as in NVIDIA_VISIBLE_DEVICES. Repeatable.  [default: all none]",
    ),
    click.option(
        "--name",
        "ways",
        multiple=True,
        type=require_nonempty,
        metavar="SCHEME",
        help="Device naming scheme: index (0, 0:1), uuid or type-index (gpu0, mig0:1). Repeatable; each device gets "
        "one entry per scheme.  [default: index uuid]",
    ),
    click.option(
        "--capabilities",
        type=require_nonempty,
        metavar="LIST",
        help="Driver capabilities.  [default: all supported ones]",
    ),
    click.option(
        "--vendor", type=require_nonempty, metavar="NAME", help="Vendor part of the kind.  [default: nvidia.com]"
    ),
    click.option(
        "--class",
        "category",
        type=require_nonempty,
        metavar="NAME",
        help="Class part of the kind.  [default: gpu or the mode]",
    ),
    click.option(
        "--target",
        type=EngineTarget(),
        metavar="ENGINE[-VERSION]",
        help="Leave out what this engine cannot read, for example podman-4.3. Without a version, that of the installed "
        "engine. charliecloud and gvisor run no hook: --no-hook.",
    ),
    click.option(
        "--max-version",
        "maximum",
        type=require_nonempty,
        metavar="VERSION",
        help="Leave out what this CDI version lacks, for example 0.5.0.",
    ),
    click.option(
        "--format",
        "form",
        type=click.Choice(OUTPUT_FORMATS),
        help="Output format.  [default: from the file name, else yaml]",
    ),
    click.option(
        "--hook",
        "hook",
        type=require_nonempty,
        metavar="FILE",
        help=f"Absolute path of the hook program.  [default: the installed {HOOK_PROGRAM}]",
    ),
    click.option(
        "--no-hook",
        is_flag=True,
        help="Write no hook: links become mounts, libraries are where this host's loader looks, and the image's loader "
        "cache is not updated.",
    ),
    click.option(
        "--hook-log",
        type=require_nonempty,
        metavar="FILE",
        help="Log file of the hook, since crun discards its output.  [default: [runtime] log-file, else none]",
    ),
    click.option(
        "--allow-incomplete",
        is_flag=True,
        help="Write the file even if required device nodes are missing, and mark it as incomplete.",
    ),
    click.option("--force", is_flag=True, help="Replace a file that gpu-oci-hook did not write."),
    config_option,
    host_root_options,
)


def add_generate_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add GENERATE_OPTIONS to a command."""
    for option in reversed(GENERATE_OPTIONS):
        command = option(command)
    return command


# The options that a file records.
_RECORDED_OPTIONS = (
    "mode", "devices", "ways", "capabilities", "vendor", "category", "target", "maximum", "form", "hook", "no_hook",
    "hook_log", "allow_incomplete", "config_path", "root", "driver_root",
)  # fmt: skip

# Recorded options that an option of the command line overrides in addition to its own.
_OVERRIDDEN_OPTIONS = {
    "mode": ("devices", "ways"),
    "target": ("maximum",),
    "maximum": ("target",),
    "hook": ("no_hook",),
    "hook_log": ("no_hook",),
    "no_hook": ("hook", "hook_log"),
}

OptionValues = dict[str, Any]
"""Values of the recorded options by name; "" or () for an option that is not set."""

# Parses recorded options. A file records the whole command, --output included.
_OPTION_PARSER = click.Command("refresh", params=[click.Option(["--output"])], add_help_option=False)
for _option in GENERATE_OPTIONS:
    _option(_OPTION_PARSER)


def read_option_values(context: click.Context) -> OptionValues:
    """Return the command line's values of the options that a file records."""
    return {name: "" if context.params[name] is None else context.params[name] for name in _RECORDED_OPTIONS}


def format_option_arguments(options: OptionValues) -> list[str]:
    """Return options as command-line arguments in a fixed order, with absolute paths."""
    arguments: list[str] = []
    for param in _OPTION_PARSER.params:
        value = options.get(param.name or "")
        if param.name not in _RECORDED_OPTIONS or not value or value == param.default:
            continue
        flag = param.opts[0]
        if value is True:
            arguments.append(flag)
        elif isinstance(value, tuple):
            for item in value:
                arguments += [flag, item]
        else:
            arguments += [flag, os.path.abspath(value) if param.name in ("config_path", "root") else value]
    return arguments


def load_recorded_options(
    path: str, explicit: set[str], removed_arguments: list[str] | None = None
) -> tuple[OptionValues, str]:
    """Return the options that a file of ours records, and a warning or "".

    Arguments:
        explicit: options of the command line, which override recorded ones.
        removed_arguments: what a file recorded that was removed with the driver; None for a file that is there.

    Raises:
        Fault: the recorded options are invalid.
    """
    arguments, trusted = read_recorded_options(path) if removed_arguments is None else (removed_arguments, True)
    context = click.Context(_OPTION_PARSER)
    try:
        values, rest, _ = _OPTION_PARSER.make_parser(context).parse_args(arguments)
        if rest:
            raise click.UsageError(f'"{rest[0]}" is not an option')
        recorded = {
            str(param.name): param.type_cast_value(context, values[param.name])
            for param in _OPTION_PARSER.params
            if param.name in _RECORDED_OPTIONS and param.name in values
        }
    except click.UsageError as error:
        problem = f"the options recorded in the file are invalid: {error.format_message().rstrip('.')}"
        raise Fault(problem, where=path, hint=build_lost_options_hint(path)) from None
    overridden = explicit.union(*(_OVERRIDDEN_OPTIONS.get(name, ()) for name in explicit))
    recorded = {name: value for name, value in recorded.items() if name not in overridden}
    if recorded and not trusted:
        listed = " ".join(format_option_arguments(recorded))
        return {}, f"{path}: its recorded options ({listed}) are ignored, since another user could have written them"
    return recorded, ""
