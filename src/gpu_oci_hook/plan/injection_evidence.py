"""Find what a config.json has of GPUs already, and who has put it there. No I/O.

Import budget: cold.
"""

from __future__ import annotations

from typing import NamedTuple

from gpu_oci_hook.container.rootfs_edits import GENERATED_DIR
from gpu_oci_hook.formats.oci import get_list, get_member, get_text, is_bind_mount
from gpu_oci_hook.formats.program_names import is_cdi_hook, is_own_cdi_hook, is_prestart_hook
from gpu_oci_hook.plan.mounting import LIBRARIES_DIR_PREFIX, LINKS_DIR_PREFIX

_HOOK_STAGES = ("prestart", "createRuntime", "createContainer", "startContainer")
_NODE_PREFIXES = ("/dev/nvidia", "/dev/dri/", "/dev/dxg", "/dev/nvhost", "/dev/nvmap", "/dev/gdrdrv")
_LIBRARY_PREFIXES = ("libcuda.so", "libcudadebugger.so", "libnvcuvid.so", "libnvoptix.so")
_OWN_DIRECTORY = f"/{GENERATED_DIR}/"  # of bundles, and below /run
_REQUEST_DIRECTORY = "/nvidia-container-devices/"

RUNTIME = "gpu-oci-runtime"
ENGINE = "the engine or its client (a privileged container, --device, --volume, or a CDI file without a hook)"


class InjectionEvidence(NamedTuple):
    """What a config.json has of GPUs.

    Attributes:
        injectors: who has put it there, each with the evidence; empty if there is nothing.
        nodes: (path, numbers or source) of each device node that may be a GPU's.
        mounts: (source, destination) of each mount that may be a driver file's.
        pending: the hooks that inject only when the container starts.
    """

    injectors: list[str]
    nodes: list[tuple[str, str]]
    mounts: list[tuple[str, str]]
    pending: list[str]


def find_injection_evidence(spec: object, planned: frozenset[tuple[str, str]] = frozenset()) -> InjectionEvidence:
    """Return what a config.json has of GPUs.

    Arguments:
        planned: (path, numbers) of nodes and (source, destination) of mounts that are not to be returned.
    """
    injectors: dict[str, str] = {}
    pending: list[str] = []
    for stage in _HOOK_STAGES:
        for index, hook in enumerate(get_list(spec, "hooks", stage)):
            evidence = f"hooks.{stage}[{index}] is {get_text(hook, 'path')}"
            if is_prestart_hook(hook):
                pending.append(evidence)
            elif is_own_cdi_hook(hook):
                injectors.setdefault("an engine, from a CDI file of gpu-oci-hook", evidence)
            elif is_cdi_hook(hook):
                injectors.setdefault("an engine, from a CDI file of NVIDIA's toolkit", evidence)
    nodes = [
        (path, f"{get_text(node, 'type')} {get_member(node, 'major')}:{get_member(node, 'minor')}")
        for node in get_list(spec, "linux", "devices")
        if (path := get_text(node, "path")).startswith(_NODE_PREFIXES)
    ]
    mounts = []
    for mount in get_list(spec, "mounts"):
        source, destination = get_text(mount, "source"), get_text(mount, "destination")
        if not is_bind_mount(mount) or _REQUEST_DIRECTORY in destination:
            continue
        if destination.startswith(_NODE_PREFIXES):
            nodes.append((destination, f"bound from {source}"))
        elif is_driver_path(destination):
            mounts.append((source, destination))
        directory, _, name = source.rpartition("/")
        if _OWN_DIRECTORY in source or name.startswith((LIBRARIES_DIR_PREFIX, LINKS_DIR_PREFIX)):
            injectors.setdefault(RUNTIME, f"mounts from {directory}")
    if not injectors and (nodes or mounts):
        injectors[ENGINE] = ""
    return InjectionEvidence(
        [f"{who}: {evidence}" if evidence else who for who, evidence in injectors.items()],
        [node for node in nodes if node not in planned],
        [mount for mount in mounts if mount not in planned],
        pending,
    )


def is_driver_path(path: str) -> bool:
    """Return whether a path of a container may be that of a driver file."""
    return "nvidia" in path.lower() or path.rpartition("/")[2].startswith(_LIBRARY_PREFIXES)
