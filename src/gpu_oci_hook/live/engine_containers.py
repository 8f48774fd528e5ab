"""List and find the containers of engines in the process table and in the engines' files, without their daemons.

Only for a name that they do not show, the engine's own command is asked.

Import budget: cold.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from typing import cast

from gpu_oci_hook.errors import Fault, clip_text
from gpu_oci_hook.formats.oci import get_list, get_text
from gpu_oci_hook.live.engine_queries import query_docker_container_id, query_podman_bundle
from gpu_oci_hook.live.found_container import (
    FoundContainer,
    collect_containers,
    list_directories,
    read_json_file,
    read_pid_file,
)
from gpu_oci_hook.live.monitors import CONMON, Monitor, is_docker_namespace, list_ancestors, list_monitors
from gpu_oci_hook.live.user_claims import collect_user_claims

CONTAINERD_STATE = "/run/containerd/io.containerd.runtime.v2.task"
DOCKER_CONTAINERS = "/var/lib/docker/containers"
PODMAN_STORAGE = "/var/lib/containers/storage"
USER_PODMAN_STORAGE = "~/.local/share/containers/storage"

_OwnedBundle = tuple[str, Monitor | None]  # with its shim, or one beside it


def list_engine_containers() -> list[FoundContainer]:
    """List the running containers of all engines that this user may look at."""
    return [
        container
        for uid, monitors in group_by_user(list_monitors()).items()
        for container in collect_containers(uid, partial(_list_containers_of, monitors))
    ]


def group_by_user(monitors: Iterable[Monitor]) -> dict[int, list[Monitor]]:
    """Return monitors by their user."""
    groups: dict[int, list[Monitor]] = {}
    for monitor in monitors:
        groups.setdefault(monitor.uid, []).append(monitor)
    return groups


def _list_containers_of(monitors: list[Monitor]) -> list[FoundContainer]:
    """List the running containers of monitors."""
    found: list[FoundContainer] = []
    # A namespace's bundles lie side by side. Each belongs to the shim that is an ancestor of its first process.
    bundles: dict[tuple[str, str], dict[int, list[str]]] = {}
    for monitor in monitors:
        if not monitor.namespace:
            found.append(describe_container(monitor, monitor.bundle))
            continue
        root, directory = monitor.root, os.path.dirname(monitor.bundle)
        if (root, directory) not in bundles:
            bundles[root, directory] = _list_bundles_by_ancestor(directory, root)
        found += [describe_container(monitor, bundle) for bundle in bundles[root, directory].get(monitor.pid, ())]
    return found


def _list_bundles_by_ancestor(directory: str, root: str) -> dict[int, list[str]]:
    """Return the bundles in a directory by each ancestor of their first process."""
    bundles: dict[int, list[str]] = {}
    for bundle in list_bundles(directory, root):
        for ancestor in list_ancestors(read_pid_file(f"{root}{bundle}/init.pid")):
            bundles.setdefault(ancestor, []).append(bundle)
    return bundles


def describe_container(monitor: Monitor, bundle: str) -> FoundContainer:
    """Return the container of a monitor with a bundle, which for a pod's shim is one of several."""
    init_pid = read_init_pid(monitor, bundle)
    if not monitor.namespace:
        short_id = monitor.container_id[:12]
        name = monitor.name or short_id
        title = f"container {monitor.name} ({short_id}) of {CONMON} {monitor.pid}, running"
        reference = f"{monitor.engine}:{monitor.container_id[:12] if monitor.engine == 'crio' else name}"
        names = (monitor.name, monitor.container_id)
        return FoundContainer(title, bundle, monitor.pid, init_pid, reference, names, monitor.uid)
    container_id = os.path.basename(bundle)
    if is_docker_namespace(monitor.namespace):
        name = read_docker_name(monitor, bundle, container_id) or container_id
        title = f"docker container {name} ({container_id[:12]}), running"
        return FoundContainer(title, bundle, monitor.pid, init_pid, f"docker:{name}", (name, container_id), monitor.uid)
    reference = f"containerd:{monitor.namespace}/{container_id}"
    title = f"containerd container {monitor.namespace}/{container_id}, running"
    return FoundContainer(title, bundle, monitor.pid, init_pid, reference, (container_id,), monitor.uid)


def read_init_pid(monitor: Monitor, bundle: str) -> int:
    """Return the number of a container's first process; 0 if it is unknown.

    containerd's shim writes it into the bundle, conmon into a file that its command line names. Either process adopts
    it, so a number that another process has by now, or that a user has made up, is recognised.
    """
    path = f"{bundle}/init.pid" if monitor.namespace else monitor.pid_file
    pid = read_pid_file(monitor.root + path) if path else 0
    return pid if monitor.pid in list_ancestors(pid) else 0


def find_docker_container(name: str) -> FoundContainer:
    """Return docker's container with a name or the beginning of an id.

    Raises:
        Fault: there is no such container, or several.
    """
    shims = [monitor for monitor in list_monitors() if is_docker_namespace(monitor.namespace)]
    names = _read_docker_names(shims)
    matching = _select_monitors(shims, name, names)
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
            else suggest_running(names.values(), "No container of docker runs on this machine"),
        )
    monitor = _pick_single(matching, f"docker:{name}")
    shown = names[monitor.pid] or name
    title = f"docker container {shown} ({monitor.container_id[:12]}), running"
    init_pid = read_init_pid(monitor, monitor.bundle)
    return FoundContainer(title, monitor.bundle, monitor.pid, init_pid, f"docker:{shown}", (shown,), monitor.uid)


def find_podman_container(name: str) -> FoundContainer:
    """Return podman's container with a name or the beginning of an id, which may be stopped.

    Raises:
        Fault: there is no such container, or several.
    """
    conmons = [monitor for monitor in list_monitors() if monitor.engine == "podman"]
    matching = _select_monitors(conmons, name, {conmon.pid: conmon.name for conmon in conmons})
    if matching:
        monitor = _pick_single(matching, f"podman:{name}")
        title = f"podman container {monitor.name} ({monitor.container_id[:12]}), running"
        init_pid = read_init_pid(monitor, monitor.bundle)
        reference, names = f"podman:{monitor.name}", (monitor.name,)
        return FoundContainer(title, monitor.bundle, monitor.pid, init_pid, reference, names, monitor.uid)
    storages = [PODMAN_STORAGE, os.path.expanduser(USER_PODMAN_STORAGE)]
    bundle = next((bundle for storage in storages for bundle in _find_podman_bundles(storage, name)), "")
    bundle = bundle or query_podman_bundle(name)
    if not bundle:
        raise Fault(
            f"podman has no such container: no running {CONMON} names it, nor {' nor '.join(storages)}, nor podman",
            where=f"podman:{name}",
            hint=suggest_running([conmon.name for conmon in conmons], "No container of podman runs on this machine"),
        )
    return FoundContainer(f"podman container {name}, not running", bundle, 0)


def find_crio_container(name: str) -> FoundContainer:
    """Return the running container of CRI-O with a name or the beginning of an id.

    Raises:
        Fault: there is no such container, or several.
    """
    conmons = [monitor for monitor in list_monitors() if monitor.engine == "crio"]
    matching = _select_monitors(conmons, name, {conmon.pid: conmon.name for conmon in conmons})
    if not matching:
        raise Fault(
            f"CRI-O runs no such container: no running {CONMON} names it",
            where=f"crio:{name}",
            hint=suggest_running([m.container_id[:13] for m in conmons], "Give an id that `crictl ps` prints"),
        )
    monitor = _pick_single(matching, f"crio:{name}")
    title = f"CRI-O container {monitor.name} ({monitor.container_id[:13]}), running"
    init_pid = read_init_pid(monitor, monitor.bundle)
    reference, names = f"crio:{monitor.container_id[:13]}", (monitor.name,)
    return FoundContainer(title, monitor.bundle, monitor.pid, init_pid, reference, names, monitor.uid)


def find_containerd_container(name: str) -> FoundContainer:
    """Return containerd's container with an id, or its beginning, in one namespace or in any.

    Raises:
        Fault: there is no such container, or several.
    """
    namespace, _, container_id = name.rpartition("/")
    own, others = _list_containerd_bundles(namespace)
    # A user can show a bundle at any path, in a mount namespace of his.
    matching = _match_bundles(own, container_id) or _match_bundles(others, container_id)
    where = f"containerd:{name}"
    if not matching:
        found = [_name_bundle(bundle) for bundle, _ in [*own, *others]]
        raise Fault(
            f"containerd runs no such container, neither below {CONTAINERD_STATE} nor beside a running shim's bundle",
            where=where,
            hint=suggest_running(found, "Give NAMESPACE/ID as `ctr -n NAMESPACE task list` prints it"),
        )
    if len(matching) > 1:
        paths = ", ".join(bundle for bundle, _ in matching[:9])
        raise Fault(f"{len(matching)} containers match", where=where, hint=f"Give more of one: {paths}")
    bundle, owner = matching[0]
    identity = _name_bundle(bundle)
    title, reference = f"containerd container {identity}, running", f"containerd:{identity}"
    if owner is None:
        return FoundContainer(title, bundle, 0, read_pid_file(f"{bundle}/init.pid"), reference)
    init_pid = read_init_pid(owner, bundle)
    return FoundContainer(title, bundle, owner.pid, init_pid, reference, (), owner.uid)


def _list_containerd_bundles(namespace: str) -> tuple[list[_OwnedBundle], list[_OwnedBundle]]:
    """List the bundles of containerd with their shims: those of this process's user and of the machine, and others'.

    Arguments:
        namespace: of containerd; "" for all.
    """
    monitors = [m for m in list_monitors() if m.namespace and (not namespace or m.namespace == namespace)]
    own: list[_OwnedBundle] = []
    others: list[_OwnedBundle] = []
    for uid, group in group_by_user(monitors).items():
        shims = {monitor.pid: monitor for monitor in group}
        for pid, bundle in collect_user_claims(uid, partial(_list_bundles_beside, group)):
            (own if uid == os.geteuid() else others).append((str(bundle), shims[cast("int", pid)]))
    known = {bundle for bundle, _ in own}
    for directory in list_directories(CONTAINERD_STATE):
        if not namespace or os.path.basename(directory) == namespace:
            own += [(bundle, None) for bundle in list_bundles(directory) if bundle not in known]
    return own, others


def _list_bundles_beside(shims: list[Monitor]) -> list[tuple[int, str]]:
    """List the bundles in the directories of shims' bundles, each once, with the number of a shim that sees it."""
    found: list[tuple[int, str]] = []
    known: set[tuple[str, str]] = set()
    for shim in shims:
        place = (shim.root, os.path.dirname(shim.bundle))
        if place not in known:
            known.add(place)
            found += [(shim.pid, bundle) for bundle in list_bundles(place[1], place[0])]
    return found


def _match_bundles(bundles: list[_OwnedBundle], container_id: str) -> list[_OwnedBundle]:
    """Return the bundles of a container's id, or else of ids that begin so."""
    exact = [entry for entry in bundles if os.path.basename(entry[0]) == container_id]
    return exact or [entry for entry in bundles if container_id and os.path.basename(entry[0]).startswith(container_id)]


def _name_bundle(bundle: str) -> str:
    return f"{os.path.basename(os.path.dirname(bundle))}/{os.path.basename(bundle)}"


def suggest_running(names: Iterable[str], otherwise: str) -> str:
    """Return a hint that lists the running containers, or why none is known."""
    known = ", ".join(sorted(filter(None, names)))
    if known:
        return f"Running: {clip_text(known, 1000)}"
    return "Run this as root: this user may not look at other users' containers" if os.geteuid() != 0 else otherwise


def _read_docker_names(shims: list[Monitor]) -> dict[int, str]:
    """Return the names of docker's containers by the numbers of their shims; "" for one that has none."""
    names = {shim.pid: "" for shim in shims}
    for uid, own in group_by_user(shims).items():
        rows = collect_user_claims(uid, partial(_list_docker_names, own))
        names |= {cast("int", pid): str(name) for pid, name in rows}
    return names


def _list_docker_names(shims: list[Monitor]) -> list[tuple[int, str]]:
    return [(shim.pid, read_docker_name(shim, shim.bundle, shim.container_id)) for shim in shims]


def _select_monitors(monitors: list[Monitor], name: str, names: dict[int, str]) -> list[Monitor]:
    """Return the monitors whose container has a name, or else an id that begins so.

    This process's own user's come first: another user can call a container of his as he likes.
    """
    own = [monitor for monitor in monitors if monitor.uid == os.geteuid()]
    for group in (own, monitors):
        matching = [m for m in group if names[m.pid] == name] or [m for m in group if m.container_id.startswith(name)]
        if matching:
            return matching
    return []


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


def list_bundles(directory: str, root: str = "") -> list[str]:
    """List the bundles in a directory.

    Arguments:
        root: a directory before its path, and not before the paths that are returned; see `Monitor.root`.
    """
    paths = [path for path in list_directories(root + directory) if os.path.exists(f"{path}/config.json")]
    return [path.removeprefix(root) for path in paths]


def read_docker_name(shim: Monitor, bundle: str, container_id: str) -> str:
    """Return the name of a running container of docker: its mounts lead to docker's own file about it."""
    for mount in get_list(read_json_file(f"{shim.root}{bundle}/config.json"), "mounts"):
        directory = os.path.dirname(get_text(mount, "source"))
        if directory.endswith(f"/containers/{container_id}"):
            return get_text(read_json_file(f"{shim.root}{directory}/config.v2.json"), "Name").removeprefix("/")
    return get_text(read_json_file(f"{DOCKER_CONTAINERS}/{container_id}/config.v2.json"), "Name").removeprefix("/")


def _find_stopped_docker_container(name: str) -> str:
    """Return the name of a container that docker knows by this name or id; "" without one."""
    for directory in list_directories(DOCKER_CONTAINERS):
        own_name = get_text(read_json_file(f"{directory}/config.v2.json"), "Name").removeprefix("/")
        if own_name and (own_name == name or os.path.basename(directory).startswith(name)):
            return own_name
    return ""


def _find_podman_bundles(storage: str, name: str) -> Iterator[str]:
    """Yield the bundles of containers with this name, or an id that begins so, in a storage of podman."""
    for driver in list_directories(storage):
        if not driver.endswith("-containers"):
            continue
        containers = read_json_file(f"{driver}/containers.json")
        for container in containers if isinstance(containers, list) else ():
            container_id, bundle = get_text(container, "id"), f"{driver}/{get_text(container, 'id')}/userdata"
            matches = name in get_list(container, "names") or container_id.startswith(name)
            if container_id and matches and os.path.exists(f"{bundle}/config.json"):
                yield bundle
