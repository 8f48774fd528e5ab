"""Inject GPUs at the stage precreate of podman and CRI-O: config.json on stdin, the changed one on stdout.

The engine calls the hook with the config.json that it is about to write, when the container's root is mounted. The plan
and its edits are those of gpu-oci-runtime, so the low-level runtime makes nodes, mounts and device rules, and systemd
knows them. The engine takes stdout as the new config.json and discards stderr: the reason of a failure is in the hook
log.

Import budget: cold.
"""

from __future__ import annotations

import os

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.files.read_regular import CONFIG_JSON_LIMIT
from gpu_oci_hook.files.trust import describe_foreign_access, resolve_trusted_links
from gpu_oci_hook.formats.fastjson import parse_config_json
from gpu_oci_hook.formats.oci import get_list, get_member, get_text
from gpu_oci_hook.hook.hook_config import load_hook_config
from gpu_oci_hook.hook.standard_streams import read_input, write_config_json
from gpu_oci_hook.inject.pipeline import make_edits, prepare_injection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.formats.oci import Object

_STDIN = "standard input"
_CALLER_HINT = "Let podman or CRI-O call this hook"
# podman and CRI-O mount a file of the container's own directory there; the last one can be another container's, of the
# same pod.
_ENGINE_FILES = ("/run/.containerenv", "/etc/hostname", "/etc/hosts")
_ENGINE_DIRECTORY = "userdata"  # below STORAGE/DRIVER-containers/ID (facts: podman-directories)
_ID_LENGTH = 64


def run_precreate_hook(input_fd: int, output_fd: int, config_json: bytes | None = None) -> list[str]:
    """Read a config.json, make the edits of the plan, and write it; return notes for the log.

    A config.json that stays as it is is written byte by byte.

    Arguments:
        config_json: what was read from the input; None if nothing was.

    Raises:
        Fault: it cannot be read, or the container requests something that it cannot have. Nothing is written.
    """
    data = _read_config_json(input_fd) if config_json is None else config_json
    _check_size(data)
    spec = parse_config_json(data, _STDIN)
    config = load_hook_config(spec)
    notes: list[str] = []
    if config is not None:
        outcome = prepare_injection(spec, config, find_bundle(spec), state_dir.StateCache())
        notes = outcome.plan.warnings
        content, _ = make_edits(outcome, spec, _STDIN, data)
        data = content or data
    write_config_json(output_fd, data)
    return notes


def find_bundle(spec: Object) -> str:
    """Return the container's own directory, where files for bind mounts can lie as long as the container exists.

    The bundle is not written yet, and the current directory is podman's own up to podman 4. The engine's files for the
    container lie in the bundle; without any, the directory that has the root file system is taken. A user can mount a
    file of a volume in their place, and containers can write to a volume. So only a directory counts that looks like
    the engine's, and that no other user can have made.

    Raises:
        Fault: the config.json names no such directory.
    """
    sources = {get_text(mount, "destination"): get_text(mount, "source") for mount in get_list(spec, "mounts")}
    for path in _ENGINE_FILES:
        directory = os.path.dirname(sources.get(path, ""))
        if _is_engine_directory(directory):
            return directory
    root = get_member(spec, "root", "path")
    if not isinstance(root, str) or not root.startswith("/"):
        raise Fault("root.path is not an absolute path", where=_STDIN, hint=_CALLER_HINT)
    directory = os.path.dirname(root.rstrip("/"))
    if not _is_trusted_directory(directory):
        raise Fault(
            "this directory can be changed by another user, and the config.json names none of the engine's for the "
            "container",
            where=directory,
            hint=f"Do not mount over {_ENGINE_FILES[0]}, or use gpu-oci-runtime instead of this hook",
        )
    return directory


def _is_engine_directory(path: str) -> bool:
    """Tell whether a path is the directory in which podman or CRI-O keeps a container's own files."""
    parts = path.split("/")
    if parts[0] or len(parts) < 4 or parts[-1] != _ENGINE_DIRECTORY or not parts[-3].endswith("-containers"):
        return False
    container_id = parts[-2]
    is_id = len(container_id) == _ID_LENGTH and all(character in "0123456789abcdef" for character in container_id)
    # The directory itself can belong to the root of the container's user namespace; nobody else gets to it.
    return is_id and _is_trusted_directory(path.rsplit("/", 2)[0])


def _is_trusted_directory(path: str) -> bool:
    try:
        return not describe_foreign_access(os.stat(resolve_trusted_links(path)))
    except Fault:
        return False  # a link of another user
    except OSError:
        return True  # using it reports the reason


def _read_config_json(fd: int) -> bytes:
    try:
        return read_input(fd, CONFIG_JSON_LIMIT)
    except OSError as error:
        what = f"the config.json cannot be read: {describe_os_error(error)}"
        raise Fault(what, where=_STDIN, hint=_CALLER_HINT) from None


def _check_size(data: bytes) -> None:
    if not data.strip():
        raise Fault("no config.json", where=_STDIN, hint=_CALLER_HINT)
    if len(data) > CONFIG_JSON_LIMIT:
        what = f"the config.json cannot be read: it is larger than {CONFIG_JSON_LIMIT >> 20} MiB"
        raise Fault(what, where=_STDIN, hint=_CALLER_HINT)
