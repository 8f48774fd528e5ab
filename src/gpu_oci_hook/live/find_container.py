"""Find a container's bundle by the name that its engine gives it, or by one of its processes.

Files and the kernel's process table are read. Only for a name that they do not show, the engine's own command is asked.

Import budget: cold.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gpu_oci_hook.errors import Fault, clip_text
from gpu_oci_hook.files.read_regular import UnusableFileError, read_regular_file
from gpu_oci_hook.formats.oci import get_list, get_member, get_text
from gpu_oci_hook.live import monitors
from gpu_oci_hook.live.engine_queries import query_docker_container_id, query_podman_bundle
from gpu_oci_hook.live.monitors import (
    CONMON,
    SHIM_PREFIX,
    Monitor,
    is_docker_namespace,
    list_ancestors,
    list_monitors,
    read_monitor,
    read_namespace_id,
)

ENGINES = ("docker", "podman", "containerd")
CONTAINERD_STATE = "/run/containerd/io.containerd.runtime.v2.task"
DOCKER_CONTAINERS = "/var/lib/docker/containers"
PODMAN_STORAGE = "/var/lib/containers/storage"
USER_PODMAN_STORAGE = "~/.local/share/containers/storage"
# Where runc and crun keep the state of containers that no engine has started, by their own default.
RUNTIME_ROOTS = ("/run/runc", "/run/crun", "/run/user/*/runc", "/run/user/*/crun")
_FILE_LIMIT = 16 << 20


class FoundContainer(NamedTuple):
    """A container of an engine.

    Attributes:
        title: what it is, for people.
        bundle: its bundle's directory.
        monitor_pid: the process that watches it, in whose mount namespace the bundle's paths count; 0 if it is stopped.
    """

    title: str
    bundle: str
    monitor_pid: int


_REFERENCE_FORMS = {"docker": "docker:NAME", "podman": "podman:NAME", "containerd": "containerd:NAMESPACE/ID"}


def find_container(reference: str) -> FoundContainer:
    """Return the container that "docker:NAME", "podman:NAME" or "containerd:NAMESPACE/ID" names.

    NAME can be an id. An id can be shortened while it is unique.

    Raises:
        Fault: there is no such container, or several, or it has no bundle; says where was looked.
    """
    engine, _, name = reference.partition(":")
    if not name:
        raise Fault(f"{reference} names no container", hint=f"Write {_REFERENCE_FORMS[engine]}")
    if engine == "docker":
        return _find_docker_container(name)
    if engine == "podman":
        return _find_podman_container(name)
    return _find_containerd_container(name)


def find_container_of_process(pid: int) -> FoundContainer:
    """Return the container that a process belongs to.

    Raises:
        Fault: there is no such process, or no container of it was found.
    """
    mount_namespace = read_namespace_id(pid, "mnt")
    if not mount_namespace:
        exists = os.path.exists(f"{monitors.PROC}/{pid}")
        what = "this user may not look at the process" if exists else "there is no such process"
        raise Fault(what, where=f"--pid {pid}", hint="Run explain as root" if exists else "")
    for ancestor in list_ancestors(pid):
        monitor = read_monitor(ancestor)
        if monitor is not None:
            bundle = _find_bundle_of_pod(monitor, mount_namespace) if monitor.namespace else monitor.bundle
            return FoundContainer(_describe_monitored(monitor, bundle), bundle, monitor.pid)
        # `podman exec` has a conmon of its own, which names the container but not its bundle.
    same = [m for m in list_monitors() if _is_in_namespace(_read_init_pid(m.root + m.bundle), mount_namespace)]
    if same:
        return FoundContainer(_describe_monitored(same[0], same[0].bundle), same[0].bundle, same[0].pid)
    for title, bundle, init_pid in _list_runtime_states():
        if _is_in_namespace(init_pid, mount_namespace):
            return FoundContainer(f"{title}, process {init_pid}", bundle, init_pid)
    raise Fault(
        f"no container of this process was found: none of its ancestors is a {SHIM_PREFIX} or {CONMON}, and neither "
        f"runc nor crun has it in {', '.join(RUNTIME_ROOTS)}",
        where=f"--pid {pid}",
        hint="Name the bundle with --bundle DIR",
    )


def _find_docker_container(name: str) -> FoundContainer:
    shims = [monitor for monitor in list_monitors() if is_docker_namespace(monitor.namespace)]
    names = {shim.pid: _read_docker_name(shim, shim.bundle, shim.container_id) for shim in shims}
    matching = [m for m in shims if names[m.pid] == name] or [m for m in shims if m.container_id.startswith(name)]
    if not matching:
        container_id = query_docker_container_id(name)
        matching = [m for m in shims if container_id and m.container_id == container_id]
    if not matching:
        stopped = _find_stopped_docker_container(name)
        raise Fault(
            f"docker's container {stopped} is not running, and docker keeps a bundle only while it runs"
            if stopped
            else "docker runs no such container",
            where=f"docker:{name}",
            hint="Start it, or ask with its environment: explain --env NVIDIA_VISIBLE_DEVICES=0"
            if stopped
            else _suggest_running(names.values(), "No container of docker runs on this machine"),
        )
    monitor = _pick_single(matching, f"docker:{name}")
    title = f"docker container {names[monitor.pid] or name} ({monitor.container_id[:12]}), running"
    return FoundContainer(title, monitor.bundle, monitor.pid)


def _find_podman_container(name: str) -> FoundContainer:
    conmons = [monitor for monitor in list_monitors() if not monitor.namespace]
    matching = [m for m in conmons if m.name == name] or [m for m in conmons if m.container_id.startswith(name)]
    if matching:
        monitor = _pick_single(matching, f"podman:{name}")
        title = f"podman container {monitor.name} ({monitor.container_id[:12]}), running"
        return FoundContainer(title, monitor.bundle, monitor.pid)
    storages = [PODMAN_STORAGE, os.path.expanduser(USER_PODMAN_STORAGE)]
    bundle = next((bundle for storage in storages for bundle in _find_podman_bundles(storage, name)), "")
    bundle = bundle or query_podman_bundle(name)
    if not bundle:
        raise Fault(
            f"podman has no such container: no running {CONMON} names it, nor {' nor '.join(storages)}, nor podman",
            where=f"podman:{name}",
            hint=_suggest_running([conmon.name for conmon in conmons], "No container of podman runs on this machine"),
        )
    return FoundContainer(f"podman container {name}, not running", bundle, 0)


def _find_containerd_container(name: str) -> FoundContainer:
    namespace, _, container_id = name.rpartition("/")
    bundles: dict[str, int] = {}
    for monitor in list_monitors():
        if monitor.namespace and (not namespace or monitor.namespace == namespace):
            for bundle in _list_bundles(os.path.dirname(monitor.bundle), monitor.root):
                bundles.setdefault(bundle, monitor.pid)
    for directory in _list_directories(CONTAINERD_STATE):
        if not namespace or os.path.basename(directory) == namespace:
            for bundle in _list_bundles(directory):
                bundles.setdefault(bundle, 0)
    matching = [bundle for bundle in bundles if os.path.basename(bundle) == container_id] or [
        bundle for bundle in bundles if container_id and os.path.basename(bundle).startswith(container_id)
    ]
    where = f"containerd:{name}"
    if not matching:
        found = [f"{os.path.basename(os.path.dirname(bundle))}/{os.path.basename(bundle)}" for bundle in bundles]
        raise Fault(
            f"containerd runs no such container, neither below {CONTAINERD_STATE} nor beside a running shim's bundle",
            where=where,
            hint=_suggest_running(found, "Give NAMESPACE/ID as `ctr -n NAMESPACE task list` prints it"),
        )
    if len(matching) > 1:
        raise Fault(
            f"{len(matching)} containers match", where=where, hint=f"Give more of one: {', '.join(matching[:9])}"
        )
    title = f"containerd container {os.path.basename(os.path.dirname(matching[0]))}/{os.path.basename(matching[0])}"
    return FoundContainer(f"{title}, running", matching[0], bundles[matching[0]])


def _suggest_running(names: Iterable[str], otherwise: str) -> str:
    """Return a hint that lists the running containers, or why none is known."""
    known = ", ".join(sorted(filter(None, names)))
    if known:
        return f"Running: {clip_text(known, 1000)}"
    return "Run explain as root: this user may not look at other users' containers" if os.geteuid() != 0 else otherwise


def _pick_single(matching: list[Monitor], where: str) -> Monitor:
    """Return the only monitor; of several users' the one of this user.

    Raises:
        Fault: there are several.
    """
    own = [monitor for monitor in matching if monitor.uid == os.geteuid()]
    candidates = own or matching
    if len(candidates) > 1:
        processes = ", ".join(f"--pid {monitor.pid} (user {monitor.uid})" for monitor in candidates[:9])
        raise Fault(f"{len(candidates)} containers match", where=where, hint=f"Name one by its monitor: {processes}")
    return candidates[0]


def _describe_monitored(monitor: Monitor, bundle: str) -> str:
    if not monitor.namespace:
        return f"container {monitor.name} ({monitor.container_id[:12]}) of {CONMON} {monitor.pid}, running"
    container_id = os.path.basename(bundle)
    if is_docker_namespace(monitor.namespace):
        name = _read_docker_name(monitor, bundle, container_id) or container_id
        return f"docker container {name} ({container_id[:12]}), running"
    return f"containerd container {monitor.namespace}/{container_id}, running"


def _find_bundle_of_pod(monitor: Monitor, mount_namespace: str) -> str:
    """Return the bundle of the shim's container whose first process has this mount namespace."""
    for bundle in _list_bundles(os.path.dirname(monitor.bundle), monitor.root):
        if _is_in_namespace(_read_init_pid(monitor.root + bundle), mount_namespace):
            return bundle
    return monitor.bundle


def _is_in_namespace(pid: int, mount_namespace: str) -> bool:
    return pid > 0 and read_namespace_id(pid, "mnt") == mount_namespace


def _read_init_pid(bundle: str) -> int:
    """Return the container's first process, which containerd's shim writes into the bundle; 0 if it is unknown."""
    text = _read_file(f"{bundle}/init.pid")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else 0


def _list_bundles(directory: str, root: str = "") -> list[str]:
    """List the bundles in a directory.

    Arguments:
        root: a directory before its path, and not before the paths that are returned; see `Monitor.root`.
    """
    paths = [path for path in _list_directories(root + directory) if os.path.exists(f"{path}/config.json")]
    return [path.removeprefix(root) for path in paths]


def _list_directories(path: str) -> list[str]:
    try:
        return sorted(entry.path for entry in os.scandir(path) if entry.is_dir())
    except OSError:
        return []


def _read_docker_name(shim: Monitor, bundle: str, container_id: str) -> str:
    """Return the name of a running container of docker: its mounts lead to docker's own file about it."""
    for mount in get_list(_read_json(f"{shim.root}{bundle}/config.json"), "mounts"):
        directory = os.path.dirname(get_text(mount, "source"))
        if directory.endswith(f"/containers/{container_id}"):
            return get_text(_read_json(f"{shim.root}{directory}/config.v2.json"), "Name").removeprefix("/")
    return get_text(_read_json(f"{DOCKER_CONTAINERS}/{container_id}/config.v2.json"), "Name").removeprefix("/")


def _find_stopped_docker_container(name: str) -> str:
    """Return the name of a container that docker knows by this name or id; "" without one."""
    for directory in _list_directories(DOCKER_CONTAINERS):
        own_name = get_text(_read_json(f"{directory}/config.v2.json"), "Name").removeprefix("/")
        if own_name and (own_name == name or os.path.basename(directory).startswith(name)):
            return own_name
    return ""


def _find_podman_bundles(storage: str, name: str) -> Iterator[str]:
    """Yield the bundles of containers with this name, or an id that begins so, in a storage of podman."""
    for driver in _list_directories(storage):
        if not driver.endswith("-containers"):
            continue
        containers = _read_json(f"{driver}/containers.json")
        for container in containers if isinstance(containers, list) else ():
            container_id, bundle = get_text(container, "id"), f"{driver}/{get_text(container, 'id')}/userdata"
            matches = name in get_list(container, "names") or container_id.startswith(name)
            if container_id and matches and os.path.exists(f"{bundle}/config.json"):
                yield bundle


def _list_runtime_states() -> Iterator[tuple[str, str, int]]:
    """Yield (title, bundle, first process) of each container in the default state directories of runc and crun."""
    for directory in _expand_user_roots(RUNTIME_ROOTS):
        for path in _list_directories(directory):
            container_id = os.path.basename(path)
            state = _read_json(f"{path}/state.json")  # runc's
            labels = [text for text in get_list(state, "config", "labels") if isinstance(text, str)]
            bundle = next((text.partition("=")[2] for text in labels if text.startswith("bundle=")), "")
            pid = get_member(state, "init_process_pid")
            if not bundle:
                status = _read_json(f"{path}/status")  # crun's
                bundle, pid = get_text(status, "bundle"), get_member(status, "pid")
            if bundle.startswith("/") and isinstance(pid, int):
                yield f"container {container_id} of {os.path.basename(directory)}", bundle, pid


def _expand_user_roots(roots: Iterable[str]) -> Iterator[str]:
    for root in roots:
        before, star, after = root.partition("*")
        if not star:
            yield root
            continue
        for directory in _list_directories(before.rstrip("/")):
            yield directory + after


def _read_json(path: str) -> object:
    """Return the JSON document in a file; None if there is none."""
    text = _read_file(path)
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _read_file(path: str) -> str:
    try:
        return read_regular_file(path, _FILE_LIMIT).decode("utf-8", "surrogateescape")
    except (OSError, UnusableFileError):
        return ""
