"""The edits of a plan applied below a container's root and in its bundle.

Everything below the root goes through `Rootfs`; what cannot be written there lies in the bundle, a directory of
the engine's, and is bind-mounted. Cost rule: hot, `os` only.
"""

from __future__ import annotations

import os

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files import state_dir
from gpu_oci_hook.files.read_regular import UnusableFileError, read_regular_file
from gpu_oci_hook.model.edits import AddFile, AddLink, AddMount, Edit, PrepareDirectory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.files.rootfs import Rootfs

# The bundle's directory for what is made there.
GENERATED_DIR = "gpu-oci-hook"


def apply_to_rootfs(rootfs: Rootfs, edits: list[Edit], generated_dir: str) -> list[str]:
    """Makes the edits that concern files; what was changed, one line each.

    Arguments:
        generated_dir: the bundle's directory for files that are bind-mounted; made when one is needed.

    Raises:
        Fault: a file cannot be written; names it.
    """
    done: list[str] = []
    for edit in edits:
        if isinstance(edit, AddMount):
            if edit.clear_mount_point and rootfs.clear_mount_point(edit.destination):
                done.append(f"made way at {edit.destination}")
        elif isinstance(edit, PrepareDirectory):
            _prepare_directory(edit)
        elif isinstance(edit, AddLink):
            if rootfs.make_symlink(edit.path, edit.target):
                done.append(f"link {edit.describe()}")
        elif isinstance(edit, AddFile):
            if edit.bind_mounted:
                write_generated_file(generated_dir, edit.path, edit.content)
            elif _write_file(rootfs, edit):
                done.append(f"file {edit.describe()}")
    return done


def _prepare_directory(edit: PrepareDirectory) -> None:
    try:
        state_dir.prepare_directory(edit.source, edit.entries)
    except OSError as error:
        reason = describe_os_error(error, writing=True)
        raise Fault(f"the libraries' directory cannot be made: {reason}", where=edit.source) from None


def _write_file(rootfs: Rootfs, edit: AddFile) -> bool:
    try:
        return rootfs.write_file(edit.path, edit.content)
    except Fault:
        if not edit.optional:
            raise
        return False


def generated_file_name(path: str) -> str:
    """The name in the bundle of a generated file for a path in the container."""
    return path.strip("/").replace("/", "-")


def replace_file(path: str, data: bytes, *, mode: int | None = None) -> None:
    """Puts new bytes in a file's place, whole or not at all.

    Arguments:
        mode: of a file that need not be there; None keeps owner and mode of the one that is.

    Raises:
        Fault: the directory cannot be written; the file is as it was.
    """
    real = os.path.realpath(path)
    fresh = real + ".gpu-oci-hook-new"
    try:
        status = os.stat(real) if mode is None else None
        try:
            os.unlink(fresh)  # left by one that was killed
        except FileNotFoundError:
            pass
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            if status is not None:
                own = os.fstat(fd)
                if (own.st_uid, own.st_gid) != (status.st_uid, status.st_gid):
                    os.fchown(fd, status.st_uid, status.st_gid)
                mode = status.st_mode & 0o7777
            os.fchmod(fd, mode or 0)
        finally:
            os.close(fd)
        os.rename(fresh, real)
    except OSError as error:
        try:
            os.unlink(fresh)
        except OSError:
            pass
        raise Fault(f"it cannot be written: {describe_os_error(error, writing=True)}", where=path) from None


def write_generated_file(generated_dir: str, container_path: str, content: bytes) -> str:
    """Makes a file in the bundle that is to be mounted in the container; its path.

    Arguments:
        generated_dir: the bundle's for such files; made when it is missing. container_path: the path in the container.

    Raises:
        Fault: the bundle cannot be written.
    """
    path = f"{generated_dir}/{generated_file_name(container_path)}"
    if _has_content(path, content):
        return path
    try:
        os.makedirs(generated_dir, 0o755, exist_ok=True)
    except OSError as error:
        raise Fault(
            f"a file for the container cannot be made: {describe_os_error(error, writing=True)}", where=path
        ) from None
    replace_file(path, content, mode=0o444)
    return path


def _has_content(path: str, content: bytes) -> bool:
    """Whether the file is there already with this content: a running container may have it mounted."""
    try:
        return read_regular_file(path, len(content), follow_symlinks=False) == content
    except (OSError, UnusableFileError):
        return False
