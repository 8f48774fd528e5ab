"""CDI's versions: which there are, which one a file needs and why, and which one an engine reads.

Facts: the specification's SPEC.md and specs-go/version.go; what brought a field stands in schema.json (`x-since`),
which engine reads what in engines.toml.

Cost rule: cold.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import resources
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
    one for one in load_full_schema()["properties"]["cdiVersion"]["enum"] if one[0] != "v"
)
OLDEST_VERSION, NEWEST_VERSION = KNOWN_VERSIONS[0], KNOWN_VERSIONS[-1]

# Versions that there were, and that the reference library knows and never accepts: less than OLDEST nobody needs.
UNSUPPORTED_VERSIONS = ("0.1.0", "0.2.0")


class VersionedFeature(NamedTuple):
    """Something in a file that an older version of CDI lacks. version: that brought it. where: its JSON path.
    description: what it is, such as "additionalGids" or "a dot in the class".
    """

    version: str
    where: str
    description: str


def find_versioned_features(spec: object) -> list[VersionedFeature]:
    """Everything in a file that needs more than the oldest version, in the order of the file.

    Arguments:
        spec: the file as parsed, right or wrong.
    """
    return list(_walk_features(spec, load_full_schema(), ""))


def find_minimum_version(spec: object) -> tuple[str, str]:
    """The least version that a file must declare, and what in it needs that: its JSON path and what it is.

    Of several reasons the first in the file counts; a file that needs nothing special needs the oldest version, for
    no reason ("").
    """
    found = find_versioned_features(spec)
    version = max((one.version for one in found), key=parse_cdi_version, default=OLDEST_VERSION)
    first = next((one for one in found if one.version == version), None)
    return version, f"{first.where}: {first.description}" if first else ""


def is_newer_version(version: str, other: str) -> bool:
    """Whether a version is newer than another; a leading "v" does not count."""
    return parse_cdi_version(version) > parse_cdi_version(other)


def _walk_features(value: object, rule: Schema, where: str) -> Iterator[VersionedFeature]:
    rule = resolve_schema_ref(rule)
    if isinstance(value, str):
        for one in rule.get("x-features", ()):
            if compile_pattern(one["pattern"]).search(value):
                yield VersionedFeature(one["since"], where, one["words"])
    elif isinstance(value, list) and "items" in rule:
        for index, below in enumerate(value):
            yield from _walk_features(below, rule["items"], join_json_path(where, index))
    elif isinstance(value, dict):
        for key, below in value.items():
            property_ = rule.get("properties", {}).get(key)
            if property_ is not None:
                here = join_json_path(where, key)
                if "x-since" in property_ and is_field_used(below, property_):
                    yield VersionedFeature(property_["x-since"], here, key)
                yield from _walk_features(below, property_, here)


def is_field_used(value: object, rule: Schema) -> bool:
    """Whether a property with this value is used: the reference library does not count empty ones."""
    if value is None:
        return False
    return bool(value) or bool(rule.get("x-empty-counts")) or not isinstance(value, str | list | dict | bool)


@cache
def load_engine_versions() -> dict[str, dict[str, str]]:
    """Engine -> its version -> greatest CDI version, oldest first; not to be changed."""
    text = resources.files("gpu_oci_hook.cdi.spec").joinpath("engines.toml").read_text(encoding="utf-8")
    table: dict[str, dict[str, str]] = tomllib.loads(text)
    return {name: dict(sorted(rows.items(), key=lambda row: parse_cdi_version(row[0]))) for name, rows in table.items()}


def find_engine_max_version(target: str) -> str:
    """The greatest CDI version that an engine reads.

    Arguments:
        target: engine and version, "docker-25", "containerd-1.7.16"; of the versions in engines.toml the nearest that
            is not newer counts.

    Raises:
        Fault: no such engine, or one that reads no CDI files yet.
    """
    name, _, version = target.lower().partition("-")
    if name == "cri" and version.startswith("o-"):  # CRI-O's own spelling
        name, version = "crio", version.removeprefix("o-")
    rows = load_engine_versions().get(name)
    if rows is None or not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4}){0,2}", version):
        near = find_close_match(name, list(load_engine_versions())) or "docker"
        cure = f"Say one of {', '.join(load_engine_versions())} and a version, such as {near}-{next(iter(load_engine_versions()[near]))}"
        raise Fault(f"no engine is called {clip_text(target)!r}", hint=cure)
    read = ""
    for from_, greatest_ in rows.items():
        if parse_cdi_version(from_) <= parse_cdi_version(version):
            read = greatest_
    if not read:
        first = next(iter(rows))
        raise Fault(f"{name} {version} reads no CDI files", hint=f"{name} does from version {first} on")
    return read


def list_reading_engines(version: str) -> list[str]:
    """The engines that read a CDI version, each with the first version that does: "docker 26.1"."""
    found = []
    for name, rows in load_engine_versions().items():
        first = next((row for row, read in rows.items() if not is_newer_version(version, read)), None)
        if first:
            found.append(f"{name} {first}")
    return found


def list_refusing_engines(version: str) -> list[str]:
    """The engines that read CDI, but not this version, each with the first version that does: "docker before 26.1"."""
    found = []
    for name, rows in load_engine_versions().items():
        first = next((row for row, read in rows.items() if not is_newer_version(version, read)), None)
        if first is None:
            found.append(f"every {name}")
        elif first != next(iter(rows)):
            found.append(f"{name} before {first}")
    return found


def parse_known_version(text: str, where: str) -> str:
    """A version of CDI that somebody names, without a leading "v".

    Arguments:
        where: who names it, for the sentence.

    Raises:
        Fault: it is none.
    """
    version = text.removeprefix("v")
    if version in KNOWN_VERSIONS:
        return version
    near = f"{version}.0" if f"{version}.0" in KNOWN_VERSIONS else find_close_match(version[:100], KNOWN_VERSIONS)
    hint = f'. Did you mean "{near}"?' if near else ""
    raise Fault(
        f'"{clip_text(text)}" is no version of CDI', where=where, hint=f"Known are {', '.join(KNOWN_VERSIONS)}{hint}"
    )
