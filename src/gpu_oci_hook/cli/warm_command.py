"""`gpu-oci-hook warm`: fill the caches that the first GPU container after boot would fill.

Import budget: cold.
"""

from __future__ import annotations

import tempfile

import click

from gpu_oci_hook.cli.command_config import load_command_config
from gpu_oci_hook.cli.common_options import quiet_option
from gpu_oci_hook.cli.explain_target import AssumedBundle
from gpu_oci_hook.cli.printing import print_progress
from gpu_oci_hook.container.rootfs_edits import prepare_shared_directories
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.inject.pipeline import prepare_injection
from gpu_oci_hook.shim.main import load_runtime

# Most images of NVIDIA's set one of these. What is cached depends on them: the driver's files are in one directory for
# each set of them.
CAPABILITIES = ("compute,utility", "all")


@click.command()
@quiet_option
def warm() -> None:
    """Find the low-level runtime, the GPUs and the driver's files, and remember them for the next containers.

    The first GPU container after boot would do this, and takes about 30 ms longer then. The configuration and PATH are
    those of this process: call it with the PATH that your engine has. On a host without a driver there is nothing to
    remember, and the exit status is 0.
    """
    settings = load_command_config("", "", "")
    print_progress(f"low-level runtime {load_runtime()[1]}")
    for capabilities in CAPABILITIES:
        with tempfile.TemporaryDirectory() as rootfs:
            env = (f"NVIDIA_DRIVER_CAPABILITIES={capabilities}", "NVIDIA_VISIBLE_DEVICES=all")
            bundle = AssumedBundle(env, rootfs)
            try:
                outcome = prepare_injection(bundle.spec, settings, bundle.directory, state_dir.StateCache())
                generated_dir = f"{bundle.directory}/gpu-oci-hook"
                prepare_shared_directories(outcome.plan.edits, generated_dir)
            except Fault as fault:
                print_progress(f"nothing to remember: {fault.what}")
                return
        files = sum(edit.kind == "mount" for edit in outcome.plan.edits)
        gpus = outcome.gpus or []
        print_progress(f"{capabilities}: {len(gpus)} GPU{'' if len(gpus) == 1 else 's'}, {files} mounts")
