"""Know the versions of CDI: which exist, which one a file needs and why, and which one an engine reads.

Sources are SPEC.md and specs-go/version.go of container-device-interface. schema.json says which version has which
field (`x-since`), engines.toml which engine reads which version.

Import budget: cold.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from gpu_oci_hook.cdi.spec.schema_check import (
    Schema,
    compile_pattern,
    load_full_schema,
    parse_cdi_version,
    resolve_schema_ref,
)
from gpu_oci_hook.errors import Fault, clip_text, find_close_match
from gpu_oci_hook.formats.json_lines import join_json_path

# From the oldest to the newest.
KNOWN_VERSIONS: tuple[str, ...] = tuple(
    version for version in load_full_schema()["properties"]["cdiVersion"]["enum"] if version[0] != "v"
)
OLDEST_VERSION, NEWEST_VERSION = KNOWN_VERSIONS[0], KNOWN_VERSIONS[-1]

# Versions that the reference library knows and never accepts.
UNSUPPORTED_VERSIONS = ("0.1.0", "0.2.0")


# Programs that read CDI files, or get what an engine reads in them, and run no hook of ours: Charliecloud's ch-run and
# gVisor's runsc. They are targets without a version.
CHARLIECLOUD = "charliecloud"
HOOKLESS_CLIENTS = (CHARLIECLOUD, "gvisor")


class VersionedFeature(NamedTuple):
    """Something in a file that older versions of CDI lack.

    Attributes:
        version: the first version that has it.
        where: JSON path.
        description: what it is, such as "additionalGids" or "a dot in the class".
    """

    version: str
    where: str
    description: str


def find_versioned_features(spec: object) -> list[VersionedFeature]:
    """Find everything in a file that the oldest version lacks, in the order of the file.

    Arguments:
        spec: the parsed file, valid or not.
    """
    return list(_walk_features(spec, load_full_schema(), ""))


def find_minimum_version(spec: object) -> tuple[str, str]:
    """Find the oldest version that a file can declare, and why.

    Returns:
        The version, and the first thing in the file that needs it as "JSON path: description". The reason is "" for a
        file that needs nothing special.
    """
    features = find_versioned_features(spec)
    version = max((feature.version for feature in features), key=parse_cdi_version, default=OLDEST_VERSION)
    first = next((feature for feature in features if feature.version == version), None)
    return version, f"{first.where}: {first.description}" if first else ""


def is_newer_version(version: str, other: str) -> bool:
    """Tell whether a version is newer than another; a leading "v" is ignored."""
    return parse_cdi_version(version) > parse_cdi_version(other)


def _walk_features(value: object, rule: Schema, where: str) -> Iterator[VersionedFeature]:
    rule = resolve_schema_ref(rule)
    if isinstance(value, str):
        for feature in rule.get("x-features", ()):
            if compile_pattern(feature["pattern"]).search(value):
                yield VersionedFeature(feature["since"], where, feature["words"])
    elif isinstance(value, list) and "items" in rule:
        for index, item in enumerate(value):
            yield from _walk_features(item, rule["items"], join_json_path(where, index))
    elif isinstance(value, dict):
        for key, member in value.items():
            property_rule = rule.get("properties", {}).get(key)
            if property_rule is not None:
                json_path = join_json_path(where, key)
                if "x-since" in property_rule and is_field_used(member, property_rule):
                    yield VersionedFeature(property_rule["x-since"], json_path, key)
                yield from _walk_features(member, property_rule, json_path)


def is_field_used(value: object, rule: Schema) -> bool:
    """Tell whether a property with this value is used: the reference library ignores empty ones."""
    if value is None:
        return False
    return bool(value) or bool(rule.get("x-empty-counts")) or not isinstance(value, str | list | dict | bool)


@cache
def load_engine_versions() -> dict[str, dict[str, str]]:
    """Load engines.toml: engine to {engine version: newest CDI version}, oldest first. Do not change the result."""
    text = Path(__file__).with_name("engines.toml").read_text(encoding="utf-8")
    table: dict[str, dict[str, str]] = tomllib.loads(text)
    return {name: dict(sorted(rows.items(), key=lambda row: parse_cdi_version(row[0]))) for name, rows in table.items()}


def find_engine_max_version(target: str) -> str:
    """Find the newest CDI version that an engine reads.

    Arguments:
        target: engine and version, such as "docker-25" or "containerd-1.7.16". The nearest version in engines.toml that
            is not newer counts.

    Raises:
        Fault: the engine is unknown, or this version does not read CDI files.
    """
    name, _, version = target.lower().partition("-")
    if name == "cri" and version.startswith("o-"):  # CRI-O's own spelling
        name, version = "crio", version.removeprefix("o-")
    rows = load_engine_versions().get(name)
    if rows is None or not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4}){0,2}", version):
        close_match = find_close_match(name, list(load_engine_versions())) or "docker"
        example = f"{close_match}-{next(iter(load_engine_versions()[close_match]))}"
        hint = f"Only {' and '.join(HOOKLESS_CLIENTS)} are named without a version. "
        hint += f"Use one of {', '.join(load_engine_versions())} and a version, such as {example}"
        if name in HOOKLESS_CLIENTS:
            hint = f"Name {name} without a version"
        raise Fault(f"unknown engine {clip_text(target)!r}", hint=hint)
    max_version = ""
    for engine_version, cdi_version in rows.items():
        if parse_cdi_version(engine_version) <= parse_cdi_version(version):
            max_version = cdi_version
    if not max_version:
        hint = f"{name} reads them from version {next(iter(rows))} on"
        raise Fault(f"{name} {version} does not read CDI files", hint=hint)
    return max_version


def list_reading_engines(version: str) -> list[str]:
    """List the engines that read a CDI version, each with its first version that does: "docker 26.1"."""
    first_versions = _map_first_reading_versions(version)
    return [f"{engine} {first}" for engine, first in first_versions.items() if first]


def list_refusing_engines(version: str) -> list[str]:
    """List the engines that read CDI but not this version, with the first version that does: "docker before 26.1"."""
    engines = []
    for engine, first in _map_first_reading_versions(version).items():
        if not first:
            engines.append(f"every {engine}")
        elif first != next(iter(load_engine_versions()[engine])):
            engines.append(f"{engine} before {first}")
    return engines


def _map_first_reading_versions(version: str) -> dict[str, str]:
    """Map each engine to its first version that reads a CDI version; "" if none does."""
    return {
        engine: next((row for row, cdi_version in rows.items() if not is_newer_version(version, cdi_version)), "")
        for engine, rows in load_engine_versions().items()
    }


def parse_known_version(text: str, where: str) -> str:
    """Parse a version of CDI, with or without a leading "v".

    Arguments:
        where: the option or key that has the text, for the error.

    Raises:
        Fault: it is not a known version.
    """
    version = text.removeprefix("v")
    if version in KNOWN_VERSIONS:
        return version
    close_match = (
        f"{version}.0" if f"{version}.0" in KNOWN_VERSIONS else find_close_match(version[:100], KNOWN_VERSIONS)
    )
    suggestion = f'. Did you mean "{close_match}"?' if close_match else ""
    raise Fault(
        f'"{clip_text(text)}" is not a version of CDI',
        where=where,
        hint=f"Known are {', '.join(KNOWN_VERSIONS)}{suggestion}",
    )
