"""Resolve CDI names from the CDI files of a host, with a cache of their content.

The rules are those of the reference library (container-device-interface, pkg/cdi/cache.go and spec-dirs.go):

- Directories are read in order, and a later one wins.
- `.json` and `.yaml` files are read by name, subdirectories are not.
- A device that two files of one directory define is not available, even if a later directory defines it too.
- An invalid file does not affect other files.

The cache key has the stat signature of every file, so a start with a valid cache costs one listing for each directory
and one `stat` for each file.

Import budget: CDI.
"""

from __future__ import annotations

import marshal
import sys

from gpu_oci_hook import VERSION
from gpu_oci_hook.cdi.registry.spec_dirs import read_spec_dir_signatures
from gpu_oci_hook.cdi.resolved_edits import ResolvedEdits
from gpu_oci_hook.files import state_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.machine import Cache


class Registry:
    """The devices that the files in some directories define.

    Arguments:
        host: the host; the directories are below its root.
        directories: the spec directories; the last one wins.
        cache: keeps the content of the files.
    """

    __slots__ = ("_devices", "_files", "directories", "host")

    def __init__(self, host: Host, directories: tuple[str, ...], cache: Cache) -> None:
        self.host = host
        self.directories = directories
        # (path, common edits) of each file with an available device; (file, index in the file, edits) of each device.
        self._files: list[tuple[str, dict[str, object]]] = []
        self._devices: dict[str, tuple[int, int, dict[str, object]]] = {}
        self._load_devices(cache)

    def _load_devices(self, cache: Cache) -> None:
        key = (
            VERSION,
            sys.hexversion,
            self.host.root,
            self.directories,
            read_spec_dir_signatures(self.host, self.directories),
        )
        paths = "\0".join((self.host.root, *self.directories))
        name = "cdi-" + state_dir.compute_digest(paths.encode("utf-8", "surrogateescape"))
        if self._load_cached(cache.get(name), key):
            return
        # Not at the top: it brings PyYAML and the checks.
        from gpu_oci_hook.cdi.registry.scan import SpecScan

        scan = SpecScan(self.host, self.directories)
        self._files, self._devices = scan.build_index()
        if scan.is_settled():
            blob = marshal.dumps((key, self._files, self._devices))
            if len(blob) < state_dir.LIMIT:  # larger entries are not read back
                cache.put(name, blob)

    def _load_cached(self, blob: bytes | None, key: tuple[object, ...]) -> bool:
        if blob is None:
            return False
        try:
            cached_key, files, devices = marshal.loads(blob)  # noqa: S302 - only we can write the cache
        except (EOFError, ValueError, TypeError):
            return False
        if cached_key != key:
            return False
        self._files, self._devices = files, devices
        return True

    def list_device_names(self) -> list[str]:
        """List the qualified names of all available devices."""
        return list(self._devices)

    def find_device_file(self, name: str) -> str:
        """Return the path of the file that defines a device; "" if no file does."""
        entry = self._devices.get(name)
        return self._files[entry[0]][0] if entry else ""

    def resolve_devices(self, names: list[str]) -> list[ResolvedEdits]:
        """Resolve names to edits, in their order; a file's common edits come once, before the first of its devices.

        Arguments:
            names: qualified names that `find_device_file` knows; repeated names count once.
        """
        parts: list[ResolvedEdits] = []
        seen_files: set[int] = set()
        for name in dict.fromkeys(names):
            file, index, edits = self._devices[name]
            path, common_edits = self._files[file]
            if file not in seen_files:
                seen_files.add(file)
                parts.append(ResolvedEdits(name, path, "containerEdits", common_edits))
            parts.append(ResolvedEdits(name, path, f"devices[{index}].containerEdits", edits))
        return parts
