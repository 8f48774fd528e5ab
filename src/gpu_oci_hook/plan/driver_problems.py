"""Word the problems of the driver's files for warnings, failures and `list`, from the data of the inventory.

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.model.plan_input import NOT_ON_HOST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

    from gpu_oci_hook.model.edits import WithheldItem
    from gpu_oci_hook.model.machine import Inventory


def describe_version_mismatch(inventory: Inventory) -> str:
    """Return the sentence about a kernel module and libraries of different versions."""
    return (
        f"the loaded kernel module is version {inventory.version}, the driver libraries are version "
        f"{inventory.library_version}, so NVML and CUDA fail with a version mismatch: reboot, or unload and reload the "
        "nvidia modules"
    )


def describe_missing_library(other_version: str) -> str:
    """Return why a required library is missing.

    Arguments:
        other_version: path and version of the library of another driver version, or "" when there is none.
    """
    return f"only {other_version} is there" if other_version else "it is in none of the searched directories"


def describe_missing_dependencies(inventory: Inventory, container_paths: Container[str] | None = None) -> list[str]:
    """Return a sentence for each library that a manifest needs and the host lacks.

    Arguments:
        container_paths: the manifests that count, by their path in the container, or None for all.
    """
    return list(
        dict.fromkeys(
            f"{name} needs {soname}, not found on host"
            for container_path, name, soname in inventory.missing_dependencies
            if container_paths is None or container_path in container_paths
        )
    )


def describe_absent_files(withheld: list[WithheldItem]) -> list[str]:
    """Return a sentence for each capability of which the host lacks files that the plan should inject."""
    names_by_reason: dict[str, list[str]] = {}
    for item in withheld:
        if item.reason.startswith(NOT_ON_HOST):
            names_by_reason.setdefault(item.reason, []).append(item.name)
    return [f"{', '.join(names)}: {reason}" for reason, names in names_by_reason.items()]
