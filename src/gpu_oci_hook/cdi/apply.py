"""Container edits of CDI files as edits of a plan, and those put into a config.json.

The rules are those of the reference library (container-device-interface, pkg/cdi/container-edits.go): the edits of
all devices are joined kind by kind and made once, in the order env, device nodes, network interfaces, mounts, hooks,
RDT, groups. Where this differs, on purpose, and why (the comparison with podman, tests/cdi/pairs.py, checks the list):

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

from gpu_oci_hook.cdi.edits import NetDevice, Node, Order, Placed, Rdt, Rule, TimedHook
from gpu_oci_hook.container.spec import list_under, object_under
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.oci import is_bind, items, member
from gpu_oci_hook.plan.devices import NODE, bound_and_ruled
from gpu_oci_hook.plan.edits import Edit, Env, Gid, Mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_oci_hook.cdi.registry import Part
    from gpu_oci_hook.host.root import Host

Object = dict[str, object]

# Types of mounts that are no file systems, and so mount nothing by themselves.
_BINDING = ("", "bind", "rbind", "none")
UNMADE = "has neither bind nor rbind in its options, so runtimes do not mount it and the container does not start"
ADD_RBIND = "Add rbind to its options"

# What a hook without an environment of its own gets.
HOOK_ENV = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",)

# File types of nodes, by the type of the inode.
_TYPES = {stat.S_IFBLK: "b", stat.S_IFCHR: "c", stat.S_IFIFO: "p"}


def edits(parts: list[Part], spec: object, host: Host, *, inside: bool) -> list[Edit]:
    """The edits of a plan for what CDI files say, in the library's order.

    Arguments:
        parts: what the files say, in the order in which it was asked for.
        spec: the config.json as parsed; not changed.
        host: where the files' paths lie.
        inside: this process runs in a user namespace.

    Raises:
        Fault: a node that is not there or has another type, or a hook without an absolute path; names the file.
    """
    made: list[Edit] = []
    for part, _, entry in _each(parts, "env"):
        name, _, value = str(entry).partition("=")
        made.append(Env(name, value, part.reason))
    bound, ruled = bound_and_ruled(spec, inside=inside)
    for part, where, entry in _each(parts, "deviceNodes"):
        made += _node(part, where, entry, spec, host, bound=bound, ruled=ruled)
    for part, _, entry in _each(parts, "netDevices"):
        made.append(NetDevice(_text(entry, "hostInterfaceName"), _text(entry, "name"), part.reason))
    mounted = False
    for part, where, entry in _each(parts, "mounts"):
        if is_unmade(entry):
            what = f"{_text(entry, 'containerPath')}, which {part.name} mounts, {UNMADE}"
            raise Fault(what, where=f"{part.path}: {where}", cure=ADD_RBIND)
        options = tuple(str(option) for option in items(entry, "options"))
        kind = _text(entry, "type")
        source = _text(entry, "hostPath")
        if is_bind(entry):
            source = real(host, source)
        made.append(Placed(source, _text(entry, "containerPath"), options, kind, part.reason))
        mounted = True
    if mounted:
        made.append(Order("CDI asks for it, so that no mount hides another one"))
    for part, where, entry in _each(parts, "hooks"):
        made.append(_hook(part, where, entry, host))
    rdt: Rdt | None = None
    for part in parts:
        values = member(part.edits, "intelRdt")
        if isinstance(values, dict):
            rdt = Rdt({key: value for key, value in values.items() if value}, part.reason)  # the last one wins
    if rdt is not None:
        made.append(rdt)
    for part, _, entry in _each(parts, "additionalGids"):
        if isinstance(entry, int) and entry:
            made.append(Gid(entry, part.reason))
    return made


def real(host: Host, path: str) -> str:
    """A path of a CDI file as a path in this process.

    A file that was made for a host below another directory may name that directory itself: engines that know
    nothing of it can use such a file.
    """
    if not host.prefix or path.startswith(host.prefix + "/"):
        return path
    return host.path(host.resolve(path) or path)


def below(host: Host, path: str) -> str:
    """A path of a CDI file as it is seen from the host's root; see `real`."""
    return path[len(host.prefix) :] if host.prefix and path.startswith(host.prefix + "/") else path


def is_unmade(mount: object) -> bool:
    """Whether a mount of a CDI file is meant to bind something and does not say so where runtimes look.

    Engines hand such a mount on as it is. Tried with runc 1.1.5 and crun 1.8.1, on a file and on a directory: without
    a type, and with the type bind or none, the container does not start ("no such device", "invalid mount type");
    with bind or rbind among the options it does, even with a type that no kernel has.
    """
    return not is_bind(mount) and _text(mount, "type") in _BINDING


def is_of_host(mount: object) -> bool:
    """Whether a mount of a CDI file names something of the host's, be it mounted or not."""
    return is_bind(mount) or is_unmade(mount)


def identified(node: object) -> bool:
    """Whether a device node of a CDI file says everything, so that the host need not have it."""
    kind = _text(node, "type")
    return bool(kind) and (bool(_number(node, "major")) or kind == "p")


def _each(parts: list[Part], key: str) -> Iterator[tuple[Part, str, object]]:
    """Each entry of a list in all parts, with its JSON path."""
    for part in parts:
        for place, entry in enumerate(items(part.edits, key)):
            yield part, f"{part.where}.{key}[{place}]", entry


def _text(entry: object, key: str) -> str:
    found = member(entry, key)
    return found if isinstance(found, str) else ""


def _number(entry: object, key: str) -> int:
    found = member(entry, key)
    return found if isinstance(found, int) else 0


def _optional(entry: object, key: str) -> int | None:
    found = member(entry, key)
    return found if isinstance(found, int) else None


def _node(
    part: Part, where: str, entry: object, spec: object, host: Host, *, bound: bool, ruled: bool
) -> Iterator[Edit]:
    path = _text(entry, "path")
    source = _text(entry, "hostPath") or path
    kind, mode = _text(entry, "type"), _optional(entry, "fileMode")
    major, minor = _number(entry, "major"), _number(entry, "minor")
    status = host.status(below(host, source), follow=False)
    found = _TYPES.get(stat.S_IFMT(status.st_mode), "") if status is not None else ""
    if status is None or not found:
        if bound or not identified(entry):
            what = "is missing on this host" if status is None else "is no device node on this host"
            raise Fault(f"{source}, which {part.name} needs, {what}", where=f"{part.path}: {where}")
    else:
        kind = kind or found
        if kind != found and (kind, found) != ("u", "c"):
            what = f'{source} is of type "{found}" on this host, and {part.name} says "{kind}"'
            raise Fault(what, where=f"{part.path}: {where}")
        if not major and kind != "p":
            major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
        if mode is None:
            mode = stat.S_IMODE(status.st_mode)
    if bound:
        why = f"{part.reason}; bound, since a user namespace cannot make nodes"
        yield Placed(real(host, source), path, NODE, "bind", why)
    else:
        # As the library does it: a node that says no owner belongs to the container's user.
        owner = [
            own if own is not None else _optional(member(spec, "process", "user"), key) or None
            for key, own in (("uid", _optional(entry, "uid")), ("gid", _optional(entry, "gid")))
        ]
        yield Node(path, kind, (major, minor), mode, (owner[0], owner[1]), part.reason)
    if ruled and kind in ("b", "c"):
        access = _text(entry, "permissions") or "rwm"
        if access != "none":
            yield Rule(kind, (major, minor), access, f"lets the container open {path}")


def _hook(part: Part, where: str, entry: object, host: Host) -> TimedHook:
    path, stage = _text(entry, "path"), _text(entry, "hookName")
    if not path.startswith("/"):
        raise Fault(f'"{path}" is no absolute path, and {part.name} has a hook there', where=f"{part.path}: {where}")
    if stage != "startContainer":  # that one is a program of the container's
        path = program(host, path)
    args = tuple(str(word) for word in items(entry, "args"))
    env = tuple(str(word) for word in items(entry, "env")) or HOOK_ENV
    return TimedHook(stage, path, args, env, _optional(entry, "timeout"), part.reason)


def program(host: Host, path: str) -> str:
    """A hook's program as a path in this process: the runtime runs it here, even for a host made of files."""
    inside = real(host, path)
    return inside if os.path.exists(inside) else path


def put(spec: Object, foreign: list[Edit]) -> None:
    """Makes edits that came from CDI files, in place; done again it changes nothing.

    Raises:
        Fault: the spec has something else than the OCI runtime specification says where an edit belongs.
    """
    asked: dict[str, int] = {}
    for edit in foreign:
        if isinstance(edit, Node):
            _put_node(spec, edit)
        elif isinstance(edit, Placed):
            _put_mount(spec, edit)
        elif isinstance(edit, Order):
            mounts = list_under(spec, "mounts")
            mounts.sort(key=_depth)
        elif isinstance(edit, TimedHook):
            hooks = list_under(object_under(spec, "hooks"), edit.stage)
            wanted = _hook_object(edit)
            key = f"{edit.stage} {wanted!r}"
            asked[key] = asked.get(key, 0) + 1
            if sum(1 for hook in hooks if _same_hook(hook, wanted)) < asked[key]:
                hooks.append(wanted)
        elif isinstance(edit, NetDevice):
            object_under(object_under(spec, "linux"), "netDevices")[edit.interface] = {"name": edit.name}
        elif isinstance(edit, Rdt):
            object_under(spec, "linux")["intelRdt"] = dict(edit.values)


def with_mounts(spec: Object, foreign: list[Edit]) -> Object:
    """A spec with the mounts of CDI files, for who only wants to know what is mounted; `spec` is not changed."""
    placed = [edit for edit in foreign if isinstance(edit, Placed)]
    mounts = spec.get("mounts")
    if not placed or (mounts is not None and not isinstance(mounts, list)):
        return spec
    seen = {**spec, "mounts": list(mounts or ())}
    for edit in placed:
        _put_mount(seen, edit)
    return seen


def made(spec: object, wanted: list[Edit]) -> bool:
    """Whether a spec has these edits already, whoever made them; the order of its mounts does not count.

    Groups, rules and RDT come beside others and are not looked at.
    """
    last: dict[object, Edit] = {}
    for place, edit in enumerate(wanted):  # of two edits of one thing the last is seen
        key: object = place
        if isinstance(edit, Node):
            key = edit.path
        elif isinstance(edit, Mount):
            key = "mount", edit.destination
        elif isinstance(edit, Env):
            key = "env", edit.name
        elif isinstance(edit, NetDevice):
            key = "interface", edit.interface
        last[key] = edit
    hooks: dict[str, int] = {}
    for edit in last.values():
        there = True
        if isinstance(edit, Node):
            # Libraries differ in the mode and the owner that they fill in.
            numbers = (edit.path, edit.type, edit.major, edit.minor)
            there = any(
                tuple(member(device, key) for key in ("path", "type", "major", "minor")) == numbers
                for device in items(spec, "linux", "devices")
            )
        elif isinstance(edit, Mount):
            there = any(
                member(mount, "destination") == edit.destination and member(mount, "source") == edit.source
                for mount in items(spec, "mounts")
            )
        elif isinstance(edit, TimedHook):
            found = _hook_object(edit)
            name = f"{edit.stage} {found!r}"
            hooks[name] = hooks.get(name, 0) + 1
            there = sum(1 for hook in items(spec, "hooks", edit.stage) if _same_hook(hook, found)) >= hooks[name]
        elif isinstance(edit, Env):
            there = f"{edit.name}={edit.value}" in items(spec, "process", "env")
        elif isinstance(edit, NetDevice):
            there = member(spec, "linux", "netDevices", edit.interface, "name") == edit.name
        if not there:
            return False
    return True


def _node_object(edit: Node) -> Object:
    wanted: Object = {"path": edit.path, "type": edit.type, "major": edit.major, "minor": edit.minor}
    for key, value in (("fileMode", edit.mode), ("uid", edit.uid), ("gid", edit.gid)):
        if value is not None:
            wanted[key] = value
    return wanted


def _put_node(spec: Object, edit: Node) -> None:
    devices = list_under(object_under(spec, "linux"), "devices")
    devices[:] = [device for device in devices if member(device, "path") != edit.path]
    devices.append(_node_object(edit))


def _put_mount(spec: Object, edit: Placed) -> None:
    mounts = list_under(spec, "mounts")
    for place, mount in enumerate(mounts):
        if member(mount, "destination") == edit.destination:
            del mounts[place]
            break
    wanted: Object = {"destination": edit.destination}
    if edit.type:
        wanted["type"] = edit.type
    wanted["source"] = edit.source
    if edit.options:
        wanted["options"] = list(edit.options)
    mounts.append(wanted)


def _depth(mount: object) -> int:
    """How many slashes the cleaned destination of a mount has (the library's measure: "/" has one, as "/m" has)."""
    destination = member(mount, "destination")
    if not isinstance(destination, str):
        return 0
    clean = os.path.normpath(destination)  # which keeps two slashes at the beginning
    return clean.count("/") - clean.startswith("//")


def _hook_object(edit: TimedHook) -> Object:
    wanted: Object = {"path": edit.path}
    if edit.args:
        wanted["args"] = list(edit.args)
    wanted["env"] = list(edit.env)
    if edit.timeout is not None:
        wanted["timeout"] = edit.timeout
    return wanted


def _same_hook(hook: object, wanted: Object) -> bool:
    """Whether a hook of the spec is the wanted one; an engine writes one without an environment as it is."""
    if not isinstance(hook, dict):
        return False
    return all((hook.get(key) or None) == wanted.get(key) for key in ("path", "args", "timeout")) and (
        hook.get("env") == wanted["env"] or (not hook.get("env") and wanted["env"] == list(HOOK_ENV))
    )
