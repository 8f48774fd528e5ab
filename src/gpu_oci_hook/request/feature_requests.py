"""Read requests for IMEX channels and for features that a variable switches on.

No I/O.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault, clip_text
from gpu_oci_hook.model.request import FeatureRequest, ImexChannelRange
from gpu_oci_hook.request.environment import (
    FEATURE_SWITCHES,
    IMEX_CHANNELS_VARIABLE,
    split_variable,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.model.request import DeviceRequest, Request
    from gpu_oci_hook.request.environment import Environment

LAST_IMEX_CHANNEL = (1 << 20) - 1  # minor numbers have 20 bits

_IMEX_TITLE = "IMEX channels"
_OFF_VALUES = ("", "disabled", "0", "void", "none")
_NO_DRIVER_REASON = (
    "the container does not request the driver; set NVIDIA_VISIBLE_DEVICES=none to get the driver without a GPU"
)


def read_feature_requests(
    request: Request,
    mount_requests: list[DeviceRequest],
    environment: Environment,
    config: Config,
) -> None:
    """Add the IMEX channels and features to the request, or to what is withheld.

    Arguments:
        mount_requests: channels requested by mounts; the selector is the path after "imex/".
        environment: the container's environment.

    Raises:
        Fault: a selector is not an IMEX channel.
    """
    _read_imex_channels(request, mount_requests, environment, config)
    features = [
        _read_feature(request, variable, key, title, environment, config) for variable, key, title in FEATURE_SWITCHES
    ]
    request.features = tuple([feature for feature in features if feature is not None])


def _read_feature(
    request: Request,
    variable: str,
    key: str,
    title: str,
    environment: Environment,
    config: Config,
) -> FeatureRequest | None:
    policy = getattr(config, key)
    value = environment.values.get(variable, "").strip()
    is_requested = value == "enabled"
    if value not in (*_OFF_VALUES, "enabled"):
        request.warnings.append(f'{variable}={clip_text(value)} is invalid and counts as not set: use "enabled"')
    if not request.needs_driver:
        if is_requested:
            request.withheld.append((title, _NO_DRIVER_REASON))
        return None
    if policy == "always":
        return FeatureRequest(key, title, f'[inject] {key} = "always"', required=False)
    if not is_requested:
        return None
    refusal = f'[inject] {key} is "never"' if policy == "never" else request.environment_refusal
    if refusal:
        _record_refusal(request, title, f"{variable}=enabled, but {refusal}", refusal)
        return None
    return FeatureRequest(key, title, environment.describe_variable(variable), required=True)


def _record_refusal(request: Request, title: str, reason: str, refusal: str) -> None:
    request.withheld.append((title, reason))
    request.warnings.append(f"{title} not injected: {refusal}")


def _read_imex_channels(
    request: Request,
    mount_requests: list[DeviceRequest],
    environment: Environment,
    config: Config,
) -> None:
    selectors, is_from_environment = _find_channel_selectors(request, mount_requests, environment, config)
    wanted = [(selector, origin) for selector, origin in selectors if selector != "none"]
    if not request.needs_driver:
        if wanted:
            request.withheld.append((_IMEX_TITLE, _NO_DRIVER_REASON))
        return
    if config.imex_channels == "always":
        origin = '[inject] imex-channels = "always"'
        request.imex_channels = (ImexChannelRange("all", origin, 0, LAST_IMEX_CHANNEL, is_all=True, required=False),)
        return
    refusal = '[inject] imex-channels is "never"' if config.imex_channels == "never" else ""
    if not refusal and is_from_environment:
        refusal = request.environment_refusal
    if refusal:
        if wanted:
            _record_refusal(request, _IMEX_TITLE, f"requested by {wanted[0][1]}, but {refusal}", refusal)
        return
    if wanted and len(wanted) < len(selectors):
        raise Fault(
            f'{IMEX_CHANNELS_VARIABLE} mixes "none" with channels',
            where=selectors[0][1],
            hint='Use "none" alone, or only the channels',
        )
    request.imex_channels = tuple([parse_imex_channels(selector, origin) for selector, origin in wanted])


def _find_channel_selectors(
    request: Request,
    mount_requests: list[DeviceRequest],
    environment: Environment,
    config: Config,
) -> tuple[list[tuple[str, str]], bool]:
    """Return the selectors of channels with their origins, and whether they are from the environment.

    As for GPUs, mounts win over the variable: an image cannot add them.
    """
    if mount_requests and config.volume_mounts:
        mounted = [(mount_request.selector, mount_request.origin) for mount_request in mount_requests]
        return list(dict.fromkeys(mounted)), False
    if mount_requests:
        request.withheld.append((_IMEX_TITLE, "requested by mounts, but [request] volume-mounts is off"))
    if IMEX_CHANNELS_VARIABLE not in environment.values:
        return [], False
    origin = environment.describe_variable(IMEX_CHANNELS_VARIABLE)
    selectors = dict.fromkeys(
        split_variable(environment.values[IMEX_CHANNELS_VARIABLE])
    )  # an image may repeat one thirty thousand times
    return [] if "void" in selectors else [(selector, origin) for selector in selectors], True


def parse_imex_channels(selector: str, origin: str) -> ImexChannelRange:
    """Parse one selector of channels: a number, a range, or `all`; "channel" may stand before a number.

    Raises:
        Fault: it is none of these.
    """
    if selector == "all":
        return ImexChannelRange(selector, origin, 0, LAST_IMEX_CHANNEL, is_all=True)
    first, dash, last = selector.removeprefix("channel").partition("-")
    numbers = (first, last) if dash else (first, first)
    if not all(number.isascii() and number.isdigit() and len(number) <= 7 for number in numbers):
        raise Fault(
            f'"{clip_text(selector)}" is not an IMEX channel',
            where=origin,
            hint=f"Use numbers from 0 to {LAST_IMEX_CHANNEL}, ranges such as 0-3, all or none",
        )
    low, high = int(numbers[0]), int(numbers[1])
    if low > high:
        raise Fault(f'the range "{selector}" runs backwards', where=origin, hint=f"Use {high}-{low}")
    if high > LAST_IMEX_CHANNEL:
        raise Fault(
            f'the IMEX channel "{selector}" is out of range', where=origin, hint=f"Use at most {LAST_IMEX_CHANNEL}"
        )
    return ImexChannelRange(selector, origin, low, high)
