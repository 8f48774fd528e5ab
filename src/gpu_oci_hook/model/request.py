"""What a container requests, as plain data.

Import budget: GPU container.
"""

from __future__ import annotations


class DeviceRequest:
    """One requested device.

    Attributes:
        selector: the text that names it, such as "0", "all" or a UUID.
        origin: where the request comes from, for people.
        cdi_name: the qualified CDI name if it was requested by one, else "".
    """

    __slots__ = ("cdi_name", "origin", "selector")

    def __init__(self, selector: str, origin: str, cdi_name: str = "") -> None:
        self.selector = selector
        self.origin = origin
        self.cdi_name = cdi_name


class Request:
    """Everything that a container requests.

    Attributes:
        device_requests: the requested devices. If there are none and `needs_driver` is set, the container gets the
            driver's files without a GPU.
        cdi_devices: the devices that CDI files must define.
        needs_driver: the container needs nodes or files of the driver.
        origin: where the decision comes from, for people.
        capabilities: driver capabilities in fixed order.
        capabilities_origin: where they come from, for people.
        requirements: (variable, expression) of each constraint that the host must meet.
        requirements_disabled_by: what disables them, or "".
        withheld: (item, reason) of each requested item that policy refuses or that is not possible.
        warnings: sentences for the user.
        environment: the container's environment; of repeated names the last one counts.
        imex_channels: the requested IMEX channels.
        features: the requested optional features, such as GPUDirect Storage.
        management_origin: where a request for every node and file comes from; "" without one.
        mig_rights: ("config" or "monitor", origin) of each requested right over all MIG devices of the machine.
        use_all_csv_lists: all CSV lists of a Jetson count, not only the usual ones.
        is_legacy_image: a CUDA image from before `NVIDIA_REQUIRE_CUDA`.
        environment_refusal: why the container's environment cannot request anything; "" if it can.
        unprivileged_reason: why the container is not privileged; "" if it is.
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
    """One requested feature.

    Attributes:
        key: its key in [inject].
        title: its name for people.
        origin: where the request comes from.
        required: the container itself requests it, so a failure to provide it is an error.
    """

    __slots__ = ("key", "origin", "required", "title")

    def __init__(self, key: str, title: str, origin: str, *, required: bool) -> None:
        self.key = key
        self.title = title
        self.origin = origin
        self.required = required


class ImexChannelRange:
    """One request for IMEX channels: those from `first` to `last`.

    Attributes:
        selector: the text of the request.
        origin: where it comes from.
        is_all: the selector is "all": of the numbers those that exist.
        required: the container itself requests them, so a missing channel is an error.
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
