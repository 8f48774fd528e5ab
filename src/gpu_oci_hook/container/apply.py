"""The edits of a plan applied below a container's root and in its bundle.

Everything below the root goes through `Rootfs`; what cannot be written there lies in the bundle, a directory of
the engine's, and is bind-mounted. Cost rule: hot, `os` only.
"""

from __future__ import annotations

import os

from gpu_oci_hook import state
from gpu_oci_hook.errors import Fault, words
from gpu_oci_hook.plan.edits import Directory, Edit, File, Link, Mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.container.rootfs import Rootfs


def below_root(rootfs: Rootfs, edits: list[Edit], generated: str) -> list[str]:
    """Makes the edits that concern files; what was changed, one line each.

    Arguments:
        generated: the bundle's directory for files that are bind-mounted; made when one is needed.

    Raises:
        Fault: a file cannot be written; names it.
    """
    done: list[str] = []
    for edit in edits:
        if isinstance(edit, Mount):
            if edit.make_way and rootfs.clear(edit.destination):
                done.append(f"made way at {edit.destination}")
        elif isinstance(edit, Directory):
            _prepare(edit)
        elif isinstance(edit, Link):
            if rootfs.link(edit.path, edit.target):
                done.append(f"link {edit.describe()}")
        elif isinstance(edit, File):
            if edit.mounted:
                _generate(generated, edit)
            elif _write(rootfs, edit):
                done.append(f"file {edit.describe()}")
    return done


def _prepare(edit: Directory) -> None:
    try:
        state.prepare(edit.source, edit.entries)
    except OSError as error:
        raise Fault(f"the libraries' directory cannot be made: {words(error)}", where=edit.source) from None


def _write(rootfs: Rootfs, edit: File) -> bool:
    try:
        return rootfs.write(edit.path, edit.content)
    except Fault:
        if not edit.optional:
            raise
        return False


def generated_name(path: str) -> str:
    """The name in the bundle of a generated file for a path in the container."""
    return path.strip("/").replace("/", "-")


def _generate(directory: str, edit: File) -> None:
    path = f"{directory}/{generated_name(edit.path)}"
    if _holds(path, edit.content):
        return
    temporary = f"{path}.new"
    try:
        os.makedirs(directory, 0o755, exist_ok=True)
        try:
            os.unlink(temporary)  # left by one that was killed
        except FileNotFoundError:
            pass
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            view = memoryview(edit.content)
            while view:
                view = view[os.write(fd, view) :]
            os.fchmod(fd, 0o444)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except OSError as error:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise Fault(f"a file for the container cannot be made: {words(error)}", where=path) from None


def _holds(path: str, content: bytes) -> bool:
    """Whether the file is there already with this content: a running container may have it mounted."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.read(fd, len(content) + 1) == content
    except OSError:
        return False
    finally:
        os.close(fd)
