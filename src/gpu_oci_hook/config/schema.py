"""Build the JSON schema of config.toml from the rows of `config.keys` and their descriptions.

config.schema.json is this schema as a file, for editors.

Import budget: cold.
"""

from __future__ import annotations

from typing import Any

from gpu_oci_hook.config.descriptions import KEY_DESCRIPTIONS, TABLE_DESCRIPTIONS, USER_FILE_DESCRIPTIONS
from gpu_oci_hook.config.keys import CAPABILITIES, KEYS, USER_FILE_KEYS
from gpu_oci_hook.config.rules import CONTROL_CHARACTERS, LIST_RULES, STRING_PATTERNS

JsonSchema = dict[str, Any]

EXPECTED = "x-expected"
"""The annotation that says in words what a value must be."""

_TEXT_REFERENCE = {"$ref": "#/$defs/text"}
_CAPABILITY_REFERENCE = {"$ref": "#/$defs/capability"}


def build_config_schema() -> JsonSchema:
    """Build the schema of a config file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:gpu-oci-hook:config:1",
        "title": "gpu-oci-hook config.toml",
        "description": "Every key is optional. Unknown keys never stop a container: the runtime logs a warning, and "
        "`gpu-oci-hook config validate` reports an error.",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            table: {
                "description": description,
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    key: _build_key_schema(key, default, rule) for owner, key, default, rule in KEYS if owner == table
                },
            }
            for table, description in TABLE_DESCRIPTIONS.items()
        },
        "$defs": {
            "text": {"type": "string", "not": {"pattern": CONTROL_CHARACTERS}},
            "capability": {"enum": list(CAPABILITIES)},
            "file": _build_user_file_schema(),
        },
    }


def _build_key_schema(key: str, default: object, rule: object) -> JsonSchema:
    return {
        "description": KEY_DESCRIPTIONS[key],
        **_build_value_schema(rule),
        "default": list(default) if isinstance(default, tuple) else default,
    }


def _build_value_schema(rule: object) -> JsonSchema:
    if isinstance(rule, tuple):
        if rule[0] != "list":
            return {"enum": list(rule)}
        items: JsonSchema = _CAPABILITY_REFERENCE if rule[1:] == CAPABILITIES else {"enum": list(rule[1:])}
        return _build_list_schema(items)
    if rule == "bool":
        return {"type": "boolean"}
    if rule == "user files":
        return {"type": "array", EXPECTED: "tables ([[inject.extra]])", "items": {"$ref": "#/$defs/file"}}
    if rule in LIST_RULES:
        schema = _build_list_schema(_build_string_schema(LIST_RULES[str(rule)]))
        return {**schema, "minItems": 1} if rule == "programs" else schema
    return _build_string_schema(str(rule))


def _build_list_schema(items: JsonSchema) -> JsonSchema:
    return {"type": "array", EXPECTED: "a list of strings", "items": items}


def _build_string_schema(rule: str) -> JsonSchema:
    if rule == "string":
        return {**_TEXT_REFERENCE, "minLength": 1}
    pattern, expected = STRING_PATTERNS[rule]
    return {**_TEXT_REFERENCE, "pattern": pattern, EXPECTED: expected}


def _build_user_file_schema() -> JsonSchema:
    return {
        "type": "object",
        "required": ["path"],
        "additionalProperties": False,
        "properties": {
            key: {"description": USER_FILE_DESCRIPTIONS[key], **_build_value_schema(rule)}
            for key, _, rule in USER_FILE_KEYS
        },
        "if": {"required": ["path", "kind"], "properties": {"kind": {"const": "library"}}},
        "then": {"not": {"required": ["container"]}},
    }
