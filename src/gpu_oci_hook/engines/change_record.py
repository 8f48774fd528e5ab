"""Remember what configure has changed, so that it can be taken back: one file for each configuration file of an engine.

The record is written before the configuration file is replaced. A process that is killed in between leaves a record of
a change that was not made, which the hash of the file shows. Records survive a reboot, unlike the caches in /run. They
hold the engine's former file, which may have credentials of a proxy, so only their owner can read them.

Import budget: cold.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpu_oci_hook.engines.wanted import WantedRuntime
from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.read_regular import read_regular_file
from gpu_oci_hook.files.replace import replace_file
from gpu_oci_hook.files.trust import check_file_trust

SYSTEM_DIRECTORY = "/var/lib/gpu-oci-hook/configure"
_USER_DIRECTORY = "gpu-oci-hook/configure"
_VERSION = 1
_SIZE_LIMIT = 8 << 20


@dataclass(frozen=True)
class ChangeRecord:
    """What configure has done to one file.

    Arguments:
        path: of the file, as the engine names it.
        original: its content before us; None if there was no file.
        written_hashes: SHA-256 of what we wrote, as hex digits; before a change of ours also of what we wrote earlier.
        added: what we have added.
        made_directories: that we have created for the file, the innermost first.
    """

    path: str
    original: bytes | None
    written_hashes: tuple[str, ...]
    added: WantedRuntime
    made_directories: tuple[str, ...] = ()


def find_record_path(engine: str, path: str) -> str:
    """Return where the record about a configuration file of an engine is."""
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return os.path.join(_find_directory(), f"{engine}-{digest}.json")


def read_change_record(engine: str, path: str) -> ChangeRecord | None:
    """Read the record about a configuration file; None if there is none.

    Raises:
        Fault: it cannot be read or used, or another user could have written it.
    """
    record_path = find_record_path(engine, path)
    try:
        data = read_regular_file(
            record_path,
            _SIZE_LIMIT,
            check_status=lambda status: check_file_trust(status, record_path, "the record of configure"),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise Fault(f"cannot be read: {describe_os_error(error)}", where=record_path) from None
    try:
        return _parse_record(data, path)
    except (ValueError, KeyError, TypeError):
        hint = f"Take our entries out of {path} by hand and remove this record"
        raise Fault("this record of configure is damaged", where=record_path, hint=hint) from None


def write_change_record(engine: str, record: ChangeRecord) -> None:
    """Write the record about a configuration file, so that it survives a power loss; the records must be locked.

    Raises:
        Fault: it cannot be written.
    """
    record_path = find_record_path(engine, record.path)
    content = {
        "version": _VERSION,
        "path": record.path,
        "original": None if record.original is None else base64.b64encode(record.original).decode(),
        "written_hashes": list(record.written_hashes),
        "added": {"name": record.added.name, "program": record.added.program, "default": record.added.default},
        "made_directories": list(record.made_directories),
    }
    replace_file(record_path, json.dumps(content, indent=2).encode(), mode=0o600, durable=True, stale_after=0)


@contextlib.contextmanager
def lock_change_records() -> Iterator[None]:
    """Keep other processes from changing engines until the block ends; the directory of the records is created.

    Raises:
        Fault: the directory cannot be created.
    """
    directory = _find_directory()
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_EX)
    except OSError as error:
        reason = describe_os_error(error, writing=True)
        raise Fault(f"the record of what is changed cannot be kept: {reason}", where=directory) from None
    try:
        yield
    finally:
        os.close(fd)
        for path in (directory, os.path.dirname(directory)):
            try:
                os.rmdir(path)
            except OSError:
                break  # there are records


def remove_change_record(engine: str, path: str) -> None:
    """Remove the record about a configuration file.

    Raises:
        Fault: it cannot be removed.
    """
    record_path = find_record_path(engine, path)
    try:
        os.unlink(record_path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise Fault(f"cannot be removed: {describe_os_error(error, writing=True)}", where=record_path) from None


def hash_content(data: bytes) -> str:
    """Return the SHA-256 of a file's content as hex digits."""
    return hashlib.sha256(data).hexdigest()


def _find_directory() -> str:
    if os.geteuid() == 0:
        return SYSTEM_DIRECTORY
    return os.path.join(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state", _USER_DIRECTORY)


def _parse_record(data: bytes, path: str) -> ChangeRecord:
    content = json.loads(data)
    if content["version"] != _VERSION or content["path"] != path:
        raise ValueError(path)
    original, added = content["original"], content["added"]
    return ChangeRecord(
        path,
        None if original is None else base64.b64decode(original, validate=True),
        tuple(str(digest) for digest in content["written_hashes"]),
        WantedRuntime(str(added["name"]), str(added["program"]), bool(added["default"])),
        tuple(str(directory) for directory in content["made_directories"]),
    )
