"""`gpu-oci-hook explain`: show the shim's plan for a bundle and change nothing.

Import budget: cold.
"""

from __future__ import annotations

import copy
import sys

import click

from gpu_oci_hook.cli.bundle import Bundle, bundle_option
from gpu_oci_hook.cli.command_config import ReadOnlyCache, load_command_config
from gpu_oci_hook.cli.common_options import config_option, format_option, host_root_options, quiet_option
from gpu_oci_hook.cli.explain_data import build_explanation, build_refusal
from gpu_oci_hook.cli.explain_diff import print_diff
from gpu_oci_hook.cli.explain_facts import collect_warnings
from gpu_oci_hook.cli.explain_text import print_explanation
from gpu_oci_hook.cli.printing import DATA_FORMS, print_data
from gpu_oci_hook.container.spec_edits import apply_to_spec
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.inject.pipeline import prepare_injection


@click.command()
@bundle_option
@format_option("diff")
@quiet_option
@config_option
@host_root_options
def explain(bundle: str, form: str, config_path: str, root: str, driver_root: str) -> None:
    """Show what a container would get, what is withheld, and the reason for each.

    Changes nothing. Exit status 1 if the container would not start.
    """
    target = Bundle(bundle)
    settings = load_command_config(config_path, root, driver_root)
    settings.load_modules = False  # explaining a bundle must not change the host
    try:
        outcome = prepare_injection(target.spec, settings, target.directory, ReadOnlyCache())
    except Fault as fault:
        if form not in DATA_FORMS:
            raise
        print_data(form, "explain", build_refusal(target, settings, fault))
        sys.exit(1)
    planned_spec = copy.deepcopy(target.spec)
    apply_to_spec(planned_spec, outcome.plan.edits)
    if form == "diff":
        print_diff(target, planned_spec, outcome)
        return
    warnings = collect_warnings(target, outcome)
    if form in DATA_FORMS:
        print_data(form, "explain", build_explanation(target, outcome, settings, warnings))
    else:
        print_explanation(target, outcome, settings, warnings, changed=planned_spec != target.spec)
