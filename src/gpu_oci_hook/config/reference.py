"""Render the reference of the config keys: the commented default file, the JSON schema file and Markdown tables.

Import budget: cold.
"""

from __future__ import annotations

import json
import textwrap

from gpu_oci_hook.config.descriptions import KEY_DESCRIPTIONS, TABLE_DESCRIPTIONS, USER_FILE_DESCRIPTIONS
from gpu_oci_hook.config.keys import KEYS, USER_FILE_KEYS
from gpu_oci_hook.config.schema import build_config_schema
from gpu_oci_hook.formats.toml_values import format_toml

_HEADER_COMMENT = """\
Configuration of gpu-oci-hook: /etc/gpu-oci-hook/config.toml, or the file that GPU_OCI_HOOK_CONFIG names.

The file may be missing, and every key may be left out. The values below are the defaults; remove the "#" to change \
one. `gpu-oci-hook config validate` checks a file, `gpu-oci-hook config show` prints the effective values.\
"""
_COMMENT_WIDTH = 104

_RULE_VALUES = {
    "bool": "`true`, `false`",
    "path": "absolute path",
    "path or empty": "absolute path, or empty",
    "paths": "list of absolute paths",
    "programs": "list of program names or absolute paths",
    "kind": "`vendor/class`",
    "kinds": "list of `vendor/class`",
    "strings": "list of strings",
    "user files": "tables, see below",
}


def render_default_config() -> str:
    """Render the commented default file, which config/config.toml is."""
    text = _format_comment(_HEADER_COMMENT)
    for table, description in TABLE_DESCRIPTIONS.items():
        text += f"\n{_format_comment(description)}[{table}]\n"
        for owner, key, default, rule in KEYS:
            if owner == table:
                text += f"\n{_format_comment(_describe_key(key, rule))}#{key} = {format_toml(default)}\n"
    return text


def render_config_schema() -> str:
    """Render the JSON schema, which config.schema.json is."""
    return json.dumps(build_config_schema(), indent=2) + "\n"


def render_config_table() -> str:
    """Render Markdown tables of all keys: a heading and a table for each table of the file."""
    parts = []
    for table, description in TABLE_DESCRIPTIONS.items():
        rows = [
            (key, format_toml(default), rule, KEY_DESCRIPTIONS[key])
            for owner, key, default, rule in KEYS
            if owner == table
        ]
        parts.append(f"### `[{table}]`\n\n{description}\n\n{_render_rows(rows)}")
    user_file_rows = [
        (key, format_toml(default) if default != "" else "", rule, USER_FILE_DESCRIPTIONS[key])
        for key, default, rule in USER_FILE_KEYS
    ]
    parts.append(f"### `[[inject.extra]]`\n\n{KEY_DESCRIPTIONS['extra']}\n\n{_render_rows(user_file_rows)}")
    return "\n".join(parts)


def _render_rows(rows: list[tuple[str, str, object, str]]) -> str:
    lines = ["| key | default | values | meaning |", "|---|---|---|---|"]
    for key, default, rule, description in rows:
        shown_default = f"`{default}`" if default else ""
        # An asterisk is common in patterns and would be read as emphasis.
        meaning = description.replace("*", "\\*")
        lines.append(f"| `{key}` | {shown_default} | {_describe_values(rule)} | {meaning} |")
    return "\n".join(lines) + "\n"


def _describe_values(rule: object) -> str:
    if not isinstance(rule, tuple):
        return _RULE_VALUES[str(rule)]
    choices = ", ".join(f"`{choice}`" for choice in (rule[1:] if rule[0] == "list" else rule))
    return f"list of {choices}" if rule[0] == "list" else choices


def _describe_key(key: str, rule: object) -> str:
    """Return the description of a key with its allowed strings."""
    description = KEY_DESCRIPTIONS[key]
    if isinstance(rule, tuple):
        *choices, last = [format_toml(choice) for choice in (rule[1:] if rule[0] == "list" else rule)]
        return f"{description} {'Items are' if rule[0] == 'list' else 'One of'} {', '.join(choices)} or {last}."
    if rule == "user files":
        return f"{description} Its keys: {_describe_user_file_keys()}"
    return description


def _describe_user_file_keys() -> str:
    descriptions = []
    for key, default, rule in USER_FILE_KEYS:
        text = USER_FILE_DESCRIPTIONS[key].removesuffix(".")
        text = f"{text[:1].lower()}{text[1:]}"
        if isinstance(rule, tuple) and default:
            text += f": {', '.join(format_toml(choice) for choice in rule)}; {format_toml(default)} by default"
        descriptions.append(f"{key} ({text})")
    return ", ".join(descriptions) + "."


def _format_comment(text: str) -> str:
    """Return the text as wrapped comment lines. An empty line stays a comment line."""
    paragraphs = text.split("\n\n")
    wrapped = ["\n".join(textwrap.wrap(part, _COMMENT_WIDTH, break_on_hyphens=False)) for part in paragraphs]
    return "".join(f"# {line}".rstrip() + "\n" for line in "\n\n".join(wrapped).split("\n"))
