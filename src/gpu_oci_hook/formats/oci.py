"""A config.json of the OCI runtime specification as data: what lies where, whatever else may lie there; pure.

Cost rule: hot, no imports.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault


def get_member(value: object, *keys: str) -> object:
    """What lies under keys in nested JSON objects; None where any step is no object or has no such key."""
    for key in keys:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def get_list(value: object, *keys: str) -> list[object]:
    """The list under keys in nested JSON objects, or an empty one."""
    found = get_member(value, *keys)
    return found if isinstance(found, list) else []


def normalize_destination(path: str) -> str:
    """A path as runtimes take the destination of a mount: from the root, without empty parts and `.`; `..` stays.

    The runtime specification wants it absolute; runc takes any other from the root, too (libcontainer/specconv).
    """
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def is_bind_mount(mount: object) -> bool:
    """Whether runtimes bind what a mount names: its options decide, whatever its type is (tried: runc, crun)."""
    options = get_list(mount, "options")
    return "bind" in options or "rbind" in options


def has_user_namespace(spec: object) -> bool:
    """Whether the container gets a user namespace, new or joined."""
    return any(get_member(namespace, "type") == "user" for namespace in get_list(spec, "linux", "namespaces"))


def explain_unprivileged(spec: object) -> str:
    """Why a container is not privileged; "" when CAP_SYS_ADMIN is in its bounding set, and is one over the machine.

    In a user namespace everybody may have it, and cannot make a device node with it (user_namespaces(7)).
    """
    found = get_member(spec, "process", "capabilities")
    if isinstance(found, dict):
        found = found.get("bounding")
    # runtime-spec 1.0.0-rc1 to rc4 had one flat list
    if not isinstance(found, list) or "CAP_SYS_ADMIN" not in found:
        return "the container lacks CAP_SYS_ADMIN"
    return "the container has CAP_SYS_ADMIN in its user namespace only" if has_user_namespace(spec) else ""


Object = dict[str, object]


def _get_text(entry: object, key: str) -> str:
    found = get_member(entry, key)
    return found if isinstance(found, str) else ""


def _get_int(entry: object, key: str) -> int:
    found = get_member(entry, key)
    return found if isinstance(found, int) else 0


def _get_optional_int(entry: object, key: str) -> int | None:
    found = get_member(entry, key)
    return found if isinstance(found, int) else None


def ensure_object(parent: Object, key: str) -> Object:
    """The object under a key, made when it is missing or null."""
    found = parent.get(key)
    if found is None:
        found = parent[key] = {}
    if not isinstance(found, dict):
        raise Fault(f'"{key}" is not an object', where="config.json")
    return found


def ensure_list(parent: Object, key: str) -> list[object]:
    """The list under a key, made when it is missing or null."""
    found = parent.get(key)
    if found is None:
        found = parent[key] = []
    if not isinstance(found, list):
        raise Fault(f'"{key}" is not an array', where="config.json")
    return found
