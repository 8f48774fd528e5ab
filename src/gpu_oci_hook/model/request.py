"""What a container asks for, as plain data."""

from __future__ import annotations


class DeviceRequest:
    """One thing asked for: the word, where it was said, and the qualified CDI name if it was one."""

    __slots__ = ("cdi_name", "origin", "selector")

    def __init__(self, selector: str, origin: str, cdi_name: str = "") -> None:
        self.selector = selector
        self.origin = origin
        self.cdi_name = cdi_name


class Request:
    """Everything that a container asks for.

    Attributes:
        device_requests: the devices, as words; empty together with `needs_driver` means driver files without a GPU.
        cdi_devices: CDI devices that a file must resolve, by their qualified names.
        needs_driver: whether anything of the driver's goes in at all.
        origin: where the decision comes from, for people.
        capabilities: driver capabilities in fixed order; `capabilities_origin` says who chose them.
        requirements: (variable, expression) pairs that the host must meet.
        requirements_disabled_by: who switched them off, or "".
        withheld: (what, reason) pairs: asked for, and not given by policy or not yet possible.
        warnings: what the person should know.
        environment: the container's environment, last of repeated names.
        imex_channels: IMEX channels. features: what is switched on besides, GPUDirect Storage for one.
        management_origin: whose word asks for every node and file there is; "" when nobody does.
        mig_rights: ("config" or "monitor", origin): over all MIG devices of the machine.
        use_all_csv_lists: all of a Jetson's CSV lists count, not the usual ones alone.
        is_legacy_image: a CUDA image of before `NVIDIA_REQUIRE_CUDA`.
        environment_refusal: why this container's environment may ask for nothing; "" when it may.
        unprivileged_reason: why it is no privileged container; "" when it is one.
    """

    __slots__ = (
        "capabilities",
        "capabilities_origin",
        "cdi_devices",
        "device_requests",
        "environment",
        "environment_refusal",
        "features",
        "imex_channels",
        "is_legacy_image",
        "management_origin",
        "mig_rights",
        "needs_driver",
        "origin",
        "requirements",
        "requirements_disabled_by",
        "unprivileged_reason",
        "use_all_csv_lists",
        "warnings",
        "withheld",
    )

    def __init__(self) -> None:
        self.device_requests: tuple[DeviceRequest, ...] = ()
        self.cdi_devices: tuple[DeviceRequest, ...] = ()
        self.needs_driver = False
        self.origin = ""
        self.capabilities: tuple[str, ...] = ()
        self.capabilities_origin = ""
        self.requirements: tuple[tuple[str, str], ...] = ()
        self.requirements_disabled_by = ""
        self.withheld: list[tuple[str, str]] = []
        self.warnings: list[str] = []
        self.environment: dict[str, str] = {}
        self.imex_channels: tuple[ImexChannelRange, ...] = ()
        self.features: tuple[FeatureRequest, ...] = ()
        self.management_origin = ""
        self.mig_rights: tuple[tuple[str, str], ...] = ()
        self.use_all_csv_lists = False
        self.is_legacy_image = False
        self.environment_refusal = ""
        self.unprivileged_reason = ""


class FeatureRequest:
    """One switched feature that is on.

    Attributes:
        key: its name in [inject]. title: for people. origin: who asks.
        required: the container asks itself: it gets it, or an error.
    """

    __slots__ = ("key", "origin", "required", "title")

    def __init__(self, key: str, title: str, origin: str, *, required: bool) -> None:
        self.key = key
        self.title = title
        self.origin = origin
        self.required = required


class ImexChannelRange:
    """One word about IMEX channels: the channels from `first` to `last`.

    Attributes:
        is_all: the word is "all": of the numbers those that exist.
        required: the container asks itself.
    """

    __slots__ = ("first", "is_all", "last", "origin", "required", "selector")

    def __init__(
        self, selector: str, origin: str, first: int, last: int, *, is_all: bool = False, required: bool = True
    ) -> None:
        self.selector = selector
        self.origin = origin
        self.first = first
        self.last = last
        self.is_all = is_all
        self.required = required
