"""Read members of a config.json of the OCI runtime specification, whatever its values are.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault

Object = dict[str, object]


def get_member(value: object, *keys: str) -> object:
    """Return the value under keys of nested JSON objects, or None where a value is not an object or lacks the key."""
    for key in keys:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def get_list(value: object, *keys: str) -> list[object]:
    """Return the list under keys of nested JSON objects; an empty one where there is none."""
    member = get_member(value, *keys)
    return member if isinstance(member, list) else []


def get_text(value: object, key: str) -> str:
    """Return the string under a key, or "" where there is none."""
    member = get_member(value, key)
    return member if isinstance(member, str) else ""


def get_int(value: object, key: str) -> int:
    """Return the integer under a key, or 0 where there is none."""
    return get_optional_int(value, key) or 0


def get_optional_int(value: object, key: str) -> int | None:
    """Return the integer under a key, or None where there is none."""
    member = get_member(value, key)
    return member if isinstance(member, int) else None


def is_utf8_text(text: str) -> bool:
    """Tell whether a config.json can have a path: JSON is UTF-8, and paths of Linux are bytes.

    A byte that is not UTF-8 would be written as a lone surrogate, and runc would look for another
    name (facts: config-json-utf8).
    """
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def normalize_destination(path: str) -> str:
    """Return the destination of a mount as runtimes understand it: absolute, without empty components and `.`.

    The runtime specification requires an absolute path. runc takes a relative one from the root
    (libcontainer/specconv).
    """
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def is_bind_mount(mount: object) -> bool:
    """Tell whether runtimes bind-mount an entry: its options decide, not its type (tried with runc and crun)."""
    options = get_list(mount, "options")
    return "bind" in options or "rbind" in options


def has_user_namespace(spec: object) -> bool:
    """Tell whether the container gets a user namespace, new or joined."""
    return any(get_member(namespace, "type") == "user" for namespace in get_list(spec, "linux", "namespaces"))


def explain_unprivileged(spec: object) -> str:
    """Explain why a container is not privileged, or "" when its bounding set has CAP_SYS_ADMIN over the host.

    In a user namespace every process may have it, and cannot create a device node with it (user_namespaces(7)).
    """
    capabilities = get_member(spec, "process", "capabilities")
    if isinstance(capabilities, dict):
        capabilities = capabilities.get("bounding")
    # runtime-spec 1.0.0-rc1 to rc4 had one list for all sets.
    if not isinstance(capabilities, list) or "CAP_SYS_ADMIN" not in capabilities:
        return "the container lacks CAP_SYS_ADMIN"
    return "the container has CAP_SYS_ADMIN in its user namespace only" if has_user_namespace(spec) else ""


def can_make_writable(spec: object, uid: int) -> bool:
    """Tell whether a container could remount a read-only mount of a user's files, and then write them.

    It takes CAP_SYS_ADMIN over its mount namespace, and in a user namespace of its own a number for the file's owner.

    Arguments:
        uid: the owner on the host.
    """
    if not has_user_namespace(spec):
        capabilities = get_member(spec, "process", "capabilities")
        sets = capabilities.values() if isinstance(capabilities, dict) else (capabilities,)
        # crun reads names of capabilities in either case.
        return any(
            isinstance(name, str) and name.upper() == "CAP_SYS_ADMIN"
            for names in sets
            for name in (names if isinstance(names, list) else ())
        )
    rows = get_list(spec, "linux", "uidMappings")
    joined = any(
        get_member(namespace, "type") == "user" and get_member(namespace, "path")
        for namespace in get_list(spec, "linux", "namespaces")
    )
    if joined or not rows:
        return True  # unknown
    for row in rows:
        first, count = get_member(row, "hostID"), get_member(row, "size")
        if not isinstance(first, int) or not isinstance(count, int) or first <= uid < first + count:
            return True
    return False


def ensure_object(parent: Object, key: str) -> Object:
    """Return the object under a key, created when it is missing or null.

    Raises:
        Fault: the value is not an object.
    """
    member = parent.get(key)
    if member is None:
        member = parent[key] = {}
    if not isinstance(member, dict):
        raise Fault(f'"{key}" is not an object', where="config.json")
    return member


def ensure_list(parent: Object, key: str) -> list[object]:
    """Return the list under a key, created when it is missing or null.

    Raises:
        Fault: the value is not an array.
    """
    member = parent.get(key)
    if member is None:
        member = parent[key] = []
    if not isinstance(member, list):
        raise Fault(f'"{key}" is not an array', where="config.json")
    return member
