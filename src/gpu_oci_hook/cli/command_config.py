"""Load the configuration that a command works with, and the cache of commands that only look.

Import budget: cold.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gpu_oci_hook.cli.printing import print_warning
from gpu_oci_hook.cli.usage_errors import UsageFault
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.config.load import load_config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.host.root import Host


class ReadOnlyCache(state_dir.StateCache):
    """A state cache that is read and never written, for commands that change nothing."""

    __slots__ = ()

    def put(self, name: str, data: bytes) -> None:
        """Discard the data."""

    def lock(self, name: str) -> state_dir.StateLock:
        """Return a lock without a file, because nothing will be written."""
        return _NullLock(name)


class _NullLock(state_dir.StateLock):
    __slots__ = ()

    def __enter__(self) -> _NullLock:
        return self


def require_config_file(config_path: str) -> None:
    """Check that the file of --config exists, also where the default one may be missing.

    Raises:
        Fault: it does not.
    """
    if config_path and not os.path.lexists(config_path):
        raise Fault("no such file", where=f"--config {config_path}")


def load_command_config(config_path: str, root: str, driver_root: str, *, warn: bool = True) -> Config:
    """Load the configuration of a command and override its roots.

    Arguments:
        config_path: the config file, "" for the default one.
        root, driver_root: values for the config keys of these names, "" to keep the configured ones.
        warn: whether to print the warnings about the file.

    Raises:
        Fault: the file or a root is missing, or the file is invalid.
    """
    require_config_file(config_path)
    settings = load_config(config_path)
    for warning in settings.warnings if warn else ():
        print_warning(warning)
    if root:
        settings.root = str(Path(root).absolute())
        if not Path(settings.root).is_dir():
            if Path(settings.root).exists():
                raise Fault("not a directory", where=f"--root {settings.root}")
            hint = "Name a host built with gpu-oci-hook simulate"
            raise Fault("no such directory", where=f"--root {settings.root}", hint=hint)
    if driver_root:
        if not driver_root.startswith("/"):
            hint = "Give its path as seen from the host root"
            raise UsageFault("not an absolute path", where=f"--driver-root {driver_root}", hint=hint)
        host = Host(settings.root)
        status = host.stat_path(driver_root)
        if status is None or not stat.S_ISDIR(status.st_mode):
            problem = "no such directory" if status is None else "not a directory"
            raise Fault(problem, where=f"--driver-root {host.full_path(driver_root)}")
        settings.driver_root = driver_root
    return settings
