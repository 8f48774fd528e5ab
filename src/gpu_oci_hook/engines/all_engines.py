"""List the engines that configure knows.

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.engines.engine import Engine

ENGINE_NAMES = ("docker", "containerd")


def load_engine(name: str) -> Engine:
    """Return an engine by its name, one of ENGINE_NAMES."""
    if name == "docker":
        from gpu_oci_hook.engines.docker import DockerEngine

        return DockerEngine()
    from gpu_oci_hook.engines.containerd import ContainerdEngine

    return ContainerdEngine()
