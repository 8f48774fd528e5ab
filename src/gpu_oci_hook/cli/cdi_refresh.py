"""`gpu-oci-hook cdi refresh`: rewrite a CDI file when the host has changed, once or continuously.

Import budget: cold.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any

import click
from click.core import ParameterSource

from gpu_oci_hook.cdi.own_kinds import ContentOptions
from gpu_oci_hook.cli.cdi_generate_options import (
    OptionValues,
    add_generate_options,
    format_option_arguments,
    load_recorded_options,
    read_option_values,
    require_nonempty,
)
from gpu_oci_hook.cli.cdi_recipe import build_recipe, load_recipe_config, with_rewrite_command
from gpu_oci_hook.cli.cdi_refresh_file import (
    choose_refresh_path,
    find_own_files,
    forget_removed_file,
    load_removed_files,
    remember_removed_file,
)
from gpu_oci_hook.cli.printing import print_progress, print_warning
from gpu_oci_hook.cli.usage_errors import raise_usage_faults
from gpu_oci_hook.errors import make_printable
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.generate.refresh import DEFAULT_INTERVAL, RefreshResult, refresh_spec_file, watch_spec_file

DEFAULT_SPEC_DIR = "/var/run/cdi"


class _SecondsRange(click.FloatRange):
    """A range of seconds. click takes "nan" for a number in every range, and nothing can wait for so long."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType`."""
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a valid {self.name}.", param, ctx)
        return seconds


@click.command()
@click.option(
    "--output",
    "path",
    type=require_nonempty,
    metavar="FILE",
    help=f"Output file.  [default: {DEFAULT_SPEC_DIR}/VENDOR-CLASS.yaml]",
)
@click.option("--watch", is_flag=True, help="Keep running and poll for changes until terminated.")
@click.option(
    "--interval",
    default=DEFAULT_INTERVAL,
    show_default=True,
    type=_SecondsRange(0.1, 86400),
    metavar="SECONDS",
    help="Polling interval of --watch.",
)
@add_generate_options
@click.pass_context
def refresh(context: click.Context, /, path: str | None, watch: bool, interval: float, force: bool, **_: Any) -> None:
    """Rewrite the CDI file if the host has changed. An unchanged file is not touched.

    Options recorded in an existing file of gpu-oci-hook are reused; options of the command line override them. Without
    --output, a file of the same kind that gpu-oci-hook wrote in one of [cdi] spec-dirs is rewritten. On a host without
    a driver or GPU the file is removed if gpu-oci-hook wrote it; it comes back with its options. Files of other
    programs are never replaced without --force.
    """
    if path == "-":
        raise click.BadParameter("refresh needs a file, not standard output", param_hint="'--output'")
    if not watch and context.get_parameter_source("interval") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--interval needs --watch")
    options = read_option_values(context)
    explicit = {name for name in options if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    refresher = _Refresher(path or "", options, explicit, force=force, warn=not watch)
    if watch:
        watch_spec_file(refresher.refresh_once, _log_line, interval=interval)
        return
    result = refresher.refresh_once()
    for warning in result.warnings:
        print_warning(warning)
    # A timer refreshes every minute, so this is said only when the file is written.
    if result.unreadable_warning and result.action == "wrote":
        print_warning(result.unreadable_warning)
    print_progress(result.message)


class _Refresher:
    """Refreshes one CDI file with its recorded options.

    Arguments:
        path: the file, "" for the one of its kind, see `cdi_refresh_file`.
        options: the option values of this command line.
        explicit: names of the options that the command line sets.
        warn: whether to print warnings about options.
    """

    def __init__(self, path: str, options: OptionValues, explicit: set[str], *, force: bool, warn: bool) -> None:
        self.path = path
        self.options = options
        self.explicit = explicit
        self.force = force
        self.warn = warn
        # Kept between polls: the file is removed with the driver and must come back with the same options.
        self.recorded: OptionValues = {}

    def refresh_once(self) -> RefreshResult:
        """Rewrite or remove the file if the host has changed."""
        path = self.path or self._choose_path()
        removed = None if os.path.lexists(path) else load_removed_files().get(os.path.abspath(path))
        recorded, warning = load_recorded_options(path, self.explicit, removed["arguments"] if removed else None)
        self.recorded = recorded or self.recorded
        options = {**self.options, **self.recorded}
        settings = load_recipe_config(options, warn=False)
        recipe = build_recipe(path, options, warn=self.warn)
        recipe = with_rewrite_command(recipe, path, options)
        result = refresh_spec_file(path, recipe, settings, state_dir.StateCache(), force=self.force)
        kind = recipe.options.build_cdi_kind(settings)
        if result.action == "removed":
            remember_removed_file(os.path.abspath(path), kind, format_option_arguments(self.recorded))
        elif removed and result.action == "wrote":
            forget_removed_file(os.path.abspath(path))
        message = result.message
        if self.recorded and result.action in ("wrote", "removed"):
            message += f" (with its recorded options {' '.join(format_option_arguments(self.recorded))})"
        warnings = [*settings.warnings, *([warning] if warning else []), *result.warnings]
        if result.action == "wrote":
            others = [other for other in find_own_files(kind, settings) if not os.path.samefile(other, path)]
            warnings += [f"{other} defines {kind} too: engines use one of the two. Remove one" for other in others]
        return replace(result, message=message, warnings=tuple(warnings))

    def _choose_path(self) -> str:
        """Choose the file of the kind that the command line names."""
        settings = load_recipe_config(self.options, warn=False)
        names = ContentOptions(
            mode=self.options["mode"], vendor=self.options["vendor"], category=self.options["category"]
        )
        with raise_usage_faults():
            kind = names.build_cdi_kind(settings)
        default_path = f"{DEFAULT_SPEC_DIR}/{kind.replace('/', '-')}.{self.options['form'] or 'yaml'}"
        return choose_refresh_path(default_path, kind, settings)


def _log_line(text: str) -> None:
    """Print a line of the watch's log. A closed standard error does not stop the watch."""
    try:
        click.echo(make_printable(text), err=True)
    except OSError:
        pass
