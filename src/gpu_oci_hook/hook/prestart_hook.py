"""Answer calls of NVIDIA's prestart hook, whose name `install --aliases` links to our program.

docker adds this hook for `--gpus`, and files in hooks.d add it for podman and CRI-O, often to every container. Below
gpu-oci-runtime it is removed from config.json. Below any other runtime it cannot inject a GPU, so it fails if the
container lacks one that it requests and may have; every other container starts.

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.container.spec_edits import apply_to_spec
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.files.read_regular import read_config_json
from gpu_oci_hook.formats.fastjson import parse_config_json
from gpu_oci_hook.formats.program_names import NVIDIA_PRESTART_HOOK, PRESTART
from gpu_oci_hook.hook.called_container import drain_state, read_bundle_path
from gpu_oci_hook.inject.pipeline import load_config_for_request, prepare_injection
from gpu_oci_hook.model.edits import DropHook

# Commands of NVIDIA's program that do nothing.
_IDLE_COMMANDS = ("poststart", "poststop")


def run_prestart_hook(arguments: list[str]) -> list[str]:
    """Check that the container lacks no GPU that it requests and may have; return notes for the log.

    Arguments:
        arguments: the command line of NVIDIA's program, without its name.

    Raises:
        Fault: it lacks one, its request is invalid, or the arguments name no command.
    """
    command = next((argument for argument in reversed(arguments) if not argument.startswith("-")), "")
    if command in _IDLE_COMMANDS:
        drain_state(0)
        return []
    if command != PRESTART:
        raise _make_missing_runtime_fault("containers would get no GPU from this program")
    bundle = read_bundle_path(0)
    path = f"{bundle}/config.json"
    data = read_config_json(path)
    if data is None:
        raise Fault("the bundle has no config.json", where=path)
    spec = parse_config_json(data, path)
    config = load_config_for_request(spec)
    if config is None:
        return []
    outcome = prepare_injection(spec, config, bundle, state_dir.StateCache())
    planned_spec = parse_config_json(data, path)
    apply_to_spec(planned_spec, [edit for edit in outcome.plan.edits if not isinstance(edit, DropHook)])
    if planned_spec != spec:
        raise _make_missing_runtime_fault(f"this container would get none ({outcome.request.origin})")
    return outcome.plan.warnings


def _make_missing_runtime_fault(consequence: str) -> Fault:
    return Fault(
        f"{NVIDIA_PRESTART_HOOK}: gpu-oci-hook injects GPUs as a runtime, not as a hook, so {consequence}",
        hint="Start it with gpu-oci-runtime: docker run --runtime gpu-oci, or "
        '"default-runtime": "gpu-oci" in /etc/docker/daemon.json',
    )
