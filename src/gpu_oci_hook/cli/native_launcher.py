"""Compile the launcher of gpu-oci-runtime that becomes the low-level runtime without starting Python.

Its source is `launchers/gpu-oci-runtime.c`. Nothing depends on it: without a C compiler the Python launcher takes its
place, and every call costs the start of an interpreter.

Import budget: cold.
"""

from __future__ import annotations

import os
import shutil
import string
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

from gpu_oci_hook import VERSION
from gpu_oci_hook.errors import Fault, clip_text, describe_os_error
from gpu_oci_hook.formats.program_names import RUNTIME_PROGRAM

SOURCE = f"{RUNTIME_PROGRAM}.c"
COMPILERS = ("cc", "gcc", "clang")
# A static program starts twice as fast. Not every distribution has libc.a beside the compiler.
_LINKINGS = (("-static",), ())
_FLAGS = ("-O2", "-s", "-Wall", "-Wextra", "-Wl,--build-id=none")
_TIMEOUT = 120  # seconds


def find_compiler() -> str:
    """Return the path of a C compiler; "" if there is none."""
    return next((path for name in COMPILERS if (path := shutil.which(name))), "")


def compile_native_launcher(compiler: str, python_launcher: Path, directory: Path) -> bytes:
    """Compile the launcher, run it once, and return the program.

    Arguments:
        compiler: path of a C compiler.
        python_launcher: absolute path of the launcher that it starts for everything but passing through. It must exist.
        directory: where programs can be run, for temporary files.

    Raises:
        Fault: it cannot be compiled, or the result does not run here.
    """
    source = resources.files("gpu_oci_hook").joinpath("launchers", SOURCE).read_bytes()
    definitions = [f"-DPYTHON_LAUNCHER={_quote(str(python_launcher))}", f"-DVERSION={_quote(VERSION)}"]
    reason = ""
    try:
        with tempfile.TemporaryDirectory(prefix=".native-", dir=directory) as temporary:
            os.chmod(temporary, 0o700)
            source_path, program = Path(temporary, SOURCE), Path(temporary, RUNTIME_PROGRAM)
            source_path.write_bytes(source)
            for linking in _LINKINGS:
                arguments = [compiler, *_FLAGS, *linking, *definitions, str(source_path), "-o", str(program)]
                reason = _run(arguments) or _check_program(program)
                if not reason:
                    return program.read_bytes()
    except OSError as error:
        raise Fault(describe_os_error(error, writing=True), where=str(directory)) from error
    raise Fault(f"the launcher cannot be compiled: {reason}", where=compiler)


def _quote(text: str) -> str:
    """Return a C string literal. Every byte that is not a plain character is written in octal."""
    plain = b"/._-+" + (string.ascii_letters + string.digits).encode()
    characters = (chr(byte) if byte in plain else f"\\{byte:03o}" for byte in os.fsencode(text))
    return f'"{"".join(characters)}"'


def _run(arguments: list[str]) -> str:
    """Run the compiler; return the first line of its errors, "" if it succeeded."""
    try:
        run = subprocess.run(
            arguments,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_TIMEOUT,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return f"no answer for {_TIMEOUT} seconds"
    if run.returncode == 0:
        return ""
    lines = [line for line in run.stderr.splitlines() if line.strip()]
    return clip_text(next((line for line in lines if "error" in line), (lines or ["exit status not 0"])[0]), 300)


def _check_program(program: Path) -> str:
    """Run the launcher as an engine does; return why it cannot be used, "" if it can."""
    if not program.exists():
        return "the compiler wrote no program"
    try:
        run = subprocess.run(
            [str(program), "--version"], capture_output=True, check=False, timeout=_TIMEOUT, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return "it does not end"
    if run.stdout.startswith(f"{RUNTIME_PROGRAM} version {VERSION}".encode()):
        return ""
    return f"it does not start {RUNTIME_PROGRAM}, exit status {run.returncode}"
