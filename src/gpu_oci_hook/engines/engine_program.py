"""Find and run the programs of engines: only those that nobody but root could have written.

Import budget: cold.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_oci_hook.errors import Fault, clip_text, describe_os_error
from gpu_oci_hook.files.trust import describe_foreign_access
from gpu_oci_hook.shim.low_level_runtime import STANDARD_DIRECTORIES

TIME_LIMIT = 20.0
"""Seconds that a program may take to check a file or to answer."""
VERSION_TIME_LIMIT = 5.0

# docker: "Docker version 20.10.24+dfsg1, build ...", containerd: "containerd github.com/.../v2 v2.0.0 ..."
_VERSION = re.compile(r"(?<![\w.])v?(\d{1,4}(?:\.\d{1,4}){1,2})")


@dataclass(frozen=True)
class ProgramResult:
    """A finished program: exit status, standard output and standard error."""

    status: int
    out: str
    err: str

    def last_line(self) -> str:
        """Return the last line that it printed, for a message."""
        return clip_text((self.err.strip() or self.out.strip()).rpartition("\n")[2], 1000)


def find_engine_program(name: str) -> str:
    """Return the path of an engine's program in the standard directories, "" if it is not installed."""
    paths = (f"{directory}/{name}" for directory in STANDARD_DIRECTORIES)
    return next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), "")


def run_engine_program(
    path: str, *words: str, environment: dict[str, str] | None = None, time_limit: float = TIME_LIMIT
) -> ProgramResult:
    """Run a program of an engine with a time limit.

    Arguments:
        environment: variables beyond PATH, LC_ALL and HOME.

    Raises:
        Fault: another user could have written the program, it cannot be run, or it does not end.
    """
    real = Path(path).resolve()
    for part in (real, *real.parents):
        access = describe_foreign_access(
            part.stat(), every_user=True, root_group=part != real, sticky_parent=part != real
        )
        if access:
            raise Fault(f"{part} {access}, so {path} is not run")
    command = " ".join((path, *words))
    try:
        run = subprocess.run(
            [path, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=time_limit,
            env={"PATH": ":".join(STANDARD_DIRECTORIES), "LC_ALL": "C", "HOME": "/", **(environment or {})},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Fault(f"did not end within {time_limit:g} seconds", where=command) from None
    except OSError as error:
        raise Fault(f"cannot be run: {describe_os_error(error)}", where=path) from None
    return ProgramResult(run.returncode, run.stdout, run.stderr)


def read_program_version(path: str) -> str:
    """Return the version that a program prints, such as "20.10.24".

    Raises:
        Fault: it prints none, or cannot be run.
    """
    result = run_engine_program(path, "--version", time_limit=VERSION_TIME_LIMIT)
    version = _VERSION.search(result.out)
    if version is None:
        reason = result.last_line() if result.err.strip() else ""
        raise Fault("prints no version" + (f": {reason}" if reason else ""), where=f"{path} --version")
    return version[1]


def parse_version(text: str) -> tuple[int, ...]:
    """Return a version as numbers that can be compared."""
    return tuple(int(part) for part in text.split("."))


def list_daemon_arguments(program: str) -> list[list[str]]:
    """Return the command lines of an engine's daemons that run in this mount namespace.

    A daemon in another mount namespace, such as docker in a container, has other files.

    Arguments:
        program: its file name, such as "dockerd".
    """
    found = []
    try:
        namespace = os.readlink("/proc/self/ns/mnt")
        pids = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    for pid in pids:
        try:
            if os.path.basename(os.readlink(f"/proc/{pid}/exe")).removesuffix(" (deleted)") != program:
                continue
            if os.readlink(f"/proc/{pid}/ns/mnt") == namespace and os.stat(f"/proc/{pid}").st_uid == os.geteuid():
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
                found.append([os.fsdecode(word) for word in words])
        except OSError:
            continue
    return found


def find_flag_value(words: Sequence[str], *names: str) -> str:
    """Return the last value of a flag in a command line (`--name VALUE` or `--name=VALUE`), "" if it is not there."""
    value = ""
    for index, word in enumerate(words):
        name, equals, text = word.partition("=")
        if name in names:
            value = text if equals else next(iter(words[index + 1 :]), "")
    return value
