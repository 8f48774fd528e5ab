"""List the containers that runc and crun have in their state directories, whoever has started them.

Import budget: cold.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.oci import get_list, get_member, get_text
from gpu_oci_hook.live.found_container import FoundContainer, collect_containers, list_directories, read_json_file
from gpu_oci_hook.live.monitors import PROC, read_start_time
from gpu_oci_hook.live.user_claims import is_container_process_of

# Where runc and crun keep the state of containers that no engine has started, by their own default.
RUNTIME_ROOTS = ("/run/runc", "/run/crun", "/run/user/*/runc", "/run/user/*/crun")


def list_runtime_containers() -> Iterator[FoundContainer]:
    """Yield the running containers in the default state directories of runc and crun.

    A user's directory counts for processes of that user's containers alone: he writes what he likes into it.
    """
    for directory, owner in _expand_user_roots(RUNTIME_ROOTS):
        for container in collect_containers(owner, partial(_list_containers_in, directory, owner)):
            if owner == os.geteuid() or not owner or is_container_process_of(container.init_pid, owner, PROC):
                yield container


def _list_containers_in(directory: str, owner: int) -> list[FoundContainer]:
    runtime = os.path.basename(directory)
    found = []
    for path in list_directories(directory, follow_symlinks=False):
        container_id = os.path.basename(path)
        bundle, pid, start_time = _read_state(path)
        if bundle.startswith("/") and pid > 0 and (not start_time or read_start_time(pid) == start_time):
            title = f"container {container_id} of {runtime}, process {pid}"
            found.append(FoundContainer(title, bundle, 0, pid, f"{runtime}:{container_id}", (container_id,), owner))
    return found


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


def _expand_user_roots(roots: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield each state directory that exists, and the user who can write it.

    That is the owner of the directory that a user has below /run/user: what is in it can be a link to one of root's.
    """
    for root in roots:
        before, star, after = root.partition("*")
        for parent in list_directories(before.rstrip("/"), follow_symlinks=False) if star else [root]:
            try:
                yield (parent + after if star else root), os.lstat(parent).st_uid
            except OSError:
                continue
