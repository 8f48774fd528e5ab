"""Driver files: which go in, where they lie in the container, and what makes its loader find them; pure.

Cost rule: hot, no imports of the library.
"""

from __future__ import annotations

from gpu_oci_hook import state
from gpu_oci_hook.container import loader
from gpu_oci_hook.container.apply import generated_name
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats import SMALL
from gpu_oci_hook.plan import compat
from gpu_oci_hook.plan.edits import Directory, DropMount, Env, File, Link, Mount, Plan, Withheld
from gpu_oci_hook.plan.facts import needs
from gpu_oci_hook.plan.places import Places
from gpu_oci_hook.request import items, member
from gpu_oci_hook.request.capabilities import with_brought

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.inventory import DriverFile
    from gpu_oci_hook.plan.facts import Facts

# Mount options (design 5). The runtime resolves nothing more: every source and destination is absolute.
READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET = ("nosuid", "nodev", "noexec", "rbind", "rprivate")
# How the names of prepared directories begin.
LIBRARIES = "libraries-"

# What programs look for by its path in the image's own library directory.
_MAIN = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1")


def add(facts: Facts, plan: Plan, brought: dict[str, str]) -> None:
    """Puts the driver files of the request into the plan.

    Arguments:
        brought: see `capabilities.with_brought`.

    Raises:
        Fault: a file that a capability cannot work without is not there, or there is no place for it.
    """
    _required(facts, brought)
    files = _select(facts, plan, brought)
    ours = _our_mounts(facts)
    places = Places(facts.spec, facts.target, ours, writable=facts.image.writable)
    _libraries(facts, plan, places, [(file, why) for file, why in files if file.kind == "library"])
    others = [(file, why) for file, why in files if file.kind != "library"]
    _others(facts, plan, places, others + facts.extra.files)
    for path, target, why in facts.extra.links:
        _link(plan, places, path, target, why)
    wanted = {(edit.source, edit.destination) for edit in plan.edits if isinstance(edit, Mount)}
    plan.edits[:0] = [
        DropMount(source, destination, "left from another driver")
        for source, destination in ours
        if (source, destination) not in wanted
    ]


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
    return f"{file.soname} ({file.arch})" if file.arch in SMALL else file.soname


def _file_reason(
    file: DriverFile, chosen: tuple[str, ...], brought: dict[str, str], facts: Facts
) -> tuple[bool, str]:
    if file.kind in ("socket", "directory") and not facts.config.sockets:
        return False, "[inject] sockets is off"
    if file.kind == "firmware" and not facts.config.firmware:
        return False, "[inject] firmware is off"
    if file.arch in SMALL and "compat32" not in chosen:
        return False, "needs capability compat32"
    capability = file.capability
    if not capability:
        return True, "every GPU container needs it"
    if capability not in brought:
        return False, needs(capability)
    by = brought[capability]
    if by != capability and file.kind not in ("library", "config"):
        return False, f"{needs(capability)} ({by} brings its libraries only)"
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
        reason = verdict.reason if compute else needs("compute")
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
        small = file.arch in SMALL
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


def _link(plan: Plan, places: Places, path: str, target: str, why: str) -> None:
    if places.writable and places.cover(path) == "image":
        plan.edits.append(Link(path, target, why))
    else:
        plan.withheld.append(Withheld("link", path, "it would lie in another mount, or the root cannot be written"))


def _same_mount(spec: object, destination: str, source: str) -> bool:
    return any(
        member(mount, "destination") == destination and member(mount, "source") == source
        for mount in items(spec, "mounts")
    )
