"""Find the CDI file that `cdi refresh` updates without --output, and remember files that went with the driver.

A second file of the same kind would hide the first one: engines use the device of the later directory. So the file is,
in this order: the default one if it exists, a file of gpu-oci-hook in one of the spec directories, a file that an
earlier refresh has removed because the driver was gone, the default one.

Import budget: cold.
"""

from __future__ import annotations

import json
import os
from typing import Any

from gpu_oci_hook.cdi.provenance import is_own_spec_file
from gpu_oci_hook.cdi.registry.spec_dirs import SPEC_SUFFIXES, list_spec_files, locate_spec_dir
from gpu_oci_hook.cdi.spec.reading import read_spec_file
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.formats.oci import get_member
from gpu_oci_hook.host.root import Host

_STATE_NAME = "cdi-removed"
_MAX_REMOVED = 64


def choose_refresh_path(default_path: str, kind: str, config: Config) -> str:
    """Choose the file of a kind that a refresh without --output updates; see the module's docstring.

    Arguments:
        default_path: with a suffix; the other format counts too.
    """
    stem, suffix = os.path.splitext(default_path)
    for path in (default_path, *(stem + other for other in SPEC_SUFFIXES if other != suffix)):
        if os.path.lexists(path):
            return path
    own_files = find_own_files(kind, config)
    if own_files:
        return own_files[-1]  # of the directory that wins
    removed = next((path for path, entry in load_removed_files().items() if entry["kind"] == kind), "")
    return removed if removed and os.path.isdir(os.path.dirname(removed)) else default_path


def find_own_files(kind: str, config: Config) -> list[str]:
    """Find the files of gpu-oci-hook in the spec directories that define devices of a kind."""
    host = Host(config.root)
    found = []
    for directory in config.spec_dirs:
        local_directory = locate_spec_dir(host, directory)
        for name in list_spec_files(local_directory) if local_directory else ():
            path = f"{local_directory}/{name}"
            if is_own_spec_file(path) and get_member(read_spec_file(path).data, "kind") == kind:
                found.append(path)
    return found


def load_removed_files() -> dict[str, dict[str, Any]]:
    """Load what is remembered of removed files: {"kind": …, "arguments": [recorded options]} by path."""
    try:
        entries = json.loads(state_dir.read_state(_STATE_NAME) or b"{}")
    except ValueError:
        return {}
    return entries if isinstance(entries, dict) else {}


def remember_removed_file(path: str, kind: str, arguments: list[str]) -> None:
    """Remember a file that was removed because the driver is gone."""
    entries = load_removed_files()
    entries.pop(path, None)
    entries[path] = {"kind": kind, "arguments": arguments}
    _save_removed_files(dict(list(entries.items())[-_MAX_REMOVED:]))


def forget_removed_file(path: str) -> None:
    """Forget a file that exists again."""
    entries = load_removed_files()
    if entries.pop(path, None) is not None:
        _save_removed_files(entries)


def _save_removed_files(entries: dict[str, dict[str, Any]]) -> None:
    state_dir.write_state(_STATE_NAME, json.dumps(entries).encode())
