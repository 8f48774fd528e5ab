"""`gpu-oci-hook install`: the launchers that engines call, and what has to be true for root to call them.

A launcher names its interpreter absolutely and starts it with -I (nothing from the environment, the current
directory or the user's site), -S (no site directories, which is also half of the start's time) and -X utf8
(engines name no locale, and looking for one costs a millisecond), so it has to say itself where our package and
the libraries of the command line lie.
"""

from __future__ import annotations

import compileall
import os
import stat
import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path

import click

import gpu_oci_hook
from gpu_oci_hook.cli.printing import print_line, print_warning
from gpu_oci_hook.container.rootfs_edits import replace_file
from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.read_regular import read_regular_head
from gpu_oci_hook.formats.program_names import (
    HOOK_PROGRAM,
    NVIDIA_CDI_HOOK,
    NVIDIA_PRESTART_HOOK,
    NVIDIA_RUNTIME,
    RUNTIME_PROGRAM,
    is_launcher,
)
from gpu_oci_hook.shim.code_bundle import BUNDLE_PATH, build_code_bundle

LAUNCHER_NAMES = (RUNTIME_PROGRAM, HOOK_PROGRAM)
ALIASES = {
    NVIDIA_RUNTIME: RUNTIME_PROGRAM,
    NVIDIA_PRESTART_HOOK: HOOK_PROGRAM,
    NVIDIA_CDI_HOOK: HOOK_PROGRAM,
}

# Kernels before 5.1 cut a script's first line after 127 characters (BINPRM_BUF_SIZE in binfmts.h).
_SHEBANG_LIMIT = 127
_DEPENDENCIES = ("click", "structlog", "nvidia-ml-py")


@click.command()
@click.option("--prefix", metavar="DIR", default="/usr/local", show_default=True, help="DIR/bin gets them.")
@click.option("--aliases", is_flag=True, help="Also link the names that engines look for with another toolkit.")
@click.option("--force", is_flag=True, help="Replace files of these names that are not ours.")
def install(prefix: str, *, aliases: bool, force: bool) -> None:
    """Write gpu-oci-runtime and gpu-oci-hook into DIR/bin.

    Every file is replaced in one step, and doing it again changes nothing. Nothing is written when one of the
    names is taken by somebody else's file.
    """
    if not prefix:
        raise Fault("--prefix is empty", hint="Name a directory, or leave the option out")
    directory = Path(prefix).absolute() / "bin"
    python = find_interpreter()
    package = Path(gpu_oci_hook.__file__).resolve().parent
    paths = find_import_paths(package)
    _check_interpreter(python, paths)
    texts = {name: render_launcher(name, python, paths) for name in LAUNCHER_NAMES}
    links = ALIASES if aliases else {}
    if not force:
        for name in (*texts, *links):
            _refuse_foreign_file(directory / name)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            _print_result(directory / name, write_launcher(directory / name, text))
        for name, target in links.items():
            _print_result(directory / name, write_alias_link(directory / name, target), f" -> {target}")
    except OSError as error:
        reason = describe_os_error(error, writing=True)
        raise Fault(f"it cannot be written: {reason}", where=str(error.filename or directory)) from error
    compiled = compileall.compile_dir(package, quiet=2) and _write_code_bundle()
    print_line(
        f"the compiled code of {package} is up to date"
        if compiled
        else f"{package} could not be compiled by this user: every start compiles it again, and is slower"
    )
    print_line(f"runs with {python}, libraries from {', '.join(paths)}")
    print_line(f'next: name {directory / LAUNCHER_NAMES[0]} to your engine (README, "Tell the engine")')
    if os.geteuid() == 0:
        for sentence in find_insecure_paths([python, str(package), *paths, str(directory)]):
            print_warning(sentence)


def _write_code_bundle() -> bool:
    """Writes the one file with the code of the modules that every GPU container needs; whether that could be done."""
    try:
        replace_file(BUNDLE_PATH, build_code_bundle(), mode=0o644)
    except (OSError, Fault):
        return False
    return True


def find_interpreter() -> str:
    """The real Python behind this process, not a virtual environment's link to it.

    Raises:
        Fault: it is unknown, or its path does not fit a script's first line.
    """
    base = getattr(sys, "_base_executable", None) or sys.executable
    if not base or not os.path.isabs(base):
        raise Fault(
            "this process does not know the absolute path of its Python interpreter",
            hint="Call the interpreter by its absolute path",
        )
    path = os.path.realpath(base)
    if not os.access(path, os.X_OK):
        raise Fault("the Python interpreter is not there or cannot be run", where=path)
    if any(character.isspace() for character in path):
        raise Fault("the Python interpreter's path has a blank in it; no script can start with it", where=path)
    if len(os.fsencode(f"#!{path} -ISXutf8")) > _SHEBANG_LIMIT:
        raise Fault(
            f"the Python interpreter's path is too long for a script's first line ({_SHEBANG_LIMIT} characters)",
            where=path,
            hint="Install with a Python that has a shorter path",
        )
    return path


def find_import_paths(package: Path) -> list[str]:
    """The directories that a launcher names: our package's parent, then those of the libraries that we use."""
    paths = [str(package.parent)]
    waiting = list(_DEPENDENCIES)
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        place = str(Path(str(found.locate_file(""))).resolve())
        if place not in paths:
            paths.append(place)
        # "rpds-py>=0.7.1; extra == ..." : extras and other platforms' requirements are simply not there.
        waiting += [_parse_requirement_name(requirement) for requirement in found.requires or []]
    return paths


def _parse_requirement_name(requirement: str) -> str:
    end = next((at for at, char in enumerate(requirement) if not (char.isalnum() or char in "-_.")), None)
    return requirement[:end]


def render_launcher(name: str, python: str, paths: list[str]) -> bytes:
    """A launcher's text, from the template of its name."""
    template = resources.files("gpu_oci_hook").joinpath("launchers", f"{name}.in").read_text(encoding="utf-8")
    # ascii(): valid in a source file whatever the locale and the path's bytes are.
    text = template.replace("@PACKAGE@", ascii(paths[0])).replace("@LIBRARIES@", ascii(paths[1:]))
    return text.replace("@PYTHON@", python).encode("utf-8", "surrogateescape")


def _check_interpreter(python: str, paths: list[str]) -> None:
    """Starts the interpreter as the launcher will, before an engine does.

    Raises:
        Fault: it cannot load the shim that way.
    """
    code = f"import sys; sys.path += {paths!a}; import gpu_oci_hook.shim.main"
    run = subprocess.run([python, "-ISc", code], capture_output=True, text=True, errors="replace", check=False)
    if run.returncode:
        reason = (run.stderr.strip() or f"exit status {run.returncode}").rsplit("\n", 1)[-1]
        raise Fault(f"this Python cannot run the shim outside its environment: {reason}", where=python)


def _refuse_foreign_file(path: Path) -> None:
    """Accept a place that is free or holds what an earlier install wrote.

    Raises:
        Fault: it holds something else.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise Fault(f"it cannot be looked at: {describe_os_error(error)}", where=str(path)) from error
    ours = False
    if stat.S_ISLNK(status.st_mode):
        ours = str(path.readlink()) in LAUNCHER_NAMES
    elif stat.S_ISREG(status.st_mode):
        ours = is_launcher(read_regular_head(str(path), 1024))
    if not ours:
        raise Fault(
            "this is not a file of ours and stays as it is; nothing was written",
            where=str(path),
            hint="Choose another --prefix, or replace it with --force",
        )


def write_launcher(path: Path, text: bytes) -> str:
    """Makes a path an executable file with this text, in one step; answers what was done."""
    try:
        if stat.S_ISREG(path.lstat().st_mode) and path.read_bytes() == text:
            if stat.S_IMODE(path.lstat().st_mode) == 0o755:
                return "unchanged"
            path.chmod(0o755)
            return "made executable"
    except FileNotFoundError:
        pass
    return _replace_atomically(path, text, None)


def write_alias_link(path: Path, target: str) -> str:
    """Makes a path a symbolic link with this text, in one step; answers what was done."""
    if path.is_symlink() and str(path.readlink()) == target:
        return "unchanged"
    return _replace_atomically(path, b"", target)


def _replace_atomically(path: Path, text: bytes, target: str | None) -> str:
    """A new file or link beside the path, renamed over it."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    existed = os.path.lexists(path)
    try:
        if target is not None:
            new.symlink_to(target)
        else:
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o755)
            with open(fd, "wb") as file:
                file.write(text)
                file.flush()
                os.fsync(fd)
            new.chmod(0o755)  # whatever the umask says
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    return "replaced" if existed else "wrote"


def _print_result(path: Path, action: str, suffix: str = "") -> None:
    print_line(f"{action} {path}{suffix}", colour=None if action == "unchanged" else "green")


def find_insecure_paths(paths: list[str]) -> list[str]:
    """Where somebody other than root could change what root will run: one sentence per place."""
    found: dict[str, str] = {}
    for path in paths:
        place = Path(path)
        below = (
            [Path(top, name) for top, _, names in os.walk(place) for name in ("", *names)]
            if (place.name == "gpu_oci_hook")
            else []
        )
        for one in (*reversed(place.parents), place, *below):
            try:
                status = one.stat()
            except OSError:
                continue
            if status.st_uid != 0:
                found.setdefault(str(one), f"belongs to user {status.st_uid}")
            elif status.st_mode & 0o002 and not (one != place and status.st_mode & stat.S_ISVTX):
                found.setdefault(str(one), "can be written by every user")
            elif status.st_mode & 0o020 and status.st_gid != 0:
                found.setdefault(str(one), f"can be written by group {status.st_gid}")
    shown = [
        f"{place} {why}: whoever writes there runs as root when a container starts" for place, why in found.items()
    ]
    return shown[:5] + ([f"and {len(shown) - 5} more such places"] if len(shown) > 5 else [])
