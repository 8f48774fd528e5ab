"""The schema of CDI files: schema.json, which has the fields of every version, and the strict one of each version.

Cost rule: cold.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

Schema = dict[str, Any]


@cache
def whole() -> Schema:
    """schema.json, with its annotations; not to be changed."""
    text = resources.files("gpu_oci_hook.cdi").joinpath("schema.json").read_text(encoding="utf-8")
    loaded: Schema = json.loads(text)
    return loaded


@cache
def schema(version: str) -> Schema:
    """The strict JSON schema (draft 2020-12) of files that declare this version of CDI; not to be changed.

    Arguments:
        version: one of `versions.KNOWN`.
    """
    strict: Schema = _of(whole(), number(version))
    strict["$id"] = f"urn:gpu-oci-hook:cdi:{version}"
    strict["title"] = f"Container Device Interface file, version {version}"
    strict["description"] = 'x-words: a rule in words. x-level: "warning" where engines read what is forbidden.'
    strict["properties"]["cdiVersion"]["enum"] = [version, f"v{version}"]
    return strict


def number(version: str) -> tuple[int, ...]:
    """A version as something that can be compared: (0, 5, 0). Not a version: ()."""
    parts = version.removeprefix("v").split(".")
    return tuple(map(int, parts)) if all(part.isascii() and part.isdigit() and len(part) < 9 for part in parts) else ()


def knows(rule: Schema, version: tuple[int, ...]) -> bool:
    """Whether a property with this rule is in the version."""
    until = rule.get("x-until")
    return number(rule.get("x-since", "0")) <= version and (until is None or version <= number(until))


def resolved(rule: Schema) -> Schema:
    """A rule whose $ref, if it has one, is replaced by what it names; what stands beside the $ref wins."""
    while "$ref" in rule:
        named = whole()["$defs"][rule["$ref"].rpartition("/")[2]]
        rule = named | {key: value for key, value in rule.items() if key != "$ref"}
    return rule


def _of(rule: Any, version: tuple[int, ...]) -> Any:
    """A copy of a rule without what the version does not know, and with what each $ref names in its place."""
    if isinstance(rule, list):
        return [_of(one, version) for one in rule]
    if not isinstance(rule, dict):
        return rule
    rule = resolved(rule)
    copy: Schema = {}
    for key, value in rule.items():
        if key == "properties":
            copy[key] = {name: _of(one, version) for name, one in value.items() if knows(one, version)}
        elif key not in ("$defs", "x-since", "x-until", "x-empty-counts", "x-features"):
            copy[key] = _of(value, version)
    later = [one["pattern"] for one in rule.get("x-features", ()) if number(one["since"]) > version]
    if later:
        copy["allOf"] = [*copy.get("allOf", ()), *({"not": {"pattern": pattern}} for pattern in later)]
    return copy
