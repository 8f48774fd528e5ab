"""What a CDI file shall have: the options, and the request that a container with the same wishes would make; pure.

Cost rule: cold.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.formats.cdi_names import parse_cdi_kind
from gpu_oci_hook.model.request import FeatureRequest, ImexChannelRange, Request
from gpu_oci_hook.request.capabilities import choose_capabilities
from gpu_oci_hook.request.feature_requests import FEATURE_SWITCHES, LAST_IMEX_CHANNEL

NAME_STRATEGIES = ("index", "uuid", "type-index")
GPU_MODE, MANAGEMENT_MODE, CHANNEL_MODE = "gpu", "management", "imex-channel"
FEATURE_TITLES = {key: title for _, key, title in FEATURE_SWITCHES}
MODES = (GPU_MODE, MANAGEMENT_MODE, CHANNEL_MODE, *FEATURE_TITLES)

ALL_DEVICE, NONE_DEVICE = "all", "none"


@dataclass(frozen=True)
class ContentOptions:
    """What a file shall have.

    Attributes:
        mode: one of MODES: GPUs and their parts, everything for containers that manage the driver, or what comes
            beside GPUs, as a device `all` (channels: one each as well).
        selectors: of NVIDIA_VISIBLE_DEVICES: which devices; `all` is also the device of that name, and so is `none`.
        name_strategies: of NAMES, how each device is called; it is written once for each.
        capabilities: driver capabilities; none means every one that `supported-capabilities` has.
        vendor, category: the two halves of the kind; "" for the configured one.
        hook_path: absolute path of the program for the hook; "" for a file without one.
        hook_log: absolute path of a file for what the hook says; "" for the configured one.
        allow_incomplete: what the host lacks is left out, and the file says so.
        rewrite_command: what writes the file anew, for the file to remember; "" says nothing.
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
        """The kind of the file.

        Raises:
            Fault: a half of it is none.
        """
        vendor, _, category = config.default_kind.partition("/")
        if self.mode == MANAGEMENT_MODE:
            vendor = f"{MANAGEMENT_MODE}.{vendor}"
        elif self.mode != GPU_MODE:
            category = self.mode
        kind = f"{self.vendor or vendor}/{self.category or category}"
        if parse_cdi_kind(kind) is None:
            raise Fault(
                f'"{kind}" is no kind of CDI devices',
                hint="Vendor and class begin with a letter and have only letters, digits, and - _ . inside",
            )
        return kind


def build_generate_request(config: Config, options: ContentOptions) -> Request:
    """What a container asks for that wants what the file is to have, but for its GPUs."""
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
