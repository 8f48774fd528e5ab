"""What a container asks for, each item with its origin; pure.

The contract is NVIDIA's documented one: environment variables, device mounts and CDI annotations. Who may ask is the
administrator's word (`[request]` in the configuration). Precedence, fixed:

1. `NVIDIA_VISIBLE_DEVICES=void`, or an empty value: nothing, whatever else is said. CDI files set it so that
   nobody injects twice.
2. Annotations whose names begin with one of `[cdi] annotation-prefixes`; `request.cdi` says which of them count.
3. Device mounts below /var/run/nvidia-container-devices, if `volume-mounts` is on: only who creates the
   container can make them.
4. `NVIDIA_VISIBLE_DEVICES`, if `env` allows it. An image can set it.
5. A legacy CUDA image (`CUDA_VERSION` without `NVIDIA_REQUIRE_CUDA`) that says nothing: all GPUs.

The first that names one of our GPUs decides about GPUs. Devices of other vendors that annotations or mounts name come
besides: a network card's plug-in must not cost a container its GPU.

Of repeated environment entries the last wins, as in runc and crun. Cost rule: hot, no imports of the library.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault, clipped
from gpu_oci_hook.formats.oci import clean, items, member, unprivileged
from gpu_oci_hook.request import capabilities

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config import Config
    from gpu_oci_hook.request.extras import Channels, Feature

DEVICES = "NVIDIA_VISIBLE_DEVICES"
MOUNT_ROOTS = ("/var/run/nvidia-container-devices", "/run/nvidia-container-devices")

# Rights over all of a machine's MIG devices: variable, and the capability's name; `mig` reads them.
MIG_RIGHTS = (("NVIDIA_MIG_CONFIG_DEVICES", "config"), ("NVIDIA_MIG_MONITOR_DEVICES", "monitor"))
# What asks for something beside GPUs; `extras` reads it.
EXTRAS = ("NVIDIA_IMEX_CHANNELS", "NVIDIA_GDS", "NVIDIA_MOFED", "NVIDIA_GDRCOPY", "NVIDIA_NVSWITCH")
# On a Jetson every list of nodes and files counts (container toolkit facts 3.15).
LISTS = ("NVIDIA_REQUIRE_JETPACK", "csv-mounts=all")
# Everything that a driver-management container needs, by the CDI name that it has where engines resolve those.
MANAGEMENT = "management.nvidia.com/gpu=all"
# Linux passes no longer entry to a program (MAX_ARG_STRLEN, with pages of 4 KiB). To take a longer one apart
# would cost an image's word some hundred megabytes of ours.
LONGEST = 128 << 10



class Ask:
    """One thing asked for: the word, where it was said, and the qualified CDI name if it was one."""

    __slots__ = ("name", "origin", "word")

    def __init__(self, word: str, origin: str, name: str = "") -> None:
        self.word = word
        self.origin = origin
        self.name = name


class Request:
    """Everything that a container asks for.

    Attributes:
        asks: the devices, as words; empty together with `driver` means driver files without a GPU.
        foreign: CDI devices that a file must resolve, by their qualified names.
        driver: whether anything of the driver's goes in at all.
        origin: where the decision comes from, for people.
        capabilities: driver capabilities in fixed order; `capabilities_origin` says who chose them.
        requirements: (variable, expression) pairs that the host must meet.
        requirements_off: who switched them off, or "".
        withheld: (what, reason) pairs: asked for, and not given by policy or not yet possible.
        warnings: what the person should know.
        environment: the container's environment, last of repeated names.
        channels: IMEX channels. features: what is switched on besides, GPUDirect Storage for one.
        management: whose word asks for every node and file there is; "" when nobody does.
        mig_rights: ("config" or "monitor", origin): over all MIG devices of the machine.
        every_list: all of a Jetson's CSV lists count, not the usual ones alone.
        legacy: a CUDA image of before `NVIDIA_REQUIRE_CUDA`.
        refusal: why this container's environment may ask for nothing; "" when it may.
        unprivileged: why it is no privileged container; "" when it is one.
    """

    __slots__ = (
        "asks",
        "capabilities",
        "capabilities_origin",
        "channels",
        "driver",
        "environment",
        "every_list",
        "features",
        "foreign",
        "legacy",
        "management",
        "mig_rights",
        "origin",
        "refusal",
        "requirements",
        "requirements_off",
        "unprivileged",
        "warnings",
        "withheld",
    )

    def __init__(self) -> None:
        self.asks: tuple[Ask, ...] = ()
        self.foreign: tuple[Ask, ...] = ()
        self.driver = False
        self.origin = ""
        self.capabilities: tuple[str, ...] = ()
        self.capabilities_origin = ""
        self.requirements: tuple[tuple[str, str], ...] = ()
        self.requirements_off = ""
        self.withheld: list[tuple[str, str]] = []
        self.warnings: list[str] = []
        self.environment: dict[str, str] = {}
        self.channels: tuple[Channels, ...] = ()
        self.features: tuple[Feature, ...] = ()
        self.management = ""
        self.mig_rights: tuple[tuple[str, str], ...] = ()
        self.every_list = False
        self.legacy = False
        self.refusal = ""
        self.unprivileged = ""


def environment(spec: object, warnings: list[str] | None = None) -> tuple[dict[str, str], dict[str, int]]:
    """The container's environment and the place of each name in `process.env`; the last entry wins.

    Entries that are no text or have no `=` are nobody's business (runc's before 1.3 passed them on).
    """
    values: dict[str, str] = {}
    places: dict[str, int] = {}
    twice = ""
    for place, entry in enumerate(items(spec, "process", "env")):
        if not isinstance(entry, str):
            continue
        name, equals, value = entry.partition("=")
        if not equals:
            continue
        if warnings is not None and name == DEVICES and name in values and values[name] != value:
            twice = (
                f"{name} is set twice: process.env[{place}] ({clipped(value)}) wins over "
                f"process.env[{places[name]}] ({clipped(values[name])})"
            )
        values[name] = value
        places[name] = place
    if warnings is not None and twice:
        warnings.append(twice)
    return values, places


def mounts(spec: object) -> list[Ask]:
    """The devices asked for by mounts of /dev/null below the device directory."""
    asks = []
    for place, mount in enumerate(items(spec, "mounts")):
        source, destination = member(mount, "source"), member(mount, "destination")
        if not isinstance(source, str) or not isinstance(destination, str):
            continue
        if clean(source) != "/dev/null":
            continue
        path = clean(destination)
        for root in MOUNT_ROOTS:
            if path.startswith(root + "/"):
                asks.append(Ask(path[len(root) + 1 :], f"mount {path} (mounts[{place}])"))
    return asks


def read(spec: object, config: Config) -> Request:
    """What a config.json asks for under a configuration.

    Raises:
        Fault: a word that means nothing, with the valid ones.
    """
    request = Request()
    values, places = environment(spec, request.warnings)
    request.environment = values
    request.unprivileged = unprivileged(spec)
    request.refusal = _refusal(request, config)
    request.legacy = legacy(values)
    mounted = mounts(spec)
    channels = [Ask(ask.word[5:], ask.origin) for ask in mounted if ask.word.startswith("imex/")]
    noted: list[Ask] = []
    if _annotated(spec, config):
        from gpu_oci_hook.request import cdi

        noted = cdi.annotated(spec, config, request.refusal, request.withheld, request.warnings)
    plain = [ask for ask in mounted if not ask.word.startswith("imex/")]
    _devices(request, noted, plain, values, places, config)
    if channels or any(name in values for name in EXTRAS) or _always(config):
        from gpu_oci_hook.request import extras

        extras.read(request, channels, values, places, config)
    if not request.driver:
        return request
    where = f"process.env[{places[capabilities.VARIABLE]}]" if capabilities.VARIABLE in places else ""
    said = "all" if request.management else values.get(capabilities.VARIABLE)
    request.capabilities, request.capabilities_origin = capabilities.choose(
        bounded(capabilities.VARIABLE, said),
        legacy=request.legacy and not request.management,
        default=tuple(config.default_capabilities),
        supported=tuple(config.supported_capabilities),
        where=where,
    )
    if request.capabilities == ("compat32",):
        request.warnings.append(
            "capability compat32 alone brings no library: name those beside it whose 32-bit libraries are wanted"
        )
    if request.management:
        request.capabilities_origin = "a management container gets every one that is supported"
    if request.legacy or any(name.startswith("NVIDIA_REQUIRE_") for name in values):
        from gpu_oci_hook.request import demands

        demands.read(request, values, config)
    if values.get(LISTS[0]) == LISTS[1]:
        request.every_list = not request.refusal
        if request.refusal:
            request.withheld.append(("every CSV list", f"{'='.join(LISTS)}, but {request.refusal}"))
    if any(values.get(name) for name, _ in MIG_RIGHTS):
        from gpu_oci_hook.request import mig

        request.mig_rights = mig.rights(request, values, places)
    return request


def legacy(values: dict[str, str]) -> bool:
    """Whether an environment is that of a CUDA image of before `NVIDIA_REQUIRE_CUDA`."""
    return bool(values.get("CUDA_VERSION")) and not values.get("NVIDIA_REQUIRE_CUDA")


def _devices(
    request: Request,
    noted: list[Ask],
    mounted: list[Ask],
    values: dict[str, str],
    places: dict[str, int],
    config: Config,
) -> None:
    said = values.get(DEVICES)
    # One that is too long is not taken apart; whether that matters depends on who may ask.
    words = [word for word in (part.strip() for part in (said or "")[: LONGEST + 1].split(",")) if word]
    here = f"{DEVICES}={clipped(said)} (process.env[{places[DEVICES]}])" if said is not None else ""
    if said is not None and (not words or "void" in words):
        request.origin = f"{here}: nothing"
        if len(words) > 1:
            text = f'{DEVICES} has "void" beside other words ({clipped(said)}): the container gets nothing'
            request.warnings.append(text)
        request.withheld += [(clipped(ask.word), f"{ask.origin} asks, and {here} says nothing") for ask in noted]
        return
    if mounted and not config.volume_mounts:
        request.withheld.append(
            (f"{len(mounted)} devices asked for by mounts", "[request] volume-mounts is off in the configuration")
        )
        mounted = []
    if noted:
        from gpu_oci_hook.request import cdi

        cdi.require_names(noted, config)
    for asks, origin in ((noted, "CDI annotations"), (mounted, "device mounts below " + MOUNT_ROOTS[0])):
        _take(request, asks, origin, config)
    if request.driver:
        return
    if said is None:
        if not request.legacy:
            request.origin = request.origin or f"{DEVICES} is not set: nothing"
            return
        if not config.legacy_images:
            request.origin = request.origin or "legacy CUDA image"
            request.withheld.append(("all GPUs", "a legacy CUDA image asks, and [request] legacy-images is off"))
            return
        words = ["all"]
        here = f"legacy CUDA image: CUDA_VERSION={clipped(values['CUDA_VERSION'])} without NVIDIA_REQUIRE_CUDA"
    if request.refusal:
        request.origin = request.origin or here
        what = "devices" if any("=" in word for word in words) else "GPUs"
        request.withheld.append((f"{what} asked for by {here}", request.refusal))
        without = "them" if what == "devices" else "a GPU"
        request.warnings.append(f"the container starts without {without}: {request.refusal}")
        return
    bounded(DEVICES, said)
    _take(request, [Ask(word, here) for word in words], here, config)


def _take(request: Request, asks: list[Ask], origin: str, config: Config) -> None:
    """Takes what one source asks for: other vendors' devices in any case, ours if no source before has named any.

    Raises:
        Fault: a word that means nothing, or words that do not go together.
    """
    if not asks:
        return
    if _management(request, [ask.word for ask in asks], asks[0].origin, config):
        if not request.driver:  # who names GPUs first decides about them
            request.driver = True
            request.origin = origin
            request.management = asks[0].origin
        return
    if any("=" in ask.word or ask.word.startswith("cdi/") for ask in asks):
        from gpu_oci_hook.request import cdi

        asks, foreign = cdi.sort(asks, config)
        by_name = {ask.name: ask for ask in request.foreign}
        for ask in foreign:
            by_name.setdefault(ask.name, ask)
        request.foreign = tuple(by_name.values())
        request.origin = request.origin or origin
    if not asks or request.driver:
        return
    request.origin = origin
    request.driver = True
    if len(asks) == 1 and asks[0].word == "none":
        return
    if any(ask.word == "none" for ask in asks):
        raise Fault('it mixes "none" with GPUs', where=origin, cure='Say "none" alone, or only the GPUs')
    request.asks = tuple(asks)


def _annotated(spec: object, config: Config) -> bool:
    """Whether any annotation may ask for devices."""
    found = member(spec, "annotations")
    prefixes = config.annotation_prefixes
    return isinstance(found, dict) and any(key.startswith(prefixes) for key in found)


def _always(config: Config) -> bool:
    """Whether the administrator gives something to every GPU container, whatever that says."""
    return "always" in (config.imex_channels, config.gds, config.mofed, config.gdrcopy, config.nvswitch)


def _refusal(request: Request, config: Config) -> str:
    """Why this container may not ask by its environment; "" when it may."""
    if config.env == "never":
        return '[request] env is "never"'
    if config.env == "privileged" and request.unprivileged:
        return f'[request] env is "privileged" and {request.unprivileged}'
    return ""


def _management(request: Request, words: list[str], origin: str, config: Config) -> bool:
    """Whether everything there is is asked for. Held against the rules whoever else has named GPUs before, since a
    CDI file may define a device of that name.

    Raises:
        Fault: it is, and this container may not have it.
    """
    names = (MANAGEMENT, "cdi/" + MANAGEMENT, "cdi/management.nvidia.com/gpu/all")
    if not any(word in names for word in words):
        return False
    if len(words) > 1:
        raise Fault(f'"{MANAGEMENT}" means every device already', where=origin, cure="Say it alone")
    if config.management == "never":
        raise Fault(
            f'"{MANAGEMENT}" asks for every device and file of the driver, and [request] management is "never"',
            where=origin,
            cure='Name the GPUs, or set [request] management = "privileged"',
        )
    if request.unprivileged:
        raise Fault(
            f'"{MANAGEMENT}" asks for every device and file of the driver, and {request.unprivileged}',
            where=origin,
            cure="Run it privileged (--privileged, or securityContext.privileged in Kubernetes), or name the GPUs",
        )
    return True


def bounded(name: str, value: str | None) -> str | None:
    """The value, if a program could be started with it.

    Raises:
        Fault: it is longer than any program can be given.
    """
    if value is not None and len(name) + len(value) >= LONGEST:
        raise Fault(
            f"{name} is longer than {LONGEST >> 10} KiB",
            where="process.env",
            cure="No program can be started with such a variable",
        )
    return value
