"""Decide whether a file that steers us may be believed: only its owner, root or us, can write it."""

from __future__ import annotations

import os
import stat

from gpu_oci_hook.errors import Fault


def check_file_trust(status: os.stat_result, path: str, description: str = "the config file") -> None:
    """Accept the status of a file that decides what is run as root, or say why not.

    Arguments:
        description: the file, for people.

    Raises:
        Fault: no regular file; owned by, or writable for, somebody else while we run as root.
    """
    if not stat.S_ISREG(status.st_mode):
        raise Fault(f"{description} is not a regular file", where=path)
    how = describe_foreign_access(status)
    if how:
        cure = f"chown root {path}" if "belongs" in how else f"chmod go-w {path}"
        raise Fault(f"{description} {how} and is refused while running as root", where=path, hint=f"Run: {cure}")


def describe_foreign_access(status: os.stat_result) -> str:
    """How somebody else than root could change a file or directory, as a verb; "" when nobody can, or we are not root.

    In a user namespace (rootless podman) the machine's root has no number and owns its files as the overflow user:
    these are believed there.
    """
    if os.geteuid() != 0:
        return ""
    if is_untrusted_owner(status.st_uid):
        return f"belongs to user {status.st_uid}"
    if status.st_mode & 0o002 or (status.st_mode & 0o020 and status.st_gid != 0):
        return "can be written by other users"
    return ""


def is_untrusted_owner(uid: int) -> bool:
    """Whether a user is not root while we are, on whichever side of a user namespace: see `describe_foreign_access`."""
    if os.geteuid() != 0 or uid == 0:
        return False
    from gpu_oci_hook.files.user_namespace import is_overflow_uid

    return not is_overflow_uid(uid)
