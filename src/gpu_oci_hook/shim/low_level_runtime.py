"""Find the low-level runtime, and cache it together with the configuration that names it.

It runs once after boot, and again when the configuration, PATH or the runtime itself has changed.

Import budget: cold.
"""

from __future__ import annotations

import os
import sys

from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.config.load import find_config_path, list_request_words, load_config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files.read_regular import read_regular_head
from gpu_oci_hook.files.state_dir import get_file_signature, read_state, write_state
from gpu_oci_hook.formats.program_names import (
    ENGINE_PROGRAMS,
    LAUNCHER_HEAD_SIZE,
    get_program_name,
    is_runtime_launcher,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.shim.main import CachedRuntime, CachedRuntimes

# Debian has runc in sbin, and podman sets no PATH for some calls (facts: podman-no-path).
STANDARD_DIRECTORIES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")

# Cached combinations of configuration and PATH: engines differ in PATH, tests in the configuration.
_MAX_CACHED_RUNTIMES = 16

_USED_RUNTIMES_NAME = "used-runtimes"
_MAX_USED_RUNTIMES = 8


def resolve_runtime(path: str, entries: CachedRuntimes, base_triggers: tuple[bytes, ...]) -> CachedRuntime:
    """Load the configuration, find the runtime, and add both to the cache's entries.

    A configuration that cannot be used does not keep a container from being stopped, or one without a GPU from
    starting: the runtime is then the last one used, or the default. The configuration in the entry is then None, and
    a GPU container reads the file again and fails with the reason.

    Arguments:
        path: of the config file.
        entries: the cache's; the new one is added unless the configuration cannot be used.
        base_triggers: of every configuration; its annotation prefixes and device variables are added.

    Raises:
        Fault: no runtime was found; lists names and directories.
    """
    signature = get_file_signature(path)
    key = (path, os.environ.get("PATH"))
    parsed: object = None
    defaults = Config()
    candidates, words = defaults.low_level, list_request_words(defaults)
    try:
        loaded = load_config(path)
        parsed = loaded.to_data()
        candidates, words = loaded.low_level, list_request_words(loaded)
    except Fault:
        if key in entries:
            candidates = (entries[key][1], *candidates)
    runtime = find_low_level_runtime(candidates)
    triggers = (*base_triggers, *words)
    earlier = _record_runtime(runtime)
    entry: CachedRuntime = (signature, runtime, get_file_signature(runtime), parsed, triggers, earlier)
    if parsed is not None:
        entries.pop(key, None)
        entries[key] = entry
        while len(entries) > _MAX_CACHED_RUNTIMES:
            del entries[next(iter(entries))]
    return entry


def _record_runtime(runtime: str) -> tuple[str, ...]:
    """Add a low-level runtime to the list of those used since boot; return the others, the last one first.

    The list is apart from the cache, which a new version of this program does not read.
    """
    recorded = (read_state(_USED_RUNTIMES_NAME) or b"").split(b"\0")
    programs = [os.fsdecode(program) for program in recorded if program]
    if programs[-1:] != [runtime]:
        programs = [program for program in programs if program != runtime] + [runtime]
        content = b"\0".join(os.fsencode(program) for program in programs[-_MAX_USED_RUNTIMES:])
        write_state(_USED_RUNTIMES_NAME, content)
    return tuple(reversed(programs[:-1]))


def find_low_level_runtime(candidates: tuple[str, ...]) -> str:
    """Return the first candidate that is a program, and neither this one nor an engine's.

    Arguments:
        candidates: absolute paths, or names that are searched in PATH and then in the standard directories.

    Raises:
        Fault: there is none; lists names and directories.
    """
    searched = [directory for directory in os.environ.get("PATH", "").split(":") if directory.startswith("/")]
    directories = list(dict.fromkeys([*searched, *STANDARD_DIRECTORIES]))
    where, hint = f"{find_config_path()}: [runtime] low-level", "Install runc or crun, or set the absolute path of one"
    engines = list_engine_programs(candidates)
    own_copies = 0
    for candidate in candidates:
        if candidate in engines:
            continue
        paths = [candidate] if candidate.startswith("/") else [f"{directory}/{candidate}" for directory in directories]
        for path in paths:
            if not os.path.isfile(path) or not os.access(path, os.X_OK):
                continue
            if _is_this_program(path):
                own_copies += 1
                continue
            return path
    if engines and len(engines) == len(candidates):
        raise Fault(describe_engine_program(engines[0]), where=where, hint=hint)
    raise Fault(
        f"found none of: {', '.join(candidates) or '(empty list)'} in "
        + ":".join(directories)
        + (f" (candidates that are this program itself: {own_copies})" if own_copies else ""),
        where=where,
        hint=hint,
    )


def list_engine_programs(candidates: tuple[str, ...]) -> list[str]:
    """Return the candidates that are programs of an engine and not OCI runtimes."""
    return [candidate for candidate in candidates if get_program_name(f"/{candidate}") in ENGINE_PROGRAMS]


def describe_engine_program(candidate: str) -> str:
    """Say that a candidate is a program of an engine."""
    return f"{candidate} is a program of a container engine, not an OCI runtime such as runc or crun"


def _is_this_program(path: str) -> bool:
    """Tell whether a program is this one under any name: to exec it would loop for ever."""
    own_path = sys.argv[0]
    try:
        if own_path and os.path.exists(own_path) and os.path.samestat(os.stat(path), os.stat(own_path)):
            return True
        head = read_regular_head(path, LAUNCHER_HEAD_SIZE)
    except (OSError, ValueError):
        return False
    return is_runtime_launcher(head)
