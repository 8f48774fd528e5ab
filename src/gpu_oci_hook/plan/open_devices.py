"""Decide which device nodes a container can open by its config.json alone, whatever the plan adds.

A privileged container has device rules that allow everything, and either the nodes of all the host's devices or the
right to create them. A user's `--device` and mounts of nodes do the same for one device.

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.formats.oci import get_list, get_member, has_user_namespace, is_bind_mount, normalize_destination

_ANY_NUMBER = (None, -1)
_ANY_TYPE = (None, "", "a")


class OpenDevices:
    """What a container can open by its config.json.

    Arguments:
        spec: the config.json; not changed.
        rules_enforced: whether the runtime enforces device rules for this container.
    """

    __slots__ = ("_can_create", "_mounted_sources", "_nodes", "_rules", "_rules_enforced")

    def __init__(self, spec: object, *, rules_enforced: bool) -> None:
        self._rules_enforced = rules_enforced
        self._rules = get_list(spec, "linux", "resources", "devices")
        # A list, since values of a wrong type cannot be members of a set.
        self._nodes = [
            (get_member(node, "major"), get_member(node, "minor")) for node in get_list(spec, "linux", "devices")
        ]
        sources = [get_member(mount, "source") for mount in get_list(spec, "mounts") if is_bind_mount(mount)]
        self._mounted_sources = [normalize_destination(source) for source in sources if isinstance(source, str)]
        bounding = get_list(spec, "process", "capabilities", "bounding")
        self._can_create = "CAP_MKNOD" in bounding and not has_user_namespace(spec)

    def explain_open(self, major: int, minor: int, source: str) -> str:
        """Return why the container can open a character device; "" if it cannot.

        Arguments:
            source: the host's node as a path in this process.
        """
        rule = self._find_allowing_rule(major, minor) if self._rules_enforced else -1
        if self._rules_enforced and rule < 0:
            return ""
        mounted = next((path for path in self._mounted_sources if f"{source}/".startswith(f"{path.rstrip('/')}/")), "")
        if (major, minor) not in self._nodes and not mounted and not (self._rules_enforced and self._can_create):
            return ""
        if rule < 0:
            return f"config.json mounts {mounted}" if mounted else "config.json has the node"
        if get_member(self._rules[rule], "major") in _ANY_NUMBER:
            return f"linux.resources.devices[{rule}] allows every device, as in a privileged container"
        return f"linux.resources.devices[{rule}] allows it"

    @property
    def allows_every_device(self) -> bool:
        """Whether the container can open any device that the host has, as a privileged one can."""
        return self._rules_enforced and self._can_create and self._find_allowing_rule(-2, -2) >= 0

    def _find_allowing_rule(self, major: int, minor: int) -> int:
        """Return the position of the rule that allows reading and writing; -1 if it is denied. The last rule counts."""
        position = -1
        for letter in "rw":
            position = -1
            for index, rule in enumerate(self._rules):
                access = get_member(rule, "access")
                if (
                    (access in (None, "") or (isinstance(access, str) and letter in access))
                    and get_member(rule, "type") in (*_ANY_TYPE, "c")
                    and get_member(rule, "major") in (*_ANY_NUMBER, major)
                    and get_member(rule, "minor") in (*_ANY_NUMBER, minor)
                ):
                    position = index if get_member(rule, "allow") is True else -1
            if position < 0:
                return -1
        return position
