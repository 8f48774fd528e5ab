"""Docker for configure: rootful, rootless and snap.

Import budget: cold.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from gpu_oci_hook.engines.docker_config import (
    add_docker_runtime,
    has_own_docker_runtime,
    take_out_docker_runtime,
)
from gpu_oci_hook.engines.engine import ApplyCommand
from gpu_oci_hook.engines.engine_program import (
    find_engine_program,
    find_flag_value,
    list_daemon_arguments,
    parse_version,
    read_program_version,
    run_engine_program,
)
from gpu_oci_hook.engines.wanted import WantedRuntime
from gpu_oci_hook.errors import Fault, describe_os_error

_SNAP = "/var/snap/docker/current"
_VALIDATE_SINCE = (23,)  # `dockerd --validate` (facts: dockerd-validate)
# A flag of these in dockerd's command line and the key in the file keep dockerd from starting.
_DEFAULT_FLAG = "--default-runtime"


class DockerEngine:
    """See `engine.Engine`."""

    name = "docker"

    def is_installed(self) -> bool:
        """See `engine.Engine`."""
        return bool(find_engine_program("dockerd")) or Path(_SNAP).is_dir()

    def find_config_path(self) -> str:
        """See `engine.Engine`: the file of the running daemon's --config-file, or the one of this user's docker."""
        for words in list_daemon_arguments("dockerd"):
            path = find_flag_value(words, "--config-file", "-config-file")
            if path.startswith("/"):
                return path
        if os.geteuid() != 0:
            return os.path.join(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config", "docker/daemon.json")
        if self._is_snap():
            return f"{_SNAP}/config/daemon.json"
        return "/etc/docker/daemon.json"

    def add_runtime(self, data: bytes | None, wanted: WantedRuntime, path: str) -> bytes:
        """See `engine.Engine`."""
        if self._is_snap() and path.startswith(_SNAP):
            raise Fault(
                "docker of the snap is confined and does not see our runtime",
                where=path,
                hint="Install docker from a package, or use CDI devices (docs/cdi.md)",
            )
        return add_docker_runtime(data, wanted, path)

    def take_out_runtime(self, data: bytes, original: bytes | None, added: WantedRuntime | None, path: str) -> bytes:
        """See `engine.Engine`."""
        return take_out_docker_runtime(data, original, added, path)

    def has_own_runtime(self, data: bytes | None, path: str) -> bool:
        """See `engine.Engine`."""
        return has_own_docker_runtime(data, path)

    def judge(self, data: bytes, wanted: WantedRuntime | None, path: str) -> str:
        """See `engine.Engine`: dockerd checks a copy, with the flags of the daemon that runs."""
        running = [words[1:] for words in list_daemon_arguments("dockerd")]
        if wanted is not None and wanted.default:
            for words in running:
                if find_flag_value(words, _DEFAULT_FLAG):
                    raise Fault(
                        f"dockerd is started with {_DEFAULT_FLAG}, and refuses the key in the file then",
                        where=path,
                        hint="Remove the flag from dockerd's unit, or leave out --set-default",
                    )
        program = find_engine_program("dockerd")
        if not program:
            return "checked as JSON, there is no dockerd here"
        text = read_program_version(program)
        if parse_version(text) < _VALIDATE_SINCE:
            if data.startswith(b"\xef\xbb\xbf"):
                hint = "Save it as UTF-8 without one"
                raise Fault(
                    f"starts with a byte order mark, which dockerd {text} refuses", where=f"{path}:1", hint=hint
                )
            return f"checked as JSON, dockerd {text} has no --validate"
        try:
            with tempfile.TemporaryDirectory(prefix="gpu-oci-hook-") as directory:
                copy = os.path.join(directory, "daemon.json")
                Path(copy).write_bytes(data)
                flags = _list_validated_flags(running[0]) if running else []
                result = run_engine_program(program, "--validate", "--config-file", copy, *flags)
        except OSError as error:
            raise Fault(f"no copy to check can be written: {describe_os_error(error, writing=True)}") from None
        if result.status:
            reason = result.last_line().replace(copy, path)
            raise Fault(f"dockerd {text} refuses the changed file; nothing was changed: {reason}", where=path)
        return f"checked by dockerd {text} --validate"

    def find_apply_command(self, *, undo: bool) -> ApplyCommand:
        """See `engine.Engine`: a reload adds runtimes and takes none away (facts: dockerd-reload)."""
        user = ("--user",) if os.geteuid() != 0 else ()
        if undo:
            note = "It stops running containers unless docker has live-restore"
            return ApplyCommand(("systemctl", *user, "restart", "docker"), note)
        return ApplyCommand(("systemctl", *user, "reload", "docker"), "Running containers go on")

    def knows_runtime(self, name: str) -> bool | None:
        """See `engine.Engine`."""
        program = find_engine_program("docker")
        if not program:
            return None
        kept = ("XDG_RUNTIME_DIR", "DOCKER_HOST") if os.geteuid() != 0 else ()
        environment = {key: os.environ[key] for key in kept if key in os.environ}
        result = run_engine_program(program, "info", "--format", "{{json .Runtimes}}", environment=environment)
        try:
            runtimes = json.loads(result.out)
        except ValueError:
            return None
        return name in runtimes if result.status == 0 and isinstance(runtimes, dict) else None

    def _is_snap(self) -> bool:
        return not find_engine_program("dockerd") and Path(_SNAP).is_dir()


def _list_validated_flags(words: list[str]) -> list[str]:
    """Return dockerd's flags without those that say where its file is."""
    flags: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in ("--config-file", "-config-file"):
            skip = True
        elif not word.startswith(("--config-file=", "-config-file=")):
            flags.append(word)
    return flags
