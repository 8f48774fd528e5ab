"""Turns the bytes of config.toml into a Config, or into findings with key, line and the nearest known key.

Cost rule: cold. The shim imports this once after boot and each change of the file (so no dataclasses: they cost
5 ms); `config validate` always.
"""

from __future__ import annotations

import re
import tomllib
from typing import Literal, NamedTuple

from gpu_oci_hook.config.keys import KEYS, USER_FILE_KEYS, Config
from gpu_oci_hook.errors import Fault, find_close_match, make_printable

# The name grammar of the CDI specification: a letter, then letters, digits, "_-.", not ending in those three.
_CDI_KIND = re.compile("/".join(["[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"] * 2))

TABLES = tuple(dict.fromkeys(row[0] for row in KEYS))

# Keys that people bring along from another toolkit's config.toml, and what takes their place here.
_TOOLKIT_KEY_HINTS = {
    "no-cgroups": "decided per container; remove it",
    "no-devbind": "decided per container; remove it",
    "no-pivot": "nothing is entered any more; remove it",
    "ldconfig": "no ldconfig is run; remove it",
    "ldcache": "found below [host] driver-root; remove it",
    "load-kmods": "use [host] load-modules",
    "user": "no helper process is started; remove it",
    "path": "no helper process is started; remove it",
    "environment": "no helper process is started; remove it",
    "debug": "use [runtime] log-file",
    "runtimes": "use [runtime] low-level",
    "mode": "there is one way in; remove it",
    "cuda-compat-mode": "use [inject] cuda-compat",
    "supported-driver-capabilities": "use [request] supported-capabilities",
    "accept-nvidia-visible-devices-envvar-when-unprivileged": 'use [request] env = "always" or "privileged"',
    "accept-nvidia-visible-devices-as-volume-mounts": "use [request] volume-mounts",
    "skip-mode-detection": "there is one way in; remove it",
    "swarm-resource": "not supported; remove it",
}
_TOOLKIT_TABLES = (
    "nvidia-container-cli",
    "nvidia-container-runtime",
    "nvidia-container-runtime-hook",
    "nvidia-ctk",
)


class TomlFault(Fault):
    """The file is not TOML; knows the place.

    Arguments:
        what: the parser's reason.
        path: the file.
        line: counted from 1.
        column: counted from 1, in characters.
        text: the line as it stands in the file.
    """

    def __init__(self, what: str, path: str, line: int, column: int, text: str) -> None:
        super().__init__(f"not TOML: {what}", where=f"{path}: line {line}, column {column}")
        self.line = line
        self.column = column
        self.text = text

    def caret(self) -> str:
        """The line and, under it, a caret at the column: two lines, at most 100 characters wide."""
        start = max(0, self.column - 80)
        shown = make_printable(self.text[start : self.column - 1].replace("\t", " "))
        rest = make_printable(self.text[self.column - 1 : start + 100].replace("\t", " "))
        return f"  {shown}{rest}\n  {' ' * len(shown)}^"


class ConfigFinding(NamedTuple):
    """One thing that is not right in a config file.

    Arguments:
        key: its path, such as "request.env" or "cdi.spec-dirs.1".
        line: where it stands, 0 when that could not be found out.
        what: what is wrong, as a sentence without its full stop.
        kind: "unknown" keys are a warning for the shim; a "wrong" value always stops.
    """

    key: str
    line: int
    what: str
    kind: Literal["unknown", "wrong"]

    def __str__(self) -> str:
        return make_printable(f"line {self.line}: {self.key}: {self.what}" if self.line else f"{self.key}: {self.what}")


def parse_checked_config(data: bytes, path: str) -> Config:
    """See `load.parse_config`."""
    document, text = parse_toml_document(data, path)
    findings = check_config_document(document, text)
    wrong = [finding for finding in findings if finding.kind == "wrong"]
    if wrong:
        more = f" (and {len(wrong) - 1} more: gpu-oci-hook config validate)" if len(wrong) > 1 else ""
        raise Fault(f"{wrong[0]}{more}", where=path)
    values: dict[str, object] = {}
    for table, key, _, _ in KEYS:
        given = document.get(table)
        if isinstance(given, dict) and key in given:
            value = given[key]
            if isinstance(value, list):
                value = tuple([_to_user_file_values(item) if isinstance(item, dict) else item for item in value])
            values[key.replace("-", "_")] = value
    return Config(path, tuple(f"{path}: {finding}" for finding in findings), **values)


def _to_user_file_values(table: dict[str, object]) -> tuple[object, ...]:
    return tuple([table.get(key, default) for key, default, _ in USER_FILE_KEYS])


def parse_toml_document(data: bytes, path: str) -> tuple[dict[str, object], str]:
    """The TOML document in these bytes, and its text.

    Raises:
        Fault: not UTF-8, NUL bytes, a byte order mark.
        TomlFault: UTF-8, but not TOML.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise Fault("the config file is written in UTF-16", where=path, hint="Save it as UTF-8")
    if data.startswith(b"\xef\xbb\xbf"):
        raise Fault("the config file starts with a byte order mark", where=path, hint="Save it as UTF-8 without one")
    if b"\0" in data:
        line = data.count(b"\n", 0, data.index(b"\0")) + 1
        raise Fault("the config file has a NUL byte", where=f"{path}: line {line}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Fault("the config file is not UTF-8", where=f"{path}: line {line}") from error
    try:
        return tomllib.loads(text), text
    except RecursionError as error:
        raise Fault("not TOML that anybody writes: too deeply nested", where=path) from error
    except ValueError as error:  # TOMLDecodeError is one; so is an integer of more than 4300 digits
        raise _to_toml_fault(error, path, text) from error


def _to_toml_fault(error: ValueError, path: str, text: str) -> TomlFault:
    """The parser's complaint with its place taken out of the text (an attribute only from Python 3.14 on)."""
    message = str(error)
    # What tomllib (Python 3.11 to 3.14) says of something that is there twice.
    message = message.replace("Cannot overwrite a value", "this key is set twice")
    message = re.sub(r"^Cannot declare \('(\w+)',\) twice", r"the table [\1] is there twice", message)
    lines = text.replace("\r\n", "\n").split("\n")
    place = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    if place:
        line, column = int(place[1]), int(place[2])
        message = message[: place.start()]
    elif message.endswith(" (at end of document)"):
        line = max((number for number, one in enumerate(lines, 1) if one.strip()), default=1)
        column = len(lines[line - 1]) + 1
        message = message.removesuffix(" (at end of document)") + " at the end of the file"
    else:
        line = column = 1
    shown = lines[line - 1] if line <= len(lines) else ""
    return TomlFault(message[:1].lower() + message[1:], path, line, column, shown)


def check_config_document(document: dict[str, object], text: str = "") -> list[ConfigFinding]:
    """Everything in the document that the schema does not allow, in the order of the file's lines.

    Arguments:
        document: the parsed TOML.
        text: its source, for line numbers.
    """
    found: list[tuple[tuple[str, ...], str, Literal["unknown", "wrong"]]] = []
    for table, content in document.items():
        if table not in TABLES:
            found.append(((table,), _explain_unknown_table(table, content), "unknown"))
        elif not isinstance(content, dict):
            found.append(((table,), f"must be a table, is {_describe_toml_value(content)}", "wrong"))
        else:
            rules = {key: rule for owner, key, _, rule in KEYS if owner == table}
            for key, value in content.items():
                if key not in rules:
                    found.append(((table, key), _explain_unknown_key(key, table), "unknown"))
                    continue
                if rules[key] == "files":
                    found += [((table, key, *place), what, sort) for place, what, sort in _check_user_files(value)]
                    continue
                for place, what in _check_value(value, rules[key]):
                    found.append(((table, key, *place), what, "wrong"))
    if not found:
        return []
    where = find_key_lines(text)
    findings = [ConfigFinding(".".join(path), _find_line(where, path), what, kind) for path, what, kind in found]
    return sorted(findings, key=lambda finding: finding.line)


def _check_value(value: object, rule: object) -> list[tuple[tuple[str, ...], str]]:
    """What is wrong with one value: pairs of (path below the key, sentence)."""
    listed = rule in ("paths", "programs", "words") or (isinstance(rule, tuple) and rule[0] == "list")
    if not listed:
        what = _check_scalar(value, rule)
        return [((), what)] if what else []
    if not isinstance(value, list):
        return [((), f"must be a list of strings, is {_describe_toml_value(value)}")]
    if rule == "programs" and not value:
        return [((), "must name at least one program")]
    item = {"paths": "path", "programs": "program", "words": "word"}.get(str(rule))
    one = item if item else rule[1:] if isinstance(rule, tuple) else rule
    answers = ((str(index), _check_scalar(entry, one)) for index, entry in enumerate(value))
    return [((index,), what) for index, what in answers if what]


def _check_user_files(value: object) -> list[tuple[tuple[str, ...], str, Literal["unknown", "wrong"]]]:
    """What is wrong with a list of tables of `keys.USER_FILE_KEYS`."""
    if not isinstance(value, list):
        return [((), f"must be tables ([[inject.extra]]), is {_describe_toml_value(value)}", "wrong")]
    rules = {key: rule for key, _, rule in USER_FILE_KEYS}
    found: list[tuple[tuple[str, ...], str, Literal["unknown", "wrong"]]] = []
    for index, table in enumerate(value):
        here = str(index)
        if not isinstance(table, dict):
            found.append(((here,), f"must be a table, is {_describe_toml_value(table)}", "wrong"))
            continue
        for key, entry in table.items():
            if key not in rules:
                near = _find_nearest_key(key, list(rules))
                found.append(((here, key), "unknown key" + (f"; did you mean {near}?" if near else ""), "unknown"))
                continue
            what = _check_scalar(entry, rules[key])
            if what:
                found.append(((here, key), what, "wrong"))
        if "path" not in table:
            found.append(((here,), "has no path: the file on the host", "wrong"))
        elif "container" in table and table.get("kind") == "library":
            found.append(((here,), "is a library, whose place is chosen for the loader; remove container", "wrong"))
    return found


def _check_scalar(value: object, rule: object) -> str:
    """What is wrong with a single value; empty when it is right."""
    if rule == "bool":
        return "" if isinstance(value, bool) else f"must be true or false, is {_describe_toml_value(value)}"
    if not isinstance(value, str):
        return f"must be a string, is {_describe_toml_value(value)}"
    if isinstance(rule, tuple):
        if value in rule:
            return ""
        near = _find_nearest_key(value, rule)
        return f"{_quote_shortened(value)} is not one of {', '.join(rule)}{f' (did you mean {near}?)' if near else ''}"
    if any(character < " " or character == "\x7f" for character in value):
        return "has a control character"
    if rule == "path or empty":
        return "" if not value or value.startswith("/") else f"{_quote_shortened(value)} is not an absolute path"
    if rule == "path":
        return "" if value.startswith("/") else f"{_quote_shortened(value)} is not an absolute path"
    if rule == "program":
        right = value.startswith("/") or (value and "/" not in value)
        return "" if right else f"{_quote_shortened(value)} is neither a program's name nor an absolute path"
    if rule == "kind":
        return "" if _CDI_KIND.fullmatch(value) else f"{_quote_shortened(value)} is not a CDI kind (vendor/class)"
    return "" if value else "must not be empty"


def _explain_unknown_table(name: str, content: object) -> str:
    """The sentence for a name at the top level that is none of our tables."""
    if isinstance(content, dict):
        answers = [f"{key}: {_TOOLKIT_KEY_HINTS[key]}" for key in content if key in _TOOLKIT_KEY_HINTS]
        if name in _TOOLKIT_TABLES:
            return "; ".join(["a table of another toolkit's config", *answers])
        near = _find_nearest_key(name, TABLES)
        advice = f"; did you mean [{near}]?" if near else f"; the tables are {', '.join(TABLES)}"
        return "; ".join(["unknown table" + advice, *answers])
    return _explain_unknown_key(name, "")


def _explain_unknown_key(key: str, table: str) -> str:
    """The sentence for a key that is not known in its table ("" = the top level)."""
    if key in _TOOLKIT_KEY_HINTS:
        return f"unknown key: {_TOOLKIT_KEY_HINTS[key]}"
    elsewhere = [owner for owner, name, _, _ in KEYS if name == key]
    if elsewhere:
        return f"unknown key here; it belongs into [{elsewhere[0]}]"
    near = _find_nearest_key(key, [name for owner, name, _, _ in KEYS if owner == table])
    if near:
        return f"unknown key; did you mean {near}?"
    near = _find_nearest_key(key, [name for _, name, _, _ in KEYS])
    if near:
        owner = next(owner for owner, name, _, _ in KEYS if name == near)
        return f"unknown key; did you mean {near} in [{owner}]?"
    return "unknown key"


def _find_nearest_key(word: str, known: tuple[str, ...] | list[str]) -> str:
    """The known word that looks most like this one, "" when none does."""
    return find_close_match(word[:100].replace("_", "-"), known)


def _describe_toml_value(value: object) -> str:
    """A value's TOML type, with the value where it is short."""
    names = {
        bool: "",
        int: "the number ",
        float: "the number ",
        str: "the string ",
        list: "a list",
        dict: "a table",
    }
    name = names.get(type(value), "a date or time")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return name + _quote_shortened(value)
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return "a number"
    return f"{name}{value}" if isinstance(value, int | float) else name


def _quote_shortened(value: str) -> str:
    shown = value if len(value) <= 60 else value[:57] + "..."
    return f'"{shown}"'


def find_key_lines(text: str) -> dict[tuple[str, ...], int]:
    """The line on which each table and key of a valid TOML document is set.

    A statement of TOML (a header, a key with its value) is a document of its own, so the text is cut into
    statements by asking the parser: lines are gathered until they parse.
    """
    found: dict[tuple[str, ...], int] = {}
    prefix: tuple[str, ...] = ()
    statement: list[str] = []
    tables: dict[tuple[str, ...], int] = {}
    start = 1
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if not statement:
            start = number
        statement.append(line)
        try:
            document = tomllib.loads("\n".join(statement))
        except (ValueError, RecursionError):
            if len(statement) > 500:  # asking again and again is quadratic: give up on the rest
                break
            continue
        header = statement[0].lstrip().startswith("[")
        several = statement[0].lstrip().startswith("[[")
        statement = []
        paths = _list_key_paths(document)
        if header:
            prefix = paths[-1] if paths else ()
            if several:  # one table of a list, which is known by its number
                tables[prefix] = tables.get(prefix, -1) + 1
                prefix = (*prefix, str(tables[prefix]))
            paths = [prefix[: depth + 1] for depth in range(len(prefix))]
        else:
            paths = [prefix + path for path in paths]
        for path in paths:
            found.setdefault(path, start)
    return found


def _list_key_paths(document: dict[str, object]) -> list[tuple[str, ...]]:
    """Every key path in a document, parents first, three levels deep: we have no deeper key."""
    paths: list[tuple[str, ...]] = []
    level: list[tuple[tuple[str, ...], object]] = [((), document)]
    for _ in range(3):
        following: list[tuple[tuple[str, ...], object]] = []
        for path, value in level:
            if isinstance(value, dict):
                following += [((*path, key), below) for key, below in value.items()]
        paths += [path for path, _ in following]
        level = following
    return paths


def _find_line(where: dict[tuple[str, ...], int], path: tuple[str, ...]) -> int:
    """The line of a path, or of what it is in (a list, an inline table)."""
    while path:
        if path in where:
            return where[path]
        path = path[:-1]
    return 0
