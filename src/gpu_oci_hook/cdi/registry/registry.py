"""The CDI files of a host: which device comes from which file, and what a name brings.

The rules are those of the reference library (container-device-interface, pkg/cdi/cache.go and spec-dirs.go): the
directories in order, a later one wins; `.json` and `.yaml` files by name, no subdirectories; a device that two files
of one directory define is nobody's, not even where a later directory defines it too; a broken file harms no other.

What the files say is remembered with the status of every one of them, so that a start parses none: PyYAML and the
checks are imported by `scan` alone. Cost rule: hot where a CDI name is used; one directory listing for each
directory, one `stat` for each file.
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
    """The devices that the files of some directories define.

    Arguments:
        host: the machine; the directories lie below its root.
        directories: the spec directories, the one that wins last.
        cache: where what the files say is remembered.
    """

    __slots__ = ("_devices", "_files", "directories", "host")

    def __init__(self, host: Host, directories: tuple[str, ...], cache: Cache) -> None:
        self.host = host
        self.directories = directories
        # (path, common edits) of each file that defines a device that counts; a device's file, place in it, edits.
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
        words = "\0".join((self.host.root, *self.directories))
        name = "cdi-" + state_dir.compute_digest(words.encode("utf-8", "surrogateescape"))
        if self._load_cached(cache.get(name), key):
            return
        from gpu_oci_hook.cdi.registry.scan import SpecScan

        found = SpecScan(self.host, self.directories)
        self._files, self._devices = found.build_index()
        if found.is_settled():
            blob = marshal.dumps((key, self._files, self._devices))
            if len(blob) < state_dir.LIMIT:  # more is not read back
                cache.put(name, blob)

    def _load_cached(self, blob: bytes | None, key: tuple[object, ...]) -> bool:
        if blob is None:
            return False
        try:
            known, files, devices = marshal.loads(blob)  # noqa: S302 - the memory is ours alone
        except (EOFError, ValueError, TypeError):
            return False
        if known != key:
            return False
        self._files, self._devices = files, devices
        return True

    def list_device_names(self) -> list[str]:
        """The qualified names of all devices that count."""
        return list(self._devices)

    def find_device_file(self, name: str) -> str:
        """The path of the file that a device comes from; "" when it comes from none."""
        found = self._devices.get(name)
        return self._files[found[0]][0] if found else ""

    def resolve_devices(self, names: list[str]) -> list[ResolvedEdits]:
        """What some names bring, in their order; a file's common edits once, before the first of its devices.

        Arguments:
            names: qualified names that are known, see `file`; one that comes twice counts once.
        """
        parts: list[ResolvedEdits] = []
        met: set[int] = set()
        for name in dict.fromkeys(names):
            file, place, edits = self._devices[name]
            path, common = self._files[file]
            if file not in met:
                met.add(file)
                parts.append(ResolvedEdits(name, path, "containerEdits", common))
            parts.append(ResolvedEdits(name, path, f"devices[{place}].containerEdits", edits))
        return parts
