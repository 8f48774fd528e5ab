"""Answer the calls of a prestart or precreate hook that concern no GPU, before the rest of the program is loaded.

Import budget: pass-through.
"""

# Files of hooks.d call these hooks for every container, and few containers ask for a GPU. So this module imports
# built-in modules and two of ours. Whatever is not certain here is left to the full program, which also has the words
# for what is wrong. `from __future__ import annotations` would be one more file to load.

import _signal  # type: ignore[import-not-found]  # `signal` brings enum
import gc
import marshal
import posix
import sys

from gpu_oci_hook import VERSION
from gpu_oci_hook.files import read_regular, state_dir
from gpu_oci_hook.hook.standard_streams import (
    STATE_SIZE_LIMIT,
    drain_state,
    find_state_bundle,
    read_input,
    write_config_json,
)

# As in `formats.program_names`, which loads more modules.
PRESTART, PRECREATE = "prestart", "precreate"
# Commands of NVIDIA's program that do nothing.
IDLE_COMMANDS = ("poststart", "poststop")

CACHE_NAME = "hook"
# A cached configuration is valid for this version on this interpreter only.
BUILD_STAMP = (VERSION, sys.hexversion)
# `config.load.list_request_words` of the default configuration, which has no file.
DEFAULT_REQUEST_WORDS = (b'"cdi.k8s.io/',)

# (signature of the config file, words by which a config.json shows requests, configuration as `Config.to_data` returns
# it). A tuple, because marshal writes it.
CachedConfig = tuple[tuple[int, ...], tuple[bytes, ...], object]


def answer_hook_call(program: str, arguments: list[str]) -> bytes | None:
    """End the process with success if this is a hook call for a container that certainly requests no GPU.

    Arguments:
        program: the program as it was called.
        arguments: the command line without the program.

    Returns:
        What was read from standard input; None if nothing was read.

    Raises:
        Fault: the config.json of a precreate hook cannot be written to standard output.
    """
    command = find_hook_command(program, arguments)
    if not command:
        return None
    gc.disable()  # a process of 20 ms has nothing to collect
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    if command in IDLE_COMMANDS:
        drain_state(0)
        posix._exit(0)
    try:
        data = read_input(0, STATE_SIZE_LIMIT if command == PRESTART else read_regular.CONFIG_JSON_LIMIT)
    except OSError:
        return None  # reading it again fails again
    if command == PRESTART:
        if _is_state_without_request(data):
            posix._exit(0)  # finalising the interpreter costs a millisecond
    elif _is_config_without_request(data):
        write_config_json(1, data)
        posix._exit(0)
    return data


def find_hook_command(program: str, arguments: list[str]) -> str:
    """Return the command of a call that may be answered here: prestart, precreate or an idle one; "" for all others."""
    name = program.rpartition("/")[2]
    if name.encode("utf-8", "surrogateescape") in read_regular.HOOK_TRIGGERS:
        command = find_nvidia_command(arguments)
        return command if command == PRESTART or command in IDLE_COMMANDS else ""
    if arguments in ([PRESTART], [PRECREATE]) and not name.startswith("nvidia-"):
        return arguments[0]
    return ""


def find_nvidia_command(arguments: list[str]) -> str:
    """Return the command on the command line of NVIDIA's prestart hook, "" if there is none."""
    return next((argument for argument in reversed(arguments) if not argument.startswith("-")), "")


def _is_state_without_request(state: bytes) -> bool:
    """Tell whether the container of this state certainly requests no GPU."""
    bundle = find_state_bundle(state) if len(state) <= STATE_SIZE_LIMIT else ""
    words = _load_request_words() if bundle else None
    if words is None:
        return False
    # Hooks of others stay, since config.json cannot be changed any more. Our own may have NVIDIA's name.
    triggers = (*read_regular.REQUEST_TRIGGERS, *words)
    path = f"{bundle}/config.json"
    if read_regular.is_oversized_without_triggers(path, triggers):
        return True
    try:
        data = read_regular.read_regular_file(path, read_regular.CONFIG_JSON_LIMIT)
    except (OSError, ValueError):
        return False
    return not read_regular.has_trigger(data, triggers)


def _is_config_without_request(data: bytes) -> bool:
    """Tell whether a config.json certainly needs no change."""
    text = data.strip()
    if len(data) > read_regular.CONFIG_JSON_LIMIT or text[:1] != b"{" or text[-1:] != b"}":
        return False
    words = _load_request_words()
    return words is not None and not read_regular.has_trigger(data, (*read_regular.TRIGGERS, *words))


def _load_request_words() -> tuple[bytes, ...] | None:
    """Return the words by which this configuration recognises a request; None if they are not known yet."""
    path = state_dir.get_environment_variable("GPU_OCI_HOOK_CONFIG") or state_dir.DEFAULT_CONFIG_PATH
    try:
        posix.stat(path)
    except FileNotFoundError:
        if path == state_dir.DEFAULT_CONFIG_PATH:
            return DEFAULT_REQUEST_WORDS
    except (OSError, ValueError):
        return None
    cached = find_cached_config(path)
    return None if cached is None else cached[1]


def find_cached_config(path: str) -> CachedConfig | None:
    """Return what is cached of a config file, None if nothing is or the file has changed."""
    cached = load_cached_configs().get(path)
    is_current = isinstance(cached, tuple) and len(cached) == 3 and cached[0] == state_dir.get_file_signature(path)
    return cached if is_current and cached and cached[0] else None


def load_cached_configs() -> dict[str, CachedConfig]:
    """Read the cache; return an empty one if it is missing, damaged, or of another build."""
    data = state_dir.read_state(CACHE_NAME)
    if data is None:
        return {}
    try:
        build, entries = marshal.loads(data)  # noqa: S302 - only this user can write it, see state_dir
    except (EOFError, ValueError, TypeError):
        return {}
    return entries if build == BUILD_STAMP and isinstance(entries, dict) else {}
