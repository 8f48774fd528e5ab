"""Keep in the bundle what config.json was before an injection and after it, so that a later one can start anew.

An engine keeps the bundle of a stopped container, and by the next start the driver or the request can be another one.
Only what the two differ in counts as ours: an entry of the user that looks the same is never removed. What was removed
comes back, so a record that another user could have written would be a way to a mount of any path.

Import budget: GPU container.
"""

from __future__ import annotations

import os

from gpu_oci_hook.container.rootfs_edits import is_generated_directory, make_generated_directory
from gpu_oci_hook.files.replace import CREATE_FLAGS

RECORD_NAME = "injected.json"
"""A JSON list of the two."""


def write_record(generated_dir: str, original: bytes, injected: bytes) -> None:
    """Write the record of a bundle, if that is possible: config.json, which is written next, reports the reason.

    A half-written record counts as none. Nothing is compared here: few bundles are started twice.

    Arguments:
        original: config.json before the injection, and before an earlier one that is undone.
        injected: config.json after it.
    """
    try:
        make_generated_directory(generated_dir)
        path = f"{generated_dir}/{RECORD_NAME}"
        try:
            fd = os.open(path, CREATE_FLAGS, 0o600)
        except FileExistsError:
            os.unlink(path)
            fd = os.open(path, CREATE_FLAGS, 0o600)
        try:
            data = memoryview(b"[%b,%b]" % (original, injected))
            while data:
                data = data[os.write(fd, data) :]
        finally:
            os.close(fd)
    except OSError:
        pass


def has_record(generated_dir: str) -> bool:
    """Tell whether an earlier injection has left a record in a bundle; a record of another user is none."""
    try:
        status = os.lstat(f"{generated_dir}/{RECORD_NAME}")
    except (OSError, ValueError):
        return False
    return status.st_uid == os.geteuid() and is_generated_directory(generated_dir)
