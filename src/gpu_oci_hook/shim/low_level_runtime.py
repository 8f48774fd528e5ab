"""Finds the low-level runtime that we become, and remembers it beside the configuration that named it.

Cold: runs once after boot, and again when the configuration, PATH or the runtime itself changed.
"""

from __future__ import annotations

import os
import sys

from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.config.load import find_config_path, load_config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files.read_regular import read_regular_head
from gpu_oci_hook.files.state_dir import get_file_signature
from gpu_oci_hook.formats.program_names import is_runtime_launcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.shim.main import CachedRuntime, CachedRuntimes

# runc in Debian lies in sbin, and podman calls us with no PATH at all (ecosystem facts 2.4).
STANDARD_DIRECTORIES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")

# Engines differ in PATH, tests in the configuration: more than this many combinations are no longer kept.
_MAX_CACHED_RUNTIMES = 16


def resolve_runtime(path: str, entries: CachedRuntimes, base_triggers: tuple[bytes, ...]) -> CachedRuntime:
    """Load the configuration, find the runtime, and put both into the cache's entries.

    A configuration that cannot be used never keeps a container from being stopped or one without a GPU from
    starting: the runtime is then the one that was used last, or the default; the configuration counts as
    None and whoever needs it reads it again and gets the reason.

    Arguments:
        path: the config file.
        entries: what the cache has; gets the new entry, unless the configuration cannot be used.
        base_triggers: what asks for a GPU whatever the configuration says; the annotation prefixes are added.

    Raises:
        Fault: no runtime is to be found; says what was looked for and where.
    """
    before = get_file_signature(path)
    key = (path, os.environ.get("PATH"))
    parsed: object = None
    defaults = Config()
    candidates, prefixes = defaults.low_level, defaults.annotation_prefixes
    try:
        loaded = load_config(path)
        parsed = loaded.to_data()
        candidates, prefixes = loaded.low_level, loaded.annotation_prefixes
    except Fault:
        if key in entries:
            candidates = (entries[key][1], *candidates)
    low = find_low_level_runtime(candidates)
    triggers = (*base_triggers, *(f'"{prefix}'.encode() for prefix in prefixes))
    entry: CachedRuntime = (before, low, get_file_signature(low), parsed, triggers)
    if parsed is not None:
        entries.pop(key, None)
        entries[key] = entry
        while len(entries) > _MAX_CACHED_RUNTIMES:
            del entries[next(iter(entries))]
    return entry


def find_low_level_runtime(candidates: tuple[str, ...]) -> str:
    """The first candidate that is a program and not ourselves.

    Arguments:
        candidates: names, looked for in PATH and then in the standard directories, or absolute paths.

    Raises:
        Fault: none is; says what was looked for and where.
    """
    places = [place for place in os.environ.get("PATH", "").split(":") if place.startswith("/")]
    places += [place for place in STANDARD_DIRECTORIES if place not in places]
    ourselves = 0
    for candidate in candidates:
        paths = [candidate] if candidate.startswith("/") else [f"{place}/{candidate}" for place in places]
        for path in paths:
            if not os.path.isfile(path) or not os.access(path, os.X_OK):
                continue
            if _is_this_program(path):
                ourselves += 1
                continue
            return path
    raise Fault(
        f"no low-level runtime is installed: looked for {', '.join(candidates) or 'nothing'} in "
        + ":".join(places)
        + (f" ({ourselves} of them is this program itself)" if ourselves else ""),
        where=f"{find_config_path()}: runtime.low-level",
        hint="Install runc or crun, or name the runtime's absolute path there",
    )


def _is_this_program(path: str) -> bool:
    """Whether a program is this one, under whatever name: becoming it would never end."""
    own = sys.argv[0]
    try:
        if own and os.path.exists(own) and os.path.samestat(os.stat(path), os.stat(own)):
            return True
        head = read_regular_head(path, 4096)
    except (OSError, ValueError):
        return False
    return is_runtime_launcher(head)
