"""Tell from a CDI mount's options and type whether a runtime can mount it.

Import budget: CDI.
"""

from __future__ import annotations

from gpu_oci_hook.formats.oci import get_text, is_bind_mount

# Mount types that are not file systems, and so mount nothing by themselves.
_BIND_MOUNT_TYPES = ("", "bind", "rbind", "none")


MISSING_BIND_TEXT = (
    "has neither bind nor rbind in its options, so runtimes do not mount it and the container does not start"
)


ADD_RBIND_HINT = "Add rbind to its options"


def is_missing_bind_option(mount: object) -> bool:
    """Tell whether a CDI mount is meant as a bind mount without the option that runtimes look for.

    Engines pass such a mount on as it is. Observed with runc 1.1.5 and crun 1.8.1, for a file and for a directory:
    without a type, and with the type bind or none, the container does not start ("no such device", "invalid mount
    type"). With bind or rbind in the options it starts, even with a type that no kernel has.
    """
    return not is_bind_mount(mount) and get_text(mount, "type") in _BIND_MOUNT_TYPES


def has_host_source(mount: object) -> bool:
    """Tell whether the source of a CDI mount is a path of the host, whether or not a runtime can mount it."""
    return is_bind_mount(mount) or is_missing_bind_option(mount)
