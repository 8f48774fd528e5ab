"""What a real engine does with odd CDI files: recorded from podman 4.3; tests/e2e/test_podman_cases.py asks it again.

So the unit tests hold our reading against a real engine on machines that have none.
"""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """A file. text: its content. engine: whether podman 4.3 reads it. ours: whether we call it free of errors for that
    engine, where that is on purpose something else. why: then the reason. device: the name to ask for. file: its name.
    """

    text: str | bytes
    engine: bool
    ours: bool | None = None
    why: str = ""
    device: str = "vendor.com/class=dev"
    file: str = "x.yaml"


def yaml(edits: str = "env: [A=b]", *, version: str = "0.5.0", name: str = '"dev"', more: str = "") -> str:
    """A small file with these edits in its only device, and more lines at its end."""
    return (
        f"cdiVersion: {version}\nkind: vendor.com/class\ndevices:\n- name: {name}\n"
        f"  containerEdits:\n    {edits}\n{more}"
    )


def json(env: str = "A=b", *, kind: str = "vendor.com/class") -> str:
    """A small file with a variable, as JSON."""
    return f'{{"cdiVersion":"0.5.0","kind":"{kind}","devices":[{{"name":"dev","containerEdits":{{"env":["{env}"]}}}}]}}'


def node(more: str) -> str:
    """The edits of a device node that needs nothing of the host."""
    return f"deviceNodes: [{{path: /dev/null, type: c, major: 1, minor: 3, {more}}}]"


def named(name: str, read: str, *, engine: bool = True) -> Case:
    """A device with a name that is no text until somebody wants one."""
    return Case(yaml(name=name), engine, device=f"vendor.com/class={read}")


LATER = "libraries from 0.6.0 on refuse it"

CASES: dict[str, Case] = {
    "plain": Case(yaml(), True),
    "the suffix .yml": Case(yaml(), False, True, "whether a file counts is not its content's matter", file="x.yml"),
    "YAML in a JSON file": Case(yaml(), True, file="x.json"),
    "JSON in a YAML file": Case(json(), True),
    "JSON": Case(json(), True, file="x.json"),
    "JSON indented with tabs": Case(json().replace(",", ",\n\t\t"), True, file="x.json"),
    "JSON after a byte order mark": Case("\ufeff" + json(), True, file="x.json"),
    "JSON with an escaped letter": Case(json(r"A=\u00e9"), True, file="x.json"),
    "JSON with an escaped pair": Case(
        json(r"A=\ud83d\ude00"), False, True, "it is right JSON; a warning", file="x.json"
    ),
    "JSON with an escaped slash": Case(
        json(kind=r"vendor.com\/class"), False, True, "it is right JSON; a warning", file="x.json"
    ),
    "UTF-16": Case(yaml().encode("utf-16"), True),
    "not UTF-8": Case(yaml().encode() + b"# \xff\xfe\n", False),
    "CRLF": Case(yaml().replace("\n", "\r\n"), True),
    "a number as a name": named("0", "0"),
    "yes as a name": named("yes", "true"),
    "y as a name": named("y", "true"),
    "an octal number as a name": named("0666", "438"),
    "1:30 as a name": named("1:30", "1:30"),
    "a date as a name": named("2001-01-01", "2001-01-01"),
    "1.0 as a name": named("1.0", "1"),
    "an exponent as a name": named("12e5", "1.2e+06", engine=False),
    "null as a name": Case(yaml(name="null"), False),
    "two documents": Case(yaml(more="---\nfoo: bar\n"), True),
    "something that is no YAML after the first document": Case(yaml(more="---\n}{\n"), True),
    "an unknown field": Case(yaml(more="foo: bar\n"), False),
    "an unknown field of a mount": Case(yaml("mounts: [{hostPath: /a, containerPath: /a, foo: 1}]"), False),
    "another case of a key": Case(yaml().replace("kind:", "KIND:"), True),
    "a key twice": Case(yaml(more="kind: vendor.com/class\n"), False),
    "a key twice in JSON": Case(json().replace("{", '{"kind":"a.com/bb",', 1), False, file="x.json"),
    "null edits of the file": Case(yaml(more="containerEdits:\n"), True),
    "null mounts": Case(yaml("env: [A=b]\n    mounts:"), True),
    "a mount that is null": Case(yaml("env: [A=b]\n    mounts: [null]"), False),
    "a variable that is null": Case(yaml("env: [null]"), False),
    "an unknown tag of a list": Case(yaml("env: !foo [A=b]"), True),
    "an unknown tag of a word": Case(yaml(name="!foo dev"), True),
    "!!str of a number": Case(yaml(name="!!str 007"), True, device="vendor.com/class=007"),
    "!!int of a word": Case(yaml(name="!!int dev"), False),
    "!!binary": Case(yaml(name="!!binary ZGV2"), True),
    "an alias": Case(yaml("env: &x [A=b]", more="containerEdits: {env: *x}\n"), True),
    "an alias of nothing": Case(yaml("env: *x"), False),
    "an anchor that contains itself": Case(yaml("env: &x [A=b, *x]"), False),
    "a merge": Case(yaml("<<: {env: [A=b]}"), True),
    "a merge of what is there before": Case(yaml("env: [C=d]\n    <<: {env: [A=b]}"), False),
    "a merge of what comes after": Case(yaml("<<: {env: [A=b]}\n    env: [C=d]"), False),
    "a merge of a list": Case(yaml("<<: [{env: [A=b]}, {mounts: []}]"), True),
    "a merge of a list that has a key twice": Case(yaml("<<: [{env: [A=b]}, {env: [A=c]}]"), False),
    "a merge of a word": Case(yaml("<<: foo\n    env: [A=b]"), False),
    "a key that is null": Case(yaml(more="~: 1\n"), False),
    "a key that is a list": Case(yaml(more="[a]: 1\n"), False),
    "a complex key": Case(yaml("? env\n    : [A=b]"), True),
    "a DEL character": Case(yaml('env: ["A=\x7f"]'), False),
    "a NUL character": Case(yaml('env: ["A=\0"]'), False),
    "an escaped NUL character": Case(yaml(r'env: ["A=\0"]'), True, False, "nothing can be done with it"),
    "YAML 1.1": Case("%YAML 1.1\n---\n" + yaml(), True),
    "YAML 1.2": Case("%YAML 1.2\n---\n" + yaml(), False),
    "a tab after a colon": Case(yaml("env:\t[A=b]"), True),
    "a tab before a comment": Case(yaml("env: [A=b]\t# c"), True),
    "a question mark in a word between brackets": Case(yaml("env: [A=http://b?c]"), False),
    "a question mark in a word of its own": Case(yaml("env:\n    - A=http://b?c"), True),
    "a question mark in quotes": Case(yaml("env: ['A=http://b?c']"), True),
    "a colon before a comma": Case(yaml("env: [A=b:,C=d]"), True),
    "an unknown directive at the end": Case(yaml(more="%foo\n"), False),
    "a tab as indentation": Case(yaml("env:\n\t- A=b"), False),
    "a list as the document": Case("- a\n", False),
    "a word as the document": Case("hello\n", False),
    "nothing": Case("", False),
    "nothing but a comment": Case("# nothing\n", False),
    "null": Case("null\n", False),
    "version 0.2.0": Case(yaml(version="0.2.0"), True, False, LATER),
    "version 0.3.0": Case(yaml(version="0.3.0"), True),
    "version 0.4.0": Case(yaml(version="0.4.0"), True),
    "version 0.6.0": Case(yaml(version="0.6.0"), False),
    "version 0.7.0": Case(yaml(version="0.7.0"), False),
    "version 1.0.0": Case(yaml(version="1.0.0"), False),
    "version v0.5.0": Case(yaml(version="v0.5.0"), False),
    "version 0.5": Case(yaml(version="0.5"), False),
    "no version": Case(yaml().replace("cdiVersion: 0.5.0\n", ""), False),
    "hostPath in 0.3.0": Case(
        yaml("deviceNodes: [{path: /dev/null, hostPath: /dev/null}]", version="0.3.0"), True, False, LATER
    ),
    "a mount's type in 0.3.0": Case(
        yaml("mounts: [{hostPath: /dev/null, containerPath: /b, type: bind}]", version="0.3.0"), True, False, LATER
    ),
    "a digit first in 0.3.0": Case(yaml(version="0.3.0", name="0d"), True, False, LATER, device="vendor.com/class=0d"),
    "additionalGids": Case(yaml("additionalGids: [1]"), False),
    "empty additionalGids": Case(yaml("env: [A=b]\n    additionalGids: []"), False),
    "null additionalGids": Case(
        yaml("env: [A=b]\n    additionalGids: null"), False, True, "what is null is gone before we look"
    ),
    "annotations": Case(yaml(more="annotations: {a: b}\n"), False),
    "empty annotations": Case(yaml(more="annotations: {}\n"), False),
    "a dot in the class": Case(yaml().replace("com/class", "com/cla.ss"), False, device="vendor.com/cla.ss=dev"),
    "a class of one letter": Case(
        yaml().replace("com/class", "com/c"), False, True, "podman crashes; later ones do not", "vendor.com/c=dev"
    ),
    "a vendor of one letter": Case(
        yaml().replace("vendor.com", "v"), False, True, "podman crashes; later ones do not", "v/class=dev"
    ),
    "a device name of one letter": Case(yaml(name="d"), True, device="vendor.com/class=d"),
    "a variable without a name": Case(yaml("env: [=b]"), False),
    "a variable without a value": Case(yaml("env: [A]"), False),
    "an empty list of variables": Case(yaml("env: []"), False),
    "no edits": Case(yaml().replace("  containerEdits:\n    env: [A=b]\n", ""), False),
    "null edits": Case(yaml().replace("    env: [A=b]\n", ""), False),
    "a device name twice": Case(yaml() + "- name: dev\n  containerEdits: {env: [A=b]}\n", False),
    "a major number that is 1.0": Case(yaml(node("uid: 0").replace("major: 1", "major: 1.0")), True),
    "a major number that is 1e1": Case(yaml(node("uid: 0").replace("major: 1", "major: 1e1")), True),
    "a major number that is 1.5": Case(yaml(node("uid: 0").replace("major: 1", "major: 1.5")), False),
    "a major number in quotes": Case(yaml(node("uid: 0").replace("major: 1", 'major: "1"')), False),
    "a negative major number": Case(
        yaml(node("uid: 0").replace("major: 1", "major: -1")), True, False, "1.1.0 refuses it: -1 means any device"
    ),
    "a negative user": Case(yaml(node("uid: -1")), False),
    "a mode in octal": Case(yaml(node("fileMode: 0666")), True),
    "a mode in new octal": Case(yaml(node("fileMode: 0o666")), True),
    "no permissions by name": Case(yaml("deviceNodes: [{path: /dev/null, permissions: none}]"), False),
    "permissions three times": Case(yaml("deviceNodes: [{path: /dev/null, permissions: rrr}]"), True),
    "a node of an unknown type": Case(yaml("deviceNodes: [{path: /dev/null, type: f}]"), False),
    "a node without a path": Case(yaml("deviceNodes: [{type: c}]"), False),
    "a hook without time": Case(yaml("hooks: [{hookName: prestart, path: /bin/true, timeout: 0}]"), True),
    "a hook with a relative path": Case(yaml('hooks: [{hookName: prestart, path: "true"}]'), True),
    "a hook of an unknown name": Case(yaml("hooks: [{hookName: prestrat, path: /bin/true}]"), False),
    "a hook without a path": Case(yaml("hooks: [{hookName: prestart}]"), False),
    "relative mounts": Case(yaml("mounts: [{hostPath: a, containerPath: b}]"), True),
    "a mount without a source": Case(yaml("mounts: [{containerPath: /b}]"), False),
    "a mapping where a list belongs": Case(yaml("mounts: {hostPath: /a, containerPath: /b}"), False),
    "a list where a mapping belongs": Case(yaml(more="containerEdits: [{env: [A=b]}]\n"), False),
}

# What a hook's argument of this spelling is in config.json with podman 4.3: go-yaml's value as Go writes it.
WORDS = {
    "1e5": "100000", "1e6": "1e+06", "12e5": "1.2e+06", "123456.0": "123456", "1234567.0": "1.234567e+06",
    "1e20": "1e+20", "1e21": "1e+21", "1e22": "1e+22", "1.5": "1.5", "0.0001": "0.0001", "0.00001": "1e-05",
    ".5": "0.5", "5.": "5", "-1.5e-7": "-1.5e-07", "1e400": "1e400", "18446744073709551615": "18446744073709551615",
    "18446744073709551616": "1.8446744e+19", "-9223372036854775809": "-9.223372e+18", "0666": "438", "0o17": "15",
    "-0o17": "-15", "0b11": "3", "-0b11": "-3", "0B11": "3", "0X1F": "31", "+12": "12", "-0": "0", "-0.0": "-0",
    "08": "8", "0_8": "8", "1__0": "10", "_1": "_1", "1_": "1", "0x": "0x", "0x_1f": "31", "0x1_f": "31",
    "1_0.5": "10.5", ".inf": "+Inf", "-.inf": "-Inf", ".nan": "NaN", ".NaN": "NaN", "~": "", "null": "", "y": "true",
    "n": "false", "on": "true", "off": "false", "Yes": "true", "1:30": "1:30", "190:20:30": "190:20:30",
    "2001-01-01": "2001-01-01", "2001-12-14T21:59:43Z": "2001-12-14T21:59:43Z", "<<": "<<", "=": "=",
    "0777_": "511", "00": "0", "0o8": "0o8", "+.inf": "+Inf", ".": ".", "+.": "+.", "--": "--", "1e": "1e",
    "1e+": "1e+", "0e0": "0", "1.0e+3": "1000", ".1e1": "1", "-.5": "-0.5", "+.5": "0.5", "0.1_5": "0.15",
    "._5": "._5",
}  # fmt: skip


def arguments(words: list[str]) -> str:
    """A file whose hook has these words, as they are, as its arguments."""
    return yaml(f"hooks: [{{hookName: prestart, path: /bin/true, args: [{', '.join(words)}]}}]")
