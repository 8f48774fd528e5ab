"""What several commands begin with: the configuration they go by, and a memory that leaves no trace."""

from __future__ import annotations

import stat
from pathlib import Path

from gpu_oci_hook.cli.printing import print_warning
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.config.load import load_config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.host.root import Host


class ReadOnlyCache(state_dir.StateCache):
    """Remembers nothing: for looking without leaving a trace."""

    __slots__ = ()

    def put(self, name: str, data: bytes) -> None:
        """Leaves everything as it is."""

    def lock(self, name: str) -> state_dir.StateLock:
        """A lock that never needs its file: nothing will be written."""
        return _NullLock(name)


class _NullLock(state_dir.StateLock):
    __slots__ = ()

    def __enter__(self) -> _NullLock:
        return self


def load_command_config(config_path: str, root: str, driver_root: str, *, warn: bool = True) -> Config:
    """The configuration of a command: a file's or the default one's, with other roots if they are named.

    Arguments:
        config_path: the config file; empty for the one that holds.
        root, driver_root: in place of the config's keys; empty keeps those.
        warn: print what is odd about the file.

    Raises:
        Fault: the file or a root is not there, or the file cannot be used.
    """
    settings = load_config(config_path)
    if config_path and not settings.path:
        raise Fault("there is no such file", where=config_path)
    for sentence in settings.warnings if warn else ():
        print_warning(sentence)
    if root:
        settings.root = str(Path(root).absolute())
        if not Path(settings.root).is_dir():
            raise Fault("there is no such directory", where=settings.root)
    if driver_root:
        if not driver_root.startswith("/"):
            cure = "Name it as it is seen from the host root"
            raise Fault("the driver root is not an absolute path", where=driver_root, hint=cure)
        host = Host(settings.root)
        status = host.stat_path(driver_root)
        if status is None or not stat.S_ISDIR(status.st_mode):
            raise Fault("there is no such directory", where=host.full_path(driver_root))
        settings.driver_root = driver_root
    return settings
