"""Libraries that stay at the path that they have on the host: where they look for each other by it (WSL, Jetson).

Cost rule: imported only on such machines.
"""

from __future__ import annotations

from gpu_oci_hook.container.loader import MAIN
from gpu_oci_hook.formats import SMALL
from gpu_oci_hook.plan.edits import Link, Mount, Plan, Withheld
from gpu_oci_hook.plan.files import READ_ONLY, same_mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.inventory import DriverFile
    from gpu_oci_hook.plan.facts import Facts
    from gpu_oci_hook.plan.places import Places


def add(
    facts: Facts, plan: Plan, places: Places, files: list[tuple[DriverFile, str]]
) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Mounts of the libraries, and the links that the loader and programs ask for.

    Returns:
        (SONAME, path, architecture) for the loader's cache, and the directories for its other files.
    """
    found: list[tuple[str, str, str]] = []
    directories: dict[str, None] = {}
    trees = tuple([f"{file.container}/" for file in facts.inventory.files if file.kind == "tree"])
    named = {file.container for file in facts.inventory.files} | {path for path, _, _ in facts.extra.links}
    for file, why in files:
        above, _, name = file.container.rpartition("/")
        whole = file.container.startswith(trees) if trees else False
        if not whole and not _mount(facts, plan, places, file, why):
            continue
        own = facts.image.library_dir32 if file.arch in SMALL else facts.image.library_dir
        if above not in (own, "/usr/lib", "/lib"):  # there the loader looks anyway
            directories[above] = None
        for alias in (file.soname, *file.links):
            found.append((alias, file.container, file.arch))
            wanted = [] if whole or alias == name else [(f"{above}/{alias}", name)]
            if alias in MAIN and file.arch not in SMALL and above != own:
                wanted.append((f"{own}/{alias}", file.container))
            for path, target in wanted:
                if path in named:
                    continue
                named.add(path)
                if places.writable and places.cover(path) == "image":
                    plan.edits.append(Link(path, target, "the name that it is loaded by"))
                else:
                    reason = "it would lie in another mount, or the root cannot be written"
                    plan.withheld.append(Withheld("link", path, reason))
    return found, list(directories)


def _mount(facts: Facts, plan: Plan, places: Places, file: DriverFile, why: str) -> bool:
    destination, reason = places.mount_point(file.container)
    if destination and places.mounted(destination) and not same_mount(facts.spec, destination, file.source):
        destination, reason = "", f"the container has its own mount on {file.container}"
    if not destination:
        plan.withheld.append(Withheld("library", file.container, reason))
        return False
    make_way = places.writable and places.covered(destination) == "image"
    plan.edits.append(Mount(file.source, destination, READ_ONLY, why, make_way=make_way))
    return True
