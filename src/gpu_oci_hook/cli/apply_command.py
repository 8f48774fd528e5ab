"""`gpu-oci-hook apply`: make the shim's edits in a bundle, without starting a container.

Import budget: cold.
"""

from __future__ import annotations

import click

from gpu_oci_hook.cli.bundle import Bundle, bundle_option
from gpu_oci_hook.cli.command_config import load_command_config
from gpu_oci_hook.cli.common_options import config_option, host_root_options, quiet_option
from gpu_oci_hook.cli.printing import print_progress, print_warning
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.inject.pipeline import apply_plan, prepare_injection


@click.command()
@bundle_option
@quiet_option
@config_option
@host_root_options
def apply(bundle: str, config_path: str, root: str, driver_root: str) -> None:
    """Apply the edits that explain shows to config.json and the root file system, and print each change.

    Running it again changes nothing. gpu-oci-runtime makes the same edits itself.
    """
    target = Bundle(bundle)
    settings = load_command_config(config_path, root, driver_root)
    outcome = prepare_injection(target.spec, settings, target.directory, state_dir.StateCache())
    changes = apply_plan(outcome, target.spec, target.config_json_path, target.config_json_bytes)
    for warning in outcome.plan.warnings:
        print_warning(warning)
    for change in changes:
        print_progress(change)
    if not changes:
        reason = "" if outcome.plan.state == "inject" else f": {outcome.request.origin}"
        print_progress(f"nothing to do{reason}")
