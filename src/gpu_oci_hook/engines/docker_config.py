"""Edit docker's daemon.json: add our runtime, take it out again. Pure: bytes in, bytes out.

Import budget: cold.
"""

from __future__ import annotations

from typing import Any

from gpu_oci_hook.engines.wanted import WantedRuntime, is_gpu_runtime_program, is_own_program
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.json_text import JsonText

_RUNTIMES, _DEFAULT = "runtimes", "default-runtime"


def add_docker_runtime(data: bytes | None, wanted: WantedRuntime, path: str) -> bytes:
    """Return daemon.json with our runtime; the same bytes if it is there already.

    Arguments:
        data: the file, None if there is none.
        path: of the file, for messages.

    Raises:
        Fault: the file is not valid, or another runtime has the name.
    """
    document = JsonText(data, path)
    before = document.text
    entry = document.get(_RUNTIMES, wanted.name)
    if entry is not None and not _may_replace(entry, wanted):
        where = f"{path}:{document.find_line(_RUNTIMES, wanted.name)}"
        raise Fault(f"another runtime has the name {wanted.name}", where=where, hint="Choose another one with --name")
    if not _is_complete(entry, wanted):
        document.set((_RUNTIMES, wanted.name), {"path": wanted.program})
    if wanted.default and document.get(_DEFAULT) != wanted.name:
        document.set((_DEFAULT,), wanted.name)
    if data is not None and document.text == before and data.strip():
        return data
    return document.to_bytes()


def take_out_docker_runtime(data: bytes, original: bytes | None, added: WantedRuntime | None, path: str) -> bytes:
    """Return daemon.json without our runtime; what `original` has in its place is put back.

    Arguments:
        original: the file as it was before us, None if unknown or if there was none.
        added: what we have added, None if unknown; other entries with our program are taken out too.

    Raises:
        Fault: the file is not valid.
    """
    document, former = JsonText(data, path), JsonText(original, path)
    runtimes = document.get(_RUNTIMES)
    entries: dict[str, Any] = runtimes if isinstance(runtimes, dict) else {}
    own = [name for name, entry in entries.items() if _is_own(entry) or (added and _is_as_added(name, entry, added))]
    for name in own:
        previous = former.get(_RUNTIMES, name)
        if previous is None:
            document.remove((_RUNTIMES, name))
        elif previous != entries[name]:
            document.set((_RUNTIMES, name), previous)
    if document.get(_DEFAULT) in own:
        previous = former.get(_DEFAULT)
        if previous is None:
            document.remove((_DEFAULT,))
        elif previous != document.get(_DEFAULT):
            document.set((_DEFAULT,), previous)
    if own and document.get(_RUNTIMES) == {} and former.get(_RUNTIMES) is None:
        document.remove((_RUNTIMES,))
    return document.to_bytes()


def has_own_docker_runtime(data: bytes | None, path: str) -> bool:
    """Tell whether daemon.json names our runtime program."""
    runtimes = JsonText(data, path).get(_RUNTIMES)
    return isinstance(runtimes, dict) and any(map(_is_own, runtimes.values()))


def _may_replace(entry: object, wanted: WantedRuntime) -> bool:
    return _is_gpu_runtime(entry) or (isinstance(entry, dict) and entry.get("path") == wanted.program)


def _is_complete(entry: object, wanted: WantedRuntime) -> bool:
    # dockerd refuses a path together with a runtimeType when it starts; `dockerd --validate` does not say so.
    return (
        isinstance(entry, dict) and entry.get("path") == wanted.program and not {"runtimeType", "options"} & set(entry)
    )


def _is_gpu_runtime(entry: object) -> bool:
    return isinstance(entry, dict) and is_gpu_runtime_program(entry.get("path"))


def _is_as_added(name: str, entry: object, added: WantedRuntime) -> bool:
    return name == added.name and isinstance(entry, dict) and entry.get("path") == added.program


def _is_own(entry: object) -> bool:
    return isinstance(entry, dict) and is_own_program(entry.get("path"))
