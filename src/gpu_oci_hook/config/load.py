"""Find, read and load config.toml.

Import budget: cold.
"""

# The runtime shim loads this when its cached configuration is out of date. TOML and the checks are in `config.check`,
# which is imported only if a file has to be parsed.

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
"""Greatest size of a config file in bytes."""


def list_request_words(config: Config) -> tuple[bytes, ...]:
    """List the words by which a config.json shows requests that the configuration adds to `read_regular.TRIGGERS`."""
    prefixes = [f'"{prefix}'.encode() for prefix in config.annotation_prefixes]
    return (*prefixes, *[f"{name}=".encode() for name in config.device_variables])


def find_config_path() -> str:
    """Return the path of the config file: GPU_OCI_HOOK_CONFIG, else /etc/gpu-oci-hook/config.toml."""
    return os.environ.get("GPU_OCI_HOOK_CONFIG") or DEFAULT_PATH


def load_config(path: str = "") -> Config:
    """Load the configuration, or return the defaults if DEFAULT_PATH does not exist.

    Arguments:
        path: the config file, "" for `find_config_path()`.

    Raises:
        Fault: a file other than DEFAULT_PATH is missing, or the file cannot be read, is not trusted or is invalid.
    """
    path = path or find_config_path()
    data = read_named_config(path)
    return Config() if data is None else parse_config(data, path)


def read_named_config(path: str) -> bytes | None:
    """Read a config file of which only DEFAULT_PATH may be missing.

    A mistyped name of a stricter config file must not lead to the defaults.

    Raises:
        Fault: see `load_config`.
    """
    data = read_config_file(path)
    if data is None and path != DEFAULT_PATH:
        if path == os.environ.get("GPU_OCI_HOOK_CONFIG"):
            raise Fault(
                "the config file that GPU_OCI_HOOK_CONFIG names is missing",
                where=path,
                hint="Create it, or unset the variable",
            )
        raise Fault("no such file", where=path)
    return data


def parse_config(data: bytes, path: str) -> Config:
    """Parse a config file. Unknown keys become `Config.warnings`.

    Raises:
        Fault: a value is wrong.
        toml_document.TomlFault: the file is not valid TOML.
    """
    from gpu_oci_hook.config.check import parse_checked_config

    return parse_checked_config(data, path)


def read_config_file(path: str) -> bytes | None:
    """Return the bytes of a config file, None if it is missing.

    Raises:
        Fault: it is not a regular file, cannot be read, is larger than MAX_CONFIG_SIZE, or is not trusted.
    """
    try:
        return read_regular_file(path, MAX_CONFIG_SIZE, check_status=lambda status: check_file_trust(status, path))
    except FileNotFoundError:
        return None
    except UnusableFileError as error:
        raise Fault(f"the config file {error.predicate}", where=path) from error
    except OSError as error:
        raise Fault(f"the config file cannot be read: {describe_os_error(error)}", where=path) from error
