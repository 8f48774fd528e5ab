"""Apply the edits of a plan below a container's root and in its bundle.

Everything below the root goes through `Rootfs`. A file that cannot be written there is written into the bundle, a
directory of the engine, and bind-mounted.

Import budget: GPU container.
"""

from __future__ import annotations

import errno
import os
import stat

from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.prepared_directory import (
    TooManyDirectoriesError,
    prepare_directory,
    prepare_shared_directory,
)
from gpu_oci_hook.files.read_regular import UnusableFileError, read_regular_file
from gpu_oci_hook.files.replace import replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_oci_hook.files.rootfs import Rootfs
    from gpu_oci_hook.model.edits import AddMount, Edit
    from gpu_oci_hook.model.file_edits import AddFile, AddLink, PrepareDirectory

# The name of the bundle's directory for generated files.
GENERATED_DIR = "gpu-oci-hook"


def apply_to_rootfs(rootfs: Rootfs, edits: Iterable[Edit], generated_dir: str) -> list[str]:
    """Apply edits below a container's root and in its bundle.

    Arguments:
        generated_dir: the bundle's directory for files that are bind-mounted; created when a file needs it.

    Returns:
        One line for each change.

    Raises:
        Fault: a file cannot be written; names it.
    """
    editor = RootfsEditor(rootfs, generated_dir)
    for edit in edits:
        edit.apply_to_rootfs(editor)
    return editor.changes


def prepare_shared_directories(edits: Iterable[Edit], generated_dir: str) -> None:
    """Prepare the directories that containers share; one that cannot be moves to the bundle, with its mount.

    The state directory can be full or read-only, and has a limited number of them.
    """
    moved: dict[str, str] = {}
    for edit in edits:
        if edit.kind == "directory":
            _prepare_or_move(edit, generated_dir, moved)  # type: ignore[arg-type]  # the kind says the class
        elif moved and edit.kind == "mount":
            edit.source = moved.get(edit.source, edit.source)  # type: ignore[attr-defined]


def _prepare_or_move(edit: PrepareDirectory, generated_dir: str, moved: dict[str, str]) -> None:
    """Prepare a directory unless it is in the bundle; if that fails, move it there.

    Arguments:
        moved: takes the old path with the new one.
    """
    if edit.source.startswith(f"{generated_dir}/"):
        return
    try:
        try:
            prepare_shared_directory(edit.source, edit.entries)
        except TooManyDirectoriesError:
            from gpu_oci_hook.files.prepared_cleanup import prepare_after_cleanup

            prepare_after_cleanup(edit.source, edit.entries)
    except OSError:
        moved[edit.source] = f"{generated_dir}/{edit.source.rpartition('/')[2]}"
        edit.source = moved[edit.source]


class RootfsEditor:
    """A container's root and bundle, and the operations that edits of a plan make there.

    Attributes:
        changes: one line for each change so far.
    """

    __slots__ = ("_generated_dir", "_rootfs", "changes")

    def __init__(self, rootfs: Rootfs, generated_dir: str) -> None:
        self._rootfs = rootfs
        self._generated_dir = generated_dir
        self.changes: list[str] = []

    def clear_mount_point(self, edit: AddMount) -> None:
        """Remove a link or special file at a mount's destination, where the edit says so."""
        if edit.clear_mount_point and self._rootfs.clear_mount_point(edit.destination):
            self.changes.append(f"removed {edit.destination} to make room for a mount point")

    def prepare_directory(self, edit: PrepareDirectory) -> None:
        """Prepare a directory of empty files and links in the bundle, unless it exists.

        `prepare_shared_directories` has prepared the others.
        """
        if not edit.source.startswith(f"{self._generated_dir}/"):
            return
        try:
            make_generated_directory(self._generated_dir)
            prepare_directory(edit.source, edit.entries)
        except OSError as error:
            reason = describe_os_error(error, writing=True)
            raise Fault(
                f"cannot create the directory for the driver libraries: {reason}",
                where=edit.source,
                hint="Make the bundle writable for this user, or run as the user that the engine runs as",
            ) from None

    def make_link(self, edit: AddLink) -> None:
        """Make a symbolic link below the root."""
        if self._rootfs.make_symlink(edit.path, edit.target):
            self.changes.append(f"link {edit.describe()}")

    def write_file(self, edit: AddFile) -> None:
        """Write a generated file below the root, or into the bundle if it is bind-mounted."""
        if edit.bind_mounted:
            write_generated_file(self._generated_dir, edit.path, edit.content)
            return
        try:
            if self._rootfs.write_file(edit.path, edit.content):
                self.changes.append(f"file {edit.describe()}")
        except Fault:
            if not edit.optional:
                raise

    def has_link(self, edit: AddLink) -> bool:
        """Tell whether the link exists with its target."""
        return self._rootfs.readlink(edit.path) == edit.target

    def has_file(self, edit: AddFile) -> bool:
        """Tell whether the generated file exists with its content."""
        if edit.bind_mounted:
            return _has_content(f"{self._generated_dir}/{generated_file_name(edit.path)}", edit.content)
        return self._rootfs.read_file(edit.path, len(edit.content)) == edit.content


def make_generated_directory(path: str) -> None:
    """Create the bundle's directory for generated files if it is missing.

    Raises:
        OSError: it cannot be created. EACCES: see `is_generated_directory`.
    """
    try:
        os.mkdir(path, 0o755)
    except FileExistsError:
        if not is_generated_directory(path):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES)) from None


def is_generated_directory(path: str) -> bool:
    """Tell whether the bundle's directory for generated files exists, is no link, and only this user may write there.

    Bundles belong to the engine. Where another user can write in one after all, what that user has put there is neither
    believed nor written through.
    """
    try:
        status = os.lstat(path)
    except (OSError, ValueError):
        return False
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not others_write


def generated_file_name(path: str) -> str:
    """Return the name in the bundle of a generated file for a path in the container."""
    return path.strip("/").replace("/", "-")


def write_generated_file(generated_dir: str, container_path: str, content: bytes) -> str:
    """Write a file into the bundle, from where it is mounted in the container; return its path.

    Arguments:
        generated_dir: the bundle's directory for such files; created when it is missing.
        container_path: the path in the container.

    Raises:
        Fault: the bundle cannot be written.
    """
    path = f"{generated_dir}/{generated_file_name(container_path)}"
    try:
        make_generated_directory(generated_dir)
        if _has_content(path, content):
            return path
    except OSError as error:
        raise Fault(
            f"a file for the container cannot be made: {describe_os_error(error, writing=True)}", where=path
        ) from None
    replace_file(path, content, mode=0o444, stale_after=0)
    return path


def _has_content(path: str, content: bytes) -> bool:
    """Tell whether a file has this content already. A running container can have it mounted, so it is not replaced."""
    try:
        return read_regular_file(path, len(content), follow_symlinks=False) == content
    except (OSError, UnusableFileError):
        return False
