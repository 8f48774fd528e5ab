"""The edits that only a CDI file asks for: what the plan's own edits lack; data, each with its reason.

`cdi.apply` makes them. Cost rule: hot where a CDI file is used, no imports of the library.
"""

from __future__ import annotations

from gpu_oci_hook.plan.edits import DeviceNode, DeviceRule, Edit, Hook, Mount


class Node(DeviceNode):
    """A device node of any type; it takes the place of one with the same path.

    Attributes:
        type: "b", "c", "u" or "p", as in `linux.devices`.
        mode, uid, gid: None leaves it to the low-level runtime.
    """

    __slots__ = ("type",)
    foreign = True
    mode: int | None  # type: ignore[assignment]
    uid: int | None  # type: ignore[assignment]
    gid: int | None  # type: ignore[assignment]

    def __init__(
        self,
        path: str,
        kind: str,
        numbers: tuple[int, int],
        mode: int | None,
        owner: tuple[int | None, int | None],
        reason: str,
    ) -> None:
        super().__init__(path, *numbers, 0, 0, 0, reason)
        self.type = kind
        self.mode = mode
        self.uid, self.gid = owner

    def describe(self) -> str:
        """See `Edit.describe`."""
        mode = "" if self.mode is None else f" mode {self.mode:04o}"
        return f"{self.path} {self.type} {self.major}:{self.minor}{mode}"

    def data(self) -> dict[str, object]:
        """See `Edit.data`."""
        return {
            "path": self.path,
            "type": self.type,
            "major": self.major,
            "minor": self.minor,
            "mode": None if self.mode is None else f"{self.mode:04o}",
            "uid": self.uid,
            "gid": self.gid,
        }


class Rule(DeviceRule):
    """An allow rule for a node of type "b" or "c"."""

    __slots__ = ("type",)

    def __init__(self, kind: str, numbers: tuple[int, int], access: str, reason: str) -> None:
        super().__init__(*numbers, access, reason)
        self.type = kind

    def data(self) -> dict[str, object]:
        """See `Edit.data`."""
        return {"type": self.type, **super().data()}


class Placed(Mount):
    """A mount of any type; it takes the place of one with the same destination.

    Attributes:
        type: of the file system; "" for a bind mount that says so in its options.
    """

    __slots__ = ("type",)
    foreign = True

    def __init__(self, source: str, destination: str, options: tuple[str, ...], kind: str, reason: str) -> None:
        super().__init__(source, destination, options, reason, make_way=False)
        self.type = kind

    def describe(self) -> str:
        """See `Edit.describe`."""
        return super().describe() + (f" type {self.type}" if self.type else "")

    def data(self) -> dict[str, object]:
        """See `Edit.data`."""
        return {"type": self.type, **super().data()}


class Order(Edit):
    """All mounts of the container by the depth of their places, those of one depth as they were."""

    __slots__ = ()
    kind = "order"
    foreign = True

    def describe(self) -> str:
        """See `Edit.describe`."""
        return "mounts by the depth of their places"

    def data(self) -> dict[str, object]:
        """See `Edit.data`."""
        return {}


class TimedHook(Hook):
    """A hook that may have a time limit.

    Attributes:
        timeout: in seconds; None for no limit.
    """

    __slots__ = ("timeout",)
    foreign = True

    def __init__(
        self, stage: str, path: str, args: tuple[str, ...], env: tuple[str, ...], timeout: int | None, reason: str
    ) -> None:
        super().__init__(stage, path, args, env, reason)
        self.timeout = timeout

    def data(self) -> dict[str, object]:
        """See `Edit.data`."""
        return {**super().data(), "timeout": self.timeout}


class NetDevice(Edit):
    """A network interface of the host's that moves into the container."""

    __slots__ = ("interface", "name")
    kind = "net-device"
    foreign = True

    def __init__(self, interface: str, name: str, reason: str) -> None:
        super().__init__(reason)
        self.interface = interface
        self.name = name

    def describe(self) -> str:
        """See `Edit.describe`."""
        return f"network interface {self.interface} as {self.name}"

    def data(self) -> dict[str, object]:
        """See `Edit.data`."""
        return {"interface": self.interface, "name": self.name}


class Rdt(Edit):
    """Intel's resource director: `linux.intelRdt` as a whole."""

    __slots__ = ("values",)
    kind = "rdt"
    foreign = True

    def __init__(self, values: dict[str, object], reason: str) -> None:
        super().__init__(reason)
        self.values = values

    def describe(self) -> str:
        """See `Edit.describe`."""
        return "Intel RDT " + ", ".join(f"{key}={value}" for key, value in self.values.items())

    def data(self) -> dict[str, object]:
        """See `Edit.data`."""
        return {"rdt": self.values}
