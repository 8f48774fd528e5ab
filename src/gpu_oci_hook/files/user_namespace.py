"""Tell whether this process runs in a user namespace."""

from __future__ import annotations

import os

from gpu_oci_hook.formats.proc import is_identity_map


def is_process_in_user_namespace() -> bool:
    """Whether this very process runs in a user namespace; without /proc we take it that it does not."""
    try:
        fd = os.open("/proc/self/uid_map", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not is_identity_map(os.read(fd, 4096))
    finally:
        os.close(fd)
