"""List the running containers that have GPUs, by their config.json or by a record.

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.attach.container_plan import list_spec_nodes
from gpu_oci_hook.attach.running_container import RunningContainer, require_root
from gpu_oci_hook.container.injection_record import has_record
from gpu_oci_hook.container.rootfs_edits import GENERATED_DIR
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.oci import get_list
from gpu_oci_hook.formats.program_names import is_prestart_hook
from gpu_oci_hook.host.device_nodes import NVIDIA_MAJOR
from gpu_oci_hook.live.attachment_record import RecordStore
from gpu_oci_hook.live.find_container import list_running_containers
from gpu_oci_hook.live.found_container import FoundContainer

_INJECTING_STAGES = ("prestart", "createRuntime")


def list_repairable_containers() -> list[FoundContainer]:
    """List the running containers that have GPUs; remove the records of those that have ended.

    A user's own containers count only if root has attached something: the user writes their config.json, and could
    else have root change device rules for him.

    Raises:
        Fault: this process may not change containers.
    """
    require_root()
    with RecordStore(create=False) as store:
        store.remove_stale()
        recorded = store.list_pids()
    return [
        found
        for found in list_running_containers()
        if found.init_pid in recorded or (not found.owner and _has_gpus(found))
    ]


def _has_gpus(found: FoundContainer) -> bool:
    """Tell whether a container may have GPUs by its config.json. What cannot be looked at has none."""
    try:
        with RunningContainer(found) as container:
            hooks = [hook for stage in _INJECTING_STAGES for hook in get_list(container.spec, "hooks", stage)]
            return (
                has_record(f"{container.bundle}/{GENERATED_DIR}")
                or any(map(is_prestart_hook, hooks))
                or any(node.numbers[0] == NVIDIA_MAJOR for node in list_spec_nodes(container.spec))
            )
    except Fault:
        return False
