"""Finds the low-level runtime that we become, and remembers it beside the configuration that named it.

Cold: runs once after boot, and again when the configuration, PATH or the runtime itself changed.
"""

from __future__ import annotations

import marshal
import os
import sys

from gpu_oci_hook import config, runtime, state
from gpu_oci_hook.errors import Fault

# runc in Debian lies in sbin, and podman calls us with no PATH at all (ecosystem facts 2.4).
STANDARD = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")

# The first bytes of every launcher that we write; another copy of us must not become our low-level runtime.
MARK = b"gpu_oci_hook.runtime"

# Engines differ in PATH, tests in the configuration: more than this many combinations are no longer kept.
_KEEP = 16


def learn(path: str) -> runtime.Known:
    """Reads the configuration, finds the runtime, remembers both.

    A configuration that cannot be used never keeps a container from being stopped or one without a GPU from
    starting: the runtime is then the one that was used last, or the default; the configuration counts as
    None and whoever needs it reads it again and gets the reason.

    Raises:
        Fault: no runtime is to be found; says what was looked for and where.
    """
    before = runtime.signature(path)
    entries = _entries()
    key = (path, os.environ.get("PATH"))
    parsed: object = None
    defaults = config.Config()
    candidates, prefixes = defaults.low_level, defaults.annotation_prefixes
    try:
        loaded = config.load(path)
        parsed = loaded.to_data()
        candidates, prefixes = loaded.low_level, loaded.annotation_prefixes
    except Fault:
        if key in entries:
            candidates = (entries[key][1], *candidates)
    low = find(candidates)
    triggers = (*runtime.TRIGGERS, *(f'"{prefix}'.encode() for prefix in prefixes))
    entry: runtime.Known = (before, low, runtime.signature(low), parsed, triggers)
    if parsed is not None:
        entries.pop(key, None)
        entries[key] = entry
        while len(entries) > _KEEP:
            del entries[next(iter(entries))]
        state.write(runtime.MEMORY, marshal.dumps((runtime.BUILD, entries)))
    return entry


def _entries() -> dict[tuple[str, str | None], runtime.Known]:
    data = state.read(runtime.MEMORY)
    if data is None:
        return {}
    try:
        build, entries = marshal.loads(data)  # noqa: S302 - ours alone to write, see state
    except (EOFError, ValueError, TypeError):
        return {}
    return entries if build == runtime.BUILD and isinstance(entries, dict) else {}


def find(candidates: tuple[str, ...]) -> str:
    """The first candidate that is a program and not ourselves.

    Arguments:
        candidates: names, looked for in PATH and then in the standard directories, or absolute paths.

    Raises:
        Fault: none is; says what was looked for and where.
    """
    places = [place for place in os.environ.get("PATH", "").split(":") if place.startswith("/")]
    places += [place for place in STANDARD if place not in places]
    ourselves = 0
    for candidate in candidates:
        paths = [candidate] if candidate.startswith("/") else [f"{place}/{candidate}" for place in places]
        for path in paths:
            if not os.path.isfile(path) or not os.access(path, os.X_OK):
                continue
            if _ourselves(path):
                ourselves += 1
                continue
            return path
    raise Fault(
        f"no low-level runtime is installed: looked for {', '.join(candidates) or 'nothing'} in "
        + ":".join(places)
        + (f" ({ourselves} of them is this program itself)" if ourselves else ""),
        where=f"{config.location()}: runtime.low-level",
        cure="Install runc or crun, or name the runtime's absolute path there",
    )


def _ourselves(path: str) -> bool:
    """Whether a program is this one, under whatever name: becoming it would never end."""
    own = sys.argv[0]
    try:
        if own and os.path.exists(own) and os.path.samestat(os.stat(path), os.stat(own)):
            return True
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            head = os.read(fd, 4096)
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return False
    return head.startswith(b"#!") and MARK in head
