"""Record in the bundle what an injection has changed in config.json, so that a later one can plan as if it had not.

An engine keeps the bundle of a stopped container, and by the next start the driver or the request can be another one.
Only what is recorded counts as ours: an entry of the user that looks the same is never removed.

Import budget: GPU container.
"""

from __future__ import annotations

import os

from gpu_oci_hook.container.spec_edits import undo_changes
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files.read_regular import read_regular_file
from gpu_oci_hook.formats.fastjson import dump_json, parse_json
from gpu_oci_hook.formats.oci import get_list

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.edits import Edit, ListChanges

RECORD_NAME = "injected.json"
_RECORD_LIMIT = 8 << 20

# The lists of config.json that edits change.
_LISTS = (
    "mounts", "linux.devices", "linux.resources.devices", "process.user.additionalGids", "process.env",
    "hooks.prestart", "hooks.createRuntime", "hooks.createContainer", "hooks.startContainer", "hooks.poststart",
    "hooks.poststop",
)  # fmt: skip


class SpecRecorder:
    """Finds and records what the edits of a plan change in the lists of a config.json.

    Arguments:
        spec: the config.json before the edits.
        edits: the plan's.
    """

    __slots__ = ("_before", "_earlier", "_spec")

    def __init__(self, spec: dict[str, object], edits: list[Edit]) -> None:
        self._spec = spec
        # The lists, with the very objects that are in them now.
        self._before = {path: list(get_list(spec, *path.split("."))) for path in _LISTS}
        self._earlier: dict[str, ListChanges] = {}
        if edits[0].kind == "drop-earlier":
            self._earlier = edits[0].changes  # type: ignore[attr-defined]  # the kind says the class
            for path, changes in self._earlier.items():
                undo_changes(self._before[path], changes)

    def find_changes(self) -> dict[str, ListChanges]:
        """Return what was added to each list and removed from it, by the list's path in config.json."""
        found: dict[str, ListChanges] = {}
        for path, before in self._before.items():
            after = get_list(self._spec, *path.split("."))
            # Edits change lists in place and make new objects for new entries.
            old, new = set(map(_identify, before)), set(map(_identify, after))
            added = [entry for entry in after if _identify(entry) not in old]
            removed: list[object] = [[at, entry] for at, entry in enumerate(before) if _identify(entry) not in new]
            if added or removed:
                found[path] = [added, removed]
        return found

    def write_record(self, generated_dir: str) -> None:
        """Write the record of a bundle, if that is possible: config.json, which is written next, reports the reason.

        A half-written one counts as none, and nothing has been added to config.json then. If this process is killed
        before config.json is replaced, that still has the earlier changes.
        """
        data = memoryview(dump_json([self.find_changes(), self._earlier]))
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            try:
                os.mkdir(generated_dir, 0o755)
            except FileExistsError:
                pass
            fd = os.open(f"{generated_dir}/{RECORD_NAME}", flags, 0o600)
            try:
                while data:
                    data = data[os.write(fd, data) :]
            finally:
                os.close(fd)
        except OSError:
            pass


def _identify(entry: object) -> object:
    return entry if isinstance(entry, (str, int)) else -id(entry) - 1


def read_record(generated_dir: str, spec: dict[str, object]) -> dict[str, ListChanges]:
    """Return what an earlier injection has changed in a config.json; nothing if that is not certain.

    All that it has added must still be there: a config.json that was written anew may have an entry of the user that
    only looks like ours. Variables do not count, as the user changes the request there.
    """
    try:
        record = parse_json(read_regular_file(f"{generated_dir}/{RECORD_NAME}", _RECORD_LIMIT, follow_symlinks=False))
    except (OSError, ValueError, Fault):
        return {}
    for candidate in record if isinstance(record, list) else ():
        changes: dict[str, ListChanges] = {}
        is_certain = False
        for path in _LISTS:
            lists = get_list(candidate, path)
            added, removed = lists if len(lists) == 2 else ([], [])
            if not isinstance(added, list) or not isinstance(removed, list) or not (added or removed):
                continue
            present = get_list(spec, *path.split("."))
            if all(entry in present for entry in added):
                changes[path] = [added, removed]
                is_certain = is_certain or (bool(added) and path != "process.env")
            elif path != "process.env":
                is_certain = False
                break
        if is_certain:
            return changes
    return {}
