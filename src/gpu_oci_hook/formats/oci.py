"""A config.json of the OCI runtime specification as data: what lies where, whatever else may lie there; pure.

Cost rule: hot, no imports.
"""

from __future__ import annotations


def member(value: object, *keys: str) -> object:
    """What lies under keys in nested JSON objects; None where any step is no object or has no such key."""
    for key in keys:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def items(value: object, *keys: str) -> list[object]:
    """The list under keys in nested JSON objects, or an empty one."""
    found = member(value, *keys)
    return found if isinstance(found, list) else []


def clean(path: str) -> str:
    """A path as runtimes take the destination of a mount: from the root, without empty parts and `.`; `..` stays.

    The runtime specification wants it absolute; runc takes any other from the root, too (libcontainer/specconv).
    """
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def is_bind(mount: object) -> bool:
    """Whether runtimes bind what a mount names: its options decide, whatever its type is (tried: runc, crun)."""
    options = items(mount, "options")
    return "bind" in options or "rbind" in options


def in_user_namespace(spec: object) -> bool:
    """Whether the container gets a user namespace, new or joined."""
    return any(member(namespace, "type") == "user" for namespace in items(spec, "linux", "namespaces"))


def unprivileged(spec: object) -> str:
    """Why a container is not privileged; "" when CAP_SYS_ADMIN is in its bounding set, and is one over the machine.

    In a user namespace everybody may have it, and cannot make a device node with it (user_namespaces(7)).
    """
    found = member(spec, "process", "capabilities")
    if isinstance(found, dict):
        found = found.get("bounding")
    # runtime-spec 1.0.0-rc1 to rc4 had one flat list
    if not isinstance(found, list) or "CAP_SYS_ADMIN" not in found:
        return "the container lacks CAP_SYS_ADMIN"
    return "the container has CAP_SYS_ADMIN in its user namespace only" if in_user_namespace(spec) else ""
