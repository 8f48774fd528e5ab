"""Check a value against schema.json, with a sentence for people for each JSON schema keyword.

The library `jsonschema` is the oracle in the tests: both reject the same documents. It is not used here, because these
checks also run in a container start after a CDI file has changed, and because its messages about patterns and anyOf
help less (docs/architecture.md compares them). The time is linear in the size of the document.

Import budget: cold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from gpu_oci_hook.cdi.spec.finding import Level
from gpu_oci_hook.errors import clip_text, find_close_match
from gpu_oci_hook.formats.json_lines import join_json_path


class Violation(NamedTuple):
    """A rule that a value violates.

    Attributes:
        level, where, text, hint: see `Finding`.
        keyword: the JSON schema keyword; "" for rules beyond the schema.
    """

    level: Level
    where: str
    text: str
    hint: str
    keyword: str


def make_violation(level: Level, where: str, text: str, hint: str = "") -> Violation:
    """Make a violation of a rule beyond the schema."""
    return Violation(level, where, text, hint, "")


def find_schema_violations(value: object, rule: Schema, where: str = "") -> Iterator[Violation]:
    """Find every rule that a value violates, in the order of the document.

    Arguments:
        value: plain JSON types.
        rule: `load_full_schema()` or `build_version_schema(version)`, or a part of one.
        where: JSON path of the value.
    """
    rule = resolve_schema_ref(rule)
    for keyword, check in _KEYWORD_CHECKS:
        if keyword not in rule:
            continue
        is_violated = False
        for violation in check(value, rule, where):
            is_violated = True
            yield violation._replace(level=rule["x-level"]) if "x-level" in rule else violation
        if is_violated and (keyword == "type" or not isinstance(value, list | dict)):
            return  # one violation is enough for a value


def describe_json_type(value: object) -> str:
    """Describe the type of a JSON value for people."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a whole number" if isinstance(value, int) or value.is_integer() else "a fraction"
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, list) else "a mapping"


def is_json_type(value: object, type_name: str) -> bool:
    """Tell whether a value has a JSON schema type."""
    if type_name == "integer":
        return not isinstance(value, bool) and (
            isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        )
    return isinstance(value, {"object": dict, "array": list, "string": str, "boolean": bool}[type_name])


_TYPE_NAMES = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "boolean": "true or false",
}


def _check_type(value: object, rule: Schema, where: str) -> Iterator[Violation]:
    if not is_json_type(value, rule["type"]):
        yield Violation(
            "error", where, f"must be {_TYPE_NAMES[rule['type']]}, not {describe_json_type(value)}", "", "type"
        )


def _check_enum(value: object, rule: Schema, where: str) -> Iterator[Violation]:
    if value in rule["enum"] and not isinstance(value, bool):
        return
    choices = [choice for choice in rule["enum"] if choice]
    if not isinstance(value, str):
        yield Violation("error", where, f"must be text, not {describe_json_type(value)}", "", "enum")
        return
    close_match = find_close_match(value, choices)
    hint = f"Did you mean {close_match}?" if close_match else f"Use one of {', '.join(choices)}"
    yield Violation("error", where, f"{quote_value(value)} is not known", hint, "enum")


def _check_pattern(value: object, rule: Schema, where: str) -> Iterator[Violation]:
    if isinstance(value, str) and not compile_pattern(rule["pattern"]).search(value):
        yield Violation("error", where, f"{quote_value(value)} is not {rule.get('x-words', 'allowed')}", "", "pattern")


def _check_not(value: object, rule: Schema, where: str) -> Iterator[Violation]:
    if isinstance(value, str) and compile_pattern(rule["not"]["pattern"]).search(value):
        text = "has a NUL character, which no path, argument or variable can have"
        yield Violation("error", where, text if "\0" in value else f"{quote_value(value)} is not allowed", "", "not")


def _check_min_length(value: object, rule: Schema, where: str) -> Iterator[Violation]:
    if isinstance(value, str) and len(value) < rule["minLength"]:
        yield Violation("error", where, "is empty", "", "minLength")


def _check_minimum(value: object, rule: Schema, where: str) -> Iterator[Violation]:
    if is_json_type(value, "integer") and value < rule["minimum"]:
        expected = rule.get("x-words", f"{rule['minimum']} or more")
        yield Violation("error", where, f"{value} is not {expected}", "", "minimum")


def _check_maximum(value: object, rule: Schema, where: str) -> Iterator[Violation]:
    if is_json_type(value, "integer") and value > rule["maximum"]:
        yield Violation("error", where, f"{quote_value(str(value))} is more than {rule['maximum']}", "", "maximum")


def _check_items(value: object, rule: Schema, where: str) -> Iterator[Violation]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from find_schema_violations(item, rule["items"], join_json_path(where, index))


def _check_min_items(value: object, rule: Schema, where: str) -> Iterator[Violation]:
    if isinstance(value, list) and len(value) < rule["minItems"]:
        yield Violation("error", where, "is an empty list", "", "minItems")


def _check_required(value: object, rule: Schema, where: str) -> Iterator[Violation]:
    if isinstance(value, dict):
        for name in rule["required"]:
            if name not in value:
                yield Violation("error", where, f"has no {name}", "", "required")


def _check_properties(value: object, rule: Schema, where: str) -> Iterator[Violation]:
    if not isinstance(value, dict):
        return
    properties = rule.get("properties", {})
    other_rule = rule.get("additionalProperties", True)
    name_rule = rule.get("propertyNames")
    for key, member in value.items():
        json_path = join_json_path(where, key)
        if name_rule is not None:
            yield from find_schema_violations(key, name_rule, json_path)
        if key in properties:
            yield from find_schema_violations(member, properties[key], json_path)
        elif isinstance(other_rule, dict):
            yield from find_schema_violations(member, other_rule, json_path)
        elif not other_rule:
            text = "unknown field: engines refuse the whole file"
            hint = _suggest_field_fix(key, list(properties))
            yield Violation("error", json_path, text, hint, "additionalProperties")


def _suggest_field_fix(key: str, known: list[str]) -> str:
    """Suggest what to do about an unknown field."""
    close_match = find_close_match(key, known)
    if close_match:
        return f"Did you mean {close_match}?"
    owners = [name for name, rule in load_full_schema()["$defs"].items() if key in rule.get("properties", ())]
    if owners:
        return f"It belongs in {' or '.join(_FIELD_BY_DEFINITION.get(owner, owner) for owner in owners)}"
    return "Remove it"


# The field of a file that has objects of a definition in schema.json; others have the definition's name.
_FIELD_BY_DEFINITION = {
    "edits": "containerEdits",
    "device": "devices",
    "deviceNode": "deviceNodes",
    "mount": "mounts",
    "hook": "hooks",
    "netDevice": "netDevices",
}


def _check_all_of(value: object, rule: Schema, where: str) -> Iterator[Violation]:
    for part in rule["allOf"]:
        yield from find_schema_violations(value, part, where)


def _check_any_of(value: object, rule: Schema, where: str) -> Iterator[Violation]:
    if isinstance(value, dict) and all(
        next(find_schema_violations(value, part, where), None) for part in rule["anyOf"]
    ):
        yield Violation("error", where, f"has no {rule['x-words']}: engines refuse the whole file", "", "anyOf")


_KEYWORD_CHECKS: tuple[tuple[str, Any], ...] = (
    ("type", _check_type),
    ("enum", _check_enum),
    ("pattern", _check_pattern),
    ("not", _check_not),
    ("minLength", _check_min_length),
    ("minimum", _check_minimum),
    ("maximum", _check_maximum),
    ("required", _check_required),
    ("minItems", _check_min_items),
    ("properties", _check_properties),
    ("propertyNames", _check_properties),
    ("items", _check_items),
    ("allOf", _check_all_of),
    ("anyOf", _check_any_of),
)

# All keywords that are checked, for the test that schema.json uses no others.
CHECKED_KEYWORDS = frozenset(keyword for keyword, _ in _KEYWORD_CHECKS) | {"additionalProperties"}


@cache
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of the schema, which uses only what ECMA and Python share."""
    return re.compile(pattern)


def quote_value(value: str) -> str:
    """Quote a value for a sentence."""
    return f'"{clip_text(value, 80)}"'


Schema = dict[str, Any]


@cache
def load_full_schema() -> Schema:
    """Load schema.json with its annotations. Do not change the result."""
    text = Path(__file__).with_name("schema.json").read_text(encoding="utf-8")
    loaded: Schema = json.loads(text)
    return loaded


@cache
def build_version_schema(version: str) -> Schema:
    """Build the strict JSON schema (draft 2020-12) for files of one version of CDI. Do not change the result.

    Arguments:
        version: one of `versions.KNOWN_VERSIONS`.
    """
    strict: Schema = _restrict_to_version(load_full_schema(), parse_cdi_version(version))
    strict["$id"] = f"urn:gpu-oci-hook:cdi:{version}"
    strict["title"] = f"Container Device Interface file, version {version}"
    strict["description"] = 'x-words: a rule in words. x-level: "warning" where engines read what is forbidden.'
    strict["properties"]["cdiVersion"]["enum"] = [version, f"v{version}"]
    return strict


def parse_cdi_version(version: str) -> tuple[int, ...]:
    """Parse a version to a tuple that can be compared, such as (0, 5, 0); () if it is not a version."""
    parts = version.removeprefix("v").split(".")
    return tuple(map(int, parts)) if all(part.isascii() and part.isdigit() and len(part) < 9 for part in parts) else ()


def is_in_version(rule: Schema, version: tuple[int, ...]) -> bool:
    """Tell whether a version has the property with this rule."""
    until = rule.get("x-until")
    return parse_cdi_version(rule.get("x-since", "0")) <= version and (
        until is None or version <= parse_cdi_version(until)
    )


def resolve_schema_ref(rule: Schema) -> Schema:
    """Replace the $ref of a rule, if it has one, by the definition; keywords next to the $ref win."""
    while "$ref" in rule:
        definition = load_full_schema()["$defs"][rule["$ref"].rpartition("/")[2]]
        rule = definition | {key: value for key, value in rule.items() if key != "$ref"}
    return rule


def _restrict_to_version(rule: Any, version: tuple[int, ...]) -> Any:
    """Copy a rule without the fields that the version lacks, and with each $ref replaced by its definition."""
    if isinstance(rule, list):
        return [_restrict_to_version(part, version) for part in rule]
    if not isinstance(rule, dict):
        return rule
    rule = resolve_schema_ref(rule)
    copy: Schema = {}
    for key, value in rule.items():
        if key == "properties":
            copy[key] = {
                name: _restrict_to_version(part, version)
                for name, part in value.items()
                if is_in_version(part, version)
            }
        elif key not in ("$defs", "x-since", "x-until", "x-empty-counts", "x-features"):
            copy[key] = _restrict_to_version(value, version)
    later_patterns = [
        feature["pattern"] for feature in rule.get("x-features", ()) if parse_cdi_version(feature["since"]) > version
    ]
    if later_patterns:
        copy["allOf"] = [*copy.get("allOf", ()), *({"not": {"pattern": pattern}} for pattern in later_patterns)]
    return copy
