"""Run in place of runc: inject GPUs into a container that asks for them, then exec the low-level runtime.

Import budget: pass-through.
"""

# An engine calls this four to six times for each container, nearly always only to become runc. So this module imports
# `files.state_dir` and built-in modules; everything else waits until a container is created or is known to ask.
# `from __future__ import annotations` would be one more file to load.

import _signal  # type: ignore[import-not-found]  # `signal` brings enum
import gc
import marshal
import posix  # `os` without its abstract classes, whose import costs a seventh of the interpreter's start
import sys

from gpu_oci_hook import VERSION
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.files.state_dir import get_file_signature

# A cached configuration is valid for this version on this interpreter only.
BUILD_STAMP = (VERSION, sys.hexversion)
CACHE_NAME = "runtime"

# Flags before the command that take the next argument as their value (runc 1.1 to 1.5, crun 1.8 to 1.29, youki).
VALUE_FLAGS = frozenset(("log", "log-format", "log-level", "root", "rootless", "criu", "cgroup-manager", "l", "r"))
VERSION_FLAGS = frozenset(("version", "v", "V"))
PLAIN_FLAGS = VERSION_FLAGS | {"debug", "systemd-cgroup", "s", "help", "h", "usage", "?"}
COMMANDS = frozenset(
    (
        "checkpoint", "create", "delete", "events", "exec", "features", "help", "info", "init", "kill", "list",
        "mounts", "pause", "ps", "restore", "resume", "run", "spec", "start", "state", "update",
    )
)  # fmt: skip
# Commands that make a container, or concern none.
CREATING_COMMANDS = frozenset(("", "create", "run", "restore", "features", "help", "info", "init", "list", "spec"))
# Flags of create and run with a value. crun accepts every unambiguous beginning of a name (facts: crun-flags).
CREATE_VALUE_FLAGS = ("bundle", "config", "console-socket", "pid-file", "pidfd-socket", "preserve-fds")
CREATE_SHORT_FLAGS = {"b": "bundle", "f": "config"}
CREATE_SHORT_SWITCHES = "d"

# Its value is the process that has become the low-level runtime. A wrapper script in runc's place that calls this
# program again would otherwise loop for ever, and the files do not show that.
LOOP_GUARD_VARIABLE = "GPU_OCI_HOOK_PROCESS"

# What CPython sets LC_CTYPE to, whichever of them the C library has.
_COERCED_LOCALES = (b"C.UTF-8", b"C.utf8", b"UTF-8")


class CommandLine:
    """The parts of an engine's command line that the shim needs.

    Attributes:
        command: the first argument that is neither a flag nor a flag's value, or "" when there is none.
        rest: the arguments after the command.
        root: the directory with the low-level runtime's state, or "" for its default.
        log_path: the file in which the engine expects the reason of a failure, or "" when it names none.
        log_format: "json" or "text".
        bundle: the bundle's directory as written, or "" for the current directory.
        config_file: crun's `--config`, relative to the current directory; "config.json", in the bundle, without it.
        container_id: the id of the container to create, or "" for every other command.
        shows_version: the runtime is asked for its version.
    """

    __slots__ = (
        "bundle", "command", "config_file", "container_id", "log_format", "log_path", "rest", "root", "shows_version",
    )  # fmt: skip

    def __init__(self, arguments: list[str]) -> None:
        self.command = ""
        self.log_path = ""
        self.log_format = "text"
        self.bundle = ""
        self.config_file = "config.json"
        self.container_id = ""
        self.shows_version = False
        self.root = ""
        self.rest = self._parse_global_flags(arguments)
        if self.command in ("create", "run"):
            self._parse_create_flags(self.rest)

    def _parse_global_flags(self, arguments: list[str]) -> list[str]:
        """Parse the flags before the command, and the command; return the arguments after it."""
        at = 0
        while at < len(arguments):
            argument = arguments[at]
            at += 1
            if argument == "--":
                break
            if len(argument) < 2 or argument[0] != "-":
                at -= 1
                break
            name, equals, value = argument.lstrip("-").partition("=")
            if not equals and at < len(arguments):
                following = arguments[at]
                # An unknown flag takes a value if the next argument can be nothing else: crun accepts abbreviated
                # flags, and later runtimes have new ones.
                takes_value = name not in PLAIN_FLAGS and following[:1] != "-" and following not in COMMANDS
                if name in VALUE_FLAGS or takes_value:
                    value = following
                    at += 1
            if name in ("log", "l"):
                self.log_path = value
            elif name == "log-format":
                self.log_format = value
            elif name in ("root", "r"):
                self.root = value
            elif name in VERSION_FLAGS:
                self.shows_version = True
        if at < len(arguments):
            self.command = arguments[at]
        return arguments[at + 1 :]

    def _parse_create_flags(self, arguments: list[str]) -> None:
        """Parse the arguments after `create` or `run`."""
        at = 0
        while at < len(arguments):
            argument = arguments[at]
            at += 1
            if argument == "--":
                self.container_id = arguments[-1] if at < len(arguments) else self.container_id
                return
            if len(argument) < 2 or argument[0] != "-":
                self.container_id = argument
                continue
            name, value = _split_create_flag(argument)
            if name and value is None and at < len(arguments):
                value = arguments[at]
                at += 1
            if name == "bundle":
                self.bundle = value or ""
            elif name == "config" and value:
                self.config_file = value

    def config_json_path(self) -> str:
        """Return the path of the bundle's config.json."""
        if not self.bundle or self.config_file != "config.json":
            return self.config_file
        return f"{self.bundle}{'' if self.bundle.endswith('/') else '/'}{self.config_file}"


def _split_create_flag(argument: str) -> tuple[str, str | None]:
    """Return the name of a value flag of `create`, and its value: None if that is the next argument.

    runc's flags are Go's, crun's are argp's. Both have `--bundle DIR`, `--bundle=DIR` and `-b DIR`. Go's have `-bundle
    DIR` and `-b=DIR` too, argp's `--bun DIR`, `-bDIR` and `-dbDIR`. The name of any other flag is "".
    """
    name, equals, text = argument.lstrip("-").partition("=")
    value = text if equals else None
    if name in CREATE_VALUE_FLAGS or name in CREATE_SHORT_FLAGS:
        if argument[1] != "-" and value is not None and state_dir.path_exists(f"={value}"):
            value = f"={value}"  # crun's value begins after the letter
        return CREATE_SHORT_FLAGS.get(name, name), value
    if argument.startswith("--"):
        return next((flag for flag in CREATE_VALUE_FLAGS if name and flag.startswith(name)), ""), value
    letters = argument[1:].lstrip(CREATE_SHORT_SWITCHES)
    return CREATE_SHORT_FLAGS.get(letters[:1], ""), letters[1:] or None


# (signature of the config file, path of the low-level runtime, its signature, parsed configuration or None, triggers,
# low-level runtimes used earlier). A tuple, because marshal writes it.
CachedRuntime = tuple[tuple[int, ...], str, tuple[int, ...], object, tuple[bytes, ...], tuple[str, ...]]
# Keys are (path of the config file, PATH).
CachedRuntimes = dict[tuple[str, str | None], CachedRuntime]


def load_runtime() -> CachedRuntime:
    """Return the low-level runtime and the configuration: from the cache if neither changed, else resolved again.

    Raises:
        Fault: no low-level runtime was found.
    """
    path = state_dir.get_environment_variable("GPU_OCI_HOOK_CONFIG") or state_dir.DEFAULT_CONFIG_PATH
    entries = _load_cached_runtimes()
    entry = entries.get((path, state_dir.get_environment_variable("PATH")))
    if (
        isinstance(entry, tuple)
        and len(entry) == 6
        and entry[0] == get_file_signature(path)
        and entry[2] == get_file_signature(entry[1])
    ):
        return entry
    from gpu_oci_hook.files.code_bundle import use_code_bundle

    use_code_bundle()
    from gpu_oci_hook.files.read_regular import TRIGGERS
    from gpu_oci_hook.shim.low_level_runtime import resolve_runtime

    entry = resolve_runtime(path, entries, TRIGGERS)
    if entry[3] is not None:
        from gpu_oci_hook.shim.launcher_records import encode_cache

        state_dir.write_state(CACHE_NAME, encode_cache(BUILD_STAMP, entries))
    return entry


def _load_cached_runtimes() -> CachedRuntimes:
    """Read the cache; return an empty one when it is missing, damaged, or of another build."""
    data = state_dir.read_state(CACHE_NAME)
    if data is None:
        return {}
    try:
        # Before it are the records of the compiled launcher, see launcher_records.
        start = 4 + int.from_bytes(data[:4], sys.byteorder)
        build, entries = marshal.loads(data[start:])  # noqa: S302 - only this user can write it, see state_dir
    except (EOFError, ValueError, TypeError):
        return {}
    return entries if build == BUILD_STAMP and isinstance(entries, dict) else {}


def _make_loop_fault() -> Exception:
    from gpu_oci_hook.errors import Fault

    return Fault(
        "the low-level runtime leads back to this program, which would never end",
        where="[runtime] low-level",
        hint="Name the real runc or crun there, by its absolute path",
    )


def _print_version(error: Exception | None = None) -> None:
    """Print our name and version; the low-level runtime prints its own afterwards.

    Arguments:
        error: why there is no low-level runtime.
    """
    try:
        posix.write(1, f"gpu-oci-runtime version {VERSION}\n".encode())
    except OSError:
        pass
    if error is not None:
        from gpu_oci_hook.reporting.failure import describe_error, report_warning

        report_warning(describe_error(error))


def _restore_locale() -> None:
    """Give LC_CTYPE back the value that it had in the call, or none.

    The interpreter sets it at its start where it finds no locale (PEP 538), and -I does not prevent that. Only the
    kernel still has the environment as it was.
    """
    if posix.environ.get(b"LC_CTYPE") not in _COERCED_LOCALES:
        return
    try:
        with open("/proc/self/environ", "rb", 0) as file:
            entries = file.read().split(b"\0")
    except OSError:
        return  # without /proc the runtime starts no container
    for entry in entries:
        if entry.startswith(b"LC_CTYPE="):
            posix.putenv(b"LC_CTYPE", entry[9:])
            return
    posix.unsetenv(b"LC_CTYPE")


def exec_runtime(path: str, arguments: list[str]) -> None:
    """Replace this process by the low-level runtime: same PID, descriptors, environment and directory.

    Raises:
        OSError: the kernel cannot run it.
    """
    # The interpreter ignores these two signals at its start, and ignored signals stay ignored across exec.
    _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)
    _signal.signal(_signal.SIGXFSZ, _signal.SIG_DFL)
    _restore_locale()
    posix.putenv(LOOP_GUARD_VARIABLE, str(posix.getpid()))
    posix.execv(path, [path, *arguments])


def _reserve_descriptor() -> int:
    """Take a descriptor that is closed before a failure is reported: there may be no other one left."""
    try:
        return posix.dup(2)  # not inherited
    except OSError:
        return -1


def _prepare_command(call: CommandLine, entry: CachedRuntime, arguments: list[str]) -> tuple[str, list[str]]:
    """Return the low-level runtime for a command, and its arguments."""
    program = entry[1]
    if entry[5] and call.command not in CREATING_COMMANDS:  # containers of another runtime may still live
        from gpu_oci_hook.shim.container_state import choose_program, find_container_id

        program = choose_program(program, entry[5], call.root, find_container_id(call.command, call.rest))
    if call.command == "update":
        from gpu_oci_hook.shim.resource_update import keep_devices

        kept = keep_devices(program, call.root, call.rest, entry[4])
        arguments = [*arguments[: len(arguments) - len(call.rest)], *kept]
    return program, arguments


def main() -> None:
    """Run one call of an engine; return only without a low-level runtime that could be asked for its version."""
    gc.disable()  # a process of 20 ms has nothing to collect, and the collector would cost one of them
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # Ctrl-C ends this program as it ends runc, without a traceback
    arguments = sys.argv[1:]
    call = CommandLine(arguments)
    reserve = -1
    try:
        if state_dir.get_environment_variable(LOOP_GUARD_VARIABLE) == str(posix.getpid()):
            raise _make_loop_fault()
        try:
            entry = load_runtime()
        except Exception as error:
            if not call.shows_version:
                raise
            _print_version(error)
            return
        if call.shows_version:
            _print_version()
        if call.command in ("create", "run"):
            from gpu_oci_hook.files.read_regular import has_trigger, is_oversized_without_triggers, read_config_json

            path = call.config_json_path()
            data = None if is_oversized_without_triggers(path, entry[4]) else read_config_json(path)
            if data is not None and has_trigger(data, entry[4]):
                from gpu_oci_hook.files.code_bundle import use_code_bundle

                use_code_bundle(load_modules=True)
                reserve = _reserve_descriptor()
                from gpu_oci_hook.inject.pipeline import inject_gpus

                inject_gpus(
                    path,
                    data,
                    call.bundle or ".",
                    entry[3],
                    called_by_engine=bool(call.log_path),
                    container_id=call.container_id,
                )
        program, arguments = _prepare_command(call, entry, arguments)
        exec_runtime(program, arguments)
    except Exception as error:
        if reserve >= 0:
            posix.close(reserve)
        from gpu_oci_hook.reporting.failure import report_failure

        report_failure(error, call.log_path, call.log_format)
        sys.exit(1)


if __name__ == "__main__":
    main()
