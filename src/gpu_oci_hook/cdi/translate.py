"""Container edits of CDI files as edits of a plan, and those put into a config.json.

The rules are those of the reference library (container-device-interface, pkg/cdi/container-edits.go): the edits of
all devices are joined kind by kind and made once, in the order env, device nodes, network interfaces, mounts, hooks,
RDT, groups. Where this differs, on purpose, and why (the comparison with podman, tests/support/e2e/podman_pairs.py, checks the list):

- A variable is replaced where it stands (the library up to 1.1.0 adds it again): the first entry would else be
  what some readers take.
- A device rule that the container has already, and no later rule takes back, is not written again; nor is a hook
  that it has as often as the files ask for it. So an engine that has made the same edits, or a second try, changes
  nothing.
- Mounts of one depth stay in their order (the library up to 0.5 sorts them by name).
- The mode of a node that the file does not give comes from the host's (the library up to 0.5 leaves it out).
- In a user namespace nodes are bind mounts of the host's, and rules are written only where somebody enforces them:
  the same as in a plan of our own.
- A hook without an environment gets a PATH: runc up to 1.2 hands such a one the image's environment
  (CVE-2025-23266). One without an absolute path is refused.
- Sources, nodes and programs must be there, and belong to this driver and kernel: see `stale`.
- A mount that no runtime makes is refused with its place: see `is_unmade`.
- Type "u" is the same device as type "c" on the host, so the two are no mismatch.

Cost rule: hot where a CDI file is used; `os` and `stat` alone.
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook.cdi.spec.mount_options import ADD_RBIND_HINT, MISSING_BIND_TEXT, is_missing_bind_option
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.oci import _get_int, _get_optional_int, _get_text, get_list, get_member, is_bind_mount
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


# File types of nodes, by the type of the inode.
_NODE_TYPES = {stat.S_IFBLK: "b", stat.S_IFCHR: "c", stat.S_IFIFO: "p"}


def translate_cdi_edits(
    parts: list[ResolvedEdits], spec: object, host: Host, *, process_in_user_namespace: bool
) -> list[Edit]:
    """The edits of a plan for what CDI files say, in the library's order.

    Arguments:
        parts: what the files say, in the order in which it was asked for.
        spec: the config.json as parsed; not changed.
        host: where the files' paths lie.
        process_in_user_namespace: this process runs in a user namespace.

    Raises:
        Fault: a node that is not there or has another type, or a hook without an absolute path; names the file.
    """
    made: list[Edit] = []
    for part, _, entry in _iterate_entries(parts, "env"):
        name, _, value = str(entry).partition("=")
        made.append(SetEnvVariable(name, value, part.reason))
    bound, ruled = decide_node_binding(spec, process_in_user_namespace=process_in_user_namespace)
    for part, where, entry in _iterate_entries(parts, "deviceNodes"):
        made += _translate_node(part, where, entry, spec, host, bind_mounted=bound, needs_rules=ruled)
    for part, _, entry in _iterate_entries(parts, "netDevices"):
        made.append(AddNetDevice(_get_text(entry, "hostInterfaceName"), _get_text(entry, "name"), part.reason))
    mounted = False
    for part, where, entry in _iterate_entries(parts, "mounts"):
        if is_missing_bind_option(entry):
            what = f"{_get_text(entry, 'containerPath')}, which {part.name} mounts, {MISSING_BIND_TEXT}"
            raise Fault(what, where=f"{part.path}: {where}", hint=ADD_RBIND_HINT)
        options = tuple(str(option) for option in get_list(entry, "options"))
        kind = _get_text(entry, "type")
        source = _get_text(entry, "hostPath")
        if is_bind_mount(entry):
            source = prepend_host_root(host, source)
        made.append(AddCdiMount(source, _get_text(entry, "containerPath"), options, kind, part.reason))
        mounted = True
    if mounted:
        made.append(SortMounts("CDI asks for it, so that no mount hides another one"))
    for part, where, entry in _iterate_entries(parts, "hooks"):
        made.append(_translate_hook(part, where, entry, host))
    rdt: SetIntelRdt | None = None
    for part in parts:
        values = get_member(part.edits, "intelRdt")
        if isinstance(values, dict):
            rdt = SetIntelRdt({key: value for key, value in values.items() if value}, part.reason)  # the last one wins
    if rdt is not None:
        made.append(rdt)
    for part, _, entry in _iterate_entries(parts, "additionalGids"):
        if isinstance(entry, int) and entry:
            made.append(AddGroup(entry, part.reason))
    return made


def prepend_host_root(host: Host, path: str) -> str:
    """A path of a CDI file as a path in this process.

    A file that was made for a host below another directory may name that directory itself: engines that know
    nothing of it can use such a file.
    """
    if not host.prefix or path.startswith(host.prefix + "/"):
        return path
    return host.full_path(host.resolve_path(path) or path)


def strip_host_root(host: Host, path: str) -> str:
    """A path of a CDI file as it is seen from the host's root; see `prepend_host_root`."""
    return path[len(host.prefix) :] if host.prefix and path.startswith(host.prefix + "/") else path


def is_fully_specified_node(node: object) -> bool:
    """Whether a device node of a CDI file says everything, so that the host need not have it."""
    kind = _get_text(node, "type")
    return bool(kind) and (bool(_get_int(node, "major")) or kind == "p")


def _iterate_entries(parts: list[ResolvedEdits], key: str) -> Iterator[tuple[ResolvedEdits, str, object]]:
    """Each entry of a list in all parts, with its JSON path."""
    for part in parts:
        for place, entry in enumerate(get_list(part.edits, key)):
            yield part, f"{part.where}.{key}[{place}]", entry


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
    path = _get_text(entry, "path")
    source = _get_text(entry, "hostPath") or path
    kind, mode = _get_text(entry, "type"), _get_optional_int(entry, "fileMode")
    major, minor = _get_int(entry, "major"), _get_int(entry, "minor")
    status = host.stat_path(strip_host_root(host, source), follow=False)
    found = _NODE_TYPES.get(stat.S_IFMT(status.st_mode), "") if status is not None else ""
    if status is None or not found:
        if bind_mounted or not is_fully_specified_node(entry):
            what = "is missing on this host" if status is None else "is no device node on this host"
            raise Fault(f"{source}, which {part.name} needs, {what}", where=f"{part.path}: {json_path}")
    else:
        kind = kind or found
        if kind != found and (kind, found) != ("u", "c"):
            what = f'{source} is of type "{found}" on this host, and {part.name} says "{kind}"'
            raise Fault(what, where=f"{part.path}: {json_path}")
        if not major and kind != "p":
            major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
        if mode is None:
            mode = stat.S_IMODE(status.st_mode)
    if bind_mounted:
        why = f"{part.reason}; bound, since a user namespace cannot make nodes"
        yield AddCdiMount(prepend_host_root(host, source), path, NODE_MOUNT_OPTIONS, "bind", why)
    else:
        # As the library does it: a node that says no owner belongs to the container's user.
        owner = [
            own if own is not None else _get_optional_int(get_member(spec, "process", "user"), key) or None
            for key, own in (("uid", _get_optional_int(entry, "uid")), ("gid", _get_optional_int(entry, "gid")))
        ]
        yield AddCdiDeviceNode(path, kind, (major, minor), mode, (owner[0], owner[1]), part.reason)
    if needs_rules and kind in ("b", "c"):
        access = _get_text(entry, "permissions") or "rwm"
        if access != "none":
            yield AddCdiDeviceRule(kind, (major, minor), access, f"lets the container open {path}")


def _translate_hook(part: ResolvedEdits, json_path: str, entry: object, host: Host) -> AddCdiHook:
    path, stage = _get_text(entry, "path"), _get_text(entry, "hookName")
    if not path.startswith("/"):
        raise Fault(
            f'"{path}" is no absolute path, and {part.name} has a hook there', where=f"{part.path}: {json_path}"
        )
    if stage != "startContainer":  # that one is a program of the container's
        path = resolve_hook_program(host, path)
    args = tuple(str(word) for word in get_list(entry, "args"))
    env = tuple(str(word) for word in get_list(entry, "env")) or DEFAULT_HOOK_ENV
    return AddCdiHook(stage, path, args, env, _get_optional_int(entry, "timeout"), part.reason)


def resolve_hook_program(host: Host, path: str) -> str:
    """A hook's program as a path in this process: the runtime runs it here, even for a host made of files."""
    inside = prepend_host_root(host, path)
    return inside if os.path.exists(inside) else path
