"""Inject GPUs at the stage prestart or createRuntime, for a container whose runtime is not gpu-oci-runtime.

docker adds such a hook for `--gpus`, and files in hooks.d add it for podman and CRI-O, often to every container. The
plan is the one that gpu-oci-runtime makes; what it would write into config.json is done in the container that exists.
Below gpu-oci-runtime the hook is removed from config.json, so nothing is done twice.

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.container.rootfs_edits import GENERATED_DIR, prepare_shared_directories
from gpu_oci_hook.container.spec_edits import apply_to_spec
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.files.read_regular import read_config_json
from gpu_oci_hook.files.rootfs import Rootfs
from gpu_oci_hook.formats.fastjson import parse_config_json
from gpu_oci_hook.formats.program_names import NVIDIA_PRESTART_HOOK, PRESTART
from gpu_oci_hook.hook.called_container import Container, find_bundle_and_pid, parse_state, read_state
from gpu_oci_hook.hook.hook_config import load_hook_config
from gpu_oci_hook.hook.quick_answer import IDLE_COMMANDS, find_nvidia_command
from gpu_oci_hook.hook.standard_streams import drain_state
from gpu_oci_hook.inject.device_links import make_device_links
from gpu_oci_hook.inject.pipeline import prepare_injection
from gpu_oci_hook.model.edits import AddDeviceRule, AddMount
from gpu_oci_hook.plan.live_edits import list_comparable_edits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.outcome import Outcome


def run_prestart_hook(arguments: list[str], state_data: bytes | None = None) -> list[str]:
    """Inject the GPUs that the container requests and may have; return notes for the log.

    Arguments:
        arguments: the command line of NVIDIA's program, without its name.
        state_data: what was read from standard input; None if nothing was.

    Raises:
        Fault: it cannot have them, its request is invalid, or the arguments name no command.
    """
    command = find_nvidia_command(arguments)
    if command in IDLE_COMMANDS:
        drain_state(0)
        return []
    if command != PRESTART:
        raise Fault(
            f"{NVIDIA_PRESTART_HOOK}: no such command: {command or 'none was given'}",
            hint=f"Use {PRESTART}, {' or '.join(IDLE_COMMANDS)}",
        )
    bundle, pid = find_bundle_and_pid(parse_state(read_state(0) if state_data is None else state_data))
    path = f"{bundle}/config.json"
    data = read_config_json(path)
    if data is None:
        raise Fault("the bundle has no config.json", where=path)
    spec = parse_config_json(data, path)
    config = load_hook_config(spec)
    if config is None:
        return []
    outcome = prepare_injection(spec, config, bundle, state_dir.StateCache())
    if not _lacks_edits(outcome, spec, data, path):
        return outcome.plan.warnings
    return outcome.plan.warnings + inject_into_container(outcome, spec, pid)


def _lacks_edits(outcome: Outcome, spec: dict[str, object], data: bytes, path: str) -> bool:
    """Tell whether config.json lacks something of the plan: if it does not, gpu-oci-runtime has injected it."""
    destinations = [edit.destination for edit in outcome.plan.edits if isinstance(edit, AddMount)]
    if any(destination.isascii() and destination.encode() not in data for destination in destinations[:1]):
        return True  # most often, and told without a comparison of everything
    planned_spec = parse_config_json(data, path)
    apply_to_spec(planned_spec, list_comparable_edits(outcome.plan.edits))
    return planned_spec != spec


def inject_into_container(outcome: Outcome, spec: dict[str, object], pid: int) -> list[str]:
    """Make the edits of a plan in a container whose process has not started yet.

    Nodes, mounts and files come first, in the container's mount namespace. The device rules come last.

    Arguments:
        pid: the container's first process; 0 if it is unknown.

    Returns:
        Notes about edits that only gpu-oci-runtime can make, and about what systemd was not told.

    Raises:
        Fault: an edit failed, and its nodes and mounts are taken back, or a device rule failed. Either way the
            low-level runtime destroys the container.
    """
    from gpu_oci_hook.live.container_editor import ContainerEditor
    from gpu_oci_hook.live.device_cgroup import allow_devices, find_device_cgroup
    from gpu_oci_hook.live.namespace_process import run_in_mount_namespace

    if pid == 0:
        raise Fault("the container's state names no process", hint="Let a runtime call this hook")
    rootfs = outcome.rootfs
    if rootfs is None:
        return []
    rootfs_path, generated_dir = rootfs.path, f"{outcome.bundle}/{GENERATED_DIR}"
    prepare_shared_directories(outcome.plan.edits, generated_dir)

    def apply_in_container() -> list[str]:
        container = Container(outcome.bundle, spec, Rootfs(rootfs_path))
        editor = ContainerEditor(container.rootfs, generated_dir)
        editor.apply_edits(outcome.plan.edits)
        return editor.notes

    notes = run_in_mount_namespace(pid, apply_in_container)
    make_device_links(outcome.plan)
    devices = [(edit.major, edit.minor) for edit in outcome.plan.edits if isinstance(edit, AddDeviceRule)]
    cgroup = find_device_cgroup(pid) if devices else None
    told = allow_devices(cgroup, devices) if cgroup is not None else []
    return [*(notes if isinstance(notes, list) else []), *told]
