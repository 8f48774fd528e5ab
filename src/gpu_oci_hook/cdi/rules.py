"""The keywords of JSON schema that schema.json uses, each with a sentence for people.

jsonschema, the library, is the oracle in the tests: both find fault with the same documents. It is not used here
because what it says of a pattern or an anyOf helps nobody, and because it costs ten times the reading of a file.

Cost rule: cold; linear in the document.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from gpu_oci_hook.cdi.finding import Level, join
from gpu_oci_hook.cdi.schema import Schema, resolved, whole
from gpu_oci_hook.errors import clipped, nearest


class Breach(NamedTuple):
    """A rule that a value breaks. level, where, text, cure: as in a Finding. keyword: of JSON schema."""

    level: Level
    where: str
    text: str
    cure: str
    keyword: str


def breaches(value: object, rule: Schema, where: str = "") -> Iterator[Breach]:
    """Every rule that a value breaks, in the order of the document.

    Arguments:
        value: plain JSON types.
        rule: `schema.whole()` or `schema.schema(version)`, or a part of one.
        where: the JSON path of the value.
    """
    rule = resolved(rule)
    for keyword, check in _CHECKS:
        if keyword not in rule:
            continue
        broken = False
        for breach in check(value, rule, where):
            broken = True
            yield breach._replace(level=rule["x-level"]) if "x-level" in rule else breach
        if broken and (keyword == "type" or not isinstance(value, list | dict)):
            return  # one reason is enough for a value


def kind(value: object) -> str:
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


def is_of(value: object, name: str) -> bool:
    """Whether a value is of a type of JSON schema's."""
    if name == "integer":
        return not isinstance(value, bool) and (
            isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        )
    return isinstance(value, {"object": dict, "array": list, "string": str, "boolean": bool}[name])


_TYPES = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "boolean": "true or false",
}


def _type(value: object, rule: Schema, where: str) -> Iterator[Breach]:
    if not is_of(value, rule["type"]):
        yield Breach("error", where, f"must be {_TYPES[rule['type']]}, is {kind(value)}", "", "type")


def _enum(value: object, rule: Schema, where: str) -> Iterator[Breach]:
    if value in rule["enum"] and not isinstance(value, bool):
        return
    choice = [one for one in rule["enum"] if one]
    if not isinstance(value, str):
        yield Breach("error", where, f"must be text, is {kind(value)}", "", "enum")
        return
    near = nearest(value, choice)
    cure = f"Did you mean {near}?" if near else f"One of {', '.join(choice)}"
    yield Breach("error", where, f"{shown(value)} is not known", cure, "enum")


def _pattern(value: object, rule: Schema, where: str) -> Iterator[Breach]:
    if isinstance(value, str) and not compiled(rule["pattern"]).search(value):
        yield Breach("error", where, f"{shown(value)} is not {rule.get('x-words', 'allowed')}", "", "pattern")


def _not(value: object, rule: Schema, where: str) -> Iterator[Breach]:
    if isinstance(value, str) and compiled(rule["not"]["pattern"]).search(value):
        text = "has a NUL character, which no path, argument or variable can have"
        yield Breach("error", where, text if "\0" in value else f"{shown(value)} is not allowed", "", "not")


def _length(value: object, rule: Schema, where: str) -> Iterator[Breach]:
    if isinstance(value, str) and len(value) < rule["minLength"]:
        yield Breach("error", where, "is empty", "", "minLength")


def _least(value: object, rule: Schema, where: str) -> Iterator[Breach]:
    if is_of(value, "integer") and value < rule["minimum"]:
        words = rule.get("x-words", f"{rule['minimum']} or more")
        yield Breach("error", where, f"{value} is not {words}", "", "minimum")


def _greatest(value: object, rule: Schema, where: str) -> Iterator[Breach]:
    if is_of(value, "integer") and value > rule["maximum"]:
        yield Breach("error", where, f"{shown(str(value))} is more than {rule['maximum']}", "", "maximum")


def _items(value: object, rule: Schema, where: str) -> Iterator[Breach]:
    if isinstance(value, list):
        for index, one in enumerate(value):
            yield from breaches(one, rule["items"], join(where, index))


def _count(value: object, rule: Schema, where: str) -> Iterator[Breach]:
    if isinstance(value, list) and len(value) < rule["minItems"]:
        yield Breach("error", where, "is an empty list", "", "minItems")


def _required(value: object, rule: Schema, where: str) -> Iterator[Breach]:
    if isinstance(value, dict):
        for name in rule["required"]:
            if name not in value:
                yield Breach("error", where, f"has no {name}", "", "required")


def _properties(value: object, rule: Schema, where: str) -> Iterator[Breach]:
    if not isinstance(value, dict):
        return
    known = rule.get("properties", {})
    free = rule.get("additionalProperties", True)
    names = rule.get("propertyNames")
    for key, one in value.items():
        here = join(where, key)
        if names is not None:
            yield from (breach._replace(where=here) for breach in breaches(key, names, here))
        if key in known:
            yield from breaches(one, known[key], here)
        elif isinstance(free, dict):
            yield from breaches(one, free, here)
        elif not free:
            text = "is no field that engines know here: they refuse the whole file"
            yield Breach("error", here, text, _advice(key, list(known)), "additionalProperties")


def _advice(key: str, known: list[str]) -> str:
    """What to do about an unknown field."""
    near = nearest(key, known)
    if near:
        return f"Did you mean {near}?"
    homes = [name for name, one in whole()["$defs"].items() if key in one.get("properties", ())]
    places = {"edits": "containerEdits", "device": "devices", "deviceNode": "deviceNodes", "mount": "mounts"}
    places |= {"hook": "hooks", "netDevice": "netDevices"}
    if homes:
        return f"It belongs in {' or '.join(places.get(home, home) for home in homes)}"
    return "Remove it"


def _all(value: object, rule: Schema, where: str) -> Iterator[Breach]:
    for one in rule["allOf"]:
        yield from breaches(value, one, where)


def _any(value: object, rule: Schema, where: str) -> Iterator[Breach]:
    if isinstance(value, dict) and all(next(breaches(value, one, where), None) for one in rule["anyOf"]):
        yield Breach("error", where, f"has no {rule['x-words']}: engines refuse the whole file", "", "anyOf")


_CHECKS: tuple[tuple[str, Any], ...] = (
    ("type", _type),
    ("enum", _enum),
    ("pattern", _pattern),
    ("not", _not),
    ("minLength", _length),
    ("minimum", _least),
    ("maximum", _greatest),
    ("required", _required),
    ("minItems", _count),
    ("properties", _properties),
    ("propertyNames", _properties),
    ("items", _items),
    ("allOf", _all),
    ("anyOf", _any),
)

# Everything that is checked, for the test that schema.json uses nothing else.
KEYWORDS = frozenset(keyword for keyword, _ in _CHECKS) | {"additionalProperties"}


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """A pattern of the schema; its language is what ECMA and Python share."""
    return re.compile(pattern)


def shown(value: str) -> str:
    """A value in a sentence."""
    return f'"{clipped(value, 80)}"'
