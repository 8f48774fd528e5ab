"""What a container asks for, each item with its origin; pure.

The contract is NVIDIA's documented one: environment variables, device mounts and CDI annotations. Who may ask is the
administrator's word (`[request]` in the configuration). Precedence, fixed:

1. `NVIDIA_VISIBLE_DEVICES=void`, or an empty value: nothing, whatever else is said. CDI files set it so that
   nobody injects twice.
2. Annotations whose names begin with one of `[cdi] annotation-prefixes`; `request.cdi_requests` says which of them count.
3. Device mounts below /var/run/nvidia-container-devices, if `volume-mounts` is on: only who creates the
   container can make them.
4. `NVIDIA_VISIBLE_DEVICES`, if `env` allows it. An image can set it.
5. A legacy CUDA image (`CUDA_VERSION` without `NVIDIA_REQUIRE_CUDA`) that says nothing: all GPUs.

The first that names one of our GPUs decides about GPUs. Devices of other vendors that annotations or mounts name come
besides: a network card's plug-in must not cost a container its GPU.

Of repeated environment entries the last wins, as in runc and crun. Cost rule: hot, no imports of the library.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault, clip_text
from gpu_oci_hook.formats.oci import explain_unprivileged, get_list, get_member, normalize_destination
from gpu_oci_hook.model.request import DeviceRequest, Request
from gpu_oci_hook.request.capabilities import CAPABILITIES_VARIABLE, choose_capabilities
from gpu_oci_hook.request.environment import (
    MANAGEMENT_DEVICE,
    MIG_RIGHT_VARIABLES,
    VARIABLE_SIZE_LIMIT,
    VISIBLE_DEVICES,
    check_variable_size,
    is_legacy_cuda_image,
    parse_environment,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.config.keys import Config

DEVICE_MOUNT_ROOTS = ("/var/run/nvidia-container-devices", "/run/nvidia-container-devices")

# What asks for something beside GPUs; `extras` reads it.
FEATURE_VARIABLES = ("NVIDIA_IMEX_CHANNELS", "NVIDIA_GDS", "NVIDIA_MOFED", "NVIDIA_GDRCOPY", "NVIDIA_NVSWITCH")
# On a Jetson every list of nodes and files counts (container toolkit facts 3.15).
ALL_CSV_LISTS = ("NVIDIA_REQUIRE_JETPACK", "csv-mounts=all")


def find_device_mounts(spec: object) -> list[DeviceRequest]:
    """The devices asked for by mounts of /dev/null below the device directory."""
    asks = []
    for place, mount in enumerate(get_list(spec, "mounts")):
        source, destination = get_member(mount, "source"), get_member(mount, "destination")
        if not isinstance(source, str) or not isinstance(destination, str):
            continue
        if normalize_destination(source) != "/dev/null":
            continue
        path = normalize_destination(destination)
        for root in DEVICE_MOUNT_ROOTS:
            if path.startswith(root + "/"):
                asks.append(DeviceRequest(path[len(root) + 1 :], f"mount {path} (mounts[{place}])"))
    return asks


def read_request(spec: object, config: Config) -> Request:
    """What a config.json asks for under a configuration.

    Raises:
        Fault: a word that means nothing, with the valid ones.
    """
    request = Request()
    values, places = parse_environment(spec, request.warnings)
    request.environment = values
    request.unprivileged_reason = explain_unprivileged(spec)
    request.environment_refusal = _find_environment_refusal(request, config)
    request.is_legacy_image = is_legacy_cuda_image(values)
    mounted = find_device_mounts(spec)
    channels = [DeviceRequest(ask.selector[5:], ask.origin) for ask in mounted if ask.selector.startswith("imex/")]
    noted: list[DeviceRequest] = []
    if _has_device_annotations(spec, config):
        from gpu_oci_hook.request.cdi_requests import read_device_annotations

        noted = read_device_annotations(spec, config, request.environment_refusal, request.withheld, request.warnings)
    plain = [ask for ask in mounted if not ask.selector.startswith("imex/")]
    _read_device_requests(request, noted, plain, values, places, config)
    if channels or any(name in values for name in FEATURE_VARIABLES) or _has_always_policy(config):
        from gpu_oci_hook.request.feature_requests import read_feature_requests

        read_feature_requests(request, channels, values, places, config)
    if not request.needs_driver:
        return request
    where = f"process.env[{places[CAPABILITIES_VARIABLE]}]" if CAPABILITIES_VARIABLE in places else ""
    said = "all" if request.management_origin else values.get(CAPABILITIES_VARIABLE)
    request.capabilities, request.capabilities_origin = choose_capabilities(
        check_variable_size(CAPABILITIES_VARIABLE, said),
        is_legacy_image=request.is_legacy_image and not request.management_origin,
        default=tuple(config.default_capabilities),
        supported=tuple(config.supported_capabilities),
        where=where,
    )
    if request.capabilities == ("compat32",):
        request.warnings.append(
            "capability compat32 alone brings no library: name those beside it whose 32-bit libraries are wanted"
        )
    if request.management_origin:
        request.capabilities_origin = "a management container gets every one that is supported"
    if request.is_legacy_image or any(name.startswith("NVIDIA_REQUIRE_") for name in values):
        from gpu_oci_hook.request.require_variables import read_requirements

        read_requirements(request, values, config)
    if values.get(ALL_CSV_LISTS[0]) == ALL_CSV_LISTS[1]:
        request.use_all_csv_lists = not request.environment_refusal
        if request.environment_refusal:
            request.withheld.append(("every CSV list", f"{'='.join(ALL_CSV_LISTS)}, but {request.environment_refusal}"))
    if any(values.get(name) for name, _ in MIG_RIGHT_VARIABLES):
        from gpu_oci_hook.request.mig_selectors import read_mig_rights

        request.mig_rights = read_mig_rights(request, values, places)
    return request


def _read_device_requests(
    request: Request,
    annotation_requests: list[DeviceRequest],
    mount_requests: list[DeviceRequest],
    variables: dict[str, str],
    positions: dict[str, int],
    config: Config,
) -> None:
    said = variables.get(VISIBLE_DEVICES)
    # One that is too long is not taken apart; whether that matters depends on who may ask.
    words = [word for word in (part.strip() for part in (said or "")[: VARIABLE_SIZE_LIMIT + 1].split(",")) if word]
    here = (
        f"{VISIBLE_DEVICES}={clip_text(said)} (process.env[{positions[VISIBLE_DEVICES]}])" if said is not None else ""
    )
    if said is not None and (not words or "void" in words):
        request.origin = f"{here}: nothing"
        if len(words) > 1:
            text = f'{VISIBLE_DEVICES} has "void" beside other words ({clip_text(said)}): the container gets nothing'
            request.warnings.append(text)
        request.withheld += [
            (clip_text(ask.selector), f"{ask.origin} asks, and {here} says nothing") for ask in annotation_requests
        ]
        return
    if mount_requests and not config.volume_mounts:
        request.withheld.append(
            (
                f"{len(mount_requests)} devices asked for by mounts",
                "[request] volume-mounts is off in the configuration",
            )
        )
        mount_requests = []
    if annotation_requests:
        from gpu_oci_hook.request.cdi_requests import require_cdi_names

        require_cdi_names(annotation_requests, config)
    for asks, origin in (
        (annotation_requests, "CDI annotations"),
        (mount_requests, "device mounts below " + DEVICE_MOUNT_ROOTS[0]),
    ):
        _add_device_requests(request, asks, origin, config)
    if request.needs_driver:
        return
    if said is None:
        if not request.is_legacy_image:
            request.origin = request.origin or f"{VISIBLE_DEVICES} is not set: nothing"
            return
        if not config.legacy_images:
            request.origin = request.origin or "legacy CUDA image"
            request.withheld.append(("all GPUs", "a legacy CUDA image asks, and [request] legacy-images is off"))
            return
        words = ["all"]
        here = f"legacy CUDA image: CUDA_VERSION={clip_text(variables['CUDA_VERSION'])} without NVIDIA_REQUIRE_CUDA"
    if request.environment_refusal:
        request.origin = request.origin or here
        what = "devices" if any("=" in word for word in words) else "GPUs"
        request.withheld.append((f"{what} asked for by {here}", request.environment_refusal))
        without = "them" if what == "devices" else "a GPU"
        request.warnings.append(f"the container starts without {without}: {request.environment_refusal}")
        return
    check_variable_size(VISIBLE_DEVICES, said)
    _add_device_requests(request, [DeviceRequest(word, here) for word in words], here, config)


def _add_device_requests(request: Request, device_requests: list[DeviceRequest], origin: str, config: Config) -> None:
    """Takes what one source asks for: other vendors' devices in any case, ours if no source before has named any.

    Raises:
        Fault: a word that means nothing, or words that do not go together.
    """
    if not device_requests:
        return
    if _is_management_request(request, [ask.selector for ask in device_requests], device_requests[0].origin, config):
        if not request.needs_driver:  # who names GPUs first decides about them
            request.needs_driver = True
            request.origin = origin
            request.management_origin = device_requests[0].origin
        return
    if any("=" in ask.selector or ask.selector.startswith("cdi/") for ask in device_requests):
        from gpu_oci_hook.request.cdi_requests import separate_own_devices

        device_requests, foreign = separate_own_devices(device_requests, config)
        by_name = {ask.cdi_name: ask for ask in request.cdi_devices}
        for ask in foreign:
            by_name.setdefault(ask.cdi_name, ask)
        request.cdi_devices = tuple(by_name.values())
        request.origin = request.origin or origin
    if not device_requests or request.needs_driver:
        return
    request.origin = origin
    request.needs_driver = True
    if len(device_requests) == 1 and device_requests[0].selector == "none":
        return
    if any(ask.selector == "none" for ask in device_requests):
        raise Fault('it mixes "none" with GPUs', where=origin, hint='Say "none" alone, or only the GPUs')
    request.device_requests = tuple(device_requests)


def _has_device_annotations(spec: object, config: Config) -> bool:
    """Whether any annotation may ask for devices."""
    found = get_member(spec, "annotations")
    prefixes = config.annotation_prefixes
    return isinstance(found, dict) and any(key.startswith(prefixes) for key in found)


def _has_always_policy(config: Config) -> bool:
    """Whether the administrator gives something to every GPU container, whatever that says."""
    return "always" in (config.imex_channels, config.gds, config.mofed, config.gdrcopy, config.nvswitch)


def _find_environment_refusal(request: Request, config: Config) -> str:
    """Why this container may not ask by its environment; "" when it may."""
    if config.env == "never":
        return '[request] env is "never"'
    if config.env == "privileged" and request.unprivileged_reason:
        return f'[request] env is "privileged" and {request.unprivileged_reason}'
    return ""


def _is_management_request(request: Request, selectors: list[str], origin: str, config: Config) -> bool:
    """Whether everything there is is asked for. Held against the rules whoever else has named GPUs before, since a
    CDI file may define a device of that name.

    Raises:
        Fault: it is, and this container may not have it.
    """
    names = (MANAGEMENT_DEVICE, "cdi/" + MANAGEMENT_DEVICE, "cdi/management.nvidia.com/gpu/all")
    if not any(word in names for word in selectors):
        return False
    if len(selectors) > 1:
        raise Fault(f'"{MANAGEMENT_DEVICE}" means every device already', where=origin, hint="Say it alone")
    if config.management == "never":
        raise Fault(
            f'"{MANAGEMENT_DEVICE}" asks for every device and file of the driver, and [request] management is "never"',
            where=origin,
            hint='Name the GPUs, or set [request] management = "privileged"',
        )
    if request.unprivileged_reason:
        raise Fault(
            f'"{MANAGEMENT_DEVICE}" asks for every device and file of the driver, and {request.unprivileged_reason}',
            where=origin,
            hint="Run it privileged (--privileged, or securityContext.privileged in Kubernetes), or name the GPUs",
        )
    return True
