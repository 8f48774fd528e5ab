"""What a container asks for beside GPUs: IMEX channels, and features that are switched on by a variable; pure.

Cost rule: imported only for a container, or under a configuration, that asks for such a thing.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault, clip_text
from gpu_oci_hook.model.request import FeatureRequest, ImexChannelRange

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.model.request import DeviceRequest, Request

IMEX_CHANNELS_VARIABLE = "NVIDIA_IMEX_CHANNELS"
LAST_IMEX_CHANNEL = (1 << 20) - 1  # minor numbers have 20 bits

# Variable, key in [inject], name for people. The incumbent's four switches (toolkit facts 2.8).
FEATURE_SWITCHES = (
    ("NVIDIA_GDS", "gds", "GPUDirect Storage"),
    ("NVIDIA_MOFED", "mofed", "RDMA devices"),
    ("NVIDIA_GDRCOPY", "gdrcopy", "GDRCopy"),
    ("NVIDIA_NVSWITCH", "nvswitch", "NVSwitch devices"),
)
_OFF_VALUES = ("", "disabled", "0", "void", "none")


def read_feature_requests(
    request: Request,
    mount_requests: list[DeviceRequest],
    variables: dict[str, str],
    positions: dict[str, int],
    config: Config,
) -> None:
    """Puts channels and features into the request, or among what is withheld.

    Arguments:
        mount_requests: channels asked for by mounts: the words behind "imex/".
        variables, positions: the container's environment and where each name stands.

    Raises:
        Fault: a word that means no channel.
    """
    _read_imex_channels(request, mount_requests, variables, positions, config)
    features: list[FeatureRequest] = []
    for name, key, title in FEATURE_SWITCHES:
        policy = getattr(config, key)
        said = variables.get(name, "").strip()
        asks = said == "enabled"
        if said not in (*_OFF_VALUES, "enabled"):
            request.warnings.append(f'{name}={clip_text(said)} means nothing and counts as not set: say "enabled"')
        if not request.needs_driver:
            if asks:
                request.withheld.append((title, _NO_DRIVER_REASON))
        elif policy == "always":
            features.append(FeatureRequest(key, title, f'[inject] {key} = "always"', required=False))
        elif asks and policy == "never":
            request.withheld.append((title, f'{name}=enabled, but [inject] {key} is "never"'))
            request.warnings.append(f'{title} not given: [inject] {key} is "never"')
        elif asks and request.environment_refusal:
            request.withheld.append((title, f"{name}=enabled, but {request.environment_refusal}"))
            request.warnings.append(f"{title} not given: {request.environment_refusal}")
        elif asks:
            features.append(
                FeatureRequest(key, title, f"{name}=enabled (process.env[{positions[name]}])", required=True)
            )
    request.features = tuple(features)


_NO_DRIVER_REASON = (
    "the container gets nothing of the driver; say NVIDIA_VISIBLE_DEVICES=none for the driver without a GPU"
)


def _read_imex_channels(
    request: Request,
    mount_requests: list[DeviceRequest],
    variables: dict[str, str],
    positions: dict[str, int],
    config: Config,
) -> None:
    title, refusal = "IMEX channels", request.environment_refusal
    words: list[tuple[str, str]] = []
    if mount_requests and config.volume_mounts:  # as for GPUs: a mount, which no image can make, outweighs the variable
        words = [(ask.selector, ask.origin) for ask in mount_requests]
    elif mount_requests:
        request.withheld.append((title, "asked for by mounts, but [request] volume-mounts is off"))
    if not words and IMEX_CHANNELS_VARIABLE in variables:
        said = variables[IMEX_CHANNELS_VARIABLE]
        origin = f"{IMEX_CHANNELS_VARIABLE}={clip_text(said)} (process.env[{positions[IMEX_CHANNELS_VARIABLE]}])"
        # One more than any program can be given is enough to see that it is too long.
        words = [(word, origin) for word in (part.strip() for part in said[: (128 << 10) + 1].split(",")) if word]
        if any(word == "void" for word, _ in words):
            words = []
        if words and words != [("none", origin)] and refusal and request.needs_driver and config.imex_channels == "ask":
            request.withheld.append((title, f"asked for by {origin}, but {refusal}"))
            request.warnings.append(f"IMEX channels not given: {refusal}")
            return
    words = list(dict.fromkeys(words))  # an image may say one thing thirty thousand times
    wanted = [(word, origin) for word, origin in words if word != "none"]
    if not request.needs_driver:
        if wanted:
            request.withheld.append((title, _NO_DRIVER_REASON))
        return
    if config.imex_channels == "always":
        origin = '[inject] imex-channels = "always"'
        request.imex_channels = (ImexChannelRange("all", origin, 0, LAST_IMEX_CHANNEL, is_all=True, required=False),)
        return
    if config.imex_channels == "never":
        if wanted:
            request.withheld.append((title, f'asked for by {wanted[0][1]}, but [inject] imex-channels is "never"'))
            request.warnings.append('IMEX channels not given: [inject] imex-channels is "never"')
        return
    if wanted and len(wanted) < len(words):
        raise Fault(
            f'{IMEX_CHANNELS_VARIABLE} mixes "none" with channels',
            where=words[0][1],
            hint='Say "none" alone, or only the channels',
        )
    request.imex_channels = tuple([_parse_imex_channels(word, origin) for word, origin in wanted])


def _parse_imex_channels(selector: str, origin: str) -> ImexChannelRange:
    """The channels that one word means: a number, a range, `all`; "channel" may stand before a number."""
    if selector == "all":
        return ImexChannelRange(selector, origin, 0, LAST_IMEX_CHANNEL, is_all=True)
    first, dash, last = selector.removeprefix("channel").partition("-")
    numbers = (first, last) if dash else (first, first)
    if not all(number.isascii() and number.isdigit() and len(number) <= 7 for number in numbers):
        raise Fault(
            f'"{clip_text(selector)}" is no IMEX channel',
            where=origin,
            hint=f"Valid are numbers from 0 to {LAST_IMEX_CHANNEL}, ranges such as 0-3, all and none",
        )
    low, high = int(numbers[0]), int(numbers[1])
    if low > high:
        raise Fault(f'the range "{selector}" runs backwards', where=origin, hint=f"Say {high}-{low}")
    if high > LAST_IMEX_CHANNEL:
        raise Fault(
            f'there can be no IMEX channel "{selector}"', where=origin, hint=f"The last one is {LAST_IMEX_CHANNEL}"
        )
    return ImexChannelRange(selector, origin, low, high)
