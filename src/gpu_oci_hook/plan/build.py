"""From what is asked, what is there and what the image is like to the list of edits; pure.

Cost rule: hot, no imports of the library.
"""

from __future__ import annotations

from gpu_oci_hook import state
from gpu_oci_hook.container import loader
from gpu_oci_hook.container.apply import generated_name
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.plan import compat
from gpu_oci_hook.plan.edits import (
    DeviceNode,
    DeviceRule,
    Directory,
    DropHook,
    DropMount,
    Env,
    File,
    Gid,
    Hook,
    Link,
    Mount,
    Plan,
    Withheld,
)
from gpu_oci_hook.plan.places import Places
from gpu_oci_hook.request import items, member
from gpu_oci_hook.request.capabilities import with_brought

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config import Config
    from gpu_oci_hook.container.image import Image
    from gpu_oci_hook.host.inventory import DriverFile, Gpu, Inventory, Node
    from gpu_oci_hook.plan.places import Target
    from gpu_oci_hook.request import Request

# Mount options (design 5). The runtime resolves nothing more: every source and destination is absolute.
READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET = ("nosuid", "nodev", "noexec", "rbind", "rprivate")
NODE = ("nosuid", "noexec", "bind", "rprivate")

# How the names of prepared directories begin.
LIBRARIES = "libraries-"

# What programs look for by its path in the image's own library directory.
_MAIN = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1")

# Hooks that would inject a second time, by the name of their program.
_FOREIGN_PRESTART = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
_CDI_HOOKS = ("nvidia-cdi-hook", "nvidia-ctk")
_STAGES = ("prestart", "createRuntime", "createContainer", "startContainer")

MOUNT_PROGRAM = "/usr/bin/mount"
PARAMS = "/proc/driver/nvidia/params"


class Facts:
    """Everything that a plan is made from, gathered by `pipeline`.

    Attributes:
        spec: the config.json as parsed; not changed.
        request, config, inventory: see their classes.
        chosen: the GPUs that go in, each with the origin of the word that named it; `gpus` are all there are.
        nodes: (capability that it serves, node) of the control nodes; `gpu_nodes`: minor to node.
        absent_nodes: (capability, path, module) of control nodes whose module is not loaded.
        image, target: the container's root file system.
        rootfs: its absolute path in this process.
        generated: a directory in the bundle for files that are bind-mounted.
        prepared: a directory of ours for what containers share; the same as `generated` where we have none.
        inside: this process runs in a user namespace.
        params: the host's /proc/driver/nvidia/params, if containers will see that file; else None.
        mount_program: whether the host has MOUNT_PROGRAM.
        datacenter: all chosen GPUs are of the data-centre class.
    """

    __slots__ = (
        "absent_nodes",
        "chosen",
        "config",
        "datacenter",
        "generated",
        "gpu_nodes",
        "gpus",
        "image",
        "inside",
        "inventory",
        "mount_program",
        "nodes",
        "params",
        "prepared",
        "request",
        "rootfs",
        "spec",
        "target",
    )

    spec: dict[str, object]
    request: Request
    config: Config
    inventory: Inventory
    chosen: list[tuple[Gpu, str]]
    gpus: list[Gpu]
    nodes: list[tuple[str, Node]]
    gpu_nodes: dict[int, Node]
    absent_nodes: list[tuple[str, str, str]]
    image: Image
    target: Target
    rootfs: str
    generated: str
    prepared: str
    inside: bool
    params: bytes | None
    mount_program: bool
    datacenter: bool


def build(facts: Facts) -> Plan:
    """The plan for a container that asks for the driver.

    Raises:
        Fault: something that the request cannot do without is not there, by name.
    """
    plan = Plan()
    plan.warnings += facts.request.warnings
    for name, reason in facts.request.withheld:
        plan.withheld.append(Withheld("request", name, reason))
    brought = with_brought(facts.request.capabilities)
    _drop_hooks(facts, plan)
    _nodes(facts, plan, brought)
    _required(facts, brought)
    files = _select(facts, plan, brought)
    ours = _our_mounts(facts)
    places = Places(facts.spec, facts.target, ours, writable=facts.image.writable)
    _libraries(facts, plan, places, [(file, why) for file, why in files if file.kind == "library"])
    _others(facts, plan, places, [(file, why) for file, why in files if file.kind != "library"])
    _hide_params(facts, plan)
    wanted = {(edit.source, edit.destination) for edit in plan.edits if isinstance(edit, Mount)}
    plan.edits[:0] = [
        DropMount(source, destination, "left from another driver")
        for source, destination in ours
        if (source, destination) not in wanted
    ]
    return plan


def already_done(spec: object) -> str:
    """Who has injected into this spec already, through CDI; "" when nobody has."""
    for stage in _STAGES:
        for hook in items(spec, "hooks", stage):
            path = member(hook, "path")
            if isinstance(path, str) and path.rpartition("/")[2] in _CDI_HOOKS:
                return path
    return ""


def in_user_namespace(spec: object) -> bool:
    """Whether the container gets a user namespace, new or joined."""
    return any(member(namespace, "type") == "user" for namespace in items(spec, "linux", "namespaces"))


def _our_mounts(facts: Facts) -> list[tuple[str, str]]:
    """The mounts in the spec that an earlier run of ours has made: of generated files, of the libraries' directories
    and of what is in them.
    """
    found: list[tuple[str, str]] = []
    directories: list[str] = []
    for mount in items(facts.spec, "mounts"):
        source, destination = member(mount, "source"), member(mount, "destination")
        if not isinstance(source, str) or not isinstance(destination, str):
            continue
        if source.startswith((f"{facts.prepared}/{LIBRARIES}", f"{facts.generated}/{LIBRARIES}")):
            directories.append(destination + "/")
            found.append((source, destination))
        elif source.startswith(f"{facts.generated}/") or destination.startswith(tuple(directories)):
            found.append((source, destination))
    return found


def _drop_hooks(facts: Facts, plan: Plan) -> None:
    for stage in _STAGES[:2]:
        for hook in items(facts.spec, "hooks", stage):
            path = member(hook, "path")
            if not isinstance(path, str):
                continue
            name = path.rpartition("/")[2]
            ours = name == "gpu-oci-hook" and "prestart" in items(hook, "args")
            if name in _FOREIGN_PRESTART or ours:
                plan.edits.append(DropHook(stage, path, "it would inject a second time"))


def _nodes(facts: Facts, plan: Plan, brought: dict[str, str]) -> None:
    """Device nodes, their rules and groups.

    In a user namespace nothing can mknod: there the host's nodes are bound, and rules count only where the
    engine has some and can enforce them (docker's userns-remap yes, rootless podman no).
    """
    bound = facts.inside or in_user_namespace(facts.spec)
    rules = not facts.inside and (not bound or bool(items(facts.spec, "linux", "resources", "devices")))
    wanted: list[tuple[Node, str]] = []
    for gpu, origin in facts.chosen:
        wanted.append((facts.gpu_nodes[gpu.minor], f"GPU {gpu.index} ({gpu.uuid}): {origin}"))
    for capability, node in facts.nodes:
        why = _serves(capability, brought)
        if why:
            wanted.append((node, why))
        else:
            plan.withheld.append(Withheld("device", node.path, _needs(capability)))
    chosen = {gpu.index for gpu, _ in facts.chosen}
    for gpu in facts.gpus:
        if gpu.index not in chosen:
            name = f"/dev/nvidia{gpu.minor} (GPU {gpu.index}, {gpu.uuid})"
            plan.withheld.append(Withheld("device", name, "this GPU was not asked for"))
    for capability, path, module in facts.absent_nodes:
        if not _serves(capability, brought):
            plan.withheld.append(Withheld("device", path, _needs(capability)))
            continue
        reason = f"the kernel module {module.replace('-', '_')} is not loaded (no {module} in /proc/devices)"
        if capability == "display":
            plan.withheld.append(Withheld("device", path, reason))
            plan.warnings.append(f"{path} is not given: {reason}")
            continue
        raise Fault(
            f"{path} is required for {brought.get('compute', 'the driver')}, but {reason}",
            cure=f"Load it: modprobe {module.replace('-', '_')}, or nvidia-modprobe -u -c=0",
        )
    groups: list[int] = []
    for node, why in wanted:
        if not bound:
            plan.edits.append(
                DeviceNode(node.path, node.major, node.minor, node.mode, node.uid, node.gid, why)
            )
        elif node.exists:
            reason = f"{why}; bound, since a user namespace cannot make nodes"
            plan.edits.append(Mount(node.source, node.path, NODE, reason, make_way=False))
        else:
            raise Fault(
                f"{node.source} is missing, and in a user namespace a node cannot be made",
                cure="Make it on the host as root: nvidia-modprobe -u -c=0, or start nvidia-persistenced",
            )
        if rules:
            plan.edits.append(DeviceRule(node.major, node.minor, "rw", f"lets the container open {node.path}"))
        if node.gid and node.mode & 0o006 != 0o006 and node.gid not in groups:
            groups.append(node.gid)
            if not facts.inside:
                reason = f"{node.path} is for group {node.gid} (mode {node.mode:04o})"
                plan.edits.append(Gid(node.gid, reason))


def _serves(capability: str, brought: dict[str, str]) -> str:
    """Why a control node that serves a capability goes in; "" when it does not."""
    if not capability:
        return "every GPU container needs it"
    # The GL stack opens modeset as well, not a display alone (libnvidia-glsi does).
    for word in (capability, "graphics") if capability == "display" else (capability,):
        if word in brought:
            return f"capability {word}" + ("" if brought[word] == word else f", brought by {brought[word]}")
    return ""


def _needs(capability: str) -> str:
    return f"needs capability {capability}"


def _required(facts: Facts, brought: dict[str, str]) -> None:
    for capability, soname, why in facts.inventory.missing:
        if capability in brought:
            raise Fault(
                f"{soname} is required for capability {capability}, and the host has none that fits: {why}",
                where=f"driver {facts.inventory.version}",
                cure="Install the driver's libraries, or name their directory in [host] library-paths; "
                "gpu-oci-hook list shows every place that was looked at",
            )


def _select(facts: Facts, plan: Plan, brought: dict[str, str]) -> list[tuple[DriverFile, str]]:
    """The driver files that go in, each with its reason; the others are withheld with theirs."""
    chosen = facts.request.capabilities
    taken: dict[tuple[str, str], tuple[DriverFile, str]] = {}
    left: list[DriverFile] = []
    for file in facts.inventory.files:
        why = _file_reason(file, chosen, brought, facts)
        if why[0]:
            taken[file.soname or file.path, file.arch] = (file, why[1])
        else:
            left.append(file)
            if file.kind != "library":
                plan.withheld.append(Withheld(file.kind, file.container or file.name, why[1]))
    # What a chosen library needs from the driver comes along, whatever its own capability.
    libraries = {(file.soname, file.arch): file for file in left if file.kind == "library"}
    queue = [file for file, _ in taken.values() if file.needs]
    for file in queue:
        for soname in file.needs:
            needed = libraries.pop((soname, file.arch), None)
            if needed is not None:
                taken[soname, file.arch] = (needed, f"needed by {file.soname}")
                queue.append(needed)
    for file in libraries.values():
        reason = _file_reason(file, chosen, brought, facts)[1]
        plan.withheld.append(Withheld("library", _library_name(file), reason))
    return list(taken.values())


def _library_name(file: DriverFile) -> str:
    return f"{file.soname} ({file.arch})" if file.arch in ("i386", "armhf") else file.soname


def _file_reason(
    file: DriverFile, chosen: tuple[str, ...], brought: dict[str, str], facts: Facts
) -> tuple[bool, str]:
    if file.kind in ("socket", "directory") and not facts.config.sockets:
        return False, "[inject] sockets is off"
    if file.kind == "firmware" and not facts.config.firmware:
        return False, "[inject] firmware is off"
    if file.arch in ("i386", "armhf") and "compat32" not in chosen:
        return False, "needs capability compat32"
    capability = file.capability
    if not capability:
        return True, "every GPU container needs it"
    if capability not in brought:
        return False, _needs(capability)
    by = brought[capability]
    if by != capability and file.kind not in ("library", "config"):
        return False, f"{_needs(capability)} ({by} brings its libraries only)"
    return True, f"capability {capability}" + ("" if by == capability else f", brought by {by}")


def _libraries(facts: Facts, plan: Plan, places: Places, files: list[tuple[DriverFile, str]]) -> None:
    """Mounts of the libraries, the links beside them, and what makes the container's loader find them."""
    if not files:
        return
    if not places.libraries:
        raise Fault(
            "the container has no place for the driver's libraries: its root file system cannot be written, has "
            "no directory /usr/local/nvidia/lib64, and neither /run nor /dev is a tmpfs",
            where=facts.rootfs,
            cure="Mount a tmpfs on /run or make the root file system writable",
        )
    verdict = compat.decide(
        facts.image.compat, facts.inventory.version, facts.config.cuda_compat, datacenter=facts.datacenter
    )
    compute = "compute" in with_brought(facts.request.capabilities)
    if verdict.warning and compute:
        plan.warnings.append(verdict.warning)
    uses_compat = bool(verdict.directory) and compute
    if facts.image.compat and not uses_compat:
        reason = verdict.reason if compute else _needs("compute")
        plan.withheld.append(Withheld("compat", facts.image.compat[0][0], reason))
    found: list[tuple[str, str, str]] = []
    directories: list[str] = [verdict.directory] if uses_compat else []
    entries: dict[str, dict[str, str]] = {}
    mounts: list[Mount] = []
    links: list[Link] = []
    prepared = facts.prepared
    open_to_links = {
        own: places.writable and places.cover(own) == "image"
        for own in (facts.image.library_dir, facts.image.library_dir32)
    }
    for file, why in files:
        small = file.arch in ("i386", "armhf")
        directory = places.libraries32 if small else places.libraries
        own = facts.image.library_dir32 if small else facts.image.library_dir
        theirs = next((f"{own}/{name}" for name in (file.soname, file.name) if places.mounted(f"{own}/{name}")), "")
        if theirs:
            reason = f"the container has its own mount on {theirs}"
            plan.withheld.append(Withheld("library", _library_name(file), reason))
            found.append((file.soname, theirs, file.arch))
            # Whoever chooses a container's mounts could else fill /run with a directory for every choice.
            prepared = facts.generated
            continue
        inside = entries.setdefault(directory, {})
        inside[file.name] = ""
        mounts.append(Mount(file.source, f"{directory}/{file.name}", READ_ONLY, why, make_way=False))
        if file.soname != file.name:
            inside[file.soname] = file.name
        names = [file.soname]
        for name in file.links:
            if "/" in name:  # a plug-in, looked for in a subdirectory of the image's own library directory
                if open_to_links[own]:
                    target = f"{directory}/{file.soname}"
                    links.append(Link(f"{own}/{name}", target, "the name that it is loaded by"))
            else:
                inside[name] = file.soname
                names.append(name)
        for name in names:
            uses = uses_compat and not small and name in facts.image.compat_names
            found.append((name, f"{verdict.directory if uses else directory}/{name}", file.arch))
            link = _link_in_image(facts, own, name, directory, small=small) if open_to_links[own] else None
            if link is not None:
                links.append(link)
    for directory, inside in entries.items():
        if directory not in directories:
            directories.append(directory)
        content = tuple(inside.items())
        source = f"{prepared}/{LIBRARIES}{state.digest(repr(content).encode())}"
        reason = "a place for the driver's libraries, with their links"
        plan.edits.append(Directory(source, directory, content, reason))
        plan.edits.append(Mount(source, directory, READ_ONLY, reason, make_way=False))
    plan.edits += mounts
    plan.edits += links
    preferred = f"; the image's own libcuda comes first: {verdict.reason}" if uses_compat else ""
    _loader(facts, plan, places, found, directories, preferred)


def _link_in_image(facts: Facts, own: str, name: str, directory: str, *, small: bool) -> Link | None:
    """A link in the image's own library directory, where one is due.

    Programs that look for a file rather than ask the loader, and those with their own loader, expect the main
    libraries there. Any other name is touched only when a leftover of a committed GPU container has it: an
    empty file or a link would hide ours from whoever puts that directory into LD_LIBRARY_PATH.
    """
    path = f"{own}/{name}"
    if not small and name in _MAIN:
        return Link(path, f"{directory}/{name}", "where programs look for it that do not ask the loader")
    status = facts.target.status(path)
    if status is None:
        return None
    kind = status.st_mode & 0o170000
    if kind == 0o100000 and status.st_size > 0:
        return None
    return Link(path, f"{directory}/{name}", "the image has a leftover there")


def _loader(
    facts: Facts,
    plan: Plan,
    places: Places,
    found: list[tuple[str, str, str]],
    directories: list[str],
    preferred: str,
) -> None:
    result = loader.files(facts.image, found, directories)
    plan.warnings += result.notes
    reason = f"lets the container's loader find the libraries{preferred}"
    fallback = result.environment
    for path, content in result.files:
        if places.cover(path) == "image" and places.writable:
            needed = path.endswith((".cache", ".path"))
            plan.edits.append(File(path, content, reason, optional=not needed))
            continue
        destination, why = places.mount_point(path)
        if destination and places.cover(path) == "image":
            plan.edits.append(File(path, content, reason, mounted=True))
            source = f"{facts.generated}/{generated_name(path)}"
            plan.edits.append(Mount(source, destination, READ_ONLY, reason, make_way=False))
        else:
            fallback = fallback or path.endswith((".cache", ".path"))
            plan.withheld.append(Withheld("file", path, why or f"{path} lies in another mount"))
    if fallback:
        own = facts.request.environment.get("LD_LIBRARY_PATH", "")
        wanted = [directory for directory in directories if directory not in own.split(":")]
        if wanted:
            value = ":".join([*wanted, own] if own else wanted)
            plan.edits.append(
                Env("LD_LIBRARY_PATH", value, "the loader's cache in the image cannot be written; this stands in")
            )


def _others(facts: Facts, plan: Plan, places: Places, files: list[tuple[DriverFile, str]]) -> None:
    """Programs, sockets, firmware and configuration: each optional, each at its fixed place."""
    for file, why in files:
        if not file.container:
            continue
        destination, reason = places.mount_point(file.container, follow=file.kind == "directory")
        if destination and places.mounted(destination) and not _same_mount(facts.spec, destination, file.source):
            destination, reason = "", f"the container has its own mount on {file.container}"
        if not destination:
            plan.withheld.append(Withheld(file.kind, file.container, reason))
            continue
        options = SOCKET if file.kind in ("socket", "directory") else READ_ONLY
        make_way = places.writable and places.covered(destination) == "image"
        plan.edits.append(
            Mount(file.source, destination, options, why, make_way=make_way and file.kind != "directory")
        )


def _same_mount(spec: object, destination: str, source: str) -> bool:
    return any(
        member(mount, "destination") == destination and member(mount, "source") == source
        for mount in items(spec, "mounts")
    )


def _hide_params(facts: Facts, plan: Plan) -> None:
    """`ModifyDeviceFiles: 0` in the container's view, when it has not every GPU.

    Else NVIDIA's libraries in the container try to make the missing nodes. runc refuses mounts below /proc in
    a spec, so a hook binds a file there; below a procfs of the container's, which no image can redirect.
    """
    if len(facts.chosen) == len(facts.gpus) or facts.params is None:
        return
    text = b"".join(
        b"ModifyDeviceFiles: 0\n" if line.startswith(b"ModifyDeviceFiles:") else line
        for line in facts.params.splitlines(keepends=True)
    )
    if text == facts.params:
        return
    name = "ModifyDeviceFiles: 0"
    if not facts.config.hide_device_files:
        reason = "[inject] hide-device-files is off in the configuration"
        plan.withheld.append(Withheld("file", f"{PARAMS} ({name})", reason))
        return
    proc = any(
        member(mount, "destination") == "/proc"
        and member(mount, "type") == "proc"
        and "subset=pid" not in items(mount, "options")  # it has no drivers' files
        for mount in items(facts.spec, "mounts")
    )
    what = ""
    if not proc:
        what = "the container has no procfs on /proc that shows it"
    elif not facts.mount_program:
        what = f"the host has no {MOUNT_PROGRAM}"
    elif member(facts.spec, "linux", "rootfsPropagation") in ("shared", "rshared"):
        what = "the container shares its mounts with the host, which would then see it too"
    if what:
        plan.withheld.append(Withheld("file", f"{PARAMS} ({name})", what))
        return
    # Read-only, or the container's root could fill the host's /run through it. In a user namespace the file
    # belongs to nobody there, and a remount would have to repeat flags that we cannot know.
    how = () if facts.inside or in_user_namespace(facts.spec) else ("-o", "ro,nosuid,nodev,noexec")
    source = f"{facts.generated}/{generated_name(PARAMS)}"
    plan.edits.append(File(PARAMS, text, f"{name}: not every GPU was asked for", mounted=True))
    plan.edits.append(
        Hook(
            "createContainer",
            MOUNT_PROGRAM,
            ("mount", "--bind", *how, source, facts.rootfs + PARAMS),
            ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",),
            f"shows {name} to the driver's libraries, which else make nodes of other GPUs",
        )
    )
