"""Read a hook's standard input, the OCI state of a container or a config.json, and write its standard output.

Import budget: pass-through.
"""

# No `from __future__ import annotations`: that module is a file more to load in every call.

import posix

STATE_SIZE_LIMIT = 4 << 20  # it has the container's annotations, of which Kubernetes allows 256 KiB
_MAX_READ_SIZE = 1 << 20


def read_input(fd: int, limit: int) -> bytes:
    """Read a descriptor to its end, or until more than `limit` bytes are read.

    Raises:
        OSError: it cannot be read.
    """
    parts: list[bytes] = []
    total = 0
    size = 1 << 16
    while total <= limit and (part := posix.read(fd, size)):
        parts.append(part)
        total += len(part)
        size = _MAX_READ_SIZE
    return b"".join(parts)


def drain_state(state_fd: int) -> None:
    """Read and discard the state, for a hook that does not need it.

    crun up to 1.8 fails a start ("Broken pipe") when a hook ends without reading its stdin. A terminal is not read,
    and reading stops at the size limit of a state.
    """
    try:
        if not posix.isatty(state_fd):
            read_input(state_fd, STATE_SIZE_LIMIT)
    except OSError:
        pass  # closed: no writer waits for us


def write_config_json(fd: int, data: bytes) -> None:
    """Write a config.json.

    Raises:
        Fault: it cannot be written.
    """
    view = memoryview(data)
    try:
        while view:
            view = view[posix.write(fd, view) :]
    except OSError as error:
        from gpu_oci_hook.errors import Fault, describe_os_error

        what = f"the config.json cannot be written: {describe_os_error(error, writing=True)}"
        raise Fault(what, where="standard output") from None


def find_state_bundle(state: bytes) -> str:
    """Return the bundle's directory in a container's state, "" where only a JSON parser can tell.

    `import json` costs more than the interpreter's own start. A state is one object, and the bundle is known for sure
    if its key is there once and no other object or list begins before it. A quote inside a string has a backslash in
    front of it, so an annotation's text is never taken for a key.
    """
    state = state.strip()
    if state[:1] != b"{" or state[-1:] != b"}" or state.count(b'"bundle') != 1:
        return ""
    bundle = _find_text(state, b'"bundle"')
    if bundle is None:
        bundle = _find_text(state, b'"bundlePath"')
    if bundle == b"" and _find_text(state, b'"root"'):  # crun: see `called_container._find_bundle`
        try:
            return posix.getcwd()
        except OSError:
            return ""
    try:
        return bundle.decode() if bundle and bundle.startswith(b"/") else ""
    except ValueError:
        return ""


def _find_text(state: bytes, key: bytes) -> bytes | None:
    """Return the text under a key of the outermost object, None where that is not certain."""
    at = state.find(key)
    if at < 1 or state[at - 1 : at] == b"\\" or state.find(b"{", 1, at) >= 0 or state.find(b"[", 1, at) >= 0:
        return None
    rest = state[at + len(key) :].lstrip()
    value = rest[1:].lstrip()
    end = value.find(b'"', 1)
    if rest[:1] != b":" or value[:1] != b'"' or end < 0 or b"\\" in value[:end]:
        return None
    return value[1:end]
