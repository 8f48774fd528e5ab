"""Translate the container edits of CDI files to edits of a plan.

The rules are those of the reference library (container-device-interface, pkg/cdi/container-edits.go): the edits of all
devices are merged kind by kind and applied once, in the order env, device nodes, network interfaces, mounts, hooks,
RDT, groups. Deliberate differences, which the comparison with podman (tests/support/e2e/podman_pairs.py) checks:

- A variable is replaced in place. The library up to 1.1.0 appends it again, and some readers take the first entry.
- A device rule that the container already has, and that no later rule revokes, is not added again. The same holds for a
  hook that it has as often as the files have it. So nothing changes if an engine has applied the edits already, or on
  a second attempt.
- Mounts of equal depth keep their order (the library up to 0.5 sorts them by name).
- A node without a mode in the file gets the host's mode (the library up to 0.5 leaves it out).
- In a user namespace nodes are bind mounts of the host's nodes, and rules are written only where they are enforced, as
  in a plan of our own.
- A hook without an environment gets a PATH: runc up to 1.2 runs such a hook with the image's environment
  (CVE-2025-23266). A hook without an absolute path is refused.
- Sources, nodes and programs must exist and match this driver and kernel: see `registry.staleness`.
- A mount that no runtime mounts is refused with its location: see `spec.mount_options`.
- Type "u" is the same device as type "c" on the host, so the two match.

Import budget: CDI.
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook.cdi.spec.mount_options import ADD_RBIND_HINT, MISSING_BIND_TEXT, is_missing_bind_option
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.oci import get_int, get_list, get_member, get_optional_int, get_text, is_bind_mount
from gpu_oci_hook.model.cdi_edits import (
    AddCdiDeviceNode,
    AddCdiDeviceRule,
    AddCdiHook,
    AddCdiMount,
    AddNetDevice,
    SetIntelRdt,
    SortMounts,
)
from gpu_oci_hook.model.edits import DEFAULT_HOOK_ENV, AddGroup, Edit, SetEnvVariable
from gpu_oci_hook.plan.devices import NODE_MOUNT_OPTIONS, decide_node_binding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_oci_hook.cdi.resolved_edits import ResolvedEdits
    from gpu_oci_hook.host.root import Host


# Types of device nodes by the file type of the inode.
_NODE_TYPES = {stat.S_IFBLK: "b", stat.S_IFCHR: "c", stat.S_IFIFO: "p"}


def translate_cdi_edits(
    parts: list[ResolvedEdits], spec: object, host: Host, *, process_in_user_namespace: bool
) -> list[Edit]:
    """Translate CDI edits to edits of a plan, in the reference library's order.

    Arguments:
        parts: the edits of the files, in the order of the request.
        spec: the parsed config.json; not changed.
        host: the host that the paths in the files belong to.
        process_in_user_namespace: whether this process runs in a user namespace.

    Raises:
        Fault: a node is missing or has another type, a hook has no absolute path, or no runtime can mount a mount;
            names the file.
    """
    edits: list[Edit] = []
    for part, _, entry in _iterate_entries(parts, "env"):
        name, _, value = str(entry).partition("=")
        edits.append(SetEnvVariable(name, value, part.reason))
    bind_mounted, needs_rules = decide_node_binding(spec, process_in_user_namespace=process_in_user_namespace)
    for part, json_path, entry in _iterate_entries(parts, "deviceNodes"):
        edits += _translate_node(part, json_path, entry, spec, host, bind_mounted=bind_mounted, needs_rules=needs_rules)
    for part, _, entry in _iterate_entries(parts, "netDevices"):
        edits.append(AddNetDevice(get_text(entry, "hostInterfaceName"), get_text(entry, "name"), part.reason))
    mounts = [
        _translate_mount(part, json_path, entry, host) for part, json_path, entry in _iterate_entries(parts, "mounts")
    ]
    if mounts:
        edits += [*mounts, SortMounts("the CDI specification requires it, so that no mount hides another")]
    for part, json_path, entry in _iterate_entries(parts, "hooks"):
        edits.append(_translate_hook(part, json_path, entry, host))
    edits += _translate_intel_rdt(parts)
    for part, _, entry in _iterate_entries(parts, "additionalGids"):
        if isinstance(entry, int) and entry:
            edits.append(AddGroup(entry, part.reason))
    return edits


def prepend_host_root(host: Host, path: str) -> str:
    """Return a path of a CDI file as a path in this process.

    A file for a host below another directory may have that directory in its paths, so that engines, which do not know
    about the directory, can use it.
    """
    if not host.prefix or path.startswith(host.prefix + "/"):
        return path
    return host.full_path(host.resolve_path(path) or path)


def strip_host_root(host: Host, path: str) -> str:
    """Return a path of a CDI file as a path from the host's root; see `prepend_host_root`."""
    return path[len(host.prefix) :] if host.prefix and path.startswith(host.prefix + "/") else path


def is_fully_specified_node(node: object) -> bool:
    """Tell whether a device node of a CDI file has type and numbers, so that the host need not have the node."""
    node_type = get_text(node, "type")
    return bool(node_type) and (bool(get_int(node, "major")) or node_type == "p")


def _iterate_entries(parts: list[ResolvedEdits], key: str) -> Iterator[tuple[ResolvedEdits, str, object]]:
    """Iterate over the entries of a list in all parts, with their JSON paths."""
    for part in parts:
        for index, entry in enumerate(get_list(part.edits, key)):
            yield part, f"{part.where}.{key}[{index}]", entry


def _translate_mount(part: ResolvedEdits, json_path: str, entry: object, host: Host) -> AddCdiMount:
    container_path = get_text(entry, "containerPath")
    if is_missing_bind_option(entry):
        what = f"{container_path}, which {part.name} mounts, {MISSING_BIND_TEXT}"
        raise Fault(what, where=f"{part.path}: {json_path}", hint=ADD_RBIND_HINT)
    options = tuple(str(option) for option in get_list(entry, "options"))
    source = get_text(entry, "hostPath")
    if is_bind_mount(entry):
        source = prepend_host_root(host, source)
    return AddCdiMount(source, container_path, options, get_text(entry, "type"), part.reason)


def _translate_intel_rdt(parts: list[ResolvedEdits]) -> list[Edit]:
    """Translate the last `intelRdt` object, which wins."""
    for part in reversed(parts):
        values = get_member(part.edits, "intelRdt")
        if isinstance(values, dict):
            return [SetIntelRdt({key: value for key, value in values.items() if value}, part.reason)]
    return []


def _translate_node(
    part: ResolvedEdits,
    json_path: str,
    entry: object,
    spec: object,
    host: Host,
    *,
    bind_mounted: bool,
    needs_rules: bool,
) -> Iterator[Edit]:
    path = get_text(entry, "path")
    source = get_text(entry, "hostPath") or path
    node_type, mode = get_text(entry, "type"), get_optional_int(entry, "fileMode")
    major, minor = get_int(entry, "major"), get_int(entry, "minor")
    status = host.stat_path(strip_host_root(host, source), follow=False)
    host_type = _NODE_TYPES.get(stat.S_IFMT(status.st_mode), "") if status is not None else ""
    if status is None or not host_type:
        if bind_mounted or not is_fully_specified_node(entry):
            problem = "is missing on this host" if status is None else "is not a device node on this host"
            raise Fault(f"{source}, which {part.name} needs, {problem}", where=f"{part.path}: {json_path}")
    else:
        node_type = node_type or host_type
        if node_type != host_type and (node_type, host_type) != ("u", "c"):
            what = f'{source} is of type "{host_type}" on this host, and {part.name} expects "{node_type}"'
            raise Fault(what, where=f"{part.path}: {json_path}")
        if not major and node_type != "p":
            major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
        if mode is None:
            mode = stat.S_IMODE(status.st_mode)
    if bind_mounted:
        reason = f"{part.reason}; bind mounted, since device nodes cannot be created in a user namespace"
        yield AddCdiMount(prepend_host_root(host, source), path, NODE_MOUNT_OPTIONS, "bind", reason)
    else:
        owner = (_get_node_owner(entry, spec, "uid"), _get_node_owner(entry, spec, "gid"))
        yield AddCdiDeviceNode(path, node_type, (major, minor), mode, owner, part.reason)
    if needs_rules and node_type in ("b", "c"):
        access = get_text(entry, "permissions") or "rwm"
        if access != "none":
            yield AddCdiDeviceRule(node_type, (major, minor), access, f"lets the container open {path}")


def _get_node_owner(entry: object, spec: object, key: str) -> int | None:
    """Return the uid or gid of a node; one without an owner belongs to the container's user, as in the library."""
    owner = get_optional_int(entry, key)
    return owner if owner is not None else get_optional_int(get_member(spec, "process", "user"), key) or None


def _translate_hook(part: ResolvedEdits, json_path: str, entry: object, host: Host) -> AddCdiHook:
    path, stage = get_text(entry, "path"), get_text(entry, "hookName")
    if not path.startswith("/"):
        what = f'"{path}" is not an absolute path, and {part.name} has it as a hook'
        raise Fault(what, where=f"{part.path}: {json_path}")
    if stage != "startContainer":  # that program is the container's
        path = resolve_hook_program(host, path)
    args = tuple(str(argument) for argument in get_list(entry, "args"))
    env = tuple(str(variable) for variable in get_list(entry, "env")) or DEFAULT_HOOK_ENV
    return AddCdiHook(stage, path, args, env, get_optional_int(entry, "timeout"), part.reason)


def resolve_hook_program(host: Host, path: str) -> str:
    """Return the path of a hook's program in this process, where the runtime runs it, even for a simulated host."""
    path_below_root = prepend_host_root(host, path)
    return path_below_root if os.path.exists(path_below_root) else path
