"""The rules of config values: patterns, expectations in words, and the sentences about values that break them.

Both checks of a config file use them: `config.check`, which needs no library and runs in the runtime shim, and
`config.schema_findings`, which uses jsonschema.

Import budget: cold.
"""

from __future__ import annotations

from gpu_oci_hook.config.keys import KEYS, USER_FILE_KEYS
from gpu_oci_hook.errors import find_close_match

TABLES = tuple(dict.fromkeys(row[0] for row in KEYS))

# A name in the CDI specification's grammar: a letter, then letters, digits, "_-.", not ending in one of those three.
_CDI_NAME = "[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?"

STRING_PATTERNS = {
    "path": ("^/", "an absolute path"),
    "path or empty": ("^(/|$)", "an absolute path"),
    "program": ("^(/|[^/]+$)", "a program name or an absolute path"),
    "kind": (f"^{_CDI_NAME}/{_CDI_NAME}$", "a CDI kind (vendor/class)"),
}
"""For each rule of a single string, the pattern that it must match and what it must be."""

LIST_RULES = {"paths": "path", "programs": "program", "kinds": "kind", "strings": "string"}
"""For each rule of a list, the rule of its items."""

CONTROL_CHARACTERS = "[\\u0000-\\u001f\\u007f]"
HAS_CONTROL_CHARACTER = "has a control character"
IS_EMPTY = "must not be empty"
NEEDS_PROGRAM = "must name at least one program"
LACKS_PATH = "path is missing (the file on the host)"
LIBRARY_WITH_CONTAINER = "is a library, which is placed where the loader finds it; remove container"

# Keys of the NVIDIA container toolkit's config.toml, and what replaces them here.
_TOOLKIT_KEY_HINTS = {
    "no-cgroups": "decided per container; remove it",
    "no-devbind": "decided per container; remove it",
    "no-pivot": "containers are not entered; remove it",
    "ldconfig": "no ldconfig is run; remove it",
    "ldcache": "found below [host] driver-root; remove it",
    "load-kmods": "use [host] load-modules",
    "user": "no helper process is started; remove it",
    "path": "no helper process is started; remove it",
    "environment": "no helper process is started; remove it",
    "debug": "use [runtime] log-file",
    "runtimes": "use [runtime] low-level",
    "mode": "there is only one mode; remove it",
    "cuda-compat-mode": "use [inject] cuda-compat",
    "supported-driver-capabilities": "use [request] supported-capabilities",
    "accept-nvidia-visible-devices-envvar-when-unprivileged": 'use [request] env = "always" or "privileged"',
    "accept-nvidia-visible-devices-as-volume-mounts": "use [request] volume-mounts",
    "skip-mode-detection": "there is only one mode; remove it",
    "swarm-resource": 'use [request] device-variables, a list such as ["DOCKER_RESOURCE_GPU"]',
}
_TOOLKIT_TABLES = (
    "nvidia-container-cli",
    "nvidia-container-runtime",
    "nvidia-container-runtime-hook",
    "nvidia-ctk",
)


def describe_wrong_type(expected: str, value: object) -> str:
    """Say that a value has the wrong type."""
    return f"must be {expected}, not {_describe_toml_value(value)}"


def describe_wrong_choice(value: str, choices: tuple[str, ...]) -> str:
    """Say that a string is not one of the allowed ones."""
    close = _find_close_key(value, choices)
    suggestion = f" (did you mean {close}?)" if close else ""
    return f"{_quote_shortened(value)} is not one of {', '.join(choices)}{suggestion}"


def describe_mismatch(expected: str, value: str) -> str:
    """Say that a string does not match the pattern of its rule."""
    return f"{_quote_shortened(value)} is not {expected}"


def describe_unknown_table(name: str, content: object) -> str:
    """Say that a name at the top level is unknown."""
    if not isinstance(content, dict):
        return describe_unknown_key(name, "")
    hints = [f"{key}: {_TOOLKIT_KEY_HINTS[key]}" for key in content if key in _TOOLKIT_KEY_HINTS]
    if name in _TOOLKIT_TABLES:
        return "; ".join(["a table of the NVIDIA container toolkit's config", *hints])
    close = _find_close_key(name, TABLES)
    advice = f"did you mean [{close}]?" if close else f"the tables are {', '.join(TABLES)}"
    return "; ".join([f"unknown table; {advice}", *hints])


def describe_unknown_key(key: str, table: str) -> str:
    """Say that a key is unknown in its table ("" for the top level)."""
    if key in _TOOLKIT_KEY_HINTS:
        return f"unknown key: {_TOOLKIT_KEY_HINTS[key]}"
    tables = {name: owner for owner, name, _, _ in KEYS}
    if key in tables:
        return f"unknown key here; it belongs in [{tables[key]}]"
    close = _find_close_key(key, [name for name, owner in tables.items() if owner == table])
    if close:
        return f"unknown key; did you mean {close}?"
    close = _find_close_key(key, list(tables))
    return f"unknown key; did you mean {close} in [{tables[close]}]?" if close else "unknown key"


def describe_unknown_user_file_key(key: str) -> str:
    """Say that a key is unknown in a table of [[inject.extra]]."""
    close = _find_close_key(key, [name for name, _, _ in USER_FILE_KEYS])
    return f"unknown key; did you mean {close}?" if close else "unknown key"


def _find_close_key(name: str, known: tuple[str, ...] | list[str]) -> str:
    return find_close_match(name[:100].replace("_", "-"), known)


def _describe_toml_value(value: object) -> str:
    """Return the TOML type of a value, with the value if it is short."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"the string {_quote_shortened(value)}"
    if isinstance(value, int | float):
        return "a number" if isinstance(value, int) and abs(value) >= 1 << 64 else f"the number {value}"
    return "a list" if isinstance(value, list) else "a table" if isinstance(value, dict) else "a date or time"


def _quote_shortened(value: str) -> str:
    shown = value if len(value) <= 60 else value[:57] + "..."
    return f'"{shown}"'
