"""What several commands begin with: the configuration they go by, and a memory that leaves no trace."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from gpu_oci_hook import config as configuration
from gpu_oci_hook import state
from gpu_oci_hook.cli import output
from gpu_oci_hook.config import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.host.root import Host

LAUNCHER = b"# Launcher of gpu-oci-hook, written by `gpu-oci-hook install`"
"""The line by which a launcher of ours is known."""


class Silent(state.Memory):
    """Remembers nothing: for looking without leaving a trace."""

    __slots__ = ()

    def put(self, name: str, data: bytes) -> None:
        """Leaves everything as it is."""

    def lock(self, name: str) -> state.Lock:
        """A lock that never needs its file: nothing will be written."""
        return _NoLock(name)


class _NoLock(state.Lock):
    __slots__ = ()

    def __enter__(self) -> _NoLock:
        return self


def settings_for(path: str, root: str, driver_root: str, *, say: bool = True) -> Config:
    """The configuration of a command: a file's or the default one's, with other roots if they are named.

    Arguments:
        path: the config file; empty for the one that holds.
        root, driver_root: in place of the config's keys; empty keeps those.
        say: print what is odd about the file.

    Raises:
        Fault: the file or a root is not there, or the file cannot be used.
    """
    settings = configuration.load(path)
    if path and not settings.path:
        raise Fault("there is no such file", where=path)
    for sentence in settings.warnings if say else ():
        output.warning(sentence)
    if root:
        settings.root = str(Path(root).absolute())
        if not Path(settings.root).is_dir():
            raise Fault("there is no such directory", where=settings.root)
    if driver_root:
        if not driver_root.startswith("/"):
            cure = "Name it as it is seen from the host root"
            raise Fault("the driver root is not an absolute path", where=driver_root, cure=cure)
        host = Host(settings.root)
        status = host.status(driver_root)
        if status is None or not stat.S_ISDIR(status.st_mode):
            raise Fault("there is no such directory", where=host.path(driver_root))
        settings.driver_root = driver_root
    return settings


def toml(value: object) -> str:
    """A string, boolean, table, or list of them as TOML (whose strings are JSON's, but for DEL)."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(entry)}" for key, entry in value.items()) + " }"
    if isinstance(value, tuple | list):
        return f"[{', '.join(toml(item) for item in value)}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
