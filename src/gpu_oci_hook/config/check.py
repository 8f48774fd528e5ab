"""Turn the bytes of config.toml into a Config, or into findings with key, line and the closest known key.

The runtime shim runs this once after boot and after each change of the file, so it uses no library.
`config.schema_findings` finds the same with jsonschema for `gpu-oci-hook config validate`; a test compares both.

Import budget: cold.
"""

from __future__ import annotations

import re

from gpu_oci_hook.config.findings import ConfigFinding, RawFinding, locate_findings
from gpu_oci_hook.config.keys import KEYS, USER_FILE_KEYS, Config
from gpu_oci_hook.config.rules import (
    CONTROL_CHARACTERS,
    HAS_CONTROL_CHARACTER,
    IS_EMPTY,
    LACKS_PATH,
    LIBRARY_WITH_CONTAINER,
    LIST_RULES,
    NEEDS_PROGRAM,
    STRING_PATTERNS,
    TABLES,
    describe_mismatch,
    describe_unknown_key,
    describe_unknown_table,
    describe_unknown_user_file_key,
    describe_wrong_choice,
    describe_wrong_type,
)
from gpu_oci_hook.config.toml_document import parse_toml_document
from gpu_oci_hook.errors import Fault


def parse_checked_config(data: bytes, path: str) -> Config:
    """Parse and check a config file; see `load.parse_config`."""
    document, text = parse_toml_document(data, path)
    findings = check_config_document(document, text)
    wrong = [finding for finding in findings if finding.kind == "wrong"]
    if wrong:
        count = f"{len(wrong) - 1} more error{'' if len(wrong) == 2 else 's'}"
        more = f" ({count}; list them with: gpu-oci-hook config validate {path})" if len(wrong) > 1 else ""
        raise Fault(f"{wrong[0]}{more}", where=wrong[0].format_place(path))
    values: dict[str, object] = {}
    for table, key, _, _ in KEYS:
        content = document.get(table)
        if isinstance(content, dict) and key in content:
            value = content[key]
            if isinstance(value, list):
                value = tuple([_to_user_file_values(item) if isinstance(item, dict) else item for item in value])
            values[key.replace("-", "_")] = value
    return Config(path, tuple(f"{finding.format_place(path)}: {finding}" for finding in findings), **values)


def _to_user_file_values(table: dict[str, object]) -> tuple[object, ...]:
    return tuple([table.get(key, default) for key, default, _ in USER_FILE_KEYS])


def check_config_document(document: dict[str, object], text: str = "") -> list[ConfigFinding]:
    """Return everything that the rules do not allow, in the order of lines.

    Arguments:
        document: the parsed TOML.
        text: its text, for line numbers.
    """
    findings: list[RawFinding] = []
    for table, content in document.items():
        if table not in TABLES:
            findings.append(((table,), describe_unknown_table(table, content), "unknown"))
        elif not isinstance(content, dict):
            findings.append(((table,), describe_wrong_type("a table", content), "wrong"))
        else:
            findings += _check_table(table, content)
    return locate_findings(findings, text)


def _check_table(table: str, content: dict[str, object]) -> list[RawFinding]:
    rules = {key: rule for owner, key, _, rule in KEYS if owner == table}
    findings: list[RawFinding] = []
    for key, value in content.items():
        if key not in rules:
            findings.append(((table, key), describe_unknown_key(key, table), "unknown"))
        elif rules[key] == "user files":
            findings += [((table, key, *path), what, kind) for path, what, kind in _check_user_files(value)]
        else:
            findings += [((table, key, *path), what, "wrong") for path, what in _check_value(value, rules[key])]
    return findings


def _check_value(value: object, rule: object) -> list[tuple[tuple[str, ...], str]]:
    """Return (path below the key, problem) for each problem of a value."""
    item_rule: object = LIST_RULES.get(rule) if isinstance(rule, str) else None
    if isinstance(rule, tuple) and rule[0] == "list":
        item_rule = rule[1:]
    if item_rule is None:
        problem = _check_scalar(value, rule)
        return [((), problem)] if problem else []
    if not isinstance(value, list):
        return [((), describe_wrong_type("a list of strings", value))]
    if rule == "programs" and not value:
        return [((), NEEDS_PROGRAM)]
    problems = ((str(index), _check_scalar(item, item_rule)) for index, item in enumerate(value))
    return [((index,), problem) for index, problem in problems if problem]


def _check_user_files(value: object) -> list[RawFinding]:
    """Return the findings about [[inject.extra]], with paths below that key."""
    if not isinstance(value, list):
        return [((), describe_wrong_type("tables ([[inject.extra]])", value), "wrong")]
    rules = {key: rule for key, _, rule in USER_FILE_KEYS}
    findings: list[RawFinding] = []
    for position, table in enumerate(value):
        index = str(position)
        if not isinstance(table, dict):
            findings.append(((index,), describe_wrong_type("a table", table), "wrong"))
            continue
        for key, item in table.items():
            if key not in rules:
                findings.append(((index, key), describe_unknown_user_file_key(key), "unknown"))
                continue
            problem = _check_scalar(item, rules[key])
            if problem:
                findings.append(((index, key), problem, "wrong"))
        if "path" not in table:
            findings.append(((index,), LACKS_PATH, "wrong"))
        elif "container" in table and table.get("kind") == "library":
            findings.append(((index,), LIBRARY_WITH_CONTAINER, "wrong"))
    return findings


def _check_scalar(value: object, rule: object) -> str:
    """Return the problem of a single value, "" if there is none."""
    if rule == "bool":
        return "" if isinstance(value, bool) else describe_wrong_type("true or false", value)
    if not isinstance(value, str):
        return describe_wrong_type("a string", value)
    if isinstance(rule, tuple):
        return "" if value in rule else describe_wrong_choice(value, rule)
    if re.search(CONTROL_CHARACTERS, value):
        return HAS_CONTROL_CHARACTER
    if isinstance(rule, str) and rule in STRING_PATTERNS:
        pattern, expected = STRING_PATTERNS[rule]
        return "" if re.search(pattern, value) else describe_mismatch(expected, value)
    return "" if value else IS_EMPTY
