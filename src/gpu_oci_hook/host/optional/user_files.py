"""What the administrator adds and removes: `[[inject.extra]]` and `[inject] remove` of the configuration.

Each addition is looked at anew on every start, so that what is mounted is what is there. Cost rule: imported only
where the configuration has one of these keys; an added library is read then, once per start.
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.read_regular import UnusableFileError, open_regular_file
from gpu_oci_hook.formats.architectures import ARCHITECTURES, ARCHITECTURES_32BIT
from gpu_oci_hook.host.device_nodes import make_existing_node
from gpu_oci_hook.model.machine import DeviceNode, DriverFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.machine import Inventory
    from gpu_oci_hook.model.optional_devices import OptionalItems

# How `mode & S_IFMT` must be, and what to say when it is not.
_FILE_TYPES = {
    "file": (stat.S_IFREG, "no regular file"),
    "library": (stat.S_IFREG, "no regular file"),
    "directory": (stat.S_IFDIR, "no directory"),
    "socket": (stat.S_IFSOCK, "no socket"),
    "device": (stat.S_IFCHR, "no character device"),
}


def list_loadable_architectures(host: Host) -> tuple[str, ...]:
    """The architectures whose libraries this machine's programs load."""
    machine = ARCHITECTURES.get(host.machine)
    return (machine.name, machine.arch32) if machine else (host.machine,)


def add_user_files(items: OptionalItems, host: Host, config: Config, implied_by: dict[str, str]) -> None:
    """Puts the configured files among the extras, or among what is withheld with the reason.

    Arguments:
        implied_by: every capability that the container gets, with the one that brings it; see `with_brought`.

    Raises:
        Fault: one that is required is not there.
    """
    for number, (path, container, capability, kind, required) in enumerate(config.extra):
        origin = f"[[inject.extra]] {number + 1} of {config.path or 'the configuration'}"
        place = container or path
        if capability and capability not in implied_by:
            items.withheld.append((kind, place, f"needs capability {capability} ({origin})"))
            continue
        file, node, why = inspect_user_file(host, path, place, capability, kind)
        if not why and file is not None and file.arch in ARCHITECTURES_32BIT and "compat32" not in implied_by:
            items.withheld.append((kind, place, f"needs capability compat32 ({origin})"))
            continue
        if why:
            if required:
                raise Fault(
                    f"{host.full_path(path)} is required, and {why}",
                    where=origin,
                    hint="Put it there, correct its path, or take required = true away",
                )
            items.withheld.append((kind, place, f"{origin}: {host.full_path(path)}: {why}"))
            items.warnings.append(f"{place} is not given: {host.full_path(path)}: {why} ({origin})")
            continue
        reason = f"{origin}: " + (f"capability {capability}" if capability else "every GPU container")
        if node is not None:
            items.nodes.append((node, reason))
        elif file is not None:
            items.files.append((file, reason))


def exclude_driver_files(items: OptionalItems, config: Config, inventory: Inventory) -> None:
    """Marks the driver's files that `[inject] remove` names; a pattern that hits nothing is a warning."""
    for pattern in config.remove:
        capability, colon, names = pattern.partition(":")
        if not colon:
            capability, names = "", pattern
        hits = [
            file
            for file in inventory.files
            if (
                not capability
                or capability in (file.capability, "compat32" if file.arch in ARCHITECTURES_32BIT else "")
            )
            and any(matches_wildcard(name, names) for name in (file.soname, file.name, file.container_path) if name)
        ]
        origin = f'[inject] remove = "{pattern}" of {config.path or "the configuration"}'
        for file in hits:
            items.excluded_files.setdefault(file.source, origin)
            if file.required:
                items.warnings.append(
                    f"{file.soname} is removed, and {file.capability} cannot work without it: {origin}"
                )
        if not hits:
            items.warnings.append(f"{origin} names nothing that this driver has")


def matches_wildcard(name: str, pattern: str) -> bool:
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


def inspect_user_file(
    host: Host, path: str, container_path: str, capability: str, kind: str
) -> tuple[DriverFile | None, DeviceNode | None, str]:
    """What is at a path of the host, as a file or a node; or why it cannot be given."""
    real = host.resolve_path(path)
    status = host.stat_path(real, follow=False) if real is not None else None
    if real is None or status is None:
        return None, None, "it is missing"
    wanted, wrong = _FILE_TYPES[kind]
    if stat.S_IFMT(status.st_mode) != wanted:
        return None, None, f"it is {wrong}"
    source = host.full_path(real)
    if kind == "device":
        return None, make_existing_node(container_path, source, status), ""
    soname, glibc, arch = "", "", ""
    needed: tuple[str, ...] = ()
    if kind == "library":
        from gpu_oci_hook.formats.elf import read_shared_object

        try:
            fd = open_regular_file(source, follow_symlinks=False)
        except (OSError, UnusableFileError) as error:
            return None, None, describe_os_error(error)
        try:
            library = read_shared_object(fd)
        except Fault as fault:
            return None, None, fault.what
        finally:
            os.close(fd)
        soname, needed, arch, glibc = library.soname, library.needed, library.arch, library.glibc
        if arch not in list_loadable_architectures(host):
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
        container_path="" if kind == "library" else container_path,
        found_in=path,
    )
    return file, None, ""
