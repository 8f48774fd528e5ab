"""Find the files that `[[inject.extra]]` adds, and the driver files that `[inject] remove` excludes.

The files are inspected on every start, so that the mounts match the files that exist.

Import budget: GPU container.
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.read_regular import UnusableFileError, open_regular_file
from gpu_oci_hook.formats.architectures import ARCHITECTURES, ARCHITECTURES_32BIT
from gpu_oci_hook.host.device_nodes import make_existing_node
from gpu_oci_hook.model.machine import DriverFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.formats.elf import SharedObject
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.machine import DeviceNode, Inventory
    from gpu_oci_hook.model.optional_devices import OptionalItems

# Kind in [[inject.extra]] to `mode & S_IFMT` and its name.
_FILE_TYPES = {
    "file": (stat.S_IFREG, "a regular file"),
    "library": (stat.S_IFREG, "a regular file"),
    "directory": (stat.S_IFDIR, "a directory"),
    "socket": (stat.S_IFSOCK, "a socket"),
    "device": (stat.S_IFCHR, "a character device"),
}


def list_loadable_architectures(host: Host) -> tuple[str, ...]:
    """Return the architectures whose libraries this machine's programs can load."""
    machine = ARCHITECTURES.get(host.machine)
    return (machine.name, machine.arch32) if machine else (host.machine,)


def add_user_files(items: OptionalItems, host: Host, config: Config, implied_by: dict[str, str]) -> None:
    """Add the files of `[[inject.extra]]`, or the reasons why they are withheld.

    Arguments:
        implied_by: every capability of the container, with the one that implies it; see
            `capabilities.add_implied_capabilities`.

    Raises:
        Fault: a file that is required cannot be injected.
    """
    for number, (path, configured_path, capability, kind, required) in enumerate(config.extra):
        origin = f"[[inject.extra]] {number + 1} of {config.path or 'the configuration'}"
        container_path = configured_path or path
        if capability and capability not in implied_by:
            items.withheld.append((kind, container_path, f"needs capability {capability} ({origin})"))
            continue
        file, node, problem = inspect_user_file(host, path, container_path, capability, kind)
        if file is not None and file.arch in ARCHITECTURES_32BIT and "compat32" not in implied_by:
            items.withheld.append((kind, container_path, f"needs capability compat32 ({origin})"))
            continue
        if problem:
            source = host.full_path(path)
            if required:
                raise Fault(
                    f"{source} is required, but {problem}",
                    where=origin,
                    hint="Create the file, correct its path, or remove required = true",
                )
            items.withheld.append((kind, container_path, f"{origin}: {source}: {problem}"))
            items.warnings.append(f"{container_path} is not injected: {source}: {problem} ({origin})")
            continue
        reason = f"{origin}: " + (f"capability {capability}" if capability else "every GPU container")
        if node is not None:
            items.nodes.append((node, reason))
        elif file is not None:
            items.files.append((file, reason))


def exclude_driver_files(items: OptionalItems, config: Config, inventory: Inventory) -> None:
    """Exclude the driver's files that `[inject] remove` names, with a warning for a pattern that matches none."""
    for pattern in config.remove:
        capability, colon, name_pattern = pattern.partition(":")
        if not colon:
            capability, name_pattern = "", pattern
        matches = [
            file
            for file in inventory.files
            if (
                not capability
                or capability in (file.capability, "compat32" if file.arch in ARCHITECTURES_32BIT else "")
            )
            and any(
                matches_wildcard(name, name_pattern) for name in (file.soname, file.name, file.container_path) if name
            )
        ]
        origin = f'[inject] remove = "{pattern}" of {config.path or "the configuration"}'
        for file in matches:
            items.excluded_files.setdefault(file.source, origin)
            if file.required:
                items.warnings.append(
                    f"{file.soname} is removed, and {file.capability} cannot work without it: {origin}"
                )
        if not matches:
            items.warnings.append(f"{origin} matches no file of this driver")


def matches_wildcard(name: str, pattern: str) -> bool:
    """Tell whether a name matches a pattern in which * stands for any text. Avoids the import of `fnmatch`."""
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    last = rest.pop()
    if not name.startswith(first):
        return False
    end = len(first)
    for part in rest:
        start = name.find(part, end)
        if start < 0:
            return False
        end = start + len(part)
    return name.endswith(last) and len(name) - len(last) >= end


def inspect_user_file(
    host: Host, path: str, container_path: str, capability: str, kind: str
) -> tuple[DriverFile | None, DeviceNode | None, str]:
    """Return the file or the device node at a path of the host, or the problem why it cannot be injected."""
    resolved = host.resolve_path(path)
    status = host.stat_path(resolved, follow=False) if resolved is not None else None
    if resolved is None or status is None:
        return None, None, "it is missing"
    file_type, type_name = _FILE_TYPES[kind]
    if stat.S_IFMT(status.st_mode) != file_type:
        return None, None, f"it is not {type_name}"
    source = host.full_path(resolved)
    if kind == "device":
        return None, make_existing_node(container_path, source, status), ""
    name, requested_name = resolved.rpartition("/")[2], path.rpartition("/")[2]
    file = DriverFile(
        kind={"file": "config", "directory": "tree"}.get(kind, kind),
        capability=capability,
        path=resolved,
        source=source,
        name=name,
        container_path="" if kind == "library" else container_path,
        found_in=path,
    )
    if kind == "library":
        library = _read_library(source)
        if isinstance(library, str):
            return None, None, library
        if library.arch not in list_loadable_architectures(host):
            return None, None, f"it is for {library.arch or 'another kind of machine'}"
        file.soname = library.soname or requested_name
        file.needs, file.glibc, file.arch = library.needed, library.glibc, library.arch
        if requested_name not in (name, library.soname):
            file.links = (requested_name,)
    return file, None, ""


def _read_library(source: str) -> SharedObject | str:
    """Return the header data of a library, or the problem why it cannot be read."""
    from gpu_oci_hook.formats.elf import read_shared_object

    try:
        fd = open_regular_file(source, follow_symlinks=False)
    except (OSError, UnusableFileError) as error:
        return describe_os_error(error)
    try:
        return read_shared_object(fd)
    except Fault as fault:
        return fault.what
    finally:
        os.close(fd)
