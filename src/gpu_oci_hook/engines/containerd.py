"""containerd for configure: its config.toml, `containerd config dump` as judge, and its CRI plugin.

Import budget: cold.
"""

from __future__ import annotations

import os
import tempfile
import tomllib

from gpu_oci_hook.engines.containerd_config import (
    EffectiveConfig,
    add_containerd_runtime,
    check_effective_config,
    has_own_containerd_runtime,
    is_cri_plugin_disabled,
    take_out_containerd_runtime,
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
from gpu_oci_hook.files.replace import CREATE_FLAGS, make_temporary_name
from gpu_oci_hook.formats.toml_text import TomlText

_CONFIG_FLAGS = ("--config", "-config", "-c")
# Of the containerd that dockerd, k3s, RKE2, MicroK8s or k0s start. They write these files again at each start.
_OTHERS_FILES = ("/run/", "/var/run/", "/var/lib/", "/var/snap/", "/etc/k0s/")
_DEFAULT_PATH = "/etc/containerd/config.toml"


class ContainerdEngine:
    """See `engine.Engine`."""

    name = "containerd"

    def is_installed(self) -> bool:
        """See `engine.Engine`."""
        if not find_engine_program("containerd"):
            return False
        path = self.find_config_path()
        try:
            # docker's own package has the CRI plugin switched off, and then no runtime can be set up.
            return not is_cri_plugin_disabled(_read_file(path), path)
        except Fault:
            return True  # named when the file is read

    def find_config_path(self) -> str:
        """See `engine.Engine`: the file of the running daemon's --config, or the default one."""
        for words in list_daemon_arguments("containerd"):
            path = find_flag_value(words, *_CONFIG_FLAGS)
            if path.startswith("/") and not path.startswith(_OTHERS_FILES):
                return path
        return _DEFAULT_PATH

    def add_runtime(self, data: bytes | None, wanted: WantedRuntime, path: str) -> bytes:
        """See `engine.Engine`."""
        TomlText(data, path)  # names the line of a mistake better than containerd
        return add_containerd_runtime(data, wanted, self._ask_containerd(data, path), path)

    def take_out_runtime(self, data: bytes, original: bytes | None, added: WantedRuntime | None, path: str) -> bytes:
        """See `engine.Engine`."""
        return take_out_containerd_runtime(data, original, added, path)

    def has_own_runtime(self, data: bytes | None, path: str) -> bool:
        """See `engine.Engine`."""
        return has_own_containerd_runtime(data, path)

    def judge(self, data: bytes, wanted: WantedRuntime | None, path: str) -> str:
        """See `engine.Engine`: containerd says what it makes of the new file, and that is compared with the old one."""
        after = self._ask_containerd(data, path)
        if wanted is not None:
            check_effective_config(self._ask_containerd(_read_file(path), path), after, wanted, path)
        return f"checked by containerd {'.'.join(map(str, after.release))} config dump"

    def find_apply_command(self, *, undo: bool) -> ApplyCommand:
        """See `engine.Engine`: containerd reads its file only when it starts."""
        return ApplyCommand(("systemctl", "restart", "containerd"), "Running containers go on")

    def knows_runtime(self, name: str) -> bool | None:
        """See `engine.Engine`: only crictl shows the handlers of a daemon that runs."""
        crictl, ctr = find_engine_program("crictl"), find_engine_program("ctr")
        if crictl:
            result = run_engine_program(crictl, "info")
            if result.status == 0:
                return f'"{name}": {{' in result.out
        if ctr:
            result = run_engine_program(ctr, "plugins", "ls")
            states = [line.split()[-1] for line in result.out.splitlines() if "cri" in line.split()]
            if result.status == 0 and "error" in states:
                return False
        return None

    def _ask_containerd(self, data: bytes | None, path: str) -> EffectiveConfig:
        """Return what the installed containerd makes of a file with this content.

        The file is written beside the real one, because imports are relative to it.

        Raises:
            Fault: there is no containerd, or it refuses the file.
        """
        program = find_engine_program("containerd")
        if not program:
            raise Fault("containerd is not installed, so nothing says what its runtimes need", where=path)
        release = parse_version(read_program_version(program))
        if data is None:
            values = _parse_dump(run_engine_program(program, "config", "default").out)
            imports = values.get("imports")
            return EffectiveConfig(release, values, tuple(imports) if isinstance(imports, list) else ())
        try:
            with tempfile.TemporaryDirectory(prefix="gpu-oci-hook-") as directory:
                if _has_relative_import(data, path):  # it starts at the directory of the file
                    directory = os.path.dirname(os.path.realpath(path))
                copy = os.path.join(directory, make_temporary_name())
                try:
                    fd = os.open(copy, CREATE_FLAGS, 0o600)
                    with os.fdopen(fd, "wb") as file:
                        file.write(data)
                    result = run_engine_program(program, "--config", copy, "config", "dump")
                finally:
                    if os.path.lexists(copy):
                        os.unlink(copy)
        except OSError as error:
            reason = describe_os_error(error, writing=True)
            raise Fault(f"no copy that containerd can check can be written: {reason}", where=path) from None
        if result.status:
            reason = result.last_line().replace(copy, path)
            raise Fault(f"containerd refuses the file; nothing was changed: {reason}", where=path)
        return EffectiveConfig(release, _parse_dump(result.out))


def _has_relative_import(data: bytes, path: str) -> bool:
    imports = TomlText(data, path).get("imports")
    names = imports if isinstance(imports, list) else []
    return any(isinstance(name, str) and not name.startswith("/") for name in names)


def _read_file(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def _parse_dump(text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise Fault(f"containerd config prints no TOML: {error}") from None
