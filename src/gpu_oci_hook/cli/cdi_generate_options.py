"""The options of `cdi generate` and `cdi refresh`, and how a file of ours remembers those that it was made with."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from gpu_oci_hook.cdi.own_kinds import GPU_MODE, MODES
from gpu_oci_hook.cdi.provenance import build_lost_options_hint, read_recorded_options
from gpu_oci_hook.cli.root_command import config_option, host_root_options
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.program_names import HOOK_PROGRAM
from gpu_oci_hook.generate.emit import OUTPUT_FORMATS


def require_nonempty(value: str) -> str:
    """A text that is none when it is empty: a variable of a script that was not set is no wish for the default."""
    if not value:
        raise click.BadParameter("it is empty")
    return value


GENERATE_OPTIONS = (
    click.option(
        "--mode",
        type=click.Choice(MODES),
        default=GPU_MODE,
        show_default=True,
        help="What the devices are: GPUs and their MIG devices; every node, for containers that manage the driver; "
        "or what comes beside GPUs, as its own class.",
    ),
    click.option(
        "--device",
        "devices",
        multiple=True,
        type=require_nonempty,
        metavar="WORD",
        help="Only these, by the words of NVIDIA_VISIBLE_DEVICES; may be repeated.  [default: all none]",
    ),
    click.option(
        "--name",
        "ways",
        multiple=True,
        type=require_nonempty,
        metavar="WAY",
        help="How devices are called: index (0, 0:1), uuid, type-index (gpu0, mig0:1); may be repeated, and each is "
        "then written once more.  [default: index uuid]",
    ),
    click.option(
        "--capabilities",
        type=require_nonempty,
        metavar="LIST",
        help="Driver capabilities.  [default: all that are supported]",
    ),
    click.option(
        "--vendor", type=require_nonempty, metavar="NAME", help="The kind's first half.  [default: nvidia.com]"
    ),
    click.option(
        "--class", "category", type=require_nonempty, metavar="NAME", help="Second half.  [default: gpu or the mode]"
    ),
    click.option(
        "--target",
        type=require_nonempty,
        metavar="ENGINE-VERSION",
        help="Leave out what this engine cannot read: podman-4.3.",
    ),
    click.option(
        "--max-version", "maximum", type=require_nonempty, metavar="VERSION", help="The same by CDI's version: 0.5.0."
    ),
    click.option(
        "--format", "form", type=click.Choice(OUTPUT_FORMATS), help="[default: by the file's suffix, else yaml]"
    ),
    click.option(
        "--hook",
        "hook",
        type=require_nonempty,
        metavar="FILE",
        help=f"Absolute path of the program for the hook.  [default: the installed {HOOK_PROGRAM}]",
    ),
    click.option("--no-hook", is_flag=True, help="No hook: links become mounts, and the image's loader is left alone."),
    click.option(
        "--hook-log",
        type=require_nonempty,
        metavar="FILE",
        help="A file that gets what the hook says: crun drops it.  [default: [runtime] log-file, else none]",
    ),
    click.option(
        "--allow-incomplete", is_flag=True, help="Write a file without required nodes that are missing, and mark it."
    ),
    click.option("--force", is_flag=True, help="Replace a file that is not ours."),
    config_option,
    host_root_options,
)


def add_generate_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command these options."""
    for option in reversed(GENERATE_OPTIONS):
        command = option(command)
    return command


# What a file remembers of the options that it was made with, and what a new word takes the place of besides its own.
_PERSISTED_OPTIONS = (
    "mode", "devices", "ways", "capabilities", "vendor", "category", "target", "maximum", "form", "hook", "no_hook",
    "hook_log", "allow_incomplete", "config_path", "root", "driver_root",
)  # fmt: skip
_OVERRIDDEN_OPTIONS = {
    "mode": ("devices", "ways"),
    "target": ("maximum",),
    "maximum": ("target",),
    "hook": ("no_hook",),
    "hook_log": ("no_hook",),
    "no_hook": ("hook", "hook_log"),
}

OptionValues = dict[str, Any]
"""The options that a file remembers, by name; "" and () for what is not said."""

# To read such options again: a command with them, and with what stands before them in the file.
_OPTION_PARSER = click.Command("refresh", params=[click.Option(["--output"])], add_help_option=False)
for _option in GENERATE_OPTIONS:
    _option(_OPTION_PARSER)


def read_option_values(context: click.Context) -> OptionValues:
    """What a command line says of the options that a file remembers."""
    return {name: "" if context.params[name] is None else context.params[name] for name in _PERSISTED_OPTIONS}


def format_option_arguments(options: OptionValues) -> list[str]:
    """Options as words of a command line, the same for the same options; paths as they are from everywhere."""
    found: list[str] = []
    for param in _OPTION_PARSER.params:
        value = options.get(param.name or "")
        if param.name not in _PERSISTED_OPTIONS or not value or value == param.default:
            continue
        flag = param.opts[0]
        if value is True:
            found.append(flag)
        elif isinstance(value, tuple):
            found += [word for one in value for word in (flag, one)]
        else:
            found += [flag, os.path.abspath(value) if param.name in ("config_path", "root") else value]
    return found


def load_persisted_options(path: str, explicit: set[str]) -> tuple[OptionValues, str]:
    """The options of a file of ours, but for those that others are given for; and a warning or "".

    Raises:
        Fault: they cannot be read.
    """
    line, trusted = read_recorded_options(path)
    context = click.Context(_OPTION_PARSER)
    try:
        told, rest, _ = _OPTION_PARSER.make_parser(context).parse_args(line)
        if rest:
            raise click.UsageError(f'"{rest[0]}" is no option')
        found = {
            param.name: param.type_cast_value(context, told[param.name])
            for param in _OPTION_PARSER.params
            if param.name in _PERSISTED_OPTIONS and param.name in told
        }
    except click.UsageError as error:
        said = f"the options that it names as its own cannot be read: {error.format_message().rstrip('.')}"
        raise Fault(said, where=path, hint=build_lost_options_hint(path)) from None
    settled = explicit.union(*(_OVERRIDDEN_OPTIONS.get(name, ()) for name in explicit))
    found = {str(name): value for name, value in found.items() if name not in settled}
    if found and not trusted:
        listed = " ".join(format_option_arguments(found))
        return {}, f"{path}: its own options ({listed}) do not count, since another user could have written them"
    return found, ""
