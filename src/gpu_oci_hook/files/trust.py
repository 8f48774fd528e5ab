"""Decide whether only root, or this user, could have written a file that decides what is run or mounted.

One rule for the config file, CDI files, Tegra's lists, libraries and programs that are run, directories that are
mounted, and the places of the installation: `describe_foreign_access`. Two things are outside of it on purpose:
`state_dir.is_trusted_fd` is the same rule for this program's own state, in the module that every call loads. The code
bundle and the compiled catalogue are not checked: they lie among the package's compiled modules, where a user who can
write could change the code itself.

Import budget: GPU container.
"""

from __future__ import annotations

import os
import stat

from gpu_oci_hook.errors import Fault

_MAX_LINKS = 40  # as the kernel: path_resolution(7)


def check_file_trust(status: os.stat_result, path: str, description: str = "the config file") -> None:
    """Accept a file by its status while this process runs as root, or explain why not.

    Arguments:
        description: the file, as the subject of the sentence.

    Raises:
        Fault: it is not a regular file, or a user other than root could have written it.
    """
    if not stat.S_ISREG(status.st_mode):
        raise Fault(f"{description} is not a regular file", where=path)
    access = describe_foreign_access(status)
    if access:
        command = f"chown root {path}" if "belongs" in access else f"chmod go-w {path}"
        raise Fault(f"{description} {access} and is refused while running as root", where=path, hint=f"Run: {command}")


def describe_foreign_access(
    status: os.stat_result,
    *,
    every_user: bool = False,
    owner_only: bool = False,
    root_group: bool = True,
    sticky_parent: bool = False,
) -> str:
    """Describe how another user could change a file or directory, as a verb phrase, or "" when none could.

    The owner must be root, and neither the other users nor a group other than root's may write.

    Arguments:
        status: of the file or directory, not of a link to it.
        every_user: the rule holds also while this process does not run as root; its own user is then trusted like
            root. Without it such a process trusts everything: the file decides only what its user may do anyway.
        owner_only: write permissions do not count. For directories whose clients are meant to write there (MPS).
        root_group: the group root may write. Not for programs that are run and come from a package: theirs never can.
        sticky_parent: it is a parent directory, in which a sticky bit keeps other users from replacing entries (/tmp).
    """
    user = os.geteuid()
    if user != 0 and not every_user:
        return ""
    if status.st_uid != user and not is_root_uid(status.st_uid):
        return f"belongs to user {status.st_uid}"
    if owner_only or (sticky_parent and status.st_mode & stat.S_ISVTX):
        return ""
    if status.st_mode & stat.S_IWOTH:
        return "can be written by every user"
    if status.st_mode & stat.S_IWGRP and not (root_group and status.st_gid == 0):
        return f"can be written by group {status.st_gid}"
    return ""


def is_root_uid(uid: int) -> bool:
    """Tell whether a file's owner is root.

    In a user namespace (rootless podman) the host's root has no number, and its files belong to the overflow user.
    """
    if uid == 0:
        return True
    from gpu_oci_hook.files.user_namespace import is_overflow_uid

    return is_overflow_uid(uid)


def resolve_trusted_links(path: str) -> str:
    """Return the absolute path with its links followed; components that are missing stay as they are.

    While running as root, a link that belongs to another user is not followed: in a directory like /tmp every user can
    create one, and the kernel's protection (sysctl fs.protected_symlinks) does not cover a program that reads links
    itself.

    Raises:
        Fault: there is such a link, or links go round in a circle.
    """
    resolved: list[str] = []
    try:
        pending = (path if path.startswith("/") else f"{os.getcwd()}/{path}").split("/")[::-1]
    except OSError as error:
        from gpu_oci_hook.errors import describe_os_error

        raise Fault(f"the current directory is lost: {describe_os_error(error)}", where=path) from None
    links = 0
    while pending:
        part = pending.pop()
        if part in ("", "."):
            continue
        if part == "..":
            del resolved[-1:]
            continue
        current = "/" + "/".join([*resolved, part])
        try:
            status = os.lstat(current)
            target = os.readlink(current) if stat.S_ISLNK(status.st_mode) else None
        except OSError:
            target = None  # missing or not accessible: opening it reports the reason
        if target is None:
            resolved.append(part)
            continue
        links += 1
        if links > _MAX_LINKS:
            raise Fault("its symbolic links go round in a circle", where=path)
        if describe_foreign_access(status, owner_only=True):
            raise Fault(
                f"{current} is a link that belongs to user {status.st_uid} and is not followed while running as root",
                where=path,
                hint="Name the file itself",
            )
        if target.startswith("/"):
            resolved.clear()
        pending += target.split("/")[::-1]
    return "/" + "/".join(resolved)
