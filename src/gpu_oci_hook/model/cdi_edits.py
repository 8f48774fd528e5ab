"""The edits that only CDI files bring; `cdi.translate` makes them.

Import budget: CDI.
"""

from __future__ import annotations

from gpu_oci_hook.model.edits import AddDeviceNode, AddDeviceRule, AddHook, AddMount, Edit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.container.cdi_spec_edits import SpecChecker
    from gpu_oci_hook.container.spec_edits import SpecEditor


class AddCdiDeviceNode(AddDeviceNode):
    """A device node of any type; it replaces one with the same path.

    Attributes:
        type: "b", "c", "u" or "p", as in `linux.devices`.
        mode, uid, gid: None leaves the choice to the low-level runtime.
    """

    __slots__ = ("type",)
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

    def apply_to_spec(self, editor: SpecEditor) -> None:
        """See `Edit.apply_to_spec`."""
        editor.cdi.replace_device_node(self)

    def get_spec_target(self) -> object:
        """See `Edit.get_spec_target`."""
        return "node", self.path

    def is_in_spec(self, checker: SpecChecker) -> bool:
        """See `Edit.is_in_spec`."""
        return checker.has_device_node(self)


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
    """A mount of any type; it replaces one with the same destination.

    Attributes:
        type: the file system type; "" for a bind mount, whose options say so.
    """

    __slots__ = ("type",)

    def __init__(self, source: str, destination: str, options: tuple[str, ...], mount_type: str, reason: str) -> None:
        super().__init__(source, destination, options, reason, clear_mount_point=False)
        self.type = mount_type

    def describe(self) -> str:
        """See `Edit.describe`."""
        return super().describe() + (f" type {self.type}" if self.type else "")

    def to_data(self) -> dict[str, object]:
        """See `Edit.to_data`."""
        return {"type": self.type, **super().to_data()}

    def apply_to_spec(self, editor: SpecEditor) -> None:
        """See `Edit.apply_to_spec`."""
        editor.cdi.replace_mount(self)


class SortMounts(Edit):
    """The order of all mounts: by the depth of their destinations, stable within one depth."""

    __slots__ = ()
    kind = "order"

    def describe(self) -> str:
        """See `Edit.describe`."""
        return "mounts by the depth of their destinations"

    def to_data(self) -> dict[str, object]:
        """See `Edit.to_data`."""
        return {}

    def apply_to_spec(self, editor: SpecEditor) -> None:
        """See `Edit.apply_to_spec`."""
        editor.cdi.sort_mounts()


class AddCdiHook(AddHook):
    """A hook that can have a time limit.

    Attributes:
        timeout: in seconds; None for no limit.
    """

    __slots__ = ("timeout",)

    def __init__(
        self, stage: str, path: str, args: tuple[str, ...], env: tuple[str, ...], timeout: int | None, reason: str
    ) -> None:
        super().__init__(stage, path, args, env, reason)
        self.timeout = timeout

    def to_data(self) -> dict[str, object]:
        """See `Edit.to_data`."""
        return {**super().to_data(), "timeout": self.timeout}

    def apply_to_spec(self, editor: SpecEditor) -> None:
        """See `Edit.apply_to_spec`."""
        editor.cdi.add_hook(self)

    def is_in_spec(self, checker: SpecChecker) -> bool:
        """See `Edit.is_in_spec`."""
        return checker.has_hook(self)


class AddNetDevice(Edit):
    """A network interface of the host that moves into the container."""

    __slots__ = ("interface", "name")
    kind = "net-device"

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

    def apply_to_spec(self, editor: SpecEditor) -> None:
        """See `Edit.apply_to_spec`."""
        editor.cdi.set_net_device(self)

    def get_spec_target(self) -> object:
        """See `Edit.get_spec_target`."""
        return "interface", self.interface

    def is_in_spec(self, checker: SpecChecker) -> bool:
        """See `Edit.is_in_spec`."""
        return checker.has_net_device(self)


class SetIntelRdt(Edit):
    """Intel Resource Director Technology: the whole of `linux.intelRdt`."""

    __slots__ = ("values",)
    kind = "rdt"

    def __init__(self, values: dict[str, object], reason: str) -> None:
        super().__init__(reason)
        self.values = values

    def describe(self) -> str:
        """See `Edit.describe`."""
        return "Intel RDT " + ", ".join(f"{key}={value}" for key, value in self.values.items())

    def to_data(self) -> dict[str, object]:
        """See `Edit.to_data`."""
        return {"rdt": self.values}

    def apply_to_spec(self, editor: SpecEditor) -> None:
        """See `Edit.apply_to_spec`."""
        editor.cdi.set_intel_rdt(self)
