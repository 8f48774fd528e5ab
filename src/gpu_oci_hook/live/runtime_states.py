"""List the containers that runc and crun have in their state directories, whoever has started them.

Import budget: cold.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.oci import get_list, get_member, get_text
from gpu_oci_hook.live.found_container import FoundContainer, list_directories, read_json_file
from gpu_oci_hook.live.monitors import read_start_time

# Where runc and crun keep the state of containers that no engine has started, by their own default.
RUNTIME_ROOTS = ("/run/runc", "/run/crun", "/run/user/*/runc", "/run/user/*/crun")


def list_runtime_containers() -> Iterator[FoundContainer]:
    """Yield the running containers in the default state directories of runc and crun."""
    for directory in _expand_user_roots(RUNTIME_ROOTS):
        runtime = os.path.basename(directory)
        for path in list_directories(directory):
            container_id = os.path.basename(path)
            bundle, pid, start_time = _read_state(path)
            if bundle.startswith("/") and pid > 0 and (not start_time or read_start_time(pid) == start_time):
                title = f"container {container_id} of {runtime}, process {pid}"
                reference, owner = f"{runtime}:{container_id}", os.stat(path).st_uid
                yield FoundContainer(title, bundle, 0, pid, reference, (container_id,), owner)


def _read_state(path: str) -> tuple[str, int, int]:
    """Return bundle, first process and its start time from a container's state directory."""
    state = read_json_file(f"{path}/state.json")  # runc's
    labels = [text for text in get_list(state, "config", "labels") if isinstance(text, str)]
    bundle = next((text.partition("=")[2] for text in labels if text.startswith("bundle=")), "")
    pid, start_time = get_member(state, "init_process_pid"), get_member(state, "init_process_start")
    if not bundle:
        status = read_json_file(f"{path}/status")  # crun's
        bundle = get_text(status, "bundle")
        pid, start_time = get_member(status, "pid"), get_member(status, "process-start-time")
    return bundle, pid if isinstance(pid, int) else 0, start_time if isinstance(start_time, int) else 0


def find_runtime_container(runtime: str, name: str) -> FoundContainer:
    """Return the running container with an id that runc or crun has started.

    Raises:
        Fault: there is no such container, or several.
    """
    found = [container for container in list_runtime_containers() if container.reference == f"{runtime}:{name}"]
    if len(found) == 1:
        return found[0]
    where = f"{runtime}:{name}"
    if found:
        hint = f"Name one by its process: {', '.join(f'--pid {container.init_pid}' for container in found)}"
        raise Fault(f"{len(found)} users have a container with this id", where=where, hint=hint)
    roots = [root for root in RUNTIME_ROOTS if root.endswith(runtime)]
    raise Fault(
        f"{runtime} runs no such container in {' or '.join(roots)}",
        where=where,
        hint=f"Name its process instead: --pid PID, as `{runtime} --root DIR state {name}` prints it",
    )


def _expand_user_roots(roots: Iterable[str]) -> Iterator[str]:
    for root in roots:
        before, star, after = root.partition("*")
        if not star:
            yield root
            continue
        for directory in list_directories(before.rstrip("/")):
            yield directory + after
