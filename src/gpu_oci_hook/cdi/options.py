"""What a CDI file shall have: the options, and the request that a container with the same wishes would make; pure.

Cost rule: cold.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_oci_hook.cdi import names
from gpu_oci_hook.config import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.request import Request, capabilities
from gpu_oci_hook.request.extras import LAST_CHANNEL, SWITCHES, Channels, Feature

NAMES = ("index", "uuid", "type-index")
GPU, MANAGEMENT, CHANNEL = "gpu", "management", "imex-channel"
FEATURES = {key: title for _, key, title in SWITCHES}
MODES = (GPU, MANAGEMENT, CHANNEL, *FEATURES)

ALL, NONE = "all", "none"


@dataclass(frozen=True)
class Options:
    """What a file shall have.

    Attributes:
        mode: one of MODES: GPUs and their parts, everything for containers that manage the driver, or what comes
            beside GPUs, as a device `all` (channels: one each as well).
        words: of NVIDIA_VISIBLE_DEVICES: which devices; `all` is also the device of that name, and so is `none`.
        names: of NAMES, how each device is called; it is written once for each.
        capabilities: driver capabilities; none means every one that `supported-capabilities` has.
        vendor, category: the two halves of the kind; "" for the configured one.
        hook: absolute path of the program for the hook; "" for a file without one.
        hook_log: absolute path of a file for what the hook says; "" for the configured one.
        allow_incomplete: what the host lacks is left out, and the file says so.
        command: what writes the file anew, for the file to remember; "" says nothing.
    """

    mode: str = GPU
    words: tuple[str, ...] = (ALL, NONE)
    names: tuple[str, ...] = ("index", "uuid")
    capabilities: tuple[str, ...] = ()
    vendor: str = ""
    category: str = ""
    hook: str = "/usr/local/bin/gpu-oci-hook"
    hook_log: str = ""
    allow_incomplete: bool = False
    command: str = ""

    def kind(self, config: Config) -> str:
        """The kind of the file.

        Raises:
            Fault: a half of it is none.
        """
        vendor, _, category = config.default_kind.partition("/")
        if self.mode == MANAGEMENT:
            vendor = f"{MANAGEMENT}.{vendor}"
        elif self.mode != GPU:
            category = self.mode
        kind = f"{self.vendor or vendor}/{self.category or category}"
        if names.kind(kind) is None:
            raise Fault(
                f'"{kind}" is no kind of CDI devices',
                cure="Vendor and class begin with a letter and have only letters, digits, and - _ . inside",
            )
        return kind


def request_for(config: Config, options: Options) -> Request:
    """What a container asks for that wants what the file is to have, but for its GPUs."""
    request = Request()
    request.driver = True
    request.origin = "gpu-oci-hook cdi generate"
    request.capabilities, request.capabilities_origin = capabilities.choose(
        ",".join(options.capabilities),
        legacy=False,
        default=(ALL,),
        supported=tuple(config.supported_capabilities),
        where="--capabilities",
    )
    origin = f"--mode {options.mode}"
    if options.mode == MANAGEMENT:
        request.management = origin
    elif options.mode == CHANNEL:
        request.channels = (Channels(ALL, origin, 0, LAST_CHANNEL, every=True),)
    elif options.mode in FEATURES:
        request.features = (Feature(options.mode, FEATURES[options.mode], origin, required=True),)
    return request
