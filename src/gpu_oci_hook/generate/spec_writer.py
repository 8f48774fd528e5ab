"""CDI files written: the same text for the same content, and a file in its place whole or not at all.

The YAML is our own writer's, forty lines for what a CDI file can hold: PyYAML's would take longer than everything else
for a machine with many MIG devices, and its text differs between releases and between its two writers. Every text
that is not plainly a word or a path is quoted, so that readers of YAML 1.1 do not take "0" for a number, "0:1" for
sixty-one, "no" for false. Cost rule: cold.
"""

from __future__ import annotations

import os
import re
import stat
import time

from gpu_oci_hook.cdi.provenance import is_own_spec_data
from gpu_oci_hook.errors import Fault, describe_os_error
from gpu_oci_hook.files.read_regular import UnusableFileError, read_regular_file
from gpu_oci_hook.files.replace import _FILE_MODE, _TEMPORARY_INFIX, _replace_file, _resolve_links, _split_resolved_path

_MAX_FILE_SIZE = 64 << 20
_READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TEMPORARY_LIFETIME = 60.0  # seconds after which a temporary file belongs to nobody any more

_PLAIN_SCALAR = re.compile(r"[A-Za-z/][A-Za-z0-9_./=+-]*", re.ASCII)
# YAML 1.1's other words for true, false and nothing.
_YAML_KEYWORDS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
_MAX_LINE_WIDTH = 100
# What JSON lets stand as it is and YAML, by which engines read JSON too, does not, or takes for a line's end.
_UNSAFE_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def classify_existing_file(path: str) -> str:
    """Whose file lies there: "nobody's" (none, or an empty one), "ours", "cdi" (another CDI file), or "other".

    Raises:
        Fault: it is no file, or cannot be read.
    """
    directory, name = _split_resolved_path(path)
    try:
        above = os.open(directory, _DIRECTORY_FLAGS | os.O_PATH)
    except (FileNotFoundError, NotADirectoryError):
        return "nobody's"
    except OSError as error:
        raise Fault(f"its directory cannot be read: {describe_os_error(error)}", where=path) from None
    try:
        data = _read_existing_file(above, name, path)[0]
    finally:
        os.close(above)
    if not data:
        return "nobody's"
    if is_own_spec_data(data):
        return "ours"
    return "cdi" if b"cdiVersion" in data else "other"


def write_spec_file(path: str, data: bytes) -> str:
    """Puts the bytes in the file's place, mode 0644; what was done: "wrote", "unchanged" or "made readable".

    A file that has them already stays what it is, with its inode and time. Killed at any moment, the old file or the
    new one is there. Links are followed, owners kept. The directory is made if it alone is missing (/etc/cdi): a path
    with more that is missing is rather a mistake than a wish. All is done in one directory that is held open: who may
    swap directories or names on the way can at most keep us from writing.

    Raises:
        Fault: it cannot be written; what was there is as it was.
    """
    directory, name = _split_resolved_path(path)
    try:
        _create_directory(directory, path)
        above = os.open(directory, _DIRECTORY_FLAGS)
        try:
            old, status = _read_existing_file(above, name, path)
            if old == data and status is not None:
                return "unchanged" if stat.S_IMODE(status.st_mode) == _FILE_MODE else _make_readable(above, name)
            _remove_stale_temporaries(above, name)
            _replace_file(above, name, data, status)
        finally:
            os.close(above)
    except OSError as error:
        raise Fault(f"it cannot be written: {describe_os_error(error, writing=True)}", where=path) from None
    return "wrote"


def remove_spec_file(path: str) -> bool:
    """Removes a file, or the link that has its name; whether there was one.

    Raises:
        Fault: it cannot be removed.
    """
    directory, _, name = path.rpartition("/")
    try:
        place = _resolve_links(directory or ("/" if path.startswith("/") else "."))
        above = os.open(place, _DIRECTORY_FLAGS | os.O_PATH)
        try:
            os.unlink(name, dir_fd=above)
        finally:
            os.close(above)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise Fault(f"it cannot be removed: {describe_os_error(error, writing=True)}", where=path) from None
    return True


def _create_directory(directory: str, spec_path: str) -> None:
    """A directory that every user can look into, whatever the umask says.

    Raises:
        Fault: the one above it is missing as well.
    """
    if os.path.isdir(directory):
        return
    above = os.path.dirname(directory)
    if not os.path.lexists(above):
        raise Fault(f"there is no directory {above}", where=spec_path, hint=f"Make it first: mkdir -p {directory}")
    before = os.umask(0o022)
    try:
        os.mkdir(directory, 0o755)
    except FileExistsError:
        pass  # somebody was faster, or it is a file: then the next step says so
    finally:
        os.umask(before)


def _make_readable(directory_fd: int, name: str) -> str:
    fd = os.open(name, _READ_FLAGS, dir_fd=directory_fd)
    try:
        os.fchmod(fd, _FILE_MODE)
    finally:
        os.close(fd)
    return "made readable"


def _remove_stale_temporaries(directory_fd: int, name: str) -> None:
    """Removes what was left by one of us that was killed."""
    for entry in os.listdir(directory_fd):
        if entry.startswith(f".{name}{_TEMPORARY_INFIX}"):
            try:
                if (
                    time.time() - os.stat(entry, dir_fd=directory_fd, follow_symlinks=False).st_mtime
                    > _TEMPORARY_LIFETIME
                ):
                    os.unlink(entry, dir_fd=directory_fd)
            except OSError:
                pass


def _read_existing_file(directory_fd: int, name: str, path: str) -> tuple[bytes | None, os.stat_result | None]:
    """The bytes of a regular file and its status, None when it is missing; never waits for a FIFO.

    Raises:
        Fault: it is not a regular file, is too large to be a CDI file, or cannot be read.
    """
    statuses: list[os.stat_result] = []
    try:
        data = read_regular_file(
            name,
            _MAX_FILE_SIZE,
            dir_fd=directory_fd,
            follow_symlinks=False,
            stat_first=True,
            check_status=statuses.append,
        )
    except FileNotFoundError:
        return None, None
    except UnusableFileError as error:
        raise Fault(f"{error}, and a CDI file is to be written there", where=path) from None
    except OSError as error:
        raise Fault(f"the file that is there cannot be read: {describe_os_error(error)}", where=path) from None
    return data, statuses[0]
