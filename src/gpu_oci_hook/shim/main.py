"""The shim: called in runc's place, it gives the container its GPUs if it asks for any, and becomes runc.

Cost rule: this runs four to six times in a container's life, nearly always only to become runc at once. It
imports `files.state_dir` of our own, and what is built in (`gc`, `marshal`, `posix`, `sys`); everything else waits
until a container is created, or is known to ask.
"""

# No `from __future__ import annotations`: that module is a file more to load in every call.

import _signal  # type: ignore[import-not-found]  # `signal` brings enum
import gc
import marshal
import posix  # `os` without its abstract classes, whose import costs a seventh of the interpreter's start
import sys

from gpu_oci_hook import VERSION
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.files.state_dir import get_file_signature

# What is remembered of a configuration is good for this build of us on this interpreter alone.
BUILD_STAMP = (VERSION, sys.hexversion)
CACHE_NAME = "runtime"

# Flags before the command that take the next word as their value (runc 1.1 to 1.5, crun 1.8 to 1.29, youki).
VALUE_FLAGS = frozenset(("log", "log-format", "log-level", "root", "rootless", "criu", "cgroup-manager", "l", "r"))
PLAIN_FLAGS = frozenset(("debug", "systemd-cgroup", "s", "version", "v", "V", "help", "h", "usage", "?"))
COMMANDS = frozenset(
    (
        "checkpoint", "create", "delete", "events", "exec", "features", "help", "info", "init", "kill", "list",
        "mounts", "pause", "ps", "restore", "resume", "run", "spec", "start", "state", "update",
    )
)  # fmt: skip
# Flags of create and run that take the next word as their value.
CREATE_VALUE_FLAGS = frozenset(("console-socket", "pid-file", "pidfd-socket", "preserve-fds"))

# A container that asks for a GPU has one of these somewhere in its config.json. An engine that escaped plain
# ASCII letters would hide them, and the container would start without a GPU: fail-safe, and none does. Annotations
# ask by the beginning of their names, which the configuration has: `shim.low_level_runtime` adds those.
TRIGGERS = (b"NVIDIA_VISIBLE_DEVICES", b"CUDA_VERSION", b"nvidia-container-devices")


# Names the process that has become its low-level runtime: a wrapper script in runc's place that calls us again
# would go round for ever, and no look at files can tell.
LOOP_GUARD_VARIABLE = "GPU_OCI_HOOK_PROCESS"


class CommandLine:
    """What an engine's command line says, as far as we need it.

    Attributes:
        command: the first word that is neither a flag nor a flag's value; empty when there is none.
        log_path, log_format: where the engine wants the reason of a failure, and as "json" or text.
        bundle: the bundle's directory as given; empty means the current directory.
        config_file: crun's `--config`, relative to the bundle; "config.json" otherwise.
        container_id: the id of what is to be created; empty for every other command.
    """

    __slots__ = ("bundle", "command", "config_file", "container_id", "log_format", "log_path")

    def __init__(self, arguments: list[str]) -> None:
        self.command = ""
        self.log_path = ""
        self.log_format = "text"
        self.bundle = ""
        self.config_file = "config.json"
        self.container_id = ""
        rest = self._parse_global_flags(arguments)
        if self.command in ("create", "run"):
            self._parse_create_flags(rest)

    def _parse_global_flags(self, words: list[str]) -> list[str]:
        at = 0
        while at < len(words):
            word = words[at]
            at += 1
            if word == "--":
                break
            if len(word) < 2 or word[0] != "-":
                at -= 1
                break
            name, equals, value = word.lstrip("-").partition("=")
            if not equals and at < len(words):
                follower = words[at]
                # A flag that we do not know takes a value if the next word can be nothing else (crun lets
                # its flags be abbreviated, and tomorrow's runtime has new ones).
                unknown = name not in PLAIN_FLAGS and follower[:1] != "-" and follower not in COMMANDS
                if name in VALUE_FLAGS or unknown:
                    value = follower
                    at += 1
            if name in ("log", "l"):
                self.log_path = value
            elif name == "log-format":
                self.log_format = value
        if at < len(words):
            self.command = words[at]
        return words[at + 1 :]

    def _parse_create_flags(self, words: list[str]) -> None:
        at = 0
        while at < len(words):
            word = words[at]
            at += 1
            if word == "--":
                self.container_id = words[-1] if at < len(words) else self.container_id
                return
            if len(word) < 2 or word[0] != "-":
                self.container_id = word
                continue
            name, equals, value = word.lstrip("-").partition("=")
            wanted = name in ("b", "bundle", "f", "config")
            if not equals and at < len(words) and (wanted or name in CREATE_VALUE_FLAGS):
                value = words[at]
                at += 1
            if name in ("b", "bundle"):
                self.bundle = value
            elif wanted and value:
                self.config_file = value

    def config_json_path(self) -> str:
        """The path of the bundle's config.json."""
        if not self.bundle or self.config_file.startswith("/"):
            return self.config_file
        return f"{self.bundle}{'' if self.bundle.endswith('/') else '/'}{self.config_file}"


# (signature of the config file, low-level runtime, its signature, the parsed configuration or None, what a container
# that asks has in its config.json)
CachedRuntime = tuple[tuple[int, ...], str, tuple[int, ...], object, tuple[bytes, ...]]
# By (path of the config file, PATH).
CachedRuntimes = dict[tuple[str, str | None], CachedRuntime]


def load_runtime() -> CachedRuntime:
    """Which runtime to become, and the configuration: from the cache if nothing changed, else resolved anew.

    Raises:
        Fault: no low-level runtime is to be found.
    """
    path = state_dir.get_environment_variable("GPU_OCI_HOOK_CONFIG") or state_dir.DEFAULT_CONFIG_PATH
    entries = _load_cached_runtimes()
    entry = entries.get((path, state_dir.get_environment_variable("PATH")))
    if (
        isinstance(entry, tuple)
        and len(entry) == 5
        and entry[0] == get_file_signature(path)
        and entry[2] == get_file_signature(entry[1])
    ):
        return entry
    from gpu_oci_hook.shim.low_level_runtime import resolve_runtime

    entry = resolve_runtime(path, entries, TRIGGERS)
    if entry[3] is not None:
        state_dir.write_state(CACHE_NAME, marshal.dumps((BUILD_STAMP, entries)))
    return entry


def _load_cached_runtimes() -> CachedRuntimes:
    data = state_dir.read_state(CACHE_NAME)
    if data is None:
        return {}
    try:
        build, entries = marshal.loads(data)  # noqa: S302 - ours alone to write, see state_dir
    except (EOFError, ValueError, TypeError):
        return {}
    return entries if build == BUILD_STAMP and isinstance(entries, dict) else {}


def _make_loop_fault() -> Exception:
    from gpu_oci_hook.errors import Fault

    return Fault(
        "the low-level runtime leads back to this program, which would never end",
        where="runtime.low-level",
        hint="Name the real runc or crun there, by its absolute path",
    )


def exec_runtime(path: str, arguments: list[str]) -> None:
    """Replaces this process by the low-level runtime: same PID, descriptors, environment and directory.

    Raises:
        OSError: the kernel cannot run it.
    """
    # The interpreter ignores these two at its start, and what is ignored stays so across exec.
    _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)
    _signal.signal(_signal.SIGXFSZ, _signal.SIG_DFL)
    posix.putenv(LOOP_GUARD_VARIABLE, str(posix.getpid()))
    posix.execv(path, [path, *arguments])


def main() -> None:
    """The entry point: does not come back."""
    gc.disable()  # a process of 20 ms has nothing to collect; looking for it costs one of them
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # Ctrl-C ends us as it ends runc, without a traceback
    words = sys.argv[1:]
    call = CommandLine(words)
    try:
        if state_dir.get_environment_variable(LOOP_GUARD_VARIABLE) == str(posix.getpid()):
            raise _make_loop_fault()
        entry = load_runtime()
        if call.command in ("create", "run"):
            from gpu_oci_hook.files.read_regular import has_trigger, is_oversized_without_triggers, read_config_json

            path = call.config_json_path()
            data = None if is_oversized_without_triggers(path, entry[4]) else read_config_json(path)
            if data is not None and has_trigger(data, entry[4]):
                from gpu_oci_hook.shim.code_bundle import use_code_bundle

                use_code_bundle()
                from gpu_oci_hook.inject.pipeline import inject_gpus

                inject_gpus(
                    path,
                    data,
                    call.bundle or ".",
                    entry[3],
                    called_by_engine=bool(call.log_path),
                    container_id=call.container_id,
                )
        exec_runtime(entry[1], words)
    except Exception as error:
        from gpu_oci_hook.reporting.failure import report_failure

        report_failure(error, call.log_path, call.log_format)
        sys.exit(1)


if __name__ == "__main__":
    main()
