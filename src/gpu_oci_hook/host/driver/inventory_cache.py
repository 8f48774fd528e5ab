"""What the machine has, as plain data: GPUs, device nodes, driver files; and the memory of the latter.

Searching for driver files takes a hundred times longer than remembering them, so what was found is kept with a list
of witnesses: the status of every directory, cache and file that the answer depends on. It counts only while all of
them are the same. Cost rule: on the way of every GPU container; the search itself is imported only when it has to
run.
"""

from __future__ import annotations

import marshal
import os
import stat
import sys

from gpu_oci_hook import VERSION
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.model.machine import DriverFile, Inventory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.machine import Cache, DaemonFile, InventorySearchResult


def load_inventory(
    host: Host, driver: Host, library_paths: tuple[str, ...], version: str | None, cache: Cache
) -> Inventory:
    """The driver's files: remembered while nothing has changed, searched and remembered otherwise.

    Sockets and directories of daemons come and go; they are looked at every time.

    Arguments:
        host: the machine. driver: the root that has the driver's files, the same or `host.below(...)`.
        library_paths: where to look first, below the driver's root.
        version: of the running kernel module, None when it is not loaded.
        cache: where to remember; of many processes that find nothing remembered, one searches.
    """
    key = (
        "inventory", VERSION, sys.hexversion, version or "", host.root, driver.root, library_paths, host.machine,
        os.uname().release,
    )  # fmt: skip

    def search() -> InventorySearchResult:
        from gpu_oci_hook.host.driver.discovery import discover_driver_files

        return discover_driver_files(host, driver, library_paths, version or "")

    inventory, live = load_cached_inventory(cache, _driver_cache_name(host.root + "\0" + driver.root), key, search)
    present = _find_daemon_files(host, driver, live, inventory.problems)
    inventory.files = inventory.files + present[0]
    inventory.problems = present[1]
    return inventory


def load_cached_inventory(
    cache: Cache, name: str, key: tuple[object, ...], search: Callable[[], InventorySearchResult]
) -> tuple[Inventory, tuple[Any, ...]]:
    """An inventory and what belongs to it: remembered while nothing has changed, searched and remembered otherwise.

    Arguments:
        name: of the blob in the memory. key: everything that the answer depends on and no witness can tell.
        search: gives witnesses, `Inventory.to_data()` and the rest.
    """
    found = _decode_cached_inventory(cache.get(name), key)
    if found is None:
        with cache.lock(name):
            found = _decode_cached_inventory(cache.get(name), key)  # somebody else may have searched while we waited
            if found is None:
                fresh = search()
                found = Inventory.from_data(fresh[1]), fresh[2]
                cache.put(name, marshal.dumps((key, *fresh)))  # type: ignore[arg-type]
    return found


def inventory_cache_name(kind: str, *roots: str) -> str:
    """A file name in the memory for what is known of these roots."""
    return f"inventory-{kind}-" + state_dir.compute_digest("\0".join(roots).encode("utf-8", "surrogateescape"))


def _driver_cache_name(roots: str) -> str:
    """A file name for each pair of roots, so that two of them do not drive each other out of the memory."""
    if roots == "/\0/":
        return "inventory"
    return "inventory-" + state_dir.compute_digest(roots.encode("utf-8", "surrogateescape"))


def _decode_cached_inventory(blob: bytes | None, key: tuple[object, ...]) -> tuple[Inventory, tuple[Any, ...]] | None:
    """What the blob remembers, None when it is damaged, about something else, or no longer true."""
    if blob is None:
        return None
    try:
        known, witnesses, data, live = marshal.loads(blob)  # noqa: S302  the memory is ours alone
        if known != key:
            return None
        lstat = os.lstat
        for path, mtime, inode, size in witnesses:
            try:
                status = lstat(path)
            except OSError:
                if size == -1:
                    continue
                return None
            if status.st_mtime_ns != mtime or status.st_ino != inode or status.st_size != size:
                return None
        return Inventory.from_data(data), live
    except Exception:
        return None  # whatever a damaged blob does: it costs a search, never a start


def _find_daemon_files(
    host: Host, driver: Host, daemon_files: tuple[DaemonFile, ...], problems: tuple[str, ...]
) -> tuple[tuple[DriverFile, ...], tuple[str, ...]]:
    """The daemons' sockets and directories that are there now, and the problems with one more for each bad
    one.
    """
    roots = (driver, host) if driver.root != host.root else (host,)
    files: list[DriverFile] = []
    for kind, capability, paths, container, variable in daemon_files:
        chosen = os.environ.get(variable, "") if variable else ""
        for root, path in [(r, p) for r in roots for p in ((chosen,) if chosen.startswith("/") else paths)]:
            # A directory below /tmp may be anybody's link to anywhere: only a real one of root or ours
            # counts.
            status = root.stat_path(path, follow=kind == "socket")
            if status is None:
                continue
            if kind == "socket" and not stat.S_ISSOCK(status.st_mode):
                continue
            if kind == "directory":
                if not stat.S_ISDIR(status.st_mode):
                    continue
                if status.st_uid not in (0, os.geteuid()):
                    text = f"{root.full_path(path)} belongs to user {status.st_uid}, so it is not given to containers"
                    problems = (*problems, text)
                    continue
            real = root.resolve_path(path)
            if real is None:
                continue
            files.append(
                DriverFile(
                    kind=kind,
                    capability=capability,
                    path=real,
                    source=root.full_path(real),
                    name=os.path.basename(container),
                    container_path=container,
                    found_in=path,
                )
            )
            break
    return tuple(files), problems
