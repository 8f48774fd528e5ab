"""`gpu-oci-hook explain`: show the shim's plan for a container and change nothing.

Import budget: cold.
"""

from __future__ import annotations

import copy
import os
import sys
from typing import NoReturn

import click

from gpu_oci_hook.cli.bundle import Bundle
from gpu_oci_hook.cli.command_config import ReadOnlyCache, load_command_config
from gpu_oci_hook.cli.common_options import (
    config_option,
    format_option,
    host_root_options,
    quiet_option,
    verbose_option,
)
from gpu_oci_hook.cli.explain_data import build_explanation, build_refusal
from gpu_oci_hook.cli.explain_diff import print_diff
from gpu_oci_hook.cli.explain_facts import collect_warnings
from gpu_oci_hook.cli.explain_obstacles import find_start_obstacles
from gpu_oci_hook.cli.explain_presence import compare_with_spec
from gpu_oci_hook.cli.explain_reality import build_reality_data, compare_with_container, print_reality
from gpu_oci_hook.cli.explain_target import TargetOptions, target_options
from gpu_oci_hook.cli.explain_text import print_explanation
from gpu_oci_hook.cli.explain_ways import HOOK_WAY, RUNTIME_WAY, follow_way, list_spec_edits, way_option
from gpu_oci_hook.cli.printing import DATA_FORMS, print_data
from gpu_oci_hook.cli.usage_errors import UsageFault
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.container.spec_edits import apply_to_spec
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.inject.pipeline import prepare_injection


@click.command()
@target_options
@format_option("diff")
@way_option
@verbose_option("Name each withheld driver file instead of counting them.")
@quiet_option
@config_option
@host_root_options
@click.pass_context
def explain(
    context: click.Context,
    target: TargetOptions,
    form: str,
    way: str,
    verbose: bool,
    config_path: str,
    root: str,
    driver_root: str,
) -> None:
    """Show what a container would get, what is withheld, and the reason for each.

    CONTAINER is docker:NAME, podman:NAME or containerd:NAMESPACE/ID of a running container, or the directory of a
    bundle; the default is the bundle in the current directory.

    Changes nothing. Exit status 1 if the container would not start.
    """
    if way == HOOK_WAY and form == "diff":
        raise UsageFault(
            "--way hook with the format diff: the prestart hook changes no config.json", hint="Choose another format"
        )
    # Joining a container's mount namespace changes the current directory.
    config_path, root = (path and os.path.abspath(path) for path in (config_path, root))
    bundle = target.open_target(context)
    settings = load_command_config(config_path, root, driver_root)
    settings.load_modules = False  # explaining a bundle must not change the host
    try:
        outcome = prepare_injection(bundle.spec, settings, bundle.directory, ReadOnlyCache())
    except Fault as fault:
        _refuse(form, bundle, settings, fault, way)
    planned_spec = copy.deepcopy(bundle.spec)
    apply_to_spec(planned_spec, list_spec_edits(outcome.plan, way))
    if form == "diff":
        print_diff(bundle, planned_spec, outcome)
        return
    presence = compare_with_spec(bundle, planned_spec, outcome, settings)
    obstacles = find_start_obstacles(bundle, presence, settings, needs_runtime=way == RUNTIME_WAY)
    if not presence.is_complete:
        try:
            follow_way(outcome.plan, way)
        except Fault as fault:
            _refuse(form, bundle, settings, fault, way)
    warnings = [*obstacles, *collect_warnings(bundle, outcome)]
    reality = compare_with_container(bundle, planned_spec, outcome, presence)
    if form in DATA_FORMS:
        data = build_explanation(bundle, outcome, settings, presence, warnings, way)
        print_data(form, "explain", {**data, "reality": build_reality_data(reality)})
    else:
        print_explanation(bundle, outcome, settings, presence, warnings, way, verbose=verbose)
        if reality is not None:
            print_reality(reality)
    if obstacles and not bundle.is_running:
        sys.exit(1)


def _refuse(form: str, bundle: Bundle, settings: Config, fault: Fault, way: str) -> NoReturn:
    """Report a container that would not start, and exit."""
    if form not in DATA_FORMS:
        raise fault
    print_data(form, "explain", build_refusal(bundle, settings, fault, way))
    sys.exit(1)
