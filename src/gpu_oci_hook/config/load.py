"""config.toml as a Config: the keys, their defaults, and which file may be believed.

Cost rule: hot. Imports only what every start has loaded anyway; TOML, validation and everything that
words a complaint are in `config.check`, which is imported when a file has to be parsed and not when a
remembered Config is taken (`Config.from_data`).
"""

from __future__ import annotations

import os

from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.files.read_regular import UnusableFileError, read_regular_file
from gpu_oci_hook.files.trust import check_file_trust

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

DEFAULT_PATH: Final = state_dir.DEFAULT_CONFIG_PATH
MAX_CONFIG_SIZE: Final = 1 << 20
"""Bytes that a config file may have."""


"""Who decides about something beside the GPUs: each container, or the administrator for all of them."""


def find_config_path() -> str:
    """Where the config file is looked for: GPU_OCI_HOOK_CONFIG, else /etc/gpu-oci-hook/config.toml."""
    return os.environ.get("GPU_OCI_HOOK_CONFIG") or DEFAULT_PATH


def load_config(path: str = "") -> Config:
    """The configuration from `path` (default: `find_config_path()`); the defaults when nobody has written DEFAULT_PATH.

    Raises:
        Fault: not there though somebody named it, not a regular file, not readable, too large, not to be
            trusted, not TOML, a wrong type.
    """
    path = path or find_config_path()
    data = read_named_config(path)
    return Config() if data is None else parse_config(data, path)


def read_named_config(path: str) -> bytes | None:
    """As `read_config_file`, but only DEFAULT_PATH may be missing: who mistypes a stricter file's name must not get the defaults.

    Raises:
        Fault: see `load_config`.
    """
    data = read_config_file(path)
    if data is None and path != DEFAULT_PATH:
        if path == os.environ.get("GPU_OCI_HOOK_CONFIG"):
            what, cure = "the config file that GPU_OCI_HOOK_CONFIG names is missing", "Write it, or unset the variable"
        else:
            what, cure = "there is no such file", ""
        raise Fault(what, where=path, hint=cure)
    return data


def parse_config(data: bytes, path: str) -> Config:
    """The configuration that these bytes spell; unknown keys end up in `Config.warnings`.

    Raises:
        Fault: not TOML (then a `check.TomlFault`, which knows the place), or a value of a wrong type.
    """
    from gpu_oci_hook.config.check import parse_checked_config

    return parse_checked_config(data, path)


def read_config_file(path: str) -> bytes | None:
    """The bytes of a config file, None when it is missing.

    Never blocks on a FIFO and never reads more than `MAX_CONFIG_SIZE`.

    Raises:
        Fault: it is no regular file, may not be read, is too large, or is not to be trusted.
    """
    try:
        return read_regular_file(path, MAX_CONFIG_SIZE, check_status=lambda status: check_file_trust(status, path))
    except FileNotFoundError:
        return None
    except UnusableFileError as error:
        raise Fault(f"the config file {error.predicate}", where=path) from error
    except OSError as error:
        raise Fault(f"the config file cannot be read: {describe_os_error(error)}", where=path) from error
