"""Build a CDI file: plan its content, downgrade it for the target engine, serialise it.

Import budget: cold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpu_oci_hook.cdi.own_kinds import ContentOptions
from gpu_oci_hook.cdi.provenance import COMMAND_ANNOTATION, INCOMPLETE_COMMENT, REGENERATE_COMMENT
from gpu_oci_hook.cdi.spec.versions import (
    CHARLIECLOUD,
    find_minimum_version,
    is_newer_version,
    list_reading_engines,
    list_refusing_engines,
)
from gpu_oci_hook.config.keys import Config
from gpu_oci_hook.generate.content import ContainerEdits
from gpu_oci_hook.generate.downgrade import downgrade_spec
from gpu_oci_hook.generate.emit import serialise_spec
from gpu_oci_hook.generate.spec_planner import PlannedSpec, plan_spec

if TYPE_CHECKING:
    from gpu_oci_hook.model.machine import Cache

# Every engine that knows CDI and is still in use reads this version; newer content gets a warning.
_BASELINE_VERSION = "0.5.0"
# Devices that a summary names.
_MAX_SHOWN = 6


@dataclass(frozen=True)
class SpecRecipe:
    """Everything that decides the bytes of a CDI file on a host.

    Attributes:
        options: options of the content.
        output_format: one of OUTPUT_FORMATS.
        max_version: the greatest CDI version that the file may need; "" for any.
        target_engine: the engine that reads no newer version, such as "podman-4.3", or CHARLIECLOUD; "" if none was
            named.
    """

    options: ContentOptions
    output_format: str = "yaml"
    max_version: str = ""
    target_engine: str = ""


@dataclass(frozen=True)
class BuiltSpec:
    """A CDI file with its warnings.

    Attributes:
        data: bytes of the file.
        spec: content of the file.
        warnings: sentences for people.
        unreadable_warning: sentence about the engines that cannot read the file; "" if all can, or if the recipe names
            a version or an engine.
    """

    data: bytes
    spec: ContainerEdits
    warnings: tuple[str, ...]
    unreadable_warning: str = ""

    def summarise_spec(self) -> str:
        """Summarise the file: kind, devices, CDI version, engines."""
        names = get_device_names(self.spec)
        more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
        count = f"{len(names)} device name{'' if len(names) == 1 else 's'}"
        version = self.spec["cdiVersion"]
        engines = ", ".join(list_reading_engines(version))
        shown = f"{', '.join(names[:_MAX_SHOWN])}{more}"
        return f"{self.spec['kind']}, {count} ({shown}), CDI {version}; read by {engines} and later"


def get_device_names(spec: ContainerEdits) -> list[str]:
    """Return the device names of a file, in its order."""
    devices: list[Any] = spec["devices"]
    return [str(device["name"]) for device in devices]


def build_spec(recipe: SpecRecipe, config: Config, cache: Cache) -> BuiltSpec:
    """Build a CDI file.

    Raises:
        NoDriverError: there is no driver or no GPU.
        Fault: see `plan_spec` and `downgrade_spec`.
    """
    planned = plan_spec(config, recipe.options, cache)
    warnings = list(planned.warnings)
    if recipe.max_version:
        warnings += downgrade_spec(planned.spec, recipe.max_version, recipe.target_engine)
    has_hook = bool(planned.spec.get("containerEdits", {}).get("hooks"))
    if recipe.target_engine == CHARLIECLOUD and recipe.output_format == "json" and not has_hook:
        annotations = {COMMAND_ANNOTATION: recipe.options.rewrite_command, **planned.spec.pop("annotations", {})}
        planned.spec = {"kind": planned.spec.pop("kind"), "annotations": annotations, **planned.spec}
    version, reason = find_minimum_version(planned.spec)
    spec: ContainerEdits = {"cdiVersion": version, **planned.spec}
    data = serialise_spec(spec, recipe.output_format, _build_comments(planned, recipe.options.rewrite_command))
    if recipe.output_format == "json" and not has_hook and recipe.target_engine != CHARLIECLOUD:
        warnings.append("JSON without a hook cannot record that the file is ours: refresh will not touch it; use YAML")
    unreadable_warning = ""
    if not recipe.max_version and not recipe.target_engine and is_newer_version(version, _BASELINE_VERSION):
        unreadable_warning = (
            f"the file needs CDI {version} ({reason.rpartition(': ')[2]}), and "
            f"{', '.join(list_refusing_engines(version))} refuse it as a whole. Write one that they can read with "
            "--target, as in --target podman-4.3"
        )
    return BuiltSpec(data, spec, tuple(warnings), unreadable_warning)


def _build_comments(planned: PlannedSpec, rewrite_command: str) -> tuple[str, ...]:
    """Build the head comments of a YAML file."""
    comments = [f"{REGENERATE_COMMENT}{rewrite_command}"] if rewrite_command else []
    comments.append(f"host fingerprint: {planned.fingerprint}")
    if planned.driver_version:
        comments.append(f"driver {planned.driver_version}")
    comments += [f"{INCOMPLETE_COMMENT}{missing}" for missing in planned.missing_nodes if missing.required]
    return tuple(comments)
