"""Check a config file with jsonschema, with our sentences made from its errors.

The runtime shim cannot load jsonschema; it uses `config.check`.

Import budget: cold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jsonschema

from gpu_oci_hook.config.findings import ConfigFinding, FindingKind, RawFinding, locate_findings
from gpu_oci_hook.config.rules import (
    HAS_CONTROL_CHARACTER,
    IS_EMPTY,
    LACKS_PATH,
    LIBRARY_WITH_CONTAINER,
    NEEDS_PROGRAM,
    describe_mismatch,
    describe_unknown_key,
    describe_unknown_table,
    describe_unknown_user_file_key,
    describe_wrong_choice,
    describe_wrong_type,
)
from gpu_oci_hook.config.schema import EXPECTED, build_config_schema

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

# Of several errors about one value, the first of these counts.
_KEYWORD_ORDER = ("type", "not", "required", "enum", "minLength", "minItems", "pattern")

_TYPE_NAMES = {"object": "a table", "boolean": "true or false", "string": "a string"}
_FIXED_SENTENCES = {"minLength": IS_EMPTY, "minItems": NEEDS_PROGRAM, "required": LACKS_PATH}


def find_schema_findings(document: dict[str, object], text: str = "") -> list[ConfigFinding]:
    """Return everything that the JSON schema does not allow, in the order of lines.

    Arguments:
        document: the parsed TOML.
        text: its text, for line numbers.
    """
    findings: dict[tuple[str, ...], tuple[str, FindingKind]] = {}
    errors = jsonschema.Draft202012Validator(build_config_schema()).iter_errors(document)
    for error in sorted(errors, key=_rank_error):
        for path, what, kind in _describe_error(error):
            findings.setdefault(path, (what, kind))
    return locate_findings([(path, what, kind) for path, (what, kind) in findings.items()], text)


def _rank_error(error: ValidationError) -> int:
    keyword = str(error.validator)
    return _KEYWORD_ORDER.index(keyword) if keyword in _KEYWORD_ORDER else len(_KEYWORD_ORDER)


def _describe_error(error: ValidationError) -> list[RawFinding]:
    path = tuple(map(str, error.absolute_path))
    if error.validator == "additionalProperties":
        table: Any = error.instance
        schema: Any = error.schema
        unknown = [key for key in table if key not in schema["properties"]]
        return [((*path, key), _describe_unknown(path, key, table[key]), "unknown") for key in unknown]
    return [(path, _describe_wrong_value(error), "wrong")]


def _describe_unknown(path: tuple[str, ...], key: str, value: object) -> str:
    if not path:
        return describe_unknown_table(key, value)
    return describe_unknown_key(key, path[0]) if len(path) == 1 else describe_unknown_user_file_key(key)


def _describe_wrong_value(error: ValidationError) -> str:
    keyword = str(error.validator)
    value: Any = error.instance
    schema: Any = error.schema
    expectation: Any = error.validator_value
    if keyword == "type":
        return describe_wrong_type(schema.get(EXPECTED) or _TYPE_NAMES[expectation], value)
    if keyword == "enum":
        if not isinstance(value, str):
            return describe_wrong_type("a string", value)
        return describe_wrong_choice(value, tuple(expectation))
    if keyword == "pattern":
        return describe_mismatch(schema[EXPECTED], value)
    if keyword == "not":
        return HAS_CONTROL_CHARACTER if isinstance(value, str) else LIBRARY_WITH_CONTAINER
    return _FIXED_SENTENCES.get(keyword, error.message)
