"""Find what keeps a container from starting although its plan can be made.

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.cli.bundle import Bundle
from gpu_oci_hook.cli.explain_presence import Presence
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.errors import Fault
from gpu_oci_hook.shim.low_level_runtime import find_low_level_runtime

_MAX_SHOWN_SOURCES = 5


def find_start_obstacles(
    bundle: Bundle, presence: Presence, settings: Config, *, needs_runtime: bool = True
) -> list[str]:
    """Return one sentence for each thing that keeps the container from starting, or from starting again.

    Arguments:
        needs_runtime: gpu-oci-runtime is to start it, which needs a low-level runtime.
    """
    obstacles = []
    if presence.missing_sources:
        obstacles.append(_describe_missing_sources(presence, is_running=bundle.is_running))
    if not needs_runtime:
        return obstacles
    try:
        find_low_level_runtime(settings.low_level)
    except Fault as fault:
        obstacles.append(f"no container starts with gpu-oci-runtime on this host: {fault}")
    return obstacles


def _describe_missing_sources(presence: Presence, *, is_running: bool) -> str:
    missing = presence.missing_sources
    shown = ", ".join(f"{source} (mounts[{index}])" for index, source, _ in missing[:_MAX_SHOWN_SOURCES])
    if len(missing) > _MAX_SHOWN_SOURCES:
        shown += f" and {len(missing) - _MAX_SHOWN_SOURCES} more"
    sources = "the source of a mount does" if len(missing) == 1 else f"the sources of {len(missing)} mounts do"
    effect = "the container cannot be started again" if is_running else "the container does not start"
    return f"{sources} not exist on this host, so {effect}: {shown}"
