"""A container that was found, and the small files in which engines and runtimes say where it is.

Import budget: cold.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import NamedTuple, cast

from gpu_oci_hook.files.read_regular import UnusableFileError, read_regular_file
from gpu_oci_hook.live.user_claims import collect_user_claims

_FILE_LIMIT = 16 << 20
_PID_FILE_LIMIT = 64


class FoundContainer(NamedTuple):
    """A container of an engine or a low-level runtime.

    Attributes:
        title: what it is, for people.
        bundle: its bundle's directory.
        monitor_pid: the process that watches it, in whose mount namespace the bundle's paths count; 0 if it is stopped,
            or if this process's paths count.
        init_pid: its first process; 0 if it is stopped or that is unknown.
        reference: how the command line names it, such as "docker:web".
        names: its name and its id.
        owner: the user who says that this is a container, by a process or a file of his.
    """

    title: str
    bundle: str
    monitor_pid: int
    init_pid: int = 0
    reference: str = ""
    names: tuple[str, ...] = ()
    owner: int = 0

    @property
    def is_running(self) -> bool:
        """Whether it runs."""
        return bool(self.monitor_pid or self.init_pid)


def collect_containers(uid: int, function: Callable[[], Iterable[FoundContainer]]) -> list[FoundContainer]:
    """Return the containers that a function finds among a user's processes and files; see `collect_user_claims`."""
    rows = cast("list[tuple[str, str, int, int, str, list[str], int]]", collect_user_claims(uid, function))
    return [FoundContainer(*row[:5], tuple(row[5]), row[6]) for row in rows]


def read_pid_file(path: str) -> int:
    """Return the number of a process that a file has; 0 without one."""
    text = _read_text(path, _PID_FILE_LIMIT).strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else 0


def list_directories(path: str, *, follow_symlinks: bool = True) -> list[str]:
    """Return the directories in a directory, sorted; none where it cannot be read."""
    try:
        return sorted(entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=follow_symlinks))
    except OSError:
        return []


def read_json_file(path: str) -> object:
    """Return the JSON document in a file; None if there is none."""
    text = _read_text(path, _FILE_LIMIT)
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _read_text(path: str, limit: int) -> str:
    try:
        return read_regular_file(path, limit).decode("utf-8", "surrogateescape")
    except (OSError, UnusableFileError):
        return ""
