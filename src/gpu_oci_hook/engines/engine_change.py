"""Decide what becomes of an engine's configuration file, and replace it: set up, check, undo.

Import budget: cold.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from gpu_oci_hook.engines.change_record import (
    ChangeRecord,
    hash_content,
    lock_change_records,
    read_change_record,
    remove_change_record,
    write_change_record,
)
from gpu_oci_hook.engines.engine import Engine
from gpu_oci_hook.engines.wanted import DEFAULT_NAME, WantedRuntime
from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.read_regular import read_regular_file
from gpu_oci_hook.files.replace import remove_stale_temporaries, replace_file

State = Literal["set up", "not set up", "drifted"]
_SIZE_LIMIT = 4 << 20


@dataclass(frozen=True)
class EngineFile:
    """An engine's configuration file and what we know of it.

    Arguments:
        content: None if there is no file.
        original: the content without us: as it was before, or with our entries taken out.
        record: what configure has done to it, None for nothing.
    """

    path: str
    content: bytes | None
    original: bytes | None
    record: ChangeRecord | None


@dataclass(frozen=True)
class EngineChange:
    """A change of an engine's file. `added` is None if our runtime is taken out."""

    file: EngineFile
    content: bytes | None
    added: WantedRuntime | None

    @property
    def changes_file(self) -> bool:
        """Whether the file becomes another one."""
        return self.content != self.file.content


def read_engine_file(engine: Engine, path: str) -> EngineFile:
    """Read an engine's configuration file and the record about it.

    Raises:
        Fault: one of them cannot be read, or the file is not valid.
    """
    record = read_change_record(engine.name, path)
    content = _read_content(path)
    return EngineFile(path, content, _find_original(engine, path, content, record), record)


def _read_content(path: str) -> bytes | None:
    try:
        return read_regular_file(path, _SIZE_LIMIT)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise Fault(f"cannot be read: {describe_os_error(error)}", where=path) from None


def _find_original(engine: Engine, path: str, content: bytes | None, record: ChangeRecord | None) -> bytes | None:
    if content is None or record is None or content == record.original:
        return content
    if hash_content(content) in record.written_hashes:
        return record.original
    return engine.take_out_runtime(content, record.original, record.added, path)


def choose_wanted_runtime(file: EngineFile, name: str, program: str, default: bool | None) -> WantedRuntime:
    """Return what the engine is to have: the options, and for those that were not given what it was set up with.

    Arguments:
        name: "" if it was not given.
        default: None if it was not given.
    """
    added = file.record.added if file.record is not None else None
    if default is None:
        default = added is not None and added.default
    return WantedRuntime(name or (added.name if added else DEFAULT_NAME), program, default)


def plan_setup(engine: Engine, file: EngineFile, wanted: WantedRuntime) -> EngineChange:
    """Plan the file with our runtime.

    Raises:
        Fault: the file cannot get it.
    """
    is_as_recorded = file.record is None or file.record.added == wanted
    # The same settings, perhaps at another place in the file: then it stays as it is.
    if is_as_recorded and file.content and engine.add_runtime(file.content, wanted, file.path) == file.content:
        return EngineChange(file, file.content, wanted)
    return EngineChange(file, engine.add_runtime(file.original, wanted, file.path), wanted)


def plan_undo(engine: Engine, file: EngineFile) -> EngineChange:
    """Plan the file without us.

    Raises:
        Fault: the file is not valid.
    """
    if file.record is not None or file.content is None:
        return EngineChange(file, file.original, None)
    if not engine.has_own_runtime(file.content, file.path):
        return EngineChange(file, file.content, None)
    return EngineChange(file, engine.take_out_runtime(file.content, None, None, file.path), None)


def find_setup_state(engine: Engine, file: EngineFile, wanted: WantedRuntime) -> State:
    """Tell whether an engine's file has what is wanted.

    Raises:
        Fault: the file is not valid.
    """
    if file.content is not None:
        try:
            change = plan_setup(engine, file, wanted)
        except Fault:
            if file.record is None:
                raise
            return "drifted"
        if not change.changes_file:
            return "set up"
        if file.record is not None and file.content == file.record.original:
            return "not set up"  # configure was killed before it replaced the file
        if engine.has_own_runtime(file.content, file.path):
            return "drifted"
    return "drifted" if file.record is not None else "not set up"


def carry_out(engine: Engine, change: EngineChange) -> str:
    """Let the engine judge the new file, and replace the old one. Return who has judged it, "" if nobody had to.

    Raises:
        Fault: the engine refuses the file, or something cannot be written. The file is then as before.
    """
    file, judged = change.file, ""
    if change.changes_file and change.content is not None:
        judged = engine.judge(change.content, change.added, file.path)
    if not change.changes_file and (change.added is not None or file.record is None):
        return judged
    with lock_change_records():
        if _read_content(file.path) != file.content:
            raise Fault("was changed by somebody else meanwhile", where=file.path, hint="Run it again")
        _remove_litter(file.path)
        if change.added is None:
            _restore(engine, change)
        else:
            _record_and_write(engine, change, change.added)
    return judged


def _record_and_write(engine: Engine, change: EngineChange, added: WantedRuntime) -> None:
    """Write the record of a change, then the file."""
    file = change.file
    assert change.content is not None, "adding a runtime makes no file vanish"
    hashes, made = [hash_content(change.content)], _list_missing_directories(file.path)
    if file.record is not None:
        made = (*made, *file.record.made_directories)
        if file.content is not None and hash_content(file.content) in file.record.written_hashes:
            hashes.append(hash_content(file.content))  # it is in the file still if this process is killed now
    write_change_record(engine.name, ChangeRecord(file.path, file.original, tuple(hashes), added, made))
    try:
        _write_engine_file(file, change.content)
    except Fault:
        if file.record is not None:
            write_change_record(engine.name, file.record)
        else:
            remove_change_record(engine.name, file.path)
        raise


def _remove_litter(path: str) -> None:
    """Remove the temporary files of a process that was killed; the records are locked, so there is no other process."""
    try:
        fd = os.open(os.path.dirname(os.path.realpath(path)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    remove_stale_temporaries(fd, 0)
    os.close(fd)


def _restore(engine: Engine, change: EngineChange) -> None:
    """Write the file without us, or remove it and the directories that we have created, then forget the record."""
    file = change.file
    if change.changes_file:
        if change.content is not None:
            _write_engine_file(file, change.content)
        else:
            try:
                os.unlink(os.path.realpath(file.path))
            except OSError as error:
                raise Fault(f"cannot be removed: {describe_os_error(error, writing=True)}", where=file.path) from None
    if file.record is None:
        return
    if change.content is None:
        for directory in file.record.made_directories:
            try:
                os.rmdir(directory)
            except OSError:
                break  # somebody else uses it by now
    remove_change_record(engine.name, file.path)


def _list_missing_directories(path: str) -> tuple[str, ...]:
    """Return the directories that a file needs and that do not exist, the innermost first."""
    missing = []
    directory = os.path.dirname(os.path.realpath(path))
    while directory != "/" and not os.path.lexists(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    return tuple(missing)


def _write_engine_file(file: EngineFile, content: bytes) -> None:
    """Replace the file; a link leads to the file that is replaced, as the engine follows it too."""
    if file.content is not None:
        replace_file(file.path, content, durable=True)
        return
    try:
        for directory in reversed(_list_missing_directories(file.path)):
            os.mkdir(directory)
            os.chmod(directory, 0o755 if os.geteuid() == 0 else 0o700)
    except OSError as error:
        reason = describe_os_error(error, writing=True)
        raise Fault(f"its directory cannot be created: {reason}", where=file.path) from None
    replace_file(file.path, content, mode=0o644, durable=True)
