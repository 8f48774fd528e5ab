"""Format values as TOML.

Import budget: cold.
"""

from __future__ import annotations

import json


def format_toml(value: object) -> str:
    """Format a string, boolean, table or list as TOML, whose strings are JSON's except for DEL."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {format_toml(entry)}" for key, entry in value.items()) + " }"
    if isinstance(value, tuple | list):
        return f"[{', '.join(format_toml(item) for item in value)}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
