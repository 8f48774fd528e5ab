"""Driver files: which go in, where they lie in the container, and what makes its loader find them; pure.

Cost rule: hot, no imports of the library.
"""

from __future__ import annotations

from gpu_oci_hook import state
from gpu_oci_hook.container import loader
from gpu_oci_hook.container.apply import generated_name
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats import SMALL
from gpu_oci_hook.formats.oci import items, member
from gpu_oci_hook.plan.edits import Directory, DropMount, Env, File, Link, Mount, Plan, Withheld
from gpu_oci_hook.plan.facts import needs
from gpu_oci_hook.plan.places import Places
from gpu_oci_hook.request.capabilities import with_brought

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.inventory import DriverFile
    from gpu_oci_hook.plan.facts import Facts

# Mount options (design 5). The runtime resolves nothing more: every source and destination is absolute.
READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET = ("nosuid", "nodev", "noexec", "rbind", "rprivate")
# Kinds of files that are directories: a daemon's, one that is read-only, and one in the place of /dev/shm.
DIRECTORIES = ("directory", "tree", "shm")
# How the names of prepared directories begin.
LIBRARIES = "libraries-"
LINKS = "links-"

# Where X servers have their modules: Debian's and Arch's, and Fedora's.
_MODULES, _MODULES64 = "/usr/lib/xorg/modules", "/usr/lib64/xorg/modules"


def add(facts: Facts, plan: Plan, brought: dict[str, str]) -> None:
    """Puts the driver files of the request into the plan.

    Arguments:
        brought: see `capabilities.with_brought`.

    Raises:
        Fault: a file that a capability cannot work without is not there, or there is no place for it.
    """
    _required(facts, brought)
    files = _select(facts, plan, brought) + facts.extra.files
    ours = _our_mounts(facts)
    places = Places(facts.spec, facts.target, ours, writable=facts.image.writable)
    libraries = [(file, why) for file, why in files if file.kind == "library"]
    _libraries(facts, plan, places, libraries)
    others = [(file, why) for file, why in files if file.kind != "library"]
    _others(facts, plan, places, others)
    there = {file.container for file, _ in others}
    plan.warnings += [
        f"{name} needs {soname}, not found on host"
        for container, name, soname in facts.inventory.incomplete
        if container in there
    ]
    by_path = [file for file, _ in others if file.kind == "config" and any("/" in name for name in file.needs)]
    if by_path or facts.extra.links or facts.extra.texts:
        from gpu_oci_hook.plan import extras

        extras.astray(facts, plan, places, by_path, [file for file, _ in libraries])
        extras.texts(facts, plan, places)
        extras.links(facts, plan, places)
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
    prefixes = tuple([f"{top}/{kind}" for top in (facts.prepared, facts.generated) for kind in (LIBRARIES, LINKS)])
    for mount in items(facts.spec, "mounts"):
        source, destination = member(mount, "source"), member(mount, "destination")
        if not isinstance(source, str) or not isinstance(destination, str):
            continue
        if source.startswith(prefixes):
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
                cure="Install the driver's libraries, or set [host] driver-root or library-paths to where they are; "
                "gpu-oci-hook list shows every place that was looked at",
            )


def _select(facts: Facts, plan: Plan, brought: dict[str, str]) -> list[tuple[DriverFile, str]]:
    """The driver files that go in, each with its reason; the others are withheld with theirs."""
    chosen = facts.request.capabilities
    taken: dict[tuple[str, str], tuple[DriverFile, str]] = {}
    left: list[DriverFile] = []
    for file in facts.inventory.files:
        refused = facts.extra.refused.get(file.source)
        if refused:
            name = _library_name(file) if file.kind == "library" else file.container or file.name
            plan.withheld.append(Withheld(file.kind, name, refused))
            continue
        why = _file_reason(file, chosen, brought, facts)
        if why[0]:
            taken[file.container or file.soname or file.path, file.arch] = (file, why[1])
        else:
            left.append(file)
            if file.kind != "library":
                plan.withheld.append(Withheld(file.kind, file.container or file.name, why[1]))
    # What a chosen library needs from the driver comes along, whatever its own capability.
    libraries = {(file.soname, file.arch): file for file in left if file.kind == "library"}
    queue = [file for file, _ in taken.values() if file.needs]
    for file in queue:
        for soname in file.needs:
            soname = soname.rpartition("/")[2]  # a manifest may name its library by a path
            needed = libraries.pop((soname, file.arch), None)
            if needed is not None:
                taken[soname, file.arch] = (needed, f"needed by {file.soname or file.name}")
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
        listed = file.found.partition(".csv:")[1]  # of a Jetson, where a list decides
        return True, f"listed in {file.found}" if listed else "every GPU container needs it"
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
    fixed = [(file, why) for file, why in files if file.container]
    if fixed:
        files = [(file, why) for file, why in files if not file.container]
    if files and not places.libraries:
        raise Fault(
            "the container has no place for the driver's libraries: its root file system cannot be written, has "
            "no directory /usr/local/nvidia/lib64, and neither /run nor /dev is a tmpfs",
            where=facts.rootfs,
            cure="Mount a tmpfs on /run or make the root file system writable",
        )
    preferred, preference = _compat(facts, plan) if facts.image.compat else ("", "")
    found: list[tuple[str, str, str]] = []
    directories: list[str] = [preferred] if preferred else []
    entries: dict[str, dict[str, str]] = {}
    mounts: list[Mount] = []
    plugins: dict[str, list[Link]] = {}
    prepared = facts.prepared
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
                link = Link(f"{own}/{name}", f"{directory}/{file.soname}", "the name that it is loaded by")
                plugins.setdefault(own, []).append(link)
            else:
                inside[name] = file.soname
                names.append(name)
        for name in names:
            uses = bool(preferred) and not small and name in facts.image.compat_names
            found.append((name, f"{preferred if uses else directory}/{name}", file.arch))
    for directory, inside in entries.items():
        if directory not in directories:
            directories.append(directory)
        content = tuple(inside.items())
        source = f"{prepared}/{LIBRARIES}{state.digest(repr(content).encode())}"
        reason = "a place for the driver's libraries, with their links"
        plan.edits.append(Directory(source, directory, content, reason))
        plan.edits.append(Mount(source, directory, READ_ONLY, reason, make_way=False))
    plan.edits += mounts
    # Where a machine has no 32-bit sister the two are one directory, and the 64-bit libraries' one counts.
    for own, directory in {
        facts.image.library_dir32: places.libraries32,
        facts.image.library_dir: places.libraries,
    }.items():
        mine = plugins.get(own, [])
        if places.writable and places.cover(own) == "image":
            plan.edits += _links_in_image(facts, own, directory, entries.get(directory, {}), mine)
        else:
            reason = f"{own} lies in another mount, or cannot be written"
            plan.withheld += [Withheld("link", link.path, reason) for link in mine]
    if fixed:
        from gpu_oci_hook.plan import fixed as fixed_places

        names_there, more = fixed_places.add(facts, plan, places, fixed)
        for name, path, arch in names_there:
            uses = bool(preferred) and arch not in SMALL and name in facts.image.compat_names
            found.append((name, f"{preferred}/{name}" if uses else path, arch))
        directories += more
    _loader(facts, plan, places, found, directories, preference)


def _compat(facts: Facts, plan: Plan) -> tuple[str, str]:
    """The directory of the image's compat libraries where they come first, and the words for it; else ("", "")."""
    from gpu_oci_hook.plan import compat  # few images have any

    verdict = compat.decide(
        facts.image.compat, facts.inventory.version, facts.config.cuda_compat, datacenter=facts.datacenter
    )
    compute = "compute" in with_brought(facts.request.capabilities)
    if verdict.warning and compute:
        plan.warnings.append(verdict.warning)
    if verdict.directory and compute:
        return verdict.directory, f"; the image's own libcuda comes first: {verdict.reason}"
    reason = verdict.reason if compute else needs("compute")
    plan.withheld.append(Withheld("compat", facts.image.compat[0][0], reason))
    return "", ""


def _links_in_image(
    facts: Facts, own: str, directory: str, names: dict[str, str], plugins: list[Link]
) -> list[Link]:
    """The links in one of the image's own library directories, see `loader.beside`.

    An image without a directory for 32-bit libraries has no program that would load a plug-in from there.
    """
    main = own == facts.image.library_dir
    found = loader.beside(names, facts.target.statuses(own, names), main=main)
    links = [Link(f"{own}/{name}", f"{directory}/{name}", reason) for name, reason in found]
    if main or facts.target.status(own) is not None:
        links += plugins
    return links


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
        needed = path.endswith((".cache", ".path"))
        why = generated(facts, plan, places, path, content, reason, optional=not needed)
        if why:
            fallback = fallback or needed
            plan.withheld.append(Withheld("file", path, why))
    if fallback:
        own = facts.request.environment.get("LD_LIBRARY_PATH", "")
        wanted = [directory for directory in directories if directory not in own.split(":")]
        if wanted:
            value = ":".join([*wanted, own] if own else wanted)
            plan.edits.append(
                Env("LD_LIBRARY_PATH", value, "the loader's cache in the image cannot be written; this stands in")
            )


def generated(
    facts: Facts, plan: Plan, places: Places, path: str, content: bytes, reason: str, *, optional: bool
) -> str:
    """A file that is written below the root, or in the bundle and mounted; why it is neither, "" when it is one."""
    if places.cover(path) == "image" and places.writable:
        plan.edits.append(File(path, content, reason, optional=optional))
        return ""
    destination, why = places.mount_point(path)
    if destination and places.cover(path) == "image":
        plan.edits.append(File(path, content, reason, mounted=True))
        source = f"{facts.generated}/{generated_name(path)}"
        plan.edits.append(Mount(source, destination, READ_ONLY, reason, make_way=False))
        return ""
    return why or f"{path} lies in another mount"


def _others(facts: Facts, plan: Plan, places: Places, files: list[tuple[DriverFile, str]]) -> None:
    """Programs, sockets, firmware and configuration: each optional, each at its fixed place.

    An image's links can bring two of them to one place, or one below another, where the runtime would fail.
    """
    taken = {edit.destination for edit in plan.edits if isinstance(edit, Mount)}
    above = {place for destination in taken for place in _above(destination)}
    for file, why in files:
        if not file.container:
            continue
        directory = file.kind in DIRECTORIES
        destination, reason = places.mount_point(_place(facts, file), follow=directory)
        own = bool(destination) and places.mounted(destination)
        if own and not same_mount(facts.spec, destination, file.source):
            if file.kind == "shm":
                plan.edits += _replaced(facts.spec, destination, why)
            else:
                destination, reason = "", f"the container has its own mount on {file.container}"
        way = _above(destination)
        if destination in taken or destination in above or not taken.isdisjoint(way):
            destination, reason = "", f"links of the image bring it to the place of another driver file, {destination}"
        if not destination:
            plan.withheld.append(Withheld(file.kind, file.container, reason))
            continue
        taken.add(destination)
        above.update(way)
        options = SOCKET if file.kind in ("socket", "directory", "shm") else READ_ONLY
        make_way = places.writable and places.covered(destination) == "image" and not directory
        plan.edits.append(Mount(file.source, destination, options, why, make_way=make_way))


def _above(path: str) -> list[str]:
    """The directories above a path, the root left out."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(2, len(parts))]


def _place(facts: Facts, file: DriverFile) -> str:
    """Where a file goes. An X server has its modules in its distribution's library directory."""
    if file.container.startswith(_MODULES) and facts.target.status(_MODULES64, follow=True) is not None:
        return _MODULES64 + file.container[len(_MODULES) :]
    return file.container


def same_mount(spec: object, destination: str, source: str) -> bool:
    """Whether the spec mounts this very source there."""
    return any(
        member(mount, "destination") == destination and member(mount, "source") == source
        for mount in items(spec, "mounts")
    )


def _replaced(spec: object, destination: str, why: str) -> list[DropMount]:
    """The engine's own mounts on a place that is somebody else's by configuration."""
    found = [(member(mount, "source"), member(mount, "destination")) for mount in items(spec, "mounts")]
    return [
        DropMount(source, place, f"{why} takes its place")
        for source, place in found
        if isinstance(source, str) and isinstance(place, str) and place.rstrip("/") == destination
    ]
