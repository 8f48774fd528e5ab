"""Load the inventory of the driver's files from the cache, or search for them and cache the result.

A search takes a hundred times longer than reading the cache. What invalidates the cached inventory:

- Another cache key: another version of gpu-oci-hook or of Python, another version of the running kernel module, other
  roots or library paths, another architecture, another kernel release.
- A changed stat signature (mtime, inode, size; see `search.stat_signature`) of anything that the search looked at: the
  directories, the links on the way, the loader caches, the files found, paths that were missing, and catalogue.toml.
- Damaged data, or the loss of the state directory, which lies in /run.

Sockets and directories of daemons are not cached: they come and go with their daemons.

Import budget: GPU container.
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
    """Return the driver's files, from the cache while it is valid, else from a new search.

    Arguments:
        host: the machine.
        driver: the root that has the driver's files: the same, or a `host.sub_host(...)`.
        library_paths: the directories to search first, below the driver's root.
        version: the running kernel module's version, None when it is not loaded.
        cache: where results are kept. Of many processes that find nothing there, one searches.
    """
    key = (
        "inventory", VERSION, sys.hexversion, version or "", host.root, driver.root, library_paths, host.machine,
        os.uname().release,
    )  # fmt: skip

    def run_search() -> InventorySearchResult:
        # The search is expensive to import, and a start with a valid cache does not need it.
        from gpu_oci_hook.host.driver.discovery import discover_driver_files

        return discover_driver_files(host, driver, library_paths, version or "")

    name = _driver_cache_name(host.root + "\0" + driver.root)
    inventory, daemon_files = load_cached_inventory(cache, name, key, run_search)
    present_files, refusals = _find_daemon_files(host, driver, daemon_files)
    inventory.files = inventory.files + present_files
    inventory.problems = inventory.problems + refusals
    return inventory


def load_cached_inventory(
    cache: Cache, name: str, key: tuple[object, ...], search: Callable[[], InventorySearchResult]
) -> tuple[Inventory, tuple[Any, ...]]:
    """Return an inventory with its additional data, from the cache while it is valid, else from a new search.

    Arguments:
        name: the blob's name in the cache.
        key: everything that the result depends on and that no stat signature shows.
        search: returns stat signatures, `Inventory.to_data()` and the additional data.
    """
    entry = _decode_cached_inventory(cache.get(name), key)
    if entry is None:
        with cache.lock(name):
            entry = _decode_cached_inventory(cache.get(name), key)  # another process may have searched meanwhile
            if entry is None:
                result = search()
                entry = Inventory.from_data(result[1]), result[2]
                cache.put(name, marshal.dumps((key, *result)))  # type: ignore[arg-type]
    return entry


def inventory_cache_name(kind: str, *roots: str) -> str:
    """Return the cache's file name for an inventory of one kind and these roots."""
    return f"inventory-{kind}-" + state_dir.compute_digest("\0".join(roots).encode("utf-8", "surrogateescape"))


def _driver_cache_name(roots: str) -> str:
    """Return the cache's file name for a pair of roots, so that two pairs do not overwrite each other."""
    if roots == "/\0/":
        return "inventory"
    return "inventory-" + state_dir.compute_digest(roots.encode("utf-8", "surrogateescape"))


def _decode_cached_inventory(blob: bytes | None, key: tuple[object, ...]) -> tuple[Inventory, tuple[Any, ...]] | None:
    """Return a blob's inventory and additional data, or None when it is damaged, has another key, or is out of date."""
    if blob is None:
        return None
    try:
        cached_key, signatures, data, additional = marshal.loads(blob)  # noqa: S302  only this user can write the cache
        if cached_key != key:
            return None
        lstat = os.lstat
        for path, mtime, inode, size in signatures:
            try:
                status = lstat(path)
            except OSError:
                if size == -1:
                    continue
                return None
            if status.st_mtime_ns != mtime or status.st_ino != inode or status.st_size != size:
                return None
        return Inventory.from_data(data), additional
    except Exception:
        return None  # a damaged blob may raise anything: it costs a search, never a start


def _find_daemon_files(
    host: Host, driver: Host, daemon_files: tuple[DaemonFile, ...]
) -> tuple[tuple[DriverFile, ...], tuple[str, ...]]:
    """Return the daemons' sockets and directories that exist now, and a sentence for each directory refused."""
    roots = (driver, host) if driver.root != host.root else (host,)
    files: list[DriverFile] = []
    refusals: list[str] = []
    for kind, capability, paths, container_path, variable in daemon_files:
        variable_path = os.environ.get(variable, "") if variable else ""
        candidates = (variable_path,) if variable_path.startswith("/") else paths
        for root, path in [(root, path) for root in roots for path in candidates]:
            # Below /tmp a directory may be any user's link to any path: only a real one of root or this user counts.
            status = root.stat_path(path, follow=kind == "socket")
            if status is None:
                continue
            if kind == "socket" and not stat.S_ISSOCK(status.st_mode):
                continue
            if kind == "directory":
                if not stat.S_ISDIR(status.st_mode):
                    continue
                from gpu_oci_hook.files.trust import describe_foreign_access  # most hosts have no such directory

                access = describe_foreign_access(status, every_user=True, owner_only=True)
                if access:
                    refusals.append(f"{root.full_path(path)} {access}, so it is not mounted into containers")
                    continue
            resolved = root.resolve_path(path)
            if resolved is None:
                continue
            files.append(
                DriverFile(
                    kind=kind,
                    capability=capability,
                    path=resolved,
                    source=root.full_path(resolved),
                    name=os.path.basename(container_path),
                    container_path=container_path,
                    found_in=path,
                )
            )
            break
    return tuple(files), tuple(refusals)
