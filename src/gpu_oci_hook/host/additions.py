"""What the administrator adds and removes: `[[inject.extra]]` and `[inject] remove` of the configuration.

Each addition is looked at anew on every start, so that what is mounted is what is there. Cost rule: imported only
where the configuration has one of these keys; an added library is read then, once per start.
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook.errors import Fault, words
from gpu_oci_hook.formats import ARCHITECTURES, SMALL
from gpu_oci_hook.host.inventory import DriverFile, Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config import Config
    from gpu_oci_hook.host.extra import Extra
    from gpu_oci_hook.host.inventory import Inventory
    from gpu_oci_hook.host.root import Host

# How `mode & S_IFMT` must be, and what to say when it is not.
_KINDS = {
    "file": (stat.S_IFREG, "no regular file"),
    "library": (stat.S_IFREG, "no regular file"),
    "directory": (stat.S_IFDIR, "no directory"),
    "socket": (stat.S_IFSOCK, "no socket"),
    "device": (stat.S_IFCHR, "no character device"),
}


def arches(host: Host) -> tuple[str, ...]:
    """The architectures whose libraries this machine's programs load."""
    machine = ARCHITECTURES.get(host.machine)
    return (machine.name, machine.small) if machine else (host.machine,)


def add(extra: Extra, host: Host, config: Config, brought: dict[str, str]) -> None:
    """Puts the configured files among the extras, or among what is withheld with the reason.

    Arguments:
        brought: every capability that the container gets, with the one that brings it; see `with_brought`.

    Raises:
        Fault: one that is required is not there.
    """
    for number, (path, container, capability, kind, required) in enumerate(config.extra):
        origin = f"[[inject.extra]] {number + 1} of {config.path or 'the configuration'}"
        place = container or path
        if capability and capability not in brought:
            extra.withheld.append((kind, place, f"needs capability {capability} ({origin})"))
            continue
        file, node, why = look(host, path, place, capability, kind)
        if not why and file is not None and file.arch in SMALL and "compat32" not in brought:
            extra.withheld.append((kind, place, f"needs capability compat32 ({origin})"))
            continue
        if why:
            if required:
                raise Fault(
                    f"{host.path(path)} is required, and {why}",
                    where=origin,
                    cure="Put it there, correct its path, or take required = true away",
                )
            extra.withheld.append((kind, place, f"{origin}: {host.path(path)}: {why}"))
            extra.warnings.append(f"{place} is not given: {host.path(path)}: {why} ({origin})")
            continue
        reason = f"{origin}: " + (f"capability {capability}" if capability else "every GPU container")
        if node is not None:
            extra.nodes.append((node, reason))
        elif file is not None:
            extra.files.append((file, reason))


def remove(extra: Extra, config: Config, inventory: Inventory) -> None:
    """Marks the driver's files that `[inject] remove` names; a pattern that hits nothing is a warning."""
    for pattern in config.remove:
        capability, colon, names = pattern.partition(":")
        if not colon:
            capability, names = "", pattern
        hits = [
            file
            for file in inventory.files
            if (not capability or capability in (file.capability, "compat32" if file.arch in SMALL else ""))
            and any(matches(name, names) for name in (file.soname, file.name, file.container) if name)
        ]
        origin = f'[inject] remove = "{pattern}" of {config.path or "the configuration"}'
        for file in hits:
            extra.refused.setdefault(file.source, origin)
            if file.required:
                extra.warnings.append(
                    f"{file.soname} is removed, and {file.capability} cannot work without it: {origin}"
                )
        if not hits:
            extra.warnings.append(f"{origin} names nothing that this driver has")


def matches(name: str, pattern: str) -> bool:
    """Whether a name fits a pattern in which * stands for anything; in one pass, without `fnmatch`."""
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    last = rest.pop()
    if not name.startswith(first):
        return False
    at = len(first)
    for part in rest:
        found = name.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return name.endswith(last) and len(name) - len(last) >= at


def look(host: Host, path: str, place: str, capability: str, kind: str) -> tuple[DriverFile | None, Node | None, str]:
    """What is at a path of the host, as a file or a node; or why it cannot be given."""
    real = host.resolve(path)
    status = host.status(real, follow=False) if real is not None else None
    if real is None or status is None:
        return None, None, "it is missing"
    wanted, wrong = _KINDS[kind]
    if stat.S_IFMT(status.st_mode) != wanted:
        return None, None, f"it is {wrong}"
    source = host.path(real)
    if kind == "device":
        node = Node(
            path=place,
            major=os.major(status.st_rdev),
            minor=os.minor(status.st_rdev),
            mode=stat.S_IMODE(status.st_mode) & 0o777,
            uid=status.st_uid,
            gid=status.st_gid,
            exists=True,
            source=source,
        )
        return None, node, ""
    soname, glibc, arch = "", "", ""
    needed: tuple[str, ...] = ()
    if kind == "library":
        from gpu_oci_hook.formats import elf

        try:
            fd = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            return None, None, words(error)
        try:
            library = elf.read(fd)
        except Fault as fault:
            return None, None, fault.what
        finally:
            os.close(fd)
        soname, needed, arch, glibc = library.soname, library.needed, library.arch, library.glibc
        if arch not in arches(host):
            return None, None, f"it is for {arch or 'another kind of machine'}"
    own, asked = real.rpartition("/")[2], path.rpartition("/")[2]
    file = DriverFile(
        kind={"file": "config", "directory": "tree"}.get(kind, kind),
        capability=capability,
        path=real,
        source=source,
        name=own,
        soname=(soname or asked) if kind == "library" else "",
        needs=needed,
        glibc=glibc,
        links=(asked,) if kind == "library" and asked not in (own, soname) else (),
        arch=arch,
        container="" if kind == "library" else place,
        found=path,
    )
    return file, None, ""
