"""The shim: called in runc's place, it gives the container its GPUs if it asks for any, and becomes runc.

Cost rule: this runs four to six times in a container's life, nearly always only to become runc at once. It
imports `state` of our own, and what is built in (`gc`, `marshal`, `posix`, `sys`); everything else waits until a
container is known to ask.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` brings enum
import gc
import marshal
import posix  # `os` without its abstract classes, whose import costs a seventh of the interpreter's start
import sys

from gpu_oci_hook import VERSION, state

# What is remembered of a configuration is good for this build of us on this interpreter alone.
BUILD = (VERSION, sys.hexversion)
MEMORY = "runtime"

# Flags before the command that take the next word as their value (runc 1.1 to 1.5, crun 1.8 to 1.29, youki).
VALUED = frozenset(
    ("log", "log-format", "log-level", "root", "rootless", "criu", "cgroup-manager", "l", "r")
)
PLAIN = frozenset(("debug", "systemd-cgroup", "s", "version", "v", "V", "help", "h", "usage", "?"))
COMMANDS = frozenset(
    (
        "checkpoint", "create", "delete", "events", "exec", "features", "help", "info", "init", "kill", "list",
        "mounts", "pause", "ps", "restore", "resume", "run", "spec", "start", "state", "update",
    )
)  # fmt: skip
# Flags of create and run that take the next word as their value.
CREATE_VALUED = frozenset(("console-socket", "pid-file", "pidfd-socket", "preserve-fds"))

# A container that asks for a GPU has one of these somewhere in its config.json. An engine that escaped plain
# ASCII letters would hide them, and the container would start without a GPU: fail-safe, and none does. Annotations
# ask by the beginning of their names, which the configuration has: `lowlevel` adds those.
TRIGGERS = (b"NVIDIA_VISIBLE_DEVICES", b"CUDA_VERSION", b"nvidia-container-devices")

CONFIG_JSON_LIMIT = 32 << 20

# Names the process that has become its low-level runtime: a wrapper script in runc's place that calls us again
# would go round for ever, and no look at files can tell.
LOOP = "GPU_OCI_HOOK_PROCESS"


class Call:
    """What an engine's command line says, as far as we need it.

    Attributes:
        command: the first word that is neither a flag nor a flag's value; empty when there is none.
        log, log_format: where the engine wants the reason of a failure, and as "json" or text.
        bundle: the bundle's directory as given; empty means the current directory.
        config: crun's `--config`, relative to the bundle; "config.json" otherwise.
        container: the id of what is to be created; empty for every other command.
    """

    __slots__ = ("bundle", "command", "config", "container", "log", "log_format")

    def __init__(self, words: list[str]) -> None:
        self.command = ""
        self.log = ""
        self.log_format = "text"
        self.bundle = ""
        self.config = "config.json"
        self.container = ""
        rest = self._globals(words)
        if self.command in ("create", "run"):
            self._create(rest)

    def _globals(self, words: list[str]) -> list[str]:
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
                unknown = name not in PLAIN and follower[:1] != "-" and follower not in COMMANDS
                if name in VALUED or unknown:
                    value = follower
                    at += 1
            if name in ("log", "l"):
                self.log = value
            elif name == "log-format":
                self.log_format = value
        if at < len(words):
            self.command = words[at]
        return words[at + 1 :]

    def _create(self, words: list[str]) -> None:
        at = 0
        while at < len(words):
            word = words[at]
            at += 1
            if word == "--":
                self.container = words[-1] if at < len(words) else self.container
                return
            if len(word) < 2 or word[0] != "-":
                self.container = word
                continue
            name, equals, value = word.lstrip("-").partition("=")
            wanted = name in ("b", "bundle", "f", "config")
            if not equals and at < len(words) and (wanted or name in CREATE_VALUED):
                value = words[at]
                at += 1
            if name in ("b", "bundle"):
                self.bundle = value
            elif wanted and value:
                self.config = value

    def config_json(self) -> str:
        """The path of the bundle's config.json."""
        if not self.bundle or self.config.startswith("/"):
            return self.config
        return f"{self.bundle}{'' if self.bundle.endswith('/') else '/'}{self.config}"


def signature(path: str) -> tuple[int, ...]:
    """What changes when a file changes; () when it cannot be looked at."""
    try:
        status = posix.stat(path)
    except OSError:
        return ()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


# (signature of the config file, low-level runtime, its signature, the parsed configuration or None, what a container
# that asks has in its config.json)
Known = tuple[tuple[int, ...], str, tuple[int, ...], object, tuple[bytes, ...]]


def known() -> Known:
    """Which runtime to become, and the configuration: remembered if nothing changed, else learnt anew.

    Raises:
        Fault: no low-level runtime is to be found.
    """
    path = state.variable("GPU_OCI_HOOK_CONFIG") or state.CONFIG
    data = state.read(MEMORY)
    if data is not None:
        try:
            build, entries = marshal.loads(data)  # noqa: S302 - ours alone to write, see state
            entry: Known = entries[path, state.variable("PATH")]
            if build == BUILD and len(entry) == 5 and entry[0] == signature(path) and entry[2] == signature(entry[1]):
                return entry
        except (EOFError, ValueError, TypeError, KeyError, IndexError):
            pass
    from gpu_oci_hook import lowlevel

    return lowlevel.learn(path)


def read_config_json(path: str) -> bytes | None:
    """The bytes of a bundle's config.json; None when it is missing, for the low-level runtime to say so.

    Raises:
        Fault: it is no regular file, larger than CONFIG_JSON_LIMIT, or cannot be read.
    """
    try:
        # A FIFO in the file's place must not make us wait.
        fd = posix.open(path, posix.O_RDONLY | posix.O_NONBLOCK | posix.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    try:
        status = posix.fstat(fd)
        if status.st_mode & 0o170000 != 0o100000:  # S_ISREG, without the import
            raise _refused(path, "it is not a regular file")
        if status.st_size > CONFIG_JSON_LIMIT:
            raise _refused(path, f"it is larger than {CONFIG_JSON_LIMIT >> 20} MiB")
        parts = []
        size = 0
        while part := posix.read(fd, max(status.st_size + 1 - size, 65536)):
            parts.append(part)
            size += len(part)
            if size > CONFIG_JSON_LIMIT:
                raise _refused(path, f"it is larger than {CONFIG_JSON_LIMIT >> 20} MiB")
        return b"".join(parts)
    except OSError as error:
        raise _unreadable(path, error) from None
    finally:
        posix.close(fd)


def huge_and_silent(path: str, triggers: tuple[bytes, ...]) -> bool:
    """Whether a config.json is larger than we read and asks for nothing: that one is the runtime's alone.

    It is looked at in pieces, so that its size costs time and no memory.
    """
    try:
        if posix.stat(path).st_size <= CONFIG_JSON_LIMIT:
            return False
        fd = posix.open(path, posix.O_RDONLY | posix.O_NONBLOCK | posix.O_CLOEXEC)
        try:
            tail = b""
            while part := posix.read(fd, 1 << 20):
                if asks(tail + part, triggers):
                    return False
                tail = part[-max(map(len, triggers)) :]
        finally:
            posix.close(fd)
    except (OSError, ValueError):
        return False
    return True


def _refused(path: str, reason: str) -> Exception:
    from gpu_oci_hook.errors import Fault

    return Fault(f"the bundle's configuration is refused: {reason}", where=path)


def _unreadable(path: str, error: Exception) -> Exception:
    from gpu_oci_hook.errors import words

    return _refused(path, words(error) if isinstance(error, OSError) else str(error))


def _loop() -> Exception:
    from gpu_oci_hook.errors import Fault

    return Fault(
        "the low-level runtime leads back to this program, which would never end",
        where="runtime.low-level",
        cure="Name the real runc or crun there, by its absolute path",
    )


def asks(data: bytes, triggers: tuple[bytes, ...]) -> bool:
    """Whether a config.json may ask for a device, told from its bytes alone."""
    return any(trigger in data for trigger in triggers)


def become(path: str, words: list[str]) -> None:
    """Replaces this process by the low-level runtime: same PID, descriptors, environment and directory.

    Raises:
        OSError: the kernel cannot run it.
    """
    # The interpreter ignores these two at its start, and what is ignored stays so across exec.
    _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)
    _signal.signal(_signal.SIGXFSZ, _signal.SIG_DFL)
    posix.putenv(LOOP, str(posix.getpid()))
    posix.execv(path, [path, *words])


def main() -> None:
    """The entry point: does not come back."""
    gc.disable()  # a process of 20 ms has nothing to collect; looking for it costs one of them
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # Ctrl-C ends us as it ends runc, without a traceback
    words = sys.argv[1:]
    call = Call(words)
    try:
        if state.variable(LOOP) == str(posix.getpid()):
            raise _loop()
        entry = known()
        if call.command in ("create", "run"):
            path = call.config_json()
            data = None if huge_and_silent(path, entry[4]) else read_config_json(path)
            if data is not None and asks(data, entry[4]):
                from gpu_oci_hook import together

                together.use()
                from gpu_oci_hook import pipeline

                pipeline.inject(
                    path, data, call.bundle or ".", entry[3], engine=bool(call.log), container=call.container
                )
        become(entry[1], words)
    except Exception as error:
        from gpu_oci_hook import failure

        failure.report(error, call.log, call.log_format)
        sys.exit(1)


if __name__ == "__main__":
    main()
