"""What a container asks for beside GPUs: IMEX channels, and features that are switched on by a variable; pure.

Cost rule: imported only for a container, or under a configuration, that asks for such a thing.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault, clipped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config import Config
    from gpu_oci_hook.request import Ask, Request

CHANNELS = "NVIDIA_IMEX_CHANNELS"
LAST_CHANNEL = (1 << 20) - 1  # minor numbers have 20 bits

# Variable, key in [inject], name for people. The incumbent's four switches (toolkit facts 2.8).
SWITCHES = (
    ("NVIDIA_GDS", "gds", "GPUDirect Storage"),
    ("NVIDIA_MOFED", "mofed", "RDMA devices"),
    ("NVIDIA_GDRCOPY", "gdrcopy", "GDRCopy"),
    ("NVIDIA_NVSWITCH", "nvswitch", "NVSwitch devices"),
)
_OFF = ("", "disabled", "0", "void", "none")


class Feature:
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


class Channels:
    """One word about IMEX channels: the channels from `first` to `last`.

    Attributes:
        every: the word is "all": of the numbers those that exist.
        required: the container asks itself.
    """

    __slots__ = ("every", "first", "last", "origin", "required", "word")

    def __init__(
        self, word: str, origin: str, first: int, last: int, *, every: bool = False, required: bool = True
    ) -> None:
        self.word = word
        self.origin = origin
        self.first = first
        self.last = last
        self.every = every
        self.required = required


def read(
    request: Request, mounted: list[Ask], values: dict[str, str], places: dict[str, int], config: Config
) -> None:
    """Puts channels and features into the request, or among what is withheld.

    Arguments:
        mounted: channels asked for by mounts: the words behind "imex/".
        values, places: the container's environment and where each name stands.

    Raises:
        Fault: a word that means no channel.
    """
    _channels(request, mounted, values, places, config)
    features: list[Feature] = []
    for name, key, title in SWITCHES:
        policy = getattr(config, key)
        said = values.get(name, "").strip()
        asks = said == "enabled"
        if said not in (*_OFF, "enabled"):
            request.warnings.append(f'{name}={clipped(said)} means nothing and counts as not set: say "enabled"')
        if not request.driver:
            if asks:
                request.withheld.append((title, _NOTHING))
        elif policy == "always":
            features.append(Feature(key, title, f'[inject] {key} = "always"', required=False))
        elif asks and policy == "never":
            request.withheld.append((title, f'{name}=enabled, but [inject] {key} is "never"'))
            request.warnings.append(f'{title} not given: [inject] {key} is "never"')
        elif asks and request.refusal:
            request.withheld.append((title, f"{name}=enabled, but {request.refusal}"))
            request.warnings.append(f"{title} not given: {request.refusal}")
        elif asks:
            features.append(Feature(key, title, f"{name}=enabled (process.env[{places[name]}])", required=True))
    request.features = tuple(features)


_NOTHING = "the container gets nothing of the driver; say NVIDIA_VISIBLE_DEVICES=none for the driver without a GPU"


def _channels(
    request: Request, mounted: list[Ask], values: dict[str, str], places: dict[str, int], config: Config
) -> None:
    title, refusal = "IMEX channels", request.refusal
    words: list[tuple[str, str]] = []
    if mounted and config.volume_mounts:  # as for GPUs: a mount, which no image can make, outweighs the variable
        words = [(ask.word, ask.origin) for ask in mounted]
    elif mounted:
        request.withheld.append((title, "asked for by mounts, but [request] volume-mounts is off"))
    if not words and CHANNELS in values:
        said = values[CHANNELS]
        origin = f"{CHANNELS}={clipped(said)} (process.env[{places[CHANNELS]}])"
        # One more than any program can be given is enough to see that it is too long.
        words = [(word, origin) for word in (part.strip() for part in said[: (128 << 10) + 1].split(",")) if word]
        if any(word == "void" for word, _ in words):
            words = []
        if words and words != [("none", origin)] and refusal and request.driver and config.imex_channels == "ask":
            request.withheld.append((title, f"asked for by {origin}, but {refusal}"))
            request.warnings.append(f"IMEX channels not given: {refusal}")
            return
    words = list(dict.fromkeys(words))  # an image may say one thing thirty thousand times
    wanted = [(word, origin) for word, origin in words if word != "none"]
    if not request.driver:
        if wanted:
            request.withheld.append((title, _NOTHING))
        return
    if config.imex_channels == "always":
        origin = '[inject] imex-channels = "always"'
        request.channels = (Channels("all", origin, 0, LAST_CHANNEL, every=True, required=False),)
        return
    if config.imex_channels == "never":
        if wanted:
            request.withheld.append((title, f'asked for by {wanted[0][1]}, but [inject] imex-channels is "never"'))
            request.warnings.append('IMEX channels not given: [inject] imex-channels is "never"')
        return
    if wanted and len(wanted) < len(words):
        raise Fault(
            f'{CHANNELS} mixes "none" with channels', where=words[0][1], cure='Say "none" alone, or only the channels'
        )
    request.channels = tuple([_span(word, origin) for word, origin in wanted])


def _span(word: str, origin: str) -> Channels:
    """The channels that one word means: a number, a range, `all`; "channel" may stand before a number."""
    if word == "all":
        return Channels(word, origin, 0, LAST_CHANNEL, every=True)
    first, dash, last = word.removeprefix("channel").partition("-")
    numbers = (first, last) if dash else (first, first)
    if not all(number.isascii() and number.isdigit() and len(number) <= 7 for number in numbers):
        raise Fault(
            f'"{clipped(word)}" is no IMEX channel',
            where=origin,
            cure=f"Valid are numbers from 0 to {LAST_CHANNEL}, ranges such as 0-3, all and none",
        )
    low, high = int(numbers[0]), int(numbers[1])
    if low > high:
        raise Fault(f'the range "{word}" runs backwards', where=origin, cure=f"Say {high}-{low}")
    if high > LAST_CHANNEL:
        raise Fault(f'there can be no IMEX channel "{word}"', where=origin, cure=f"The last one is {LAST_CHANNEL}")
    return Channels(word, origin, low, high)
