"""Decide whether a runtime can carry out a CDI mount, by its options and type."""

from __future__ import annotations

from gpu_oci_hook.formats.oci import _get_text, is_bind_mount

# Types of mounts that are no file systems, and so mount nothing by themselves.
_BIND_MOUNT_TYPES = ("", "bind", "rbind", "none")


MISSING_BIND_TEXT = (
    "has neither bind nor rbind in its options, so runtimes do not mount it and the container does not start"
)


ADD_RBIND_HINT = "Add rbind to its options"


def is_missing_bind_option(mount: object) -> bool:
    """Whether a mount of a CDI file is meant to bind something and does not say so where runtimes look.

    Engines hand such a mount on as it is. Tried with runc 1.1.5 and crun 1.8.1, on a file and on a directory: without
    a type, and with the type bind or none, the container does not start ("no such device", "invalid mount type");
    with bind or rbind among the options it does, even with a type that no kernel has.
    """
    return not is_bind_mount(mount) and _get_text(mount, "type") in _BIND_MOUNT_TYPES


def has_host_source(mount: object) -> bool:
    """Whether a mount of a CDI file names something of the host's, be it mounted or not."""
    return is_bind_mount(mount) or is_missing_bind_option(mount)
