"""Find the edits of a plan that a running container lacks, by what is there and not by what was done once.

Import budget: cold.
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook.container.rootfs_edits import generated_file_name
from gpu_oci_hook.model.edits import AddDeviceNode, AddMount
from gpu_oci_hook.model.file_edits import AddFile, AddLink, PrepareDirectory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_oci_hook.files.rootfs import Rootfs
    from gpu_oci_hook.model.edits import Edit


def find_missing_edits(edits: Iterable[Edit], root: Rootfs, generated_dir: str) -> list[Edit]:
    """Return the edits that the container lacks, in their order.

    Device rules are not among them: the kernel is asked about those elsewhere. Edits that nobody can make in a
    container that runs, such as variables of its process, are left out too.

    Arguments:
        root: the container's root with its mounts.
        generated_dir: the directory of generated files that are bind-mounted.
    """
    inspector = _Inspector(root, generated_dir)
    return [edit for edit in edits if inspector.is_missing(edit)]


class _Inspector:
    def __init__(self, root: Rootfs, generated_dir: str) -> None:
        self._root = root
        self._generated_dir = generated_dir
        self._contents: dict[str, bytes] = {}  # of generated files, by their path on the host
        self._directories: dict[str, tuple[tuple[str, str], ...]] = {}  # prepared ones: source to entries
        self._replaced: list[str] = []  # destinations that get a new mount

    def is_missing(self, edit: Edit) -> bool:
        """Tell whether an edit has to be made."""
        match edit:
            case AddDeviceNode():
                status = self._root.stat_path(edit.path)
                number = os.makedev(edit.major, edit.minor)
                return status is None or not stat.S_ISCHR(status.st_mode) or status.st_rdev != number
            case PrepareDirectory():
                self._directories[edit.source] = edit.entries
                return True  # the directory on the host; that it is mounted is another edit
            case AddLink():
                return self._root.readlink(edit.path) != edit.target
            case AddFile() if edit.bind_mounted:
                self._contents[f"{self._generated_dir}/{generated_file_name(edit.path)}"] = edit.content
                return True
            case AddFile():
                return self._root.read_file(edit.path, len(edit.content)) != edit.content
            case AddMount():
                return self._lacks_mount(edit.source, edit.destination)
        return False

    def _lacks_mount(self, source: str, destination: str) -> bool:
        """Tell whether a mount is missing; everything below it is then missing too."""
        if any(destination.startswith(f"{top}/") for top in self._replaced):
            return True
        is_missing = not self._shows(source, destination)
        if is_missing:
            self._replaced.append(destination)
        return is_missing

    def _shows(self, source: str, destination: str) -> bool:
        """Tell whether a path of the container shows a source of the host, or a copy of a generated one."""
        if source in self._contents:
            content = self._contents[source]
            return self._root.read_file(destination, len(content)) == content
        if source in self._directories:
            return self._has_entries(destination, dict(self._directories[source]))
        status = self._root.stat_path(destination)
        try:
            return status is not None and os.path.samestat(status, os.stat(source))
        except OSError:
            return False  # attaching it reports the reason

    def _has_entries(self, directory: str, entries: dict[str, str]) -> bool:
        if self._root.list_names(directory) != sorted(entries):
            return False
        return all(self._root.readlink(f"{directory}/{name}") == (target or None) for name, target in entries.items())
