"""The keywords of JSON schema that schema.json uses, each with a sentence for people.

jsonschema, the library, is the oracle in the tests: both find fault with the same documents. It is not used here
because what it says of a pattern or an anyOf helps nobody, and its import alone costs more than all of this.

Cost rule: cold; linear in the document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from gpu_oci_hook.cdi.spec.finding import Level
from gpu_oci_hook.errors import clip_text, find_close_match
from gpu_oci_hook.formats.json_lines import join_json_path


class Violation(NamedTuple):
    """A rule that a value breaks. level, where, text, hint: as in a Finding. keyword: of JSON schema."""

    level: Level
    where: str
    text: str
    hint: str
    keyword: str


def find_schema_violations(value: object, rule: Schema, where: str = "") -> Iterator[Violation]:
    """Every rule that a value breaks, in the order of the document.

    Arguments:
        value: plain JSON types.
        rule: `schema_check.load_full_schema()` or `schema_check.build_version_schema(version)`, or a part of one.
        where: the JSON path of the value.
    """
    rule = resolve_schema_ref(rule)
    for keyword, check in _KEYWORD_CHECKS:
        if keyword not in rule:
            continue
        broken = False
        for breach in check(value, rule, where):
            broken = True
            yield breach._replace(level=rule["x-level"]) if "x-level" in rule else breach
        if broken and (keyword == "type" or not isinstance(value, list | dict)):
            return  # one reason is enough for a value


def describe_json_type(value: object) -> str:
    """The kind of a JSON value in words."""
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
    """Whether a value is of a type of JSON schema's."""
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
            "error", where, f"must be {_TYPE_NAMES[rule['type']]}, is {describe_json_type(value)}", "", "type"
        )


def _check_enum(value: object, rule: Schema, where: str) -> Iterator[Violation]:
    if value in rule["enum"] and not isinstance(value, bool):
        return
    choice = [one for one in rule["enum"] if one]
    if not isinstance(value, str):
        yield Violation("error", where, f"must be text, is {describe_json_type(value)}", "", "enum")
        return
    near = find_close_match(value, choice)
    cure = f"Did you mean {near}?" if near else f"One of {', '.join(choice)}"
    yield Violation("error", where, f"{quote_value(value)} is not known", cure, "enum")


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
        words = rule.get("x-words", f"{rule['minimum']} or more")
        yield Violation("error", where, f"{value} is not {words}", "", "minimum")


def _check_maximum(value: object, rule: Schema, where: str) -> Iterator[Violation]:
    if is_json_type(value, "integer") and value > rule["maximum"]:
        yield Violation("error", where, f"{quote_value(str(value))} is more than {rule['maximum']}", "", "maximum")


def _check_items(value: object, rule: Schema, where: str) -> Iterator[Violation]:
    if isinstance(value, list):
        for index, one in enumerate(value):
            yield from find_schema_violations(one, rule["items"], join_json_path(where, index))


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
    known = rule.get("properties", {})
    free = rule.get("additionalProperties", True)
    names = rule.get("propertyNames")
    for key, one in value.items():
        here = join_json_path(where, key)
        if names is not None:
            yield from (breach._replace(where=here) for breach in find_schema_violations(key, names, here))
        if key in known:
            yield from find_schema_violations(one, known[key], here)
        elif isinstance(free, dict):
            yield from find_schema_violations(one, free, here)
        elif not free:
            text = "is no field that engines know here: they refuse the whole file"
            yield Violation("error", here, text, _suggest_field_fix(key, list(known)), "additionalProperties")


def _suggest_field_fix(key: str, known: list[str]) -> str:
    """What to do about an unknown field."""
    near = find_close_match(key, known)
    if near:
        return f"Did you mean {near}?"
    homes = [name for name, one in load_full_schema()["$defs"].items() if key in one.get("properties", ())]
    places = {"edits": "containerEdits", "device": "devices", "deviceNode": "deviceNodes", "mount": "mounts"}
    places |= {"hook": "hooks", "netDevice": "netDevices"}
    if homes:
        return f"It belongs in {' or '.join(places.get(home, home) for home in homes)}"
    return "Remove it"


def _check_all_of(value: object, rule: Schema, where: str) -> Iterator[Violation]:
    for one in rule["allOf"]:
        yield from find_schema_violations(value, one, where)


def _check_any_of(value: object, rule: Schema, where: str) -> Iterator[Violation]:
    if isinstance(value, dict) and all(next(find_schema_violations(value, one, where), None) for one in rule["anyOf"]):
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

# Everything that is checked, for the test that schema.json uses nothing else.
CHECKED_KEYWORDS = frozenset(keyword for keyword, _ in _KEYWORD_CHECKS) | {"additionalProperties"}


@cache
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """A pattern of the schema; its language is what ECMA and Python share."""
    return re.compile(pattern)


def quote_value(value: str) -> str:
    """A value in a sentence."""
    return f'"{clip_text(value, 80)}"'


Schema = dict[str, Any]


@cache
def load_full_schema() -> Schema:
    """schema.json, with its annotations; not to be changed."""
    text = resources.files("gpu_oci_hook.cdi.spec").joinpath("schema.json").read_text(encoding="utf-8")
    loaded: Schema = json.loads(text)
    return loaded


@cache
def build_version_schema(version: str) -> Schema:
    """The strict JSON schema (draft 2020-12) of files that declare this version of CDI; not to be changed.

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
    """A version as something that can be compared: (0, 5, 0). Not a version: ()."""
    parts = version.removeprefix("v").split(".")
    return tuple(map(int, parts)) if all(part.isascii() and part.isdigit() and len(part) < 9 for part in parts) else ()


def is_in_version(rule: Schema, version: tuple[int, ...]) -> bool:
    """Whether a property with this rule is in the version."""
    until = rule.get("x-until")
    return parse_cdi_version(rule.get("x-since", "0")) <= version and (
        until is None or version <= parse_cdi_version(until)
    )


def resolve_schema_ref(rule: Schema) -> Schema:
    """A rule whose $ref, if it has one, is replaced by what it names; what stands beside the $ref wins."""
    while "$ref" in rule:
        named = load_full_schema()["$defs"][rule["$ref"].rpartition("/")[2]]
        rule = named | {key: value for key, value in rule.items() if key != "$ref"}
    return rule


def _restrict_to_version(rule: Any, version: tuple[int, ...]) -> Any:
    """A copy of a rule without what the version does not know, and with what each $ref names in its place."""
    if isinstance(rule, list):
        return [_restrict_to_version(one, version) for one in rule]
    if not isinstance(rule, dict):
        return rule
    rule = resolve_schema_ref(rule)
    copy: Schema = {}
    for key, value in rule.items():
        if key == "properties":
            copy[key] = {
                name: _restrict_to_version(one, version) for name, one in value.items() if is_in_version(one, version)
            }
        elif key not in ("$defs", "x-since", "x-until", "x-empty-counts", "x-features"):
            copy[key] = _restrict_to_version(value, version)
    later = [one["pattern"] for one in rule.get("x-features", ()) if parse_cdi_version(one["since"]) > version]
    if later:
        copy["allOf"] = [*copy.get("allOf", ()), *({"not": {"pattern": pattern}} for pattern in later)]
    return copy
