"""Check a CDI file against the version that it declares, and against the newest version that an engine reads.

`validation` has the table of these checks.

Import budget: cold.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpu_oci_hook.cdi.spec.schema_check import (
    Schema,
    Violation,
    is_in_version,
    load_full_schema,
    make_violation,
    parse_cdi_version,
    resolve_schema_ref,
)
from gpu_oci_hook.cdi.spec.versions import (
    KNOWN_VERSIONS,
    VersionedFeature,
    find_minimum_version,
    find_versioned_features,
    is_field_used,
    is_newer_version,
    list_reading_engines,
)
from gpu_oci_hook.formats.json_lines import join_json_path
from gpu_oci_hook.formats.oci import get_member


def check_declared_version(data: object) -> Iterator[Violation]:
    """Check for content that the declared version lacks."""
    declared = _get_declared_version(data)
    if not declared:
        return
    minimum = find_minimum_version(data)[0]
    for feature in find_versioned_features(data):
        if is_newer_version(feature.version, declared):
            subject = _describe_feature(feature)
            text = f"{subject} needs CDI {feature.version} or later, and the file declares {declared}"
            hint = f"Declare {minimum}, which {_describe_engines(minimum)} read"
            yield make_violation("error", feature.where, text, hint)


def check_changed_fields(data: object) -> Iterator[Violation]:
    """Check for fields that were removed from CDI, and for empty fields that the declared version lacks."""
    declared = _get_declared_version(data)
    if not declared:
        return
    version = parse_cdi_version(declared)
    for where, key, rule, value in _walk_versioned_fields(data, load_full_schema(), ""):
        if "x-until" in rule and not is_in_version(rule, version):
            text = f"{key} was removed after CDI {rule['x-until']}, and the file declares {declared}"
            yield make_violation("error", where, text, "Remove it")
        elif "x-until" in rule:
            text = f"{key} was in CDI up to {rule['x-until']}: engines that read later versions refuse the file"
            yield make_violation("warning", where, text, "Remove it")
        elif not is_in_version(rule, version) and not is_field_used(value, rule):
            text = f"{key} came with CDI {rule['x-since']}: engines that read up to {declared} refuse it, even empty"
            yield make_violation("warning", where, text, "Remove it")


def check_max_version(data: object, max_version: str, reader: str) -> Iterator[Violation]:
    """Check for everything that an engine refuses because it reads no newer version.

    Arguments:
        max_version: the newest version that the engine reads.
        reader: the engine, for people; "" if only a version was named.
    """
    declared = _get_declared_version(data)
    subject = reader or f"an engine that reads CDI up to {max_version}"
    if declared:
        if is_newer_version(declared, max_version):
            minimum = find_minimum_version(data)[0]
            text = f"the file declares CDI {declared}, more than --max-version {max_version}"
            if reader:
                text = f"{reader} reads CDI up to {max_version}, and the file declares {declared}"
            hint = "" if is_newer_version(minimum, max_version) else f"Declare {minimum}: the content needs no more"
            yield make_violation("error", "cdiVersion", text, hint)
        # Observed with podman 4.3; libraries from 0.6.0 on accept the letter.
        if declared.startswith("v") and is_newer_version("0.6.0", max_version):
            yield make_violation("error", "cdiVersion", f'{subject} does not know the letter "v"', "Leave it out")
    for feature in find_versioned_features(data):
        if is_newer_version(feature.version, max_version):
            needed = f"{_describe_feature(feature)} needs CDI {feature.version} or later"
            text = f"{needed}: {subject} refuses the whole file"
            hint = f"It can be read by {_describe_engines(feature.version)}"
            yield make_violation("error", feature.where, text, hint)
    version = parse_cdi_version(max_version)
    for where, key, rule, value in _walk_versioned_fields(data, load_full_schema(), ""):
        is_removed = "x-until" in rule and not is_in_version(rule, version)
        if is_removed or not (is_in_version(rule, version) or is_field_used(value, rule)):
            text = f"unknown field {key}: {subject} refuses the whole file"
            yield make_violation("error", where, text, "Remove it")


def _get_declared_version(data: object) -> str:
    """Return the declared version; "" if it is unknown."""
    declared = get_member(data, "cdiVersion")
    return declared if isinstance(declared, str) and declared.removeprefix("v") in KNOWN_VERSIONS else ""


def _describe_feature(feature: VersionedFeature) -> str:
    """Describe a feature at the beginning of a sentence that follows its JSON path."""
    return "this field" if feature.where.endswith(feature.description) else feature.description


def _describe_engines(version: str) -> str:
    """List the engines that read a version."""
    return f"{', '.join(list_reading_engines(version))} or later"


def _walk_versioned_fields(value: object, rule: Schema, where: str) -> Iterator[tuple[str, str, Schema, object]]:
    """Iterate over the fields that were added or removed in some version: JSON path, name, rule, value."""
    rule = resolve_schema_ref(rule)
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _walk_versioned_fields(item, rule.get("items", {}), join_json_path(where, index))
    elif isinstance(value, dict):
        for key, member in value.items():
            member_rule = rule.get("properties", {}).get(key)
            if member_rule is not None:
                json_path = join_json_path(where, key)
                if "x-since" in member_rule or "x-until" in member_rule:
                    yield json_path, key, member_rule, member
                yield from _walk_versioned_fields(member, member_rule, json_path)
