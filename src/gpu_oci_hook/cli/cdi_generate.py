"""`cdi generate` and `cdi refresh`: this machine as a CDI file, once or for as long as it runs."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

import click
from click.core import ParameterSource

from gpu_oci_hook.cdi.own_kinds import ALL_DEVICE, GPU_MODE, NAME_STRATEGIES, NONE_DEVICE, ContentOptions
from gpu_oci_hook.cdi.provenance import format_cdi_command
from gpu_oci_hook.cdi.spec.reading import read_spec_file
from gpu_oci_hook.cdi.spec.versions import find_engine_max_version, parse_known_version
from gpu_oci_hook.cli.cdi_generate_options import (
    OptionValues,
    add_generate_options,
    format_option_arguments,
    load_persisted_options,
    read_option_values,
    require_nonempty,
)
from gpu_oci_hook.cli.config_overrides import ReadOnlyCache, load_command_config
from gpu_oci_hook.cli.printing import print_document, print_line, print_warning
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault, clip_text, find_close_match, make_printable
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.files.read_regular import UnusableFileError, read_regular_head
from gpu_oci_hook.formats.program_names import HOOK_PROGRAM, is_launcher
from gpu_oci_hook.generate.emit import choose_output_format
from gpu_oci_hook.generate.generate import SpecRecipe, build_spec
from gpu_oci_hook.generate.refresh import DEFAULT_INTERVAL, RefreshResult, refresh_spec_file, watch_spec_file
from gpu_oci_hook.generate.spec_writer import classify_existing_file, write_spec_file
from gpu_oci_hook.request.capabilities import KNOWN_CAPABILITIES

DEFAULT_HOOK_PATH = f"/usr/local/bin/{HOOK_PROGRAM}"
DEFAULT_SPEC_DIR = "/var/run/cdi"


@click.command()
@click.option(
    "--output", "path", type=require_nonempty, metavar="FILE", help="Write a file.  [default: -, standard output]"
)
@add_generate_options
@click.pass_context
def generate(context: click.Context, /, path: str | None, force: bool, **_: Any) -> None:
    """Write this machine's GPUs as a CDI file, which engines give to containers by themselves.

    The file has a device for each GPU and each MIG device, one for all of them and one for the driver without a GPU. It
    is of the lowest version of CDI that it needs; --target writes one for an older engine. It remembers its options:
    cdi refresh --output FILE writes it anew with them. What is there and neither ours nor of the same kind stays.
    """
    path = "" if path in (None, "-") else str(path)
    chosen = read_option_values(context)
    settings = _load_config(chosen)
    recipe = _with_rewrite_command(_build_recipe(path, chosen), path, chosen)
    made = build_spec(recipe, settings, ReadOnlyCache())
    for sentence in (*made.warnings, *([made.unreadable_warning] if made.unreadable_warning else [])):
        print_warning(sentence)
    if not path:
        print_document(made.data.decode())
        return
    if not force:
        _check_replaceable(path, made.spec["kind"])
    print_line(f"{write_spec_file(path, made.data)} {path}: {made.summarise()}")


@click.command()
@click.option(
    "--output", "path", type=require_nonempty, metavar="FILE", help=f"[default: {DEFAULT_SPEC_DIR}/VENDOR-CLASS.yaml]"
)
@click.option("--watch", is_flag=True, help="Stay, and look again and again; SIGTERM ends it.")
@click.option(
    "--interval",
    default=DEFAULT_INTERVAL,
    show_default=True,
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="Between two looks of --watch.",
)
@add_generate_options
@click.pass_context
def refresh(context: click.Context, /, path: str | None, watch: bool, interval: float, force: bool, **_: Any) -> None:
    """Write the CDI file anew when the machine has changed; writes nothing when it has not.

    With --output FILE, a file of ours that is there is made with its own options again, but for those that are given
    here. Without a driver, or without a GPU, the file is removed if it is ours. Somebody else's file is never replaced.
    """
    if path == "-":
        raise click.BadParameter("a file is kept, and standard output is none", param_hint="'--output'")
    if not watch and context.get_parameter_source("interval") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--interval is for --watch, and there is none")
    chosen = read_option_values(context)
    given = {name for name in chosen if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    kept: OptionValues = {}

    def look() -> RefreshResult:
        nonlocal kept
        warnings: list[str] = []
        if path:
            told, warning = load_persisted_options(path, given)
            warnings += [warning] if warning else []
            kept = told or kept  # a watch removes the file with the driver, and writes it again as it was
        merged = {**chosen, **kept}
        settings = _load_config(merged, warn=False)
        recipe = _build_recipe(path or "", merged, warn=not watch)
        place = (
            path
            or f"{DEFAULT_SPEC_DIR}/{recipe.options.build_cdi_kind(settings).replace('/', '-')}.{recipe.output_format}"
        )
        found = refresh_spec_file(
            place, _with_rewrite_command(recipe, place, merged), settings, state_dir.StateCache(), force=force
        )
        options = " ".join(format_option_arguments(kept)) if found.action in ("wrote", "removed") else ""
        said = f"{found.message} ({options}, as before)" if options else found.message
        return replace(found, message=said, warnings=(*settings.warnings, *warnings, *found.warnings))

    if watch:
        watch_spec_file(look, _log_line, interval=interval)
        return
    result = look()
    for sentence in result.warnings:
        print_warning(sentence)
    if (
        result.unreadable_warning and result.action == "wrote"
    ):  # a timer looks every minute, and once it is written it was said
        print_warning(result.unreadable_warning)
    print_line(result.message)


def _log_line(text: str) -> None:
    """A line for whoever reads the watch's log; without a reader the watch goes on."""
    try:
        click.echo(make_printable(text), err=True)
    except OSError:
        pass


def _load_config(options: OptionValues, *, warn: bool = True) -> Config:
    return load_command_config(options["config_path"], options["root"], options["driver_root"], warn=warn)


def _with_rewrite_command(recipe: SpecRecipe, path: str, options: OptionValues) -> SpecRecipe:
    """The recipe of a file that names the command which writes it anew; without a file, which prints it."""
    verb = ["refresh", "--output", os.path.abspath(path)] if path else ["generate"]
    return replace(
        recipe,
        options=replace(recipe.options, rewrite_command=format_cdi_command([*verb, *format_option_arguments(options)])),
    )


def _check_replaceable(path: str, kind: str) -> None:
    """Keeps `generate` from replacing what somebody else needs.

    Raises:
        Fault: what is there is neither ours nor a CDI file of this kind.
    """
    owner = classify_existing_file(path)
    cure = "Choose another --output, or replace it with --force"
    if owner == "other":
        raise Fault("what is there is no CDI file and stays as it is", where=path, hint=cure)
    if owner == "cdi":
        data = read_spec_file(path).data
        theirs = data.get("kind") if isinstance(data, dict) else None
        if theirs != kind:
            what = (
                f"a CDI file for {clip_text(theirs)}" if isinstance(theirs, str) else "a CDI file that cannot be read"
            )
            raise Fault(f"{what} is there and stays as it is", where=path, hint=cure)


def _build_recipe(path: str, options: OptionValues, *, warn: bool = True) -> SpecRecipe:
    """The options as a recipe; says what is odd about them.

    Raises:
        Fault: an option that cannot be.
    """
    form, warning = choose_output_format(path, options["form"])
    target, maximum = options["target"], options["maximum"]
    if target and maximum:
        raise Fault("--target and --max-version say the same thing", hint="Leave one of them out")
    if target:
        maximum = find_engine_max_version(target)
    elif maximum:
        maximum = parse_known_version(maximum, "--max-version")
    hook, absent = _resolve_hook_program(options["hook"], disabled=options["no_hook"])
    nowhere = _check_hook_log(options["hook_log"], hook)
    if warn:
        for sentence in (warning, absent, nowhere):
            if sentence:
                print_warning(sentence)
    words = tuple(word for given in options["devices"] for word in given.replace(",", " ").split())
    if options["mode"] != GPU_MODE and (words or options["ways"]):
        raise Fault(f"--device and --name choose among GPUs, and --mode {options['mode']} has none")
    made = ContentOptions(
        mode=options["mode"],
        selectors=words or (ALL_DEVICE, NONE_DEVICE),
        name_strategies=_parse_choices(options["ways"], NAME_STRATEGIES, "--name", "way to name devices")
        or ("index", "uuid"),
        capabilities=_parse_choices(
            tuple(options["capabilities"].replace(",", " ").split()),
            (*KNOWN_CAPABILITIES, "all"),
            "--capabilities",
            "capability",
        ),
        vendor=options["vendor"],
        category=options["category"],
        hook_path=hook,
        hook_log=options["hook_log"],
        allow_incomplete=options["allow_incomplete"],
    )
    return SpecRecipe(made, output_format=form, max_version=maximum, target_engine=target)


def _parse_choices(words: tuple[str, ...], valid: tuple[str, ...], where: str, what: str) -> tuple[str, ...]:
    words = tuple(word for given in words for word in given.replace(",", " ").split())
    for word in words:
        if word not in valid:
            near = find_close_match(word[:100], valid)
            hint = f'. Did you mean "{near}"?' if near else ""
            raise Fault(f'"{word}" is no {what}', where=where, hint=f"Valid are {', '.join(valid)}{hint}")
    return words


def _resolve_hook_program(program: str, *, disabled: bool) -> tuple[str, str]:
    """The hook's program and a warning, each "" for none.

    Raises:
        Fault: it is not named by an absolute path.
    """
    if disabled:
        if program:
            raise Fault("--hook and --no-hook exclude each other", hint="Leave one of them out")
        return "", ""
    if program and not program.startswith("/"):
        raise Fault(f'"{program}" is no absolute path, and engines look for hooks nowhere else', where="--hook")
    path = program or next((place for place in _list_launcher_paths() if _is_launcher(place)), DEFAULT_HOOK_PATH)
    if os.path.isdir(path):
        what, cure = "is a directory", "name the program"
    elif os.access(path, os.X_OK):
        return path, ""
    elif os.path.exists(path):
        what, cure = "is not executable", f"chmod 755 {path}"
    else:
        what = "is not there"
        cure = "write it before a container" if program else "run gpu-oci-hook install, or name another one with --hook"
    return path, f"the hook's program {path} {what}, and no container would start with it: {cure}"


def _check_hook_log(path: str, hook: str) -> str:
    """A warning about the hook's log, "" for none.

    Raises:
        Fault: it is not named by an absolute path, or there is no hook.
    """
    if not path:
        return ""
    if not hook:
        raise Fault("--hook-log and --no-hook exclude each other", hint="Leave one of them out")
    if not path.startswith("/"):
        raise Fault(f'"{clip_text(path)}" is no absolute path, and a hook needs one', where="--hook-log")
    directory = os.path.dirname(path)
    return "" if os.path.isdir(directory) else f"--hook-log {path}: there is no directory {directory}, and no log then"


def _list_launcher_paths() -> list[str]:
    """Where `install` may have written our launcher: beside the running one, and where it writes by default."""
    return [os.path.abspath(sys.argv[0]), DEFAULT_HOOK_PATH, f"/usr/bin/{HOOK_PROGRAM}"]


def _is_launcher(path: str) -> bool:
    try:
        return os.path.basename(path) == HOOK_PROGRAM and is_launcher(read_regular_head(path, 1024))
    except (OSError, UnusableFileError):
        return False
