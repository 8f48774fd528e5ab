"""Read what a container requests from its config.json, each item with its origin.

The interface is the one that NVIDIA documents: environment variables, device mounts and CDI annotations. The
administrator decides which containers may use it (`[request]` in the configuration). The precedence is fixed:

1. `NVIDIA_VISIBLE_DEVICES=void`, or an empty value: nothing, whatever else is requested. CDI files set it to prevent a
   second injection.
2. Annotations whose names begin with one of `[cdi] annotation-prefixes`, if they count (`request.cdi_requests`).
3. Device mounts below /var/run/nvidia-container-devices, if `volume-mounts` is on. Only the creator of a container can
   add mounts and devices.
4. `NVIDIA_VISIBLE_DEVICES`, if `env` allows it. An image can set it, so it names other vendors' devices only if
   `env-kinds` has their kind.
5. A legacy CUDA image (`CUDA_VERSION` without `NVIDIA_REQUIRE_CUDA`) without any of these: all GPUs.

Where a container has variables of `device-variables`, their values stand for that of NVIDIA_VISIBLE_DEVICES.

The first source that requests one of our GPUs decides about GPUs. Devices of other vendors in annotations or mounts are
added to them: a network card's device plugin must not cost a container its GPU.

Of repeated environment entries the last wins, as in runc and crun.

No I/O.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.errors import Fault, clip_text
from gpu_oci_hook.formats.oci import explain_unprivileged, get_list, get_member
from gpu_oci_hook.model.request import DeviceRequest, Request
from gpu_oci_hook.request.capabilities import CAPABILITIES_VARIABLE, choose_capabilities
from gpu_oci_hook.request.environment import (
    FEATURE_SWITCHES,
    FEATURE_VARIABLES,
    MANAGEMENT_DEVICE,
    MIG_RIGHT_VARIABLES,
    SWARM_PREFIX,
    VISIBLE_DEVICES,
    check_variable_size,
    find_ignored_swarm_variables,
    is_legacy_cuda_image,
    parse_environment,
    split_variable,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_oci_hook.config.keys import Config
    from gpu_oci_hook.request.environment import Environment

_DEVICE_MOUNTS_ORIGIN = "device mounts below /var/run/nvidia-container-devices"
_IMEX_MOUNT_PREFIX = "imex/"
_MANAGEMENT_SELECTORS = (MANAGEMENT_DEVICE, f"cdi/{MANAGEMENT_DEVICE}", f"cdi/{MANAGEMENT_DEVICE.replace('=', '/')}")
_CDI_MOUNT_PREFIX = "cdi/"
_MAX_SWARM_WARNINGS = 8  # an image can set any number of such variables

# On a Jetson this makes all of NVIDIA's CSV lists count (facts: csv-lists).
ALL_CSV_LISTS = ("NVIDIA_REQUIRE_JETPACK", "csv-mounts=all")


def read_request(spec: object, config: Config, is_null_device: Callable[[str], bool] | None = None) -> Request:
    """Read what a config.json requests under a configuration.

    Arguments:
        is_null_device: tells whether a mount's source is the device 1:3 under another path (a copy of /dev/null that
            a client made); without it none is.

    Raises:
        Fault: a request is invalid; names the valid values.
    """
    request = Request()
    environment = parse_environment(spec, request.warnings)
    request.environment = environment.values
    request.unprivileged_reason = explain_unprivileged(spec)
    request.environment_refusal = find_environment_refusal(request.unprivileged_reason, config)
    request.is_legacy_image = is_legacy_cuda_image(environment.values)
    mounts: list[DeviceRequest] = []
    if _names_device_directory(spec):
        # Imported here and below: a module for what few containers request.
        from gpu_oci_hook.request.device_mounts import find_device_mounts

        mounts = find_device_mounts(request, spec, is_null_device)
    annotations = _read_annotations(request, spec, config)
    _read_devices(request, annotations, mounts, environment, config)
    _read_features(request, mounts, environment, config)
    if request.needs_driver:
        _read_capabilities(request, environment, config)
        _read_requirements(request, config)
        _read_csv_lists(request)
        _read_mig_rights(request, environment)
    return request


def _names_device_directory(spec: object) -> bool:
    """Tell whether a mount or a device may be below the device directory."""
    paths = [get_member(mount, "destination") for mount in get_list(spec, "mounts")]
    paths += [get_member(node, "path") for node in get_list(spec, "linux", "devices")]
    return any(isinstance(path, str) and "nvidia-container-devices" in path for path in paths)


def find_environment_refusal(unprivileged_reason: str, config: Config) -> str:
    """Return why a container may not request devices by its environment; "" when it may."""
    if config.env == "never":
        return '[request] env is "never"'
    if config.env == "privileged" and unprivileged_reason:
        return f'[request] env is "privileged" and {unprivileged_reason}'
    return ""


def _read_annotations(request: Request, spec: object, config: Config) -> list[DeviceRequest]:
    annotations, prefixes = get_member(spec, "annotations"), config.annotation_prefixes
    if not isinstance(annotations, dict) or not any(key.startswith(prefixes) for key in annotations):
        return []
    from gpu_oci_hook.request.cdi_requests import read_device_annotations

    return read_device_annotations(spec, config, request.environment_refusal, request.withheld, request.warnings)


def _read_devices(
    request: Request,
    annotations: list[DeviceRequest],
    mounts: list[DeviceRequest],
    environment: Environment,
    config: Config,
) -> None:
    """Take the devices from the sources in the order of precedence; see the module's docstring."""
    variables = environment.choose_device_variables(config.device_variables)
    value = ",".join([environment.values[name] for name in variables]) if variables else None
    selectors = split_variable(value or "")
    origin = " and ".join([environment.describe_variable(name) for name in variables])
    if any(name.startswith(SWARM_PREFIX) for name in environment.values):
        _warn_about_swarm(request, environment, config)
    if value is not None and (not selectors or "void" in selectors):
        _record_void(request, annotations, selectors, value, origin)
        return
    _add_annotation_devices(request, annotations, config)
    _add_mount_devices(request, mounts, config)
    if request.needs_driver:
        return
    if value is not None:
        _add_environment_devices(request, selectors, value, origin, config)
    elif request.is_legacy_image:
        _add_legacy_image_devices(request, environment.values["CUDA_VERSION"], config)
    else:
        request.origin = request.origin or f"{VISIBLE_DEVICES} is not set: nothing requested"


def _warn_about_swarm(request: Request, environment: Environment, config: Config) -> None:
    ignored = find_ignored_swarm_variables(environment, config.device_variables)
    for name in ignored[:_MAX_SWARM_WARNINGS]:
        request.warnings.append(
            f"{environment.describe_variable(name)}, with which Docker Swarm assigns GPUs, is ignored: "
            f'add "{clip_text(name)}" to [request] device-variables'
        )
    if len(ignored) > _MAX_SWARM_WARNINGS:
        request.warnings.append(f"{len(ignored) - _MAX_SWARM_WARNINGS} more variables like these are ignored")


def _record_void(
    request: Request, annotations: list[DeviceRequest], selectors: list[str], value: str, origin: str
) -> None:
    request.origin = f"{origin}: nothing requested"
    if len(selectors) > 1:
        request.warnings.append(
            f'{origin.partition("=")[0]} mixes "void" with other values ({clip_text(value)}): the container gets '
            "nothing"
        )
    request.withheld += [
        (clip_text(annotation.selector), f"requested by {annotation.origin}, but {origin} disables all requests")
        for annotation in annotations
    ]


def _add_annotation_devices(request: Request, annotations: list[DeviceRequest], config: Config) -> None:
    if annotations:
        from gpu_oci_hook.request.cdi_requests import require_cdi_names

        require_cdi_names(annotations, config)
        _add_device_requests(request, annotations, "CDI annotations", config)


def _add_mount_devices(request: Request, mounts: list[DeviceRequest], config: Config) -> None:
    device_mounts = [mount for mount in mounts if not mount.selector.startswith(_IMEX_MOUNT_PREFIX)]
    if device_mounts and not config.volume_mounts:
        reason = "[request] volume-mounts is off in the configuration"
        request.withheld.append((f"{len(device_mounts)} devices requested by mounts", reason))
    else:
        _add_device_requests(request, device_mounts, _DEVICE_MOUNTS_ORIGIN, config)


def _add_environment_devices(
    request: Request, selectors: list[str], value: str | None, origin: str, config: Config
) -> None:
    """Take the devices that the environment requests, unless this container may not request by its environment."""
    if request.environment_refusal:
        request.origin = request.origin or origin
        has_cdi_name = any("=" in selector for selector in selectors)
        requested, missing = ("devices", "them") if has_cdi_name else ("GPUs", "a GPU")
        request.withheld.append((f"{requested} requested by {origin}", request.environment_refusal))
        request.warnings.append(f"the container starts without {missing}: {request.environment_refusal}")
        return
    check_variable_size(VISIBLE_DEVICES, value)
    if any("=" in selector for selector in selectors):
        from gpu_oci_hook.request.cdi_requests import refuse_untrusted_kinds

        refuse_untrusted_kinds(selectors, origin, config)
    _add_device_requests(request, [DeviceRequest(selector, origin) for selector in selectors], origin, config)


def _add_legacy_image_devices(request: Request, cuda_version: str, config: Config) -> None:
    if not config.legacy_images:
        request.origin = request.origin or "legacy CUDA image"
        reason = "requested by a legacy CUDA image, but [request] legacy-images is off"
        request.withheld.append(("all GPUs", reason))
        return
    origin = f"legacy CUDA image: CUDA_VERSION={clip_text(cuda_version)} without NVIDIA_REQUIRE_CUDA"
    _add_environment_devices(request, ["all"], None, origin, config)


def _add_device_requests(request: Request, device_requests: list[DeviceRequest], origin: str, config: Config) -> None:
    """Take the requests of one source: other vendors' devices always, ours unless an earlier source has decided.

    Raises:
        Fault: a request is invalid, or two requests exclude each other.
    """
    if not device_requests:
        return
    selectors = [device_request.selector for device_request in device_requests]
    if _is_management_request(request, selectors, device_requests[0].origin, config):
        if not request.needs_driver:
            request.needs_driver = True
            request.origin = origin
            request.management_origin = device_requests[0].origin
        return
    if any("=" in selector or selector.startswith(_CDI_MOUNT_PREFIX) for selector in selectors):
        from gpu_oci_hook.request.cdi_requests import separate_own_devices

        device_requests, foreign = separate_own_devices(device_requests, config)
        by_name = {device.cdi_name: device for device in request.cdi_devices}
        for device in foreign:
            by_name.setdefault(device.cdi_name, device)
        request.cdi_devices = tuple(by_name.values())
        request.origin = request.origin or origin
    if not device_requests or request.needs_driver:
        return
    request.origin = origin
    request.needs_driver = True
    if len(device_requests) == 1 and device_requests[0].selector == "none":
        return
    if any(device_request.selector == "none" for device_request in device_requests):
        raise Fault('it mixes "none" with GPUs', where=origin, hint='Use "none" alone, or only the GPUs')
    request.device_requests = tuple(device_requests)


def _is_management_request(request: Request, selectors: list[str], origin: str, config: Config) -> bool:
    """Tell whether all devices and driver files are requested.

    The permission is checked even if an earlier source has decided about GPUs, since a CDI file may define a device of
    that name.

    Raises:
        Fault: they are requested, and this container may not have them.
    """
    if not any(selector in _MANAGEMENT_SELECTORS for selector in selectors):
        return False
    if len(selectors) > 1:
        raise Fault(f'"{MANAGEMENT_DEVICE}" already includes every device', where=origin, hint="Request it alone")
    if config.management == "never":
        raise Fault(
            f'"{MANAGEMENT_DEVICE}" requests every device and driver file, but [request] management is "never"',
            where=origin,
            hint='Name the GPUs, or set [request] management = "privileged"',
        )
    if request.unprivileged_reason:
        raise Fault(
            f'"{MANAGEMENT_DEVICE}" requests every device and driver file, but {request.unprivileged_reason}',
            where=origin,
            hint="Run it privileged (--privileged, or securityContext.privileged in Kubernetes), or name the GPUs",
        )
    return True


def _read_features(
    request: Request,
    mounts: list[DeviceRequest],
    environment: Environment,
    config: Config,
) -> None:
    channels = [
        DeviceRequest(mount.selector.removeprefix(_IMEX_MOUNT_PREFIX), mount.origin)
        for mount in mounts
        if mount.selector.startswith(_IMEX_MOUNT_PREFIX)
    ]
    if channels or any(name in environment.values for name in FEATURE_VARIABLES) or _has_always_policy(config):
        from gpu_oci_hook.request.feature_requests import read_feature_requests

        read_feature_requests(request, channels, environment, config)


def _has_always_policy(config: Config) -> bool:
    """Tell whether the administrator adds IMEX channels or a feature to every GPU container."""
    return config.imex_channels == "always" or any(getattr(config, key) == "always" for _, key, _ in FEATURE_SWITCHES)


def _read_capabilities(request: Request, environment: Environment, config: Config) -> None:
    position = environment.positions.get(CAPABILITIES_VARIABLE)
    is_management = bool(request.management_origin)
    value = "all" if is_management else environment.values.get(CAPABILITIES_VARIABLE)
    request.capabilities, request.capabilities_origin = choose_capabilities(
        check_variable_size(CAPABILITIES_VARIABLE, value),
        is_legacy_image=request.is_legacy_image and not is_management,
        default=tuple(config.default_capabilities),
        supported=tuple(config.supported_capabilities),
        where=environment.describe_variable(CAPABILITIES_VARIABLE) if position is not None else "",
    )
    if is_management:
        request.capabilities_origin = "management container: all supported capabilities"
    if request.capabilities == ("compat32",):
        request.warnings.append(
            "capability compat32 alone adds no library: also request the capabilities whose 32-bit libraries are needed"
        )


def _read_requirements(request: Request, config: Config) -> None:
    if request.is_legacy_image or any(name.startswith("NVIDIA_REQUIRE_") for name in request.environment):
        from gpu_oci_hook.request.require_variables import read_requirements

        read_requirements(request, config)


def _read_csv_lists(request: Request) -> None:
    name, value = ALL_CSV_LISTS
    if request.environment.get(name) == value:
        request.use_all_csv_lists = not request.environment_refusal
        if request.environment_refusal:
            request.withheld.append(("every CSV list", f"{name}={value}, but {request.environment_refusal}"))


def _read_mig_rights(request: Request, environment: Environment) -> None:
    if any(environment.values.get(name) for name, _ in MIG_RIGHT_VARIABLES):
        from gpu_oci_hook.request.mig_selectors import read_mig_rights

        request.mig_rights = read_mig_rights(request, environment)
