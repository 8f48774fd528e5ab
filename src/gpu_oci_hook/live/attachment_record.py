"""Remember what was attached to and detached from each running container, in the state directory.

A record belongs to the container's first process, by its number and start time. It is written before the first change,
with the list of changes that are pending, and again after the last one. A record of a container that has ended is
removed by the next command.

Import budget: cold.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.files.read_regular import UnusableFileError, read_fd
from gpu_oci_hook.files.replace import remove_stale_temporaries, replace_file_at
from gpu_oci_hook.formats.oci import get_list, get_member, get_text
from gpu_oci_hook.live.container_changes import Change
from gpu_oci_hook.live.monitors import read_start_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

DIRECTORY_NAME = "attached"
_FILES_SUFFIX = ".d"
_RECORD_LIMIT = 16 << 20
_LOCK_TIMEOUT = 60.0  # seconds; longer than one command may work on a container
_LOCK_INTERVAL = 0.05
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Device = tuple[int, int]


class AttachmentRecord:
    """What was attached to one container, and what was detached from it.

    Attributes:
        pid, start_time: of its first process.
        title: what the container is, for people.
        attached: the selectors of the GPUs that were attached.
        detached: the selectors of GPUs that the container had from its start and that were detached.
        capabilities: the driver capabilities that were asked for with the attachments; empty for the default.
        devices: the device numbers that were allowed.
        changes: what was changed in the container, in that order.
        pending: what a command that has not ended is changing; it is taken back by the next one.
        pending_devices: the device numbers that it is allowing.
    """

    def __init__(self, pid: int, start_time: int, title: str) -> None:
        self.pid = pid
        self.start_time = start_time
        self.title = title
        self.attached: list[str] = []
        self.detached: list[str] = []
        self.capabilities: list[str] = []
        self.devices: list[Device] = []
        self.changes: list[Change] = []
        self.pending: list[Change] = []
        self.pending_devices: list[Device] = []

    @property
    def key(self) -> str:
        """The name of the record in the state directory."""
        return f"{self.pid}-{self.start_time}"

    def is_empty(self) -> bool:
        """Tell whether there is nothing to remember."""
        return not (
            self.attached or self.detached or self.changes or self.pending or self.devices or self.pending_devices
        )

    def restore_data(self, data: dict[str, object]) -> None:
        """Return to the state that `to_data` has given."""
        _fill_record(self, json.loads(json.dumps(data)))

    def to_data(self) -> dict[str, object]:
        """Return the record as JSON-able data."""
        return {
            "title": self.title,
            "attached": self.attached,
            "detached": self.detached,
            "capabilities": self.capabilities,
            "devices": self.devices,
            "changes": self.changes,
            "pending": self.pending,
            "pending_devices": self.pending_devices,
        }


class RecordStore:
    """The records of all containers, in a directory that only root may write. It is a context manager.

    Arguments:
        create: create the directory when it is missing.

    Raises:
        Fault: it cannot be created, or another user could write it.
    """

    def __init__(self, *, create: bool) -> None:
        self.path = f"{state_dir.DIRECTORY}/{DIRECTORY_NAME}"
        self._fd = -1
        parent_fd = state_dir.open_state_directory(state_dir.DIRECTORY, create=create)
        if parent_fd >= 0:
            os.close(parent_fd)
            self._fd = state_dir.open_state_directory(self.path, create=create)
        if self._fd < 0 and create:
            raise Fault(
                "the directory for records of attached GPUs cannot be used: it must belong to root alone",
                where=self.path,
                hint=f"Look at it: ls -ld {state_dir.DIRECTORY} {self.path}",
            )

    def __enter__(self) -> RecordStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def get_files_directory(self, record: AttachmentRecord) -> str:
        """Return the directory for files that belong to a record; it may be missing."""
        return f"{self.path}/{record.key}{_FILES_SUFFIX}"

    def load(self, pid: int, title: str) -> AttachmentRecord:
        """Return the record of the container with this first process, or an empty one.

        Raises:
            Fault: the process has ended, or the record is damaged.
        """
        start_time = read_start_time(pid)
        if not start_time:
            raise Fault("the container's first process has ended", where=title or f"process {pid}")
        record = AttachmentRecord(pid, start_time, title)
        self._read(record)
        return record

    def list_pids(self) -> list[int]:
        """Return the first processes of the running containers that have a record."""
        keys = [_parse_key(name.removesuffix(".json")) for name in self._list_names() if name.endswith(".json")]
        return [pid for pid, start_time in keys if pid and read_start_time(pid) == start_time]

    def save(self, record: AttachmentRecord) -> None:
        """Write a record, or remove it if there is nothing to remember.

        Raises:
            Fault: it cannot be written.
        """
        name = f"{record.key}.json"
        try:
            if record.is_empty():
                self._remove(record.key)
                return
            remove_stale_temporaries(self._fd)
            replace_file_at(self._fd, name, json.dumps(record.to_data()).encode(), mode=0o600)
        except OSError as error:
            reason = describe_os_error(error, writing=True)
            raise Fault(f"what is attached cannot be recorded: {reason}", where=f"{self.path}/{name}") from None

    def remove_stale(self) -> None:
        """Remove what belongs to containers that have ended, and the temporary files of commands that were killed."""
        if self._fd >= 0:
            remove_stale_temporaries(self._fd)
        for name in self._list_names():
            key = name.partition(".")[0]
            pid, start_time = _parse_key(key)
            if pid and read_start_time(pid) != start_time:
                self._remove(key)
                self._unlink(f"{key}.lock")

    def _list_names(self) -> list[str]:
        try:
            return sorted(os.listdir(self._fd)) if self._fd >= 0 else []
        except OSError:
            return []

    def _read(self, record: AttachmentRecord) -> None:
        """Fill a record from its file, if there is one.

        Raises:
            Fault: it is damaged, or another user could have written it.
        """
        name = f"{record.key}.json"
        if self._fd < 0:
            return
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._fd)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._make_fault(name, describe_os_error(error)) from None
        try:
            if not state_dir.is_trusted_fd(fd):
                raise self._make_fault(name, "another user could have written it")
            data = json.loads(read_fd(fd, _RECORD_LIMIT))
            _fill_record(record, data)
        except (OSError, ValueError, TypeError, UnusableFileError):
            raise self._make_fault(name, "it is damaged") from None
        finally:
            os.close(fd)

    def _make_fault(self, name: str, reason: str) -> Fault:
        hint = "Restart the container, or remove the file: what was attached then stays until the container ends"
        return Fault(
            f"the record of what was attached cannot be used: {reason}", where=f"{self.path}/{name}", hint=hint
        )

    def _remove(self, key: str) -> None:
        self._unlink(f"{key}.json")
        shutil.rmtree(f"{self.path}/{key}{_FILES_SUFFIX}", ignore_errors=True)

    def _unlink(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            pass

    def lock(self, record: AttachmentRecord) -> ContainerLock:
        """Return the lock that keeps two commands from changing one container at the same time."""
        return ContainerLock(self._fd, f"{record.key}.lock", record.title)


class ContainerLock:
    """A lock on one container, a context manager. It ends with the process, however that ends."""

    def __init__(self, directory_fd: int, name: str, title: str) -> None:
        self._directory_fd = directory_fd
        self._name = name
        self._title = title
        self._fd = -1

    def __enter__(self) -> ContainerLock:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        end = time.monotonic() + _LOCK_TIMEOUT
        while True:
            self._fd = os.open(self._name, flags, 0o600, dir_fd=self._directory_fd)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_current():
                    return self
            except OSError:
                if time.monotonic() > end:
                    os.close(self._fd)
                    raise Fault("another command is changing this container", where=self._title) from None
            os.close(self._fd)
            time.sleep(_LOCK_INTERVAL)

    def __exit__(self, *_: object) -> None:
        # Removed while it is held: who opens the name afterwards gets a new file.
        try:
            os.unlink(self._name, dir_fd=self._directory_fd)
        except OSError:
            pass
        os.close(self._fd)

    def _is_current(self) -> bool:
        """Tell whether the locked file still has its name."""
        try:
            status = os.stat(self._name, dir_fd=self._directory_fd, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(status, os.fstat(self._fd))


def _parse_key(key: str) -> tuple[int, int]:
    """Return process and start time of a record's name; (0, 0) for another name."""
    pid, _, start_time = key.partition("-")
    if pid.isdigit() and start_time.isdigit() and len(key) < 40:
        return int(pid), int(start_time)
    return 0, 0


def _fill_record(record: AttachmentRecord, data: object) -> None:
    """Fill a record from JSON data.

    Raises:
        ValueError, TypeError: it is not that of a record.
    """
    record.title = record.title or get_text(data, "title")
    record.attached, record.detached, record.capabilities = (
        [str(word) for word in get_list(data, key)] for key in ("attached", "detached", "capabilities")
    )
    record.devices, record.pending_devices = (
        [_parse_pair(pair) for pair in get_list(data, key)] for key in ("devices", "pending_devices")
    )
    record.changes, record.pending = (
        [parse_change(change) for change in get_list(data, key)] for key in ("changes", "pending")
    )
    if not isinstance(get_member(data, "changes"), list):
        raise ValueError(record.key)


def _parse_pair(value: object) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(number, int) for number in value):
        raise ValueError(value)
    return value[0], value[1]


def parse_change(value: object) -> Change:
    """Return the change that JSON data has.

    Raises:
        ValueError: it is not one.
    """
    if not isinstance(value, list) or len(value) != len(Change._fields):
        raise ValueError(value)
    kind, path, numbers, content, before, mode = value
    if not all(isinstance(text, str) for text in (kind, path, content, before)) or not isinstance(mode, int):
        raise ValueError(value)
    return Change(kind, path, _parse_pair(numbers), content, before, mode)
