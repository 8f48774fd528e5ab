"""`gpu-oci-hook install`: write the launchers that engines call, and check that root can call them safely.

Import budget: cold.
"""

from __future__ import annotations

import compileall
import os
import stat
from pathlib import Path

import click

import gpu_oci_hook
from gpu_oci_hook.cli.code_bundle_builder import are_code_bundles_current, build_code_bundles
from gpu_oci_hook.cli.common_options import quiet_option
from gpu_oci_hook.cli.insecure_paths import find_insecure_paths, find_unreachable_paths
from gpu_oci_hook.cli.launchers import (
    ALIASES,
    LAUNCHER_NAMES,
    PYTHON_LAUNCHER_DIRECTORY,
    check_interpreter,
    find_import_paths,
    find_interpreter,
    render_launcher,
)
from gpu_oci_hook.cli.native_launcher import COMPILERS, compile_native_launcher, find_compiler
from gpu_oci_hook.cli.printing import print_progress, print_warning
from gpu_oci_hook.cli.usage_errors import UsageFault
from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.read_regular import read_regular_head
from gpu_oci_hook.files.replace import remove_stale_temporaries, replace_file, replace_file_at, replace_symlink_at
from gpu_oci_hook.formats.program_names import LAUNCHER_HEAD_SIZE, RUNTIME_PROGRAM, is_launcher


@click.command()
@click.option(
    "--prefix", metavar="DIR", default="/usr/local", show_default=True, help="Install the launchers into DIR/bin."
)
@click.option(
    "--aliases",
    is_flag=True,
    help="Also link the aliases nvidia-container-runtime, nvidia-container-runtime-hook, nvidia-cdi-hook and "
    "nvidia-container-cli, which engines and other programs look for.",
)
@click.option("--force", is_flag=True, help="Replace existing files that gpu-oci-hook did not write.")
@click.option(
    "--native",
    type=click.Choice(("auto", "always", "never")),
    default="auto",
    show_default=True,
    help="Compile gpu-oci-runtime, so that calls which only become runc start no Python. auto does so if there is a C "
    "compiler.",
)
@quiet_option
def install(prefix: str, *, aliases: bool, force: bool, native: str) -> None:
    """Write gpu-oci-runtime and gpu-oci-hook into DIR/bin.

    Files are replaced atomically, and running it again changes nothing. If one of the names is taken by a file that
    gpu-oci-hook did not write, nothing is written.
    """
    if not prefix:
        raise UsageFault("--prefix is empty", hint="Name a directory, or leave the option out")
    directory = Path(prefix).absolute() / "bin"
    for path in (Path(prefix), directory):
        if os.path.lexists(path) and not path.is_dir():
            raise Fault("not a directory", where=f"--prefix {path}" if path == Path(prefix) else str(path))
    python = find_interpreter()
    package = Path(gpu_oci_hook.__file__).resolve().parent
    paths = find_import_paths(package)
    check_interpreter(python, paths)
    launchers = {name: render_launcher(name, python, paths) for name in LAUNCHER_NAMES}
    links = ALIASES if aliases else {}
    for name in (*launchers, *links):
        _refuse_foreign_file(directory / name, force=force)
    old_umask = os.umask(0o022)  # rootless engines run the launchers as their own users
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if native != "never":
            launchers[RUNTIME_PROGRAM] = _build_native_launcher(directory, launchers[RUNTIME_PROGRAM], native)
        for name, content in launchers.items():
            _print_result(directory / name, write_launcher(directory / name, content))
        for name, target in links.items():
            _print_result(directory / name, write_alias_link(directory / name, target), f" -> {target}")
        _compile_package(package)
    except OSError as error:
        reason = describe_os_error(error, writing=True)
        raise Fault(reason, where=f"--prefix {prefix}") from error
    finally:
        os.umask(old_umask)
    print_progress(f"interpreter {python}, Python packages from {', '.join(paths)}")
    print_progress(
        f"next: configure {directory / LAUNCHER_NAMES[0]} as a runtime of your container engine (docs/engines.md)"
    )
    for sentence in find_unreachable_paths([python, str(package), *paths, *_list_launcher_paths(directory)]):
        print_warning(sentence)
    if os.geteuid() == 0:
        for sentence in find_insecure_paths([python, str(package), *paths, str(directory)]):
            print_warning(sentence)


def _list_launcher_paths(directory: Path) -> list[str]:
    private = directory.parent / PYTHON_LAUNCHER_DIRECTORY / RUNTIME_PROGRAM
    return [str(path) for path in (directory / RUNTIME_PROGRAM, private) if path.exists()]


def _build_native_launcher(directory: Path, python_launcher: bytes, native: str) -> bytes:
    """Write the Python launcher beside the directory, compile the native one that starts it, and return that one.

    Arguments:
        directory: of the launchers.
        python_launcher: the content of the Python launcher.
        native: "always" or "auto"; with the latter the Python launcher is returned if nothing can be compiled.

    Raises:
        Fault: it cannot be compiled, and must be.
    """
    compiler = find_compiler()
    try:
        if not compiler:
            raise Fault(f"there is no C compiler: none of {', '.join(COMPILERS)} is in PATH")
        private_directory = directory.parent / PYTHON_LAUNCHER_DIRECTORY
        private_directory.mkdir(parents=True, exist_ok=True)
        path = private_directory / RUNTIME_PROGRAM
        _print_result(path, write_launcher(path, python_launcher))
        return compile_native_launcher(compiler, path, private_directory)
    except Fault as fault:
        if native == "always":
            raise Fault(fault.what, where=fault.where or "--native always", hint="Install gcc and libc6-dev") from None
        print_progress(f"Python is started for every call of {RUNTIME_PROGRAM}: {fault.what} (docs/install.md)")
        return python_launcher


def _compile_package(package: Path) -> None:
    """Compile our package and write its code bundles, and print the result."""
    if compileall.compile_dir(package, quiet=2) and (_write_code_bundles() or are_code_bundles_current()):
        print_progress(f"Python byte code of {package} is up to date")
        return
    owner = package.stat().st_uid
    hint = f"run gpu-oci-hook install as user {owner}, who owns it" if owner != os.geteuid() else "make it writable"
    print_warning(
        f"the Python byte code of {package} is not up to date, and this user cannot write it: "
        f"every start compiles it again and is slower; {hint}"
    )


def _write_code_bundles() -> bool:
    """Write the files from which the shim loads its modules. Return whether that worked."""
    try:
        for path, content in build_code_bundles().items():
            replace_file(path, content, mode=0o644)
    except (OSError, Fault):
        return False
    return True


def _refuse_foreign_file(path: Path, *, force: bool) -> None:
    """Refuse to replace a file that `install` did not write.

    Arguments:
        force: only a directory is refused.

    Raises:
        Fault: the path is such a file, or its status cannot be read.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise Fault(f"cannot be inspected: {describe_os_error(error)}", where=str(path)) from error
    if force:
        if stat.S_ISDIR(status.st_mode):
            raise Fault("it is a directory; nothing was changed", where=str(path), hint="Remove it first")
        return
    is_own = False
    if stat.S_ISLNK(status.st_mode):
        is_own = str(path.readlink()) in LAUNCHER_NAMES
    elif stat.S_ISREG(status.st_mode):
        is_own = is_launcher(read_regular_head(str(path), LAUNCHER_HEAD_SIZE))
    if not is_own:
        raise Fault(
            "gpu-oci-hook did not write this file; nothing was changed",
            where=str(path),
            hint="Choose another --prefix, or replace it with --force",
        )


def write_launcher(path: Path, content: bytes) -> str:
    """Write an executable file atomically. Return what was done."""
    try:
        if stat.S_ISREG(path.lstat().st_mode) and path.read_bytes() == content:
            if stat.S_IMODE(path.lstat().st_mode) == 0o755:
                return "unchanged"
            path.chmod(0o755)
            return "made executable"
    except FileNotFoundError:
        pass
    return _replace_atomically(path, content, None)


def write_alias_link(path: Path, target: str) -> str:
    """Create a symbolic link atomically. Return what was done."""
    if path.is_symlink() and str(path.readlink()) == target:
        return "unchanged"
    return _replace_atomically(path, b"", target)


def _replace_atomically(path: Path, content: bytes, target: str | None) -> str:
    """Replace a path by a new file or link; return what was done. A link at the path is replaced, not followed."""
    existed = os.path.lexists(path)
    try:
        directory_fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            remove_stale_temporaries(directory_fd)
            if target is not None:
                replace_symlink_at(directory_fd, path.name, target)
            else:
                replace_file_at(directory_fd, path.name, content, mode=0o755, durable=True)
        finally:
            os.close(directory_fd)
    except OSError as error:
        raise Fault(f"cannot be written: {describe_os_error(error, writing=True)}", where=str(path)) from error
    return "replaced" if existed else "wrote"


def _print_result(path: Path, action: str, suffix: str = "") -> None:
    print_progress(f"{action} {path}{suffix}", colour=None if action == "unchanged" else "green")
