"""Make a request from the options of `nvidia-container-cli`: what a container's environment says elsewhere. No I/O.

The caller has decided, so the policies of `[request]` about containers' environments do not apply.

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.cli.container_cli.command_line import DeviceOptions
from gpu_oci_hook.cli.container_cli.phase_faults import PhaseFault, name_phase
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault, clip_text
from gpu_oci_hook.model.request import DeviceRequest, Request
from gpu_oci_hook.request.capabilities import CAPABILITIES_VARIABLE, choose_capabilities
from gpu_oci_hook.request.feature_requests import parse_imex_channels
from gpu_oci_hook.request.mig_selectors import find_mig_selector
from gpu_oci_hook.request.read import ALL_CSV_LISTS

# Values of --require that are not requirements: which files a Jetson gives (facts: csv-lists).
_BOARD_REQUIREMENTS = (ALL_CSV_LISTS[1], "base-only")


def build_request(
    devices: DeviceOptions, capabilities: tuple[str, ...], requirements: tuple[str, ...], config: Config
) -> Request:
    """Build the request of a command.

    Raises:
        PhaseFault: a channel is invalid, a capability is not allowed, or rights over MIG come with single MIG devices.
    """
    request = Request()
    request.needs_driver = True
    request.device_requests = tuple(
        DeviceRequest(selector, f"--device={clip_text(selector)}") for selector in devices.selectors
    )
    request.origin = "--device" if devices.selectors else "no --device"
    with name_phase("input"):
        request.capabilities = _check_capabilities(capabilities, config)
    request.capabilities_origin = "options of the command line"
    request.mig_rights = _read_mig_rights(devices, request)
    with name_phase("imex"):
        request.imex_channels = tuple(
            parse_imex_channels(channel, f"--imex-channel={clip_text(channel)}") for channel in devices.imex_channels
        )
    request.requirements = tuple(
        ("--require", value) for value in requirements if not value.startswith(_BOARD_REQUIREMENTS)
    )
    request.use_all_csv_lists = any(value.startswith(ALL_CSV_LISTS[1]) for value in requirements)
    if config.disable_require:
        request.requirements_disabled_by = "[request] disable-require in the configuration"
    return request


def _check_capabilities(capabilities: tuple[str, ...], config: Config) -> tuple[str, ...]:
    """Return the capabilities in fixed order.

    Raises:
        Fault: the administrator does not allow one.
    """
    if not capabilities:
        return ()
    supported = tuple(config.supported_capabilities)
    value = ",".join(capabilities)
    chosen, _ = choose_capabilities(
        value, is_legacy_image=False, default=(), supported=supported, where=CAPABILITIES_VARIABLE
    )
    return chosen


def _read_mig_rights(devices: DeviceOptions, request: Request) -> tuple[tuple[str, str], ...]:
    single = find_mig_selector(request.device_requests)
    for right in devices.mig_rights if single else ():
        fault = Fault(
            f"cannot enable mig-{right} with specific MIG devices selected",
            where=single,
            hint="Name whole GPUs or all, or leave the option out",
        )
        raise PhaseFault(f"mig-{right}", fault)
    return tuple((right, f"--mig-{right}=all") for right in devices.mig_rights)
