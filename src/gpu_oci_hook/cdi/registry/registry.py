"""Resolve CDI names from the CDI files of a host, with a cache of their content.

The rules are those of the reference library (container-device-interface, pkg/cdi/cache.go and spec-dirs.go):

- Directories are read in order, and a later one wins.
- `.json` and `.yaml` files are read by name, subdirectories are not.
- A device that two files of one directory define is not available, even if a later directory defines it too.
- An invalid file does not affect other files.

The cache key has the stat signature of every file, so a start with a valid cache costs one listing for each directory
and one `stat` for each file. Edits of large files are cached one by one, when they are first used; an unchanged one is
not read again because another file changes.

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
    from gpu_oci_hook.cdi.registry.scan import FileSummary
    from gpu_oci_hook.host.root import Host
    from gpu_oci_hook.model.machine import Cache

    Edits = dict[str, object]
    # Path for people, real path, common edits; and file, index in the file, edits. None for edits that are not kept.
    IndexedFile = tuple[str, str, Edits | None]
    IndexedDevice = tuple[int, int, Edits | None]


# The last number is that of the form of the cached data.
_BUILD_STAMP = (VERSION, sys.hexversion, 2)


class Registry:
    """The devices that the files in some directories define.

    Arguments:
        host: the host; the directories are below its root.
        directories: the spec directories; the last one wins.
        cache: keeps the content of the files.
    """

    __slots__ = ("_cache", "_devices", "_edits", "_files", "directories", "host")

    def __init__(self, host: Host, directories: tuple[str, ...], cache: Cache) -> None:
        self.host = host
        self.directories = directories
        self._cache = cache
        self._files: list[IndexedFile] = []
        self._devices: dict[str, IndexedDevice] = {}
        self._edits: dict[int, tuple[Edits, list[Edits]]] = {}
        self._load_devices(cache)

    def _load_devices(self, cache: Cache) -> None:
        key = (
            *_BUILD_STAMP,
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

        scan = SpecScan(self.host, self.directories, _load_summaries(cache.get(f"{name}-files")))
        self._files, self._devices = scan.build_index()
        if not scan.is_settled():
            return
        # Larger entries are not read back.
        blob = marshal.dumps((key, self._files, self._devices))
        if len(blob) >= state_dir.LIMIT:
            files = [(path, real_path, None) for path, real_path, _ in self._files]
            devices = {device: (file, index, None) for device, (file, index, _) in self._devices.items()}
            blob = marshal.dumps((key, files, devices))
        if len(blob) < state_dir.LIMIT:
            cache.put(name, blob)
        if scan.has_unkept_files():
            blob = marshal.dumps((_BUILD_STAMP, scan.summarise_files()))
            if len(blob) < state_dir.LIMIT:
                cache.put(f"{name}-files", blob)

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
            path, _, common_edits = self._files[file]
            if edits is None or common_edits is None:
                common_edits, device_edits = self._load_file_edits(file)
                edits = device_edits[index] if index < len(device_edits) else {}
            if file not in seen_files:
                seen_files.add(file)
                parts.append(ResolvedEdits(name, path, "containerEdits", common_edits))
            parts.append(ResolvedEdits(name, path, f"devices[{index}].containerEdits", edits))
        return parts

    def _load_file_edits(self, file: int) -> tuple[Edits, list[Edits]]:
        """Return the edits of a large file: from its own cache entry if the file has not changed since."""
        if file not in self._edits:
            real_path = self._files[file][1]
            key = (*_BUILD_STAMP, real_path, state_dir.get_file_signature(real_path))
            name = "cdi-file-" + state_dir.compute_digest(real_path.encode("utf-8", "surrogateescape"))
            try:
                cached_key, *edits = marshal.loads(self._cache.get(name) or b"")  # noqa: S302 - only we can write it
            except (EOFError, ValueError, TypeError):
                cached_key = None
            if cached_key != key:
                from gpu_oci_hook.cdi.registry.scan import read_file_edits

                edits = [*read_file_edits(real_path)]
                blob = marshal.dumps((key, *edits))
                if len(blob) < state_dir.LIMIT:
                    self._cache.put(name, blob)
            self._edits[file] = edits[0], edits[1]
        return self._edits[file]


def _load_summaries(blob: bytes | None) -> dict[str, FileSummary]:
    """Load what an earlier scan found in each file; empty where nothing usable is cached."""
    try:
        stamp, summaries = marshal.loads(blob or b"")  # noqa: S302 - only we can write the cache
    except (EOFError, ValueError, TypeError):
        return {}
    return summaries if stamp == _BUILD_STAMP and isinstance(summaries, dict) else {}
