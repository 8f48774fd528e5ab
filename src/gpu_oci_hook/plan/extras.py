"""Links and generated files beside the driver's own, and manifests that name a library by its path; pure.

Cost rule: imported only where there is one of these.
"""

from __future__ import annotations

from gpu_oci_hook import state
from gpu_oci_hook.formats import SMALL
from gpu_oci_hook.plan.edits import DeviceNode, Directory, Link, Mount, Plan, Withheld
from gpu_oci_hook.plan.files import LINKS, READ_ONLY, generated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.inventory import DriverFile
    from gpu_oci_hook.plan.facts import Facts
    from gpu_oci_hook.plan.places import Places


def links(facts: Facts, plan: Plan, places: Places) -> None:
    """The links of the extras.

    What lies below a tmpfs of the container's cannot be written before it is mounted: there the directory that has
    the links is one of ours, mounted as a whole. Real links, so that their text tells the node's name as on a host.
    """
    groups: dict[str, list[tuple[str, str]]] = {}
    reasons: dict[str, str] = {}
    for path, target, why in facts.extra.links:
        if places.writable and places.cover(path) == "image":
            plan.edits.append(Link(path, target, why))
        else:
            directory, _, name = path.rpartition("/")
            groups.setdefault(directory, []).append((name, target))
            reasons.setdefault(directory, why)
    for directory, entries in groups.items():
        place, reason = places.mount_point(directory, follow=True)
        if place and places.mounted(place):
            reason = f"the container has its own mount on {directory}"
        elif place and places.covered(place) != "fresh":
            reason = "the root file system cannot be written"
        elif place and _inside(plan, place):
            reason = f"{directory} has other things of this container in it"
        if reason:
            plan.withheld += [Withheld("link", f"{directory}/{name}", reason) for name, _ in entries]
            continue
        content = tuple(sorted(entries))
        source = f"{facts.prepared}/{LINKS}{state.digest(repr(content).encode())}"
        why = reasons[directory] if len(entries) == 1 else "names by path of the nodes"
        plan.edits.append(Directory(source, place, content, why))
        plan.edits.append(Mount(source, place, READ_ONLY, why, make_way=False))


def _inside(plan: Plan, directory: str) -> bool:
    """Whether the runtime has to make something in a directory that would be read-only."""
    made = [edit.path for edit in plan.edits if isinstance(edit, DeviceNode)]
    made += [edit.destination for edit in plan.edits if isinstance(edit, Mount)]
    return any(path.startswith(f"{directory}/") for path in made)


def texts(facts: Facts, plan: Plan, places: Places) -> None:
    """The generated files of the extras; each is optional."""
    for path, content, why, always in facts.extra.texts:
        if not always and (places.cover(path) != "image" or facts.target.status(path) is None):
            continue
        reason = generated(facts, plan, places, path, content, why, optional=True)
        if reason:
            plan.withheld.append(Withheld("file", path, reason))


def astray(
    facts: Facts, plan: Plan, places: Places, manifests: list[DriverFile], libraries: list[DriverFile]
) -> None:
    """Manifests that name a library by a path of the host's: a link there leads to where it lies in the container.

    A path that does not begin with a slash but has one is meant from the manifest's directory (Vulkan-Loader).
    """
    known = {(library.soname, library.arch): library for library in libraries}
    for manifest in manifests:
        for path in manifest.needs:
            name = path.rpartition("/")[2]
            if "/" not in path or (name, manifest.arch) not in known:
                continue
            wanted = path if path.startswith("/") else f"{manifest.container.rpartition('/')[0]}/{path}"
            wanted = _tidy(wanted)
            place = f"{places.libraries32 if manifest.arch in SMALL else places.libraries}/{name}"
            if wanted == place:
                continue
            text = f"{manifest.name} names {path}, but in the container that library lies at {place}"
            status = facts.target.status(wanted)
            free = status is None or status.st_mode & 0o170000 == 0o120000 or status.st_size == 0
            if free and places.writable and places.cover(wanted) == "image":
                plan.edits.append(Link(wanted, place, f"{manifest.name} names the library so"))
                text += "; a link leads there"
            plan.warnings.append(text)


def _tidy(path: str) -> str:
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)
