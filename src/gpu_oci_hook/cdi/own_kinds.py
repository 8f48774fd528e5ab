"""Describe what a CDI file that we generate contains: its options, its kind, and the equivalent container request.

Import budget: cold.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.cdi_names import parse_cdi_kind
from gpu_oci_hook.model.request import FeatureRequest, ImexChannelRange, Request
from gpu_oci_hook.request.capabilities import choose_capabilities
from gpu_oci_hook.request.environment import FEATURE_SWITCHES
from gpu_oci_hook.request.feature_requests import LAST_IMEX_CHANNEL

NAME_STRATEGIES = ("index", "uuid", "type-index")
GPU_MODE, MANAGEMENT_MODE, CHANNEL_MODE = "gpu", "management", "imex-channel"
FEATURE_TITLES = {key: title for _, key, title in FEATURE_SWITCHES}
MODES = (GPU_MODE, MANAGEMENT_MODE, CHANNEL_MODE, *FEATURE_TITLES)

ALL_DEVICE, NONE_DEVICE = "all", "none"


@dataclass(frozen=True)
class ContentOptions:
    """The options that decide the content of a generated CDI file.

    Attributes:
        mode: one of MODES. GPU_MODE writes GPUs and MIG devices. MANAGEMENT_MODE writes everything for containers that
            manage the driver. The other modes write an optional feature as one device `all` (CHANNEL_MODE also one
            device for each channel).
        selectors: device selectors as in NVIDIA_VISIBLE_DEVICES; `all` and `none` also become devices of that name.
        name_strategies: of NAME_STRATEGIES; each device is written once for each of them.
        capabilities: driver capabilities; empty for all of `supported-capabilities`.
        vendor: first half of the kind; "" for the configured one.
        category: second half of the kind; "" for the configured one.
        hook_path: absolute path of the hook's program; "" for a file without a hook.
        hook_log: absolute path of the hook's log file; "" for the configured one.
        allow_incomplete: leave out what the host lacks, and record that in the file.
        rewrite_command: command that the file records for its regeneration; "" for none.
    """

    mode: str = GPU_MODE
    selectors: tuple[str, ...] = (ALL_DEVICE, NONE_DEVICE)
    name_strategies: tuple[str, ...] = ("index", "uuid")
    capabilities: tuple[str, ...] = ()
    vendor: str = ""
    category: str = ""
    hook_path: str = "/usr/local/bin/gpu-oci-hook"
    hook_log: str = ""
    allow_incomplete: bool = False
    rewrite_command: str = ""

    def build_cdi_kind(self, config: Config) -> str:
        """Build the kind of the file.

        Raises:
            Fault: vendor or class is invalid.
        """
        vendor, _, category = config.default_kind.partition("/")
        if self.mode == MANAGEMENT_MODE:
            vendor = f"{MANAGEMENT_MODE}.{vendor}"
        elif self.mode != GPU_MODE:
            category = self.mode
        kind = f"{self.vendor or vendor}/{self.category or category}"
        if parse_cdi_kind(kind) is None:
            raise Fault(
                f'"{kind}" is not a valid CDI kind',
                hint="Start vendor and class with a letter; use only letters, digits, and - _ . after it",
            )
        return kind


def map_kinds_to_modes(config: Config) -> dict[str, str]:
    """Map each kind that `cdi generate` writes to the mode that writes it."""
    return {ContentOptions(mode=mode).build_cdi_kind(config): mode for mode in MODES}


def build_generate_request(config: Config, options: ContentOptions) -> Request:
    """Build the request of a container that asks for the file's content, without its GPUs."""
    request = Request()
    request.needs_driver = True
    request.origin = "gpu-oci-hook cdi generate"
    request.capabilities, request.capabilities_origin = choose_capabilities(
        ",".join(options.capabilities),
        is_legacy_image=False,
        default=(ALL_DEVICE,),
        supported=tuple(config.supported_capabilities),
        where="--capabilities",
    )
    origin = f"--mode {options.mode}"
    if options.mode == MANAGEMENT_MODE:
        request.management_origin = origin
    elif options.mode == CHANNEL_MODE:
        request.imex_channels = (ImexChannelRange(ALL_DEVICE, origin, 0, LAST_IMEX_CHANNEL, is_all=True),)
    elif options.mode in FEATURE_TITLES:
        request.features = (FeatureRequest(options.mode, FEATURE_TITLES[options.mode], origin, required=True),)
    return request
