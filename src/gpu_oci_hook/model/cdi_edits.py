"""The edits that only a CDI file asks for: what the plan's own edits lack; data, each with its reason.

`cdi.translate` makes them. Cost rule: hot where a CDI file is used, no imports of the library.
"""

from __future__ import annotations

from gpu_oci_hook.model.edits import AddDeviceNode, AddDeviceRule, AddHook, AddMount, Edit


class AddCdiDeviceNode(AddDeviceNode):
    """A device node of any type; it takes the place of one with the same path.

    Attributes:
        type: "b", "c", "u" or "p", as in `linux.devices`.
        mode, uid, gid: None leaves it to the low-level runtime.
    """

    __slots__ = ("type",)
    from_cdi_file = True
    mode: int | None  # type: ignore[assignment]
    uid: int | None  # type: ignore[assignment]
    gid: int | None  # type: ignore[assignment]

    def __init__(
        self,
        path: str,
        node_type: str,
        numbers: tuple[int, int],
        mode: int | None,
        owner: tuple[int | None, int | None],
        reason: str,
    ) -> None:
        super().__init__(path, *numbers, 0, 0, 0, reason)
        self.type = node_type
        self.mode = mode
        self.uid, self.gid = owner

    def describe(self) -> str:
        """See `Edit.describe`."""
        mode = "" if self.mode is None else f" mode {self.mode:04o}"
        return f"{self.path} {self.type} {self.major}:{self.minor}{mode}"

    def to_data(self) -> dict[str, object]:
        """See `Edit.to_data`."""
        return {
            "path": self.path,
            "type": self.type,
            "major": self.major,
            "minor": self.minor,
            "mode": None if self.mode is None else f"{self.mode:04o}",
            "uid": self.uid,
            "gid": self.gid,
        }


class AddCdiDeviceRule(AddDeviceRule):
    """An allow rule for a node of type "b" or "c"."""

    __slots__ = ("type",)

    def __init__(self, node_type: str, numbers: tuple[int, int], access: str, reason: str) -> None:
        super().__init__(*numbers, access, reason)
        self.type = node_type

    def to_data(self) -> dict[str, object]:
        """See `Edit.to_data`."""
        return {"type": self.type, **super().to_data()}


class AddCdiMount(AddMount):
    """A mount of any type; it takes the place of one with the same destination.

    Attributes:
        type: of the file system; "" for a bind mount that says so in its options.
    """

    __slots__ = ("type",)
    from_cdi_file = True

    def __init__(self, source: str, destination: str, options: tuple[str, ...], mount_type: str, reason: str) -> None:
        super().__init__(source, destination, options, reason, clear_mount_point=False)
        self.type = mount_type

    def describe(self) -> str:
        """See `Edit.describe`."""
        return super().describe() + (f" type {self.type}" if self.type else "")

    def to_data(self) -> dict[str, object]:
        """See `Edit.to_data`."""
        return {"type": self.type, **super().to_data()}


class SortMounts(Edit):
    """All mounts of the container by the depth of their places, those of one depth as they were."""

    __slots__ = ()
    kind = "order"
    from_cdi_file = True

    def describe(self) -> str:
        """See `Edit.describe`."""
        return "mounts by the depth of their places"

    def to_data(self) -> dict[str, object]:
        """See `Edit.to_data`."""
        return {}


class AddCdiHook(AddHook):
    """A hook that may have a time limit.

    Attributes:
        timeout: in seconds; None for no limit.
    """

    __slots__ = ("timeout",)
    from_cdi_file = True

    def __init__(
        self, stage: str, path: str, args: tuple[str, ...], env: tuple[str, ...], timeout: int | None, reason: str
    ) -> None:
        super().__init__(stage, path, args, env, reason)
        self.timeout = timeout

    def to_data(self) -> dict[str, object]:
        """See `Edit.to_data`."""
        return {**super().to_data(), "timeout": self.timeout}


class AddNetDevice(Edit):
    """A network interface of the host's that moves into the container."""

    __slots__ = ("interface", "name")
    kind = "net-device"
    from_cdi_file = True

    def __init__(self, interface: str, name: str, reason: str) -> None:
        super().__init__(reason)
        self.interface = interface
        self.name = name

    def describe(self) -> str:
        """See `Edit.describe`."""
        return f"network interface {self.interface} as {self.name}"

    def to_data(self) -> dict[str, object]:
        """See `Edit.to_data`."""
        return {"interface": self.interface, "name": self.name}


class SetIntelRdt(Edit):
    """Intel's resource director: `linux.intelRdt` as a whole."""

    __slots__ = ("values",)
    kind = "rdt"
    from_cdi_file = True

    def __init__(self, values: dict[str, object], reason: str) -> None:
        super().__init__(reason)
        self.values = values

    def describe(self) -> str:
        """See `Edit.describe`."""
        return "Intel RDT " + ", ".join(f"{key}={value}" for key, value in self.values.items())

    def to_data(self) -> dict[str, object]:
        """See `Edit.to_data`."""
        return {"rdt": self.values}
