"""Find a container's bundle by the name that its engine gives it, or by one of its processes.

Files and the kernel's process table are read. Only for a name that they do not show, the engine's own command is asked.

Import budget: cold.
"""

from __future__ import annotations

import os

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.live import monitors, runtime_states
from gpu_oci_hook.live.engine_containers import (
    describe_container,
    find_containerd_container,
    find_crio_container,
    find_docker_container,
    find_podman_container,
    list_bundles,
    list_engine_containers,
    read_init_pid,
    suggest_running,
)
from gpu_oci_hook.live.found_container import FoundContainer, collect_containers
from gpu_oci_hook.live.monitors import (
    CONMON,
    SHIM_PREFIX,
    Monitor,
    list_ancestors,
    list_monitors,
    read_monitors,
    read_namespace_id,
    read_start_time,
)
from gpu_oci_hook.live.runtime_states import find_runtime_container, list_runtime_containers

_FORMS = {
    "docker": "docker:NAME",
    "podman": "podman:NAME",
    "containerd": "containerd:NAMESPACE/ID",
    "crio": "crio:ID",
    "runc": "runc:ID",
    "crun": "crun:ID",
}
REFERENCE_FORMS = f"{', '.join(list(_FORMS.values())[:-1])} or {list(_FORMS.values())[-1]}"

_PID_HINT = "Give the number that a process of the container has on the host, not in the container"


def is_container_reference(text: str) -> bool:
    """Tell whether a text names an engine before a colon."""
    return ":" in text and text.partition(":")[0] in _FORMS


_REFERENCE_FORMS = {"docker": "docker:NAME", "podman": "podman:NAME", "containerd": "containerd:NAMESPACE/ID"}


def find_container(reference: str) -> FoundContainer:
    """Return the container that "docker:NAME", "containerd:NAMESPACE/ID", "runc:ID" and the like names.

    NAME can be an id. An id can be shortened while it is unique.

    Raises:
        Fault: there is no such container, or several, or it has no bundle; says where was looked.
    """
    engine, _, name = reference.partition(":")
    if not name:
        raise Fault(f"{reference} names no container", hint=f"Write {_REFERENCE_FORMS[engine]}")
    if engine == "docker":
        return find_docker_container(name)
    if engine == "podman":
        return find_podman_container(name)
    if engine == "crio":
        return find_crio_container(name)
    if engine in ("runc", "crun"):
        return find_runtime_container(engine, name)
    return find_containerd_container(name)


def list_running_containers() -> list[FoundContainer]:
    """List the running containers of this machine that this user may look at, each once."""
    found = list_engine_containers()
    known = {container.init_pid for container in found}
    return found + [container for container in list_runtime_containers() if container.init_pid not in known]


def find_container_by_bare_name(name: str) -> FoundContainer:
    """Return the running container with this name or id, of whatever engine.

    Raises:
        Fault: none has it, or several.
    """
    running = list_running_containers()
    matching = [container for container in running if name in container.names]
    if not matching:
        matching = [container for container in running if any(known.startswith(name) for known in container.names[1:])]
    if not matching:
        raise Fault(
            "no running container has this name",
            where=name,
            hint=suggest_running([container.reference for container in running], f"Write {REFERENCE_FORMS}"),
        )
    # A user can call a container of his as one of root's.
    matching = [container for container in matching if container.owner == os.geteuid()] or matching
    if len(matching) > 1:
        references = ", ".join(container.reference for container in matching[:9])
        raise Fault(f"{len(matching)} running containers match", where=name, hint=f"Name one: {references}")
    return matching[0]


def find_container_of_process(pid: int) -> FoundContainer:
    """Return the container that a process belongs to.

    Raises:
        Fault: there is no such process, or no container of it was found.
    """
    mount_namespace = read_namespace_id(pid, "mnt")
    if not mount_namespace:
        raise _explain_unreadable_process(pid)
    ancestors = list_ancestors(pid)
    monitors_above = {monitor.pid: monitor for monitor in read_monitors(ancestors)}
    for monitor in (monitors_above[ancestor] for ancestor in ancestors if ancestor in monitors_above):
        # `podman exec` has a conmon of its own, which names the container but not its bundle.
        return _describe_container_of(monitor, mount_namespace)
    for monitor in list_monitors():
        if _is_in_namespace(read_init_pid(monitor, monitor.bundle), mount_namespace):
            return describe_container(monitor, monitor.bundle)
    for container in list_runtime_containers():
        if _is_in_namespace(container.init_pid, mount_namespace):
            return container
    if mount_namespace in (read_namespace_id(1, "mnt"), read_namespace_id(os.getpid(), "mnt")):
        what = "the process is in no container: it has the machine's own mounts"
        raise Fault(what, where=f"--pid {pid}", hint=_PID_HINT)
    raise Fault(
        f"no container of this process was found: none of its ancestors is a {SHIM_PREFIX} or {CONMON}, and neither "
        f"runc nor crun has it in {', '.join(runtime_states.RUNTIME_ROOTS)}",
        where=f"--pid {pid}",
        hint="Name the bundle with --bundle DIR",
    )


def _explain_unreadable_process(pid: int) -> Fault:
    """Return why the namespaces of a process cannot be read. A process of another user is refused to all but root."""
    where = f"--pid {pid}"
    if not os.path.exists(f"{monitors.PROC}/{pid}"):
        return Fault("there is no such process", where=where)
    if not read_start_time(pid):
        return Fault("the process has ended", where=where)
    if pid == 1:
        return Fault("process 1 is the machine's first process, and in no container", where=where, hint=_PID_HINT)
    if os.geteuid() != 0:
        return Fault("this user may not look at the process", where=where, hint="Run this as root")
    what = "the kernel refuses the look at this process even to this root user"
    return Fault(what, where=where, hint="Run this outside of containers, with the capability CAP_SYS_PTRACE")


def _describe_container_of(monitor: Monitor, mount_namespace: str) -> FoundContainer:
    """Return the monitor's container whose first process has a mount namespace.

    Raises:
        Fault: what the monitor's user says cannot be read in time.
    """

    def describe() -> list[FoundContainer]:
        bundle = _find_bundle_of_pod(monitor, mount_namespace) if monitor.namespace else monitor.bundle
        return [describe_container(monitor, bundle)]

    for container in collect_containers(monitor.uid, describe):
        return container
    raise Fault(f"the files of user {monitor.uid} about the container cannot be read", where=f"process {monitor.pid}")


def _find_bundle_of_pod(monitor: Monitor, mount_namespace: str) -> str:
    """Return the bundle of the shim's container whose first process has this mount namespace."""
    for bundle in list_bundles(os.path.dirname(monitor.bundle), monitor.root):
        if _is_in_namespace(read_init_pid(monitor, bundle), mount_namespace):
            return bundle
    return monitor.bundle


def _is_in_namespace(pid: int, mount_namespace: str) -> bool:
    return pid > 0 and read_namespace_id(pid, "mnt") == mount_namespace
