"""Turn the options of `cdi generate` and `cdi refresh` into the recipe of a CDI file.

Import budget: cold.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from gpu_oci_hook.cdi.own_kinds import ALL_DEVICE, GPU_MODE, NAME_STRATEGIES, NONE_DEVICE, ContentOptions
from gpu_oci_hook.cdi.provenance import format_cdi_command
from gpu_oci_hook.cdi.spec.versions import CHARLIECLOUD, HOOKLESS_CLIENTS, find_engine_max_version, parse_known_version
from gpu_oci_hook.cli.cdi_generate_options import OptionValues, format_option_arguments
from gpu_oci_hook.cli.command_config import load_command_config
from gpu_oci_hook.cli.printing import print_warning
from gpu_oci_hook.cli.usage_errors import raise_usage_faults
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault, clip_text, find_close_match
from gpu_oci_hook.files.read_regular import UnusableFileError, read_regular_head
from gpu_oci_hook.formats.program_names import HOOK_PROGRAM, LAUNCHER_HEAD_SIZE, is_launcher
from gpu_oci_hook.generate.emit import choose_output_format
from gpu_oci_hook.generate.recipe import SpecRecipe
from gpu_oci_hook.request.capabilities import KNOWN_CAPABILITIES

DEFAULT_HOOK_PATH = f"/usr/local/bin/{HOOK_PROGRAM}"


def load_recipe_config(options: OptionValues, *, warn: bool = True) -> Config:
    """Load the configuration that the options name."""
    return load_command_config(options["config_path"], options["root"], options["driver_root"], warn=warn)


@raise_usage_faults()
def build_recipe(path: str, options: OptionValues, *, warn: bool = True) -> SpecRecipe:
    """Build the recipe and print warnings about the options.

    Arguments:
        path: the output file, "" for standard output.

    Raises:
        UsageFault: an option is invalid.
    """
    is_hookless = options["target"] in HOOKLESS_CLIENTS
    default_format = "json" if options["target"] == CHARLIECLOUD and not path else ""
    output_format, format_warning = choose_output_format(path, options["form"] or default_format)
    if options["target"] == CHARLIECLOUD and output_format != "json":
        format_warning = "ch-run reads JSON files only: name the file with the suffix .json"
    max_version = _resolve_max_version(options["target"], options["maximum"])
    hook_path, hook_warning = _resolve_hook_program(options["hook"], disabled=options["no_hook"] or is_hookless)
    log_warning = _check_hook_log(options["hook_log"], hook_path)
    for warning in (format_warning, hook_warning, log_warning):
        if warning and warn:
            print_warning(warning)
    selectors = tuple(_split_list(options["devices"]))
    if options["mode"] != GPU_MODE and (selectors or options["ways"]):
        raise Fault(f"--device and --name select GPUs, and --mode {options['mode']} has none")
    content = ContentOptions(
        mode=options["mode"],
        selectors=selectors or (ALL_DEVICE, NONE_DEVICE),
        name_strategies=_parse_choices(options["ways"], NAME_STRATEGIES, "--name", "naming scheme")
        or ("index", "uuid"),
        capabilities=_parse_choices(
            (options["capabilities"],), (*KNOWN_CAPABILITIES, "all"), "--capabilities", "capability"
        ),
        vendor=options["vendor"],
        category=options["category"],
        hook_path=hook_path,
        hook_log=options["hook_log"],
        allow_incomplete=options["allow_incomplete"],
    )
    content.build_cdi_kind(Config())  # a wrong --vendor or --class is wrong on every host
    # A client without a version limits nothing; the engine above gVisor can still be one of those that a warning names.
    target_engine = "" if is_hookless and (max_version or options["target"] != CHARLIECLOUD) else options["target"]
    return SpecRecipe(content, output_format=output_format, max_version=max_version, target_engine=target_engine)


def with_rewrite_command(recipe: SpecRecipe, path: str, options: OptionValues) -> SpecRecipe:
    """Return the recipe with the command that rewrites the file, or prints it if it has no path."""
    command = ["refresh", "--output", os.path.abspath(path)] if path else ["generate"]
    rewrite_command = format_cdi_command([*command, *format_option_arguments(options)])
    return replace(recipe, options=replace(recipe.options, rewrite_command=rewrite_command))


def _resolve_max_version(target: str, max_version: str) -> str:
    if target in HOOKLESS_CLIENTS:
        return parse_known_version(max_version, "--max-version") if max_version else ""
    if target and max_version:
        raise Fault("--target and --max-version exclude each other", hint="Leave one of them out")
    if target:
        with raise_usage_faults("--target"):
            return find_engine_max_version(target)
    return parse_known_version(max_version, "--max-version") if max_version else ""


def _split_list(values: tuple[str, ...]) -> list[str]:
    return [item for value in values for item in value.replace(",", " ").split()]


def _parse_choices(values: tuple[str, ...], choices: tuple[str, ...], option: str, noun: str) -> tuple[str, ...]:
    items = tuple(_split_list(values))
    for item in items:
        if item not in choices:
            close = find_close_match(item[:100], choices)
            suggestion = f'. Did you mean "{close}"?' if close else ""
            raise Fault(f'unknown {noun} "{item}"', where=option, hint=f"Valid are {', '.join(choices)}{suggestion}")
    return items


def _resolve_hook_program(program: str, *, disabled: bool) -> tuple[str, str]:
    """Return the hook's program and a warning about it, each "" for none.

    Raises:
        Fault: the program is not an absolute path.
    """
    if disabled:
        if program:
            raise Fault("--hook and --no-hook exclude each other", hint="Leave one of them out")
        return "", ""
    if program and not program.startswith("/"):
        raise Fault(f'"{program}" is not an absolute path, which engines need for hooks', where="--hook")
    path = program or next((path for path in _list_launcher_paths() if _is_launcher(path)), DEFAULT_HOOK_PATH)
    if os.path.isdir(path):
        problem, hint = "is a directory", "name the program"
    elif os.access(path, os.X_OK):
        return path, ""
    elif os.path.exists(path):
        problem, hint = "is not executable", f"run chmod 755 {path}"
    else:
        problem = "is missing"
        hint = "create it first" if program else "run gpu-oci-hook install, or name another program with --hook"
    return path, f"the hook program {path} {problem}, so containers with these devices will not start: {hint}"


def _check_hook_log(path: str, hook_path: str) -> str:
    """Return a warning about the hook's log file, "" for none.

    Raises:
        Fault: the log file is not an absolute path, or the CDI file has no hook.
    """
    if not path:
        return ""
    if not hook_path:
        raise Fault("--hook-log and --no-hook exclude each other", hint="Leave one of them out")
    if not path.startswith("/"):
        raise Fault(f'"{clip_text(path)}" is not an absolute path, which a hook needs', where="--hook-log")
    directory = os.path.dirname(path)
    return (
        ""
        if os.path.isdir(directory)
        else f"--hook-log {path}: directory {directory} is missing, so nothing will be logged"
    )


def _list_launcher_paths() -> list[str]:
    """List where `install` may have written the launcher: the running program and the default locations."""
    return [os.path.abspath(sys.argv[0]), DEFAULT_HOOK_PATH, f"/usr/bin/{HOOK_PROGRAM}"]


def _is_launcher(path: str) -> bool:
    try:
        return os.path.basename(path) == HOOK_PROGRAM and is_launcher(read_regular_head(path, LAUNCHER_HEAD_SIZE))
    except (OSError, UnusableFileError):
        return False
